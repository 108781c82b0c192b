// What filter and smoother share: memory, the prior in its coordinates.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "layout.hpp"
#include "qr.hpp"

namespace probode {
namespace PROBODE_ISA {

constexpr int kMaxDerivatives = 12;
constexpr double kUnresolved = 1e-10;  // as UNRESOLVED in step.py
constexpr double kFurthest = 100.0;    // as _FURTHEST in diffusion.py
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kResolved = 10.0 * kEpsilon;  // as _RESOLVED in smooth.py
constexpr double kGrown = 2.0;  // as _GROWN in smooth.py

// Memory that keeps its size from step to step.
struct Scratch {
  std::vector<double> stack, reflector, small, small_matrix, vectors, gains;
  bool wants_gain = false;       // whether steps leave their gain here: per block a column, or (D, d) if dense
  const double* gain = nullptr;  // that of the last accepted one
  static Scratch& mine() {
    thread_local Scratch scratch;
    return scratch;
  }
};

// Beginning with a cache line: lanes that lie in two of them are slower. Called several times a step:
// where the compiler does not inline it by itself, steps take 5 % longer.
__attribute__((always_inline)) inline double* room(std::vector<double>& memory, size_t size) {
  constexpr size_t line = 64;
  if (memory.size() < size + line / sizeof(double)) memory.resize(size + line / sizeof(double));
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (line - address % line) % line / sizeof(double);
}

// The larger or smaller number; NaN wins, so that a failed evaluation is never taken for a small error.
inline double larger(double a, double b) { return a > b || a != a ? a : b; }
inline double smaller(double a, double b) { return a < b || a != a ? a : b; }

// The same in lanes.
template <typename Vector>
inline Vector larger(Vector a, Vector b) { return choose((a > b) | (a != a), a, b); }

template <typename Vector>
inline Vector smaller(Vector a, Vector b) { return choose((a < b) | (a != a), a, b); }

inline Lane absolute(Lane x) { return choose(x < 0.0, -x, x); }

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double square(double x) { return x * x; }

// sqrt(a² + b²); by `hypot`, which takes several times as long, only where a square would overflow or vanish.
inline double root_of_squares(double a, double b) {
  const double sum = a * a + b * b;
  return sum > 1e-290 && sum < 1e290 ? std::sqrt(sum) : std::hypot(a, b);
}

// ratio^(1-i), i = 0..n-1.
inline void powers(double ratio, int n, double* out) {
  const double inverse = 1.0 / ratio;
  out[0] = ratio;
  double power = 1.0;
  for (int i = 1; i < n; ++i) {
    out[i] = power;
    power *= inverse;
  }
}

// T(h)_i = h^(1-i) (q-1)! / (q-i)!
inline void coordinates(const Settings& s, double h, double* out) {
  powers(h, s.n, out);
  for (int i = 0; i < s.n; ++i) out[i] *= s.weights[i];
}

// |ratio|^(q-1/2)
inline double noise_scale(const Settings& s, double ratio) {
  const double size = std::fabs(ratio);
  double power = std::sqrt(size);
  for (int i = 1; i < s.order(); ++i) power *= size;
  return power;
}

// Calls `visit(from, to)` for pieces of `count` components, short enough that their derivatives stay in the first cache
// from one loop over them to the next.
template <typename Visit>
inline void for_pieces(long count, Visit&& visit) {
  constexpr long piece = 256;
  for (long from = 0; from < count; from += piece) visit(from, std::min(from + piece, count));
}

// m + T (Ã - I) T⁻¹ m: the increment first, to lose no digit. `count` components, of rows of `s.d`.
inline void predict_mean(const Settings& s, const double* mean, long count, const double* coords, double* out) {
  const int n = s.n;
  const long d = s.d;
  double weights[kMaxDerivatives][kMaxDerivatives];
  for (int j = 1; j < n; ++j) {
    const double inverse = 1.0 / coords[j];
    for (int i = 0; i < j; ++i) weights[i][j] = s.transition[i * n + j] * inverse;
  }
  for_pieces(count, [&](long from, long to) {
    for (int i = 0; i < n; ++i) {
      const double* row = mean + i * d;
      double* result = out + i * count;
      long k = from;
      for (; k + 4 * kLane <= to; k += 4 * kLane) {  // additions wait for one another: four at a time
        Lane sum[4] = {};
        for (int j = i + 1; j < n; ++j)
          for (int c = 0; c < 4; ++c) sum[c] += weights[i][j] * load(mean + j * d + k + c * kLane);
        for (int c = 0; c < 4; ++c)
          store(result + k + c * kLane, load(row + k + c * kLane) + coords[i] * sum[c]);
      }
      for (; k + kLane <= to; k += kLane) {
        Lane sum = {};
        for (int j = i + 1; j < n; ++j) sum += weights[i][j] * load(mean + j * d + k);
        store(result + k, load(row + k) + coords[i] * sum);
      }
      for (; k < to; ++k) {
        double sum = 0.0;
        for (int j = i + 1; j < n; ++j) sum += weights[i][j] * mean[j * d + k];
        result[k] = row[k] + coords[i] * sum;
      }
    }
  });
}

// Σ x_k², in lanes: an addition waits for the one before.
inline double sum_of_squares(const double* x, long size) {
  double sum = 0.0;
  long k = 0;
  if (size >= 4 * kLane) {
    Lane sums[4] = {};
    for (; k + 4 * kLane <= size; k += 4 * kLane)
      for (int c = 0; c < 4; ++c) sums[c] += load(x + k + c * kLane) * load(x + k + c * kLane);
    const Lane total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    for (int c = 0; c < kLane; ++c) sum += total[c];
  }
  for (; k < size; ++k) sum += x[k] * x[k];
  return sum;
}

// Squares that neither overflow nor vanish, and lose nothing in sums.
inline bool squares_hold(double squares) { return squares > 1e-280 && squares < 1e280; }

// sqrt(Σ x_k²) of every `stride`-th number, in units of the largest: no square overflows.
inline double scaled_norm(const double* x, long stride, long size) {
  double unit = 0.0, sum = 0.0;
  for (long k = 0; k < size; ++k) unit = larger(unit, std::fabs(x[k * stride]));
  if (!(unit > 0.0 && std::isfinite(unit))) return unit;
  for (long k = 0; k < size; ++k) sum += square(x[k * stride] / unit);
  return unit * std::sqrt(sum);
}

// The same, as fast as squares can be added up where these can be.
inline double norm(const double* x, long size) {
  const double squares = sum_of_squares(x, size);
  return squares_hold(squares) ? std::sqrt(squares) : scaled_norm(x, 1, size);
}

inline double column_norm(const double* x, long stride, long size) {
  double squares = 0.0;
  for (long k = 0; k < size; ++k) squares += square(x[k * stride]);
  return squares_hold(squares) ? std::sqrt(squares) : scaled_norm(x, stride, size);
}

// Whether all numbers are finite.
inline bool all_finite(const double* x, long size) {
  int finite = 1;
  for (long k = 0; k < size; ++k) finite &= std::fabs(x[k]) < std::numeric_limits<double>::infinity();
  return finite;
}

// A number per derivative, as a number per column of a factor.
inline void spread(const double* per_derivative, int n, int width, double* out) {
  for (int j = 0; j < n; ++j)
    for (int k = 0; k < width; ++k) out[j * width + k] = per_derivative[j];
}

// Where a row begins, at `from` or later: factors are zero before that. `size` if all of it is.
inline int first_nonzero(const double* x, int size, int from = 0) {
  int i = from;
  while (i < size && x[i] == 0.0) ++i;
  return i;
}

}  // namespace PROBODE_ISA
}  // namespace probode
