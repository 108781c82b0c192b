// The operations that a list may contain, on numbers and on lanes of them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common.hpp"

namespace probode {
namespace PROBODE_ISA {

// As OPERATIONS in code.py; those before kExp are arithmetic.
enum Operation : int32_t {
  kAdd, kSub, kMul, kDiv, kMultiplyAdd, kMultiplySubtract, kSubtractProduct,
  kNeg, kSquare, kSqrt, kRoot, kRsqrt, kAbs, kMax, kMin, kSelect, kClamp,
  kLt, kLe, kGt, kGe, kEq, kNe, kAnd, kOr, kXor, kNot,
  kExp, kExp2, kExpm1, kLog, kLog1p, kPow, kLogistic, kTanh, kSin, kCos, kTan,
  kSinh, kCosh, kAsin, kAcos, kAtan, kAtan2, kAsinh, kAcosh, kAtanh, kCbrt, kErf, kErfc,
  kFloor, kCeil, kRound, kRoundEven, kSign, kRem,
  kOperations,
};

inline double root(double x) { return std::sqrt(x); }

// Of any number of lanes.
template <typename Vector>
inline Vector root(Vector x) {
  double roots[sizeof(Vector) / sizeof(double)];
  std::memcpy(roots, &x, sizeof(Vector));
  for (double& number : roots) number = std::sqrt(number);
  std::memcpy(&x, roots, sizeof(Vector));
  return x;
}

inline double magnitude(double x) { return std::fabs(x); }

template <typename Vector>
inline Vector magnitude(Vector x) {
  typedef int64_t Bits __attribute__((vector_size(sizeof(Vector))));
  return (Vector)((Bits)x & std::numeric_limits<int64_t>::max());
}

#if !(defined(__AVX__) || defined(__clang__))
inline Lane root(Lane x) { return {root(x.low), root(x.high)}; }
inline Lane magnitude(Lane x) { return {magnitude(x.low), magnitude(x.high)}; }
#endif

template <typename Number>
inline Number arithmetic(int32_t operation, Number a, Number b, Number c) {
  const Number zero = {}, one = zero + 1.0, infinity = zero + std::numeric_limits<double>::infinity();
  switch (operation) {
    case kAdd: return a + b;
    case kSub: return a - b;
    case kMul: return a * b;
    case kDiv: return a / b;
    case kMultiplyAdd: return a * b + c;
    case kMultiplySubtract: return a * b - c;
    case kSubtractProduct: return c - a * b;
    case kNeg: return -a;
    case kSquare: return a * a;
    case kSqrt: return root(a);
    // As pow(a, 0.5): not the negative zero of a square root, nor its NaN of minus infinity.
    case kRoot: return choose(a == -infinity, infinity, root(a) + 0.0);
    case kRsqrt: return 1.0 / root(a);
    case kAbs: return magnitude(a);
    case kMax: return larger(a, b);
    case kMin: return smaller(a, b);
    case kSelect: return choose(a != zero, c, b);
    case kClamp: return smaller(larger(b, a), c);
    case kLt: return choose(a < b, one, zero);
    case kLe: return choose(a <= b, one, zero);
    case kGt: return choose(a > b, one, zero);
    case kGe: return choose(a >= b, one, zero);
    case kEq: return choose(a == b, one, zero);
    case kNe: return choose(a != b, one, zero);
    case kAnd: return choose((a != zero) & (b != zero), one, zero);
    case kOr: return choose((a != zero) | (b != zero), one, zero);
    case kXor: return choose(a != zero, choose(b != zero, zero, one), choose(b != zero, one, zero));
    case kNot: return choose(a == zero, one, zero);
  }
  return zero;
}

// Not inlined: the loop over operations stays small, which arithmetic gains from.
__attribute__((noinline)) inline double function(int32_t operation, double a, double b) {
  switch (operation) {
    case kExp: return std::exp(a);
    case kExp2: return std::exp2(a);
    case kExpm1: return std::expm1(a);
    case kLog: return std::log(a);
    case kLog1p: return std::log1p(a);
    case kPow: return std::pow(a, b);
    case kLogistic: return 1.0 / (1.0 + std::exp(-a));
    case kTanh: return std::tanh(a);
    case kSin: return std::sin(a);
    case kCos: return std::cos(a);
    case kTan: return std::tan(a);
    case kSinh: return std::sinh(a);
    case kCosh: return std::cosh(a);
    case kAsin: return std::asin(a);
    case kAcos: return std::acos(a);
    case kAtan: return std::atan(a);
    case kAtan2: return std::atan2(a, b);
    case kAsinh: return std::asinh(a);
    case kAcosh: return std::acosh(a);
    case kAtanh: return std::atanh(a);
    case kCbrt: return std::cbrt(a);
    case kErf: return std::erf(a);
    case kErfc: return std::erfc(a);
    case kFloor: return std::floor(a);
    case kCeil: return std::ceil(a);
    case kRound: return std::round(a);
    case kRoundEven: return std::nearbyint(a);
    case kSign: return a > 0.0 ? 1.0 : a < 0.0 ? -1.0 : a;
    case kRem: return std::fmod(a, b);
  }
  return 0.0;
}

inline double operate(int32_t operation, double a, double b, double c) {
  return operation < kExp ? arithmetic(operation, a, b, c) : function(operation, a, b);
}

}  // namespace PROBODE_ISA
}  // namespace probode
