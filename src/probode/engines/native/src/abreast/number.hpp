// The number type of members abreast: a vector with a number for each of them, or, on a card, where every thread has a
// member of its own, one number. The sources in this folder are written once for both: nothing of the standard library
// but its functions of numbers, and no branch that is not asked of all members. On a card those are the members of a
// warp, whose threads do the same at any time.
#pragma once

#if defined(__CUDACC__)
#define PROBODE_ON_CARD 1
#define PROBODE_WRITTEN_OUT _Pragma("unroll")
#define PROBODE_APART __noinline__
#else
#define PROBODE_ON_CARD 0
#define PROBODE_UNROLL
#define PROBODE_WRITTEN_OUT
#define PROBODE_UNROLL_STAGES
#define PROBODE_APART
#include <cmath>
#include <cstdint>
#include <cstring>
#endif

namespace probode {
namespace PROBODE_ISA {

constexpr double kLeastNormal = 2.2250738585072014e-308;
constexpr double kEps = 2.220446049250313e-16;
constexpr double kHidden = 1e-10;         // as UNRESOLVED in step.py
constexpr double kLost = 10.0 * kEps;     // as _RESOLVED in smooth.py

#if PROBODE_ON_CARD

constexpr int kAbreast = 1;
typedef double Number;
typedef bool Mask;

inline double at(Number x, int) { return x; }
inline bool holds(Mask m, int) { return m; }
inline void put(Number& x, int, double value) { x = value; }
inline bool any(Mask m) { return __any_sync(0xffffffffu, m); }
inline Number choose(Mask m, Number a, Number b) { return m ? a : b; }
inline Mask both(Mask a, Mask b) { return a && b; }
inline Mask either(Mask a, Mask b) { return a || b; }
inline Mask none_of(Mask m) { return !m; }
inline Mask mask(bool value) { return value; }
inline Number size_of(Number x) { return fabs(x); }
inline Number root_of(Number x) { return sqrt(x); }
PROBODE_APART inline Number power(Number x, double exponent) { return pow(x, exponent); }
PROBODE_APART inline Number distance(Number a, Number b) { return hypot(a, b); }

#else

#if defined(__AVX512F__)
constexpr int kAbreast = 8;
#elif defined(__AVX__)
constexpr int kAbreast = 4;
#else
constexpr int kAbreast = 2;
#endif
typedef double Number __attribute__((vector_size(8 * kAbreast)));
typedef decltype(Number{} < Number{}) Mask;

inline double at(Number x, int lane) { return x[lane]; }
inline bool holds(Mask m, int lane) { return m[lane] != 0; }
inline void put(Number& x, int lane, double value) { x[lane] = value; }
inline bool any(Mask m) {
  long bits = 0;
  for (int i = 0; i < kAbreast; ++i) bits |= m[i];
  return bits != 0;
}
inline Number choose(Mask m, Number a, Number b) { return m ? a : b; }
inline Mask both(Mask a, Mask b) { return a & b; }
inline Mask either(Mask a, Mask b) { return a | b; }
inline Mask none_of(Mask m) { return ~m; }
inline Mask mask(bool value) { return Mask{} - (value ? 1 : 0); }
inline Number size_of(Number x) {
  typedef int64_t Bits __attribute__((vector_size(8 * kAbreast)));
  return (Number)((Bits)x & INT64_MAX);
}

template <typename Function>
inline Number each(Function&& function) {
  double out[kAbreast];
  for (int i = 0; i < kAbreast; ++i) out[i] = function(i);
  Number result;
  std::memcpy(&result, out, sizeof(Number));
  return result;
}

inline Number root_of(Number x) {
  return each([&](int i) { return std::sqrt(x[i]); });
}
inline Number distance(Number a, Number b) {
  return each([&](int i) { return std::hypot(a[i], b[i]); });
}

#endif

inline Number same(double x) { return Number{} + x; }
inline Mask choose_mask(Mask m, Mask a, Mask b) { return either(both(m, a), both(none_of(m), b)); }
inline bool every(Mask m) { return !any(none_of(m)); }

// NaN wins, so that a failed evaluation is never taken for a small error.
inline Number larger_of(Number a, Number b) { return choose(either(a > b, a != a), a, b); }
inline Number smaller_of(Number a, Number b) { return choose(either(a < b, a != a), a, b); }
// NaN of the first is left out.
inline Number at_least(Number a, Number b) { return choose(a > b, a, b); }
inline Number at_most(Number a, Number b) { return choose(a < b, a, b); }

inline Mask is_finite(Number x) { return size_of(x) <= same(1.7976931348623157e308); }
inline Mask squares_fit(Number squares) { return both(squares > same(1e-280), squares < same(1e280)); }

#if !PROBODE_ON_CARD
// x^exponent for positive normal x and small exponents, to about 1e-15: 2^(exponent log2 x), with log2 of the mantissa
// m in [1/√2, √2) by the series of 2 artanh((m - 1)/(m + 1)), and 2^r for |r| <= 1/2 by that of exp.
inline Number power(Number x, double exponent) {
  typedef int64_t Bits __attribute__((vector_size(8 * kAbreast)));
  constexpr int64_t mantissa = 0x000fffffffffffff, one = 0x3ff0000000000000;
  constexpr double shift = 6755399441055744.0;  // 1.5 * 2^52: rounds to whole numbers
  const Bits bits = (Bits)x;
  Number m = (Number)((bits & mantissa) | one);
  Number e = __builtin_convertvector((bits >> 52) - 1023, Number);
  const Mask large = m > same(1.4142135623730951);
  m = choose(large, m * 0.5, m);
  e = choose(large, e + 1.0, e);
  const Number s = (m - 1.0) / (m + 1.0), z = s * s;
  Number series = same(1.0 / 21.0);
  for (int k = 19; k >= 3; k -= 2) series = series * z + 1.0 / k;
  const Number log2 = e + (2.0 * 1.4426950408889634) * (s + s * z * series);
  const Number y = at_most(at_least(exponent * log2, same(-1000.0)), same(1000.0));
  const Number whole = (y + shift) - shift, r = (y - whole) * 0.6931471805599453;
  Number sum = same(1.0);
  for (int k = 13; k >= 1; --k) sum = sum * r * (1.0 / k) + 1.0;
  return sum * (Number)((__builtin_convertvector(whole, Bits) + 1023) << 52);
}

#endif

// sqrt(a² + b²)
inline Number hypotenuse(Number a, Number b) {
  const Number sum = a * a + b * b;
  const Mask fits = both(sum > same(1e-290), sum < same(1e290));
  const Number plain = root_of(sum);
  return every(fits) ? plain : choose(fits, plain, distance(a, b));
}

// sqrt(Σ x_k²) of numbers a `stride` apart, in units of the largest where squares would overflow or vanish.
inline Number norm_of(const Number* x, int stride, int count) {
  Number squares = same(0.0);
  PROBODE_UNROLL
  for (int k = 0; k < count; ++k) squares += x[k * stride] * x[k * stride];
  const Mask fits = squares_fit(squares);
  const Number plain = root_of(squares);
  if (every(fits)) return plain;
  Number unit = same(0.0), sum = same(0.0);
  PROBODE_UNROLL
  for (int k = 0; k < count; ++k) unit = larger_of(unit, size_of(x[k * stride]));
  const Mask scaled = both(unit > same(0.0), is_finite(unit));
  const Number divisor = choose(scaled, unit, same(1.0));  // the inverse of some numbers overflows
  PROBODE_UNROLL
  for (int k = 0; k < count; ++k) sum += (x[k * stride] / divisor) * (x[k * stride] / divisor);
  return choose(fits, plain, choose(scaled, unit * root_of(sum), unit));
}

template <int count>
struct Count {
  static constexpr int value = count;
  constexpr operator int() const { return count; }
};

// `visit(width, c)` for columns from 0 to `count`, four at a time: an addition waits for the one before.
template <class Visit>
inline void in_groups(int count, Visit&& visit) {
  const int whole = count / 4 * 4;
  PROBODE_UNROLL
  for (int c = 0; c < whole; c += 4) visit(Count<4>{}, c);
  PROBODE_UNROLL
  for (int c = whole; c < count; ++c) visit(Count<1>{}, c);
}

// One reflection of the rows from `pivot` to `end` (exclusive) of a matrix with rows of `length`, applied to the columns
// from `column` to `columns`, and to `beside`, a matrix of as many rows, that makes `column` zero below row `pivot`. Exact
// zeros survive: a zero column is left alone. The reflection is I - beta v vᵀ, with
//
//   alpha = -sign(x_0) |x|,  v = x - alpha e_0,  beta = 1 / (|x|² + |x_0| |x|)
inline void reflect_rows(Number* w, int length, int pivot, int end, int column, int columns, Number* beside = nullptr,
                         int width = 0) {
  Number squares = same(0.0), unit = same(1.0);
  PROBODE_UNROLL
  for (int i = pivot; i < end; ++i) squares += w[i * length + column] * w[i * length + column];
  const Mask fits = squares_fit(squares);
  if (!every(fits)) {
    Number top = same(0.0);
    PROBODE_UNROLL
    for (int i = pivot; i < end; ++i) top = larger_of(top, size_of(w[i * length + column]));
    unit = choose(either(fits, either(top == same(0.0), none_of(is_finite(top)))), same(1.0), top);
    if (any(unit != same(1.0))) {
      squares = same(0.0);
      PROBODE_UNROLL
      for (int i = pivot; i < end; ++i) {
        w[i * length + column] = w[i * length + column] / unit;
        squares += w[i * length + column] * w[i * length + column];
      }
    }
  }
  const Mask blank = squares == same(0.0);
  const Number head = w[pivot * length + column], norm = root_of(squares);
  const Number alpha = choose(head > same(0.0), same(0.0) - norm, norm), head_of = head - alpha;
  const Number beta = choose(blank, same(0.0), same(1.0) / choose(blank, same(1.0), squares + size_of(head) * norm));
  const Number* x = w + pivot * length + column;
  const int rows = end - pivot;
  auto reflect = [&](Number* first, int step, int count) {
    in_groups(count, [&](auto width, int c) {
      Number *out = first + c, sum[decltype(width)::value];
      PROBODE_WRITTEN_OUT
      for (int j = 0; j < width; ++j) sum[j] = head_of * out[j];
      PROBODE_UNROLL
      for (int i = 1; i < rows; ++i) {
        PROBODE_WRITTEN_OUT
        for (int j = 0; j < width; ++j) sum[j] += x[i * length] * out[i * step + j];
      }
      PROBODE_WRITTEN_OUT
      for (int j = 0; j < width; ++j) {
        sum[j] = sum[j] * beta;
        out[j] -= head_of * sum[j];
      }
      PROBODE_UNROLL
      for (int i = 1; i < rows; ++i) {
        PROBODE_WRITTEN_OUT
        for (int j = 0; j < width; ++j) out[i * step + j] -= x[i * length] * sum[j];
      }
    });
  };
  reflect(w + pivot * length + column + 1, length, columns - column - 1);
  if (beside) reflect(beside + pivot * width, width, width);
  w[pivot * length + column] = alpha * unit;
  PROBODE_UNROLL
  for (int i = pivot + 1; i < end; ++i) w[i * length + column] = same(0.0);
}

}  // namespace PROBODE_ISA
}  // namespace probode
