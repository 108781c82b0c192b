// A vector field as a list of operations on numbers, written by `tape.py`.
//
// Places: t, y | inputs, constants | one for the result of each operation, in order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common.hpp"
#include "kernels.hpp"

namespace probode {
namespace PROBODE_ISA {

// As OPERATIONS in tape.py.
enum Operation : int32_t {
  kAdd, kSub, kMul, kDiv, kMultiplyAdd, kMultiplySubtract, kSubtractProduct,
  kNeg, kSquare, kSqrt, kRsqrt, kAbs, kMax, kMin, kSelect, kClamp,
  kLt, kLe, kGt, kGe, kEq, kNe, kAnd, kOr, kXor, kNot,
  kExp, kExp2, kExpm1, kLog, kLog1p, kPow, kLogistic, kTanh, kSin, kCos, kTan,
  kSinh, kCosh, kAsin, kAcos, kAtan, kAtan2, kAsinh, kAcosh, kAtanh, kCbrt, kErf, kErfc,
  kFloor, kCeil, kRound, kRoundEven, kSign, kRem,
};

// The smaller number; NaN wins, as in XLA and in `larger`.
inline double smaller(double a, double b) { return a < b || a != a ? a : b; }

class Tape {
 public:
  Tape(const TapeData& field, int d)
      : first_(d + 1), operations_(field.code[1]), outputs_(field.code[2]), rows_(field.code + 3),
        places_(first_ + field.given + operations_) {
    std::memcpy(places_.data() + first_, field.numbers, sizeof(double) * field.given);
    results_ = places_.data() + first_ + field.given;
  }

  int outputs() const { return outputs_; }

  // `at`: (t, y).
  void evaluate(const double* at, double* out) {
    double* x = places_.data();
    std::memcpy(x, at, sizeof(double) * first_);
    const int32_t* row = rows_;
    for (int i = 0; i < operations_; ++i, row += 4)
      results_[i] = operate(row[0], x[row[1]], x[row[2]], x[row[3]]);
    for (int i = 0; i < outputs_; ++i) out[i] = x[row[i]];
  }

 private:
  static double operate(int32_t operation, double a, double b, double c) {
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
      case kSqrt: return std::sqrt(a);
      case kRsqrt: return 1.0 / std::sqrt(a);
      case kAbs: return std::fabs(a);
      case kMax: return larger(a, b);
      case kMin: return smaller(a, b);
      case kSelect: return a != 0.0 ? c : b;
      case kClamp: return smaller(larger(b, a), c);
      case kLt: return a < b;
      case kLe: return a <= b;
      case kGt: return a > b;
      case kGe: return a >= b;
      case kEq: return a == b;
      case kNe: return a != b;
      case kAnd: return a != 0.0 && b != 0.0;
      case kOr: return a != 0.0 || b != 0.0;
      case kXor: return (a != 0.0) != (b != 0.0);
      case kNot: return a == 0.0;
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

  int first_, operations_, outputs_;
  const int32_t* rows_;
  std::vector<double> places_;
  double* results_;
};

}  // namespace PROBODE_ISA
}  // namespace probode
