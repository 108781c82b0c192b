// Four numbers that are dealt with together.
#pragma once

#include <cstdint>
#include <cstring>

namespace probode {
namespace PROBODE_ISA {

constexpr int kLane = 4;  // doubles per vector

// By a condition for each number, or for one.
template <typename Condition, typename Number>
inline Number choose(Condition condition, Number a, Number b) { return condition ? a : b; }

#if defined(__AVX__) || defined(__clang__)

typedef double Lane __attribute__((vector_size(8 * kLane)));

inline Lane load(const double* x) {
  Lane v;
  std::memcpy(&v, x, sizeof(Lane));
  return v;
}

inline void store(double* x, Lane v) { std::memcpy(x, &v, sizeof(Lane)); }

#else

// Two vectors of two: GCC keeps a vector that is longer than a register in memory, where it is several times slower.
typedef double Half __attribute__((vector_size(16)));

struct LaneMask {
  typedef int64_t Bits __attribute__((vector_size(16)));
  Bits low, high;

  int64_t operator[](int i) const { return i < 2 ? low[i] : high[i - 2]; }
  friend LaneMask operator&(LaneMask a, LaneMask b) { return {a.low & b.low, a.high & b.high}; }
  friend LaneMask operator|(LaneMask a, LaneMask b) { return {a.low | b.low, a.high | b.high}; }
  LaneMask& operator&=(LaneMask other) { return *this = *this & other; }
};

struct Lane {
  Half low, high;

  Lane() = default;
  Lane(double x) : low{x, x}, high{x, x} {}
  Lane(Half low, Half high) : low(low), high(high) {}
  Lane(double a, double b, double c, double d) : low{a, b}, high{c, d} {}

  double operator[](int i) const { return i < 2 ? low[i] : high[i - 2]; }
  double& operator[](int i) { return reinterpret_cast<double*>(this)[i]; }

  friend Lane operator+(Lane a, Lane b) { return {a.low + b.low, a.high + b.high}; }
  friend Lane operator-(Lane a, Lane b) { return {a.low - b.low, a.high - b.high}; }
  friend Lane operator*(Lane a, Lane b) { return {a.low * b.low, a.high * b.high}; }
  friend Lane operator/(Lane a, Lane b) { return {a.low / b.low, a.high / b.high}; }
  Lane operator-() const { return {-low, -high}; }
  Lane& operator+=(Lane other) { return *this = *this + other; }
  Lane& operator-=(Lane other) { return *this = *this - other; }
  Lane& operator*=(Lane other) { return *this = *this * other; }

  friend LaneMask operator<(Lane a, Lane b) { return {a.low < b.low, a.high < b.high}; }
  friend LaneMask operator<=(Lane a, Lane b) { return {a.low <= b.low, a.high <= b.high}; }
  friend LaneMask operator>(Lane a, Lane b) { return b < a; }
  friend LaneMask operator>=(Lane a, Lane b) { return b <= a; }
  friend LaneMask operator==(Lane a, Lane b) { return {a.low == b.low, a.high == b.high}; }
  friend LaneMask operator!=(Lane a, Lane b) { return {a.low != b.low, a.high != b.high}; }
};

inline Lane choose(LaneMask m, Lane a, Lane b) { return {m.low ? a.low : b.low, m.high ? a.high : b.high}; }

inline Lane load(const double* x) {
  Lane v;
  std::memcpy(&v.low, x, sizeof(Half));
  std::memcpy(&v.high, x + 2, sizeof(Half));
  return v;
}

inline void store(double* x, Lane v) {
  std::memcpy(x, &v.low, sizeof(Half));
  std::memcpy(x + 2, &v.high, sizeof(Half));
}

#endif

}  // namespace PROBODE_ISA
}  // namespace probode
