// Householder reflections on small row-major matrices.
//
// The matrices met here are stacks of factors: a few full rows over the rows of a triangular one.
// A column is reflected over a contiguous range of rows, those that are not known to be zero; the
// caller lets the range grow as the triangular part enters.
#pragma once

#include <cmath>
#include <limits>

#include "lane.hpp"

namespace probode {
namespace PROBODE_ISA {

// 1 / x, or zero for a pivot that is zero: of a component that is zero. Numbers below the normal ones have too few
// digits to divide by, and 1 / x may overflow. (XLA takes them for zero.)
inline double inverse_pivot(double x) { return std::fabs(x) < std::numeric_limits<double>::min() ? 0.0 : 1.0 / x; }

// A row length that holds `columns` doubles. Lengths that are a multiple of 16 put all rows into a
// few cache sets (16 columns were three times slower than 20).
inline int row_length(int columns) {
  const int length = (columns + kLane - 1) / kLane * kLane;
  return length % 16 == 0 ? length + kLane : length;
}

// A switch over the number of lanes: wide rows are dealt with in panels of six, the rest in one go,
// so that a panel's sums stay in registers.
constexpr int kPanel = 6;

template <int lanes>
inline void combine_lanes(double* out, const double* start, const double* weights, const double* rows,
                          int stride, int count) {
  Lane sum[lanes];
  for (int c = 0; c < lanes; ++c) sum[c] = start ? load(start + kLane * c) : Lane{};
  for (int e = 0; e < count; ++e, rows += stride)
    for (int c = 0; c < lanes; ++c) sum[c] += weights[e] * load(rows + kLane * c);
  for (int c = 0; c < lanes; ++c) store(out + kLane * c, sum[c]);
}

// out = start + Σ_e weights_e rows_e, over `length` columns (whole lanes); `start` may be null.
inline void combine(double* out, const double* start, const double* weights, const double* rows,
                    int stride, int count, int length) {
  for (int from = 0; from < length; from += kLane * kPanel) {
    const int lanes = (length - from + kLane - 1) / kLane;
    const double* first = start ? start + from : nullptr;
    switch (lanes) {
      case 1: combine_lanes<1>(out + from, first, weights, rows + from, stride, count); break;
      case 2: combine_lanes<2>(out + from, first, weights, rows + from, stride, count); break;
      case 3: combine_lanes<3>(out + from, first, weights, rows + from, stride, count); break;
      case 4: combine_lanes<4>(out + from, first, weights, rows + from, stride, count); break;
      case 5: combine_lanes<5>(out + from, first, weights, rows + from, stride, count); break;
      default: combine_lanes<6>(out + from, first, weights, rows + from, stride, count); break;
    }
  }
}

// sum = Σ_i x_i W_i over rows, for kLane * lanes columns from `w` on. Two sums of each, because an
// addition waits for the one before it.
template <int lanes>
inline void sum_rows(const double* w, int length, int rows, const double* x, Lane* sum) {
  Lane even[lanes], odd[lanes];
  for (int c = 0; c < lanes; ++c) even[c] = odd[c] = Lane{};
  int i = 0;
  for (; i + 1 < rows; i += 2, w += 2 * length)
    for (int c = 0; c < lanes; ++c) {
      even[c] += x[i] * load(w + kLane * c);
      odd[c] += x[i + 1] * load(w + length + kLane * c);
    }
  if (i < rows)
    for (int c = 0; c < lanes; ++c) even[c] += x[i] * load(w + kLane * c);
  for (int c = 0; c < lanes; ++c) sum[c] = even[c] + odd[c];
}

// The reflection I - beta v vᵀ that takes x to alpha e_0:
//
//   alpha = -sign(x_0) |x|,  v = x - alpha e_0,  beta = 2 / vᵀv = 1 / (|x|² + |x_0| |x|)
struct Reflector {
  double alpha, beta, first;  // first: v_0

  Reflector(double squares, double x0) {
    const double norm = std::sqrt(squares);
    alpha = x0 > 0.0 ? -norm : norm;
    first = x0 - alpha;
    beta = 1.0 / (squares + std::fabs(x0) * norm);  // does not wait for the sign
  }
};

// W - beta v (vᵀ W) for kLane * lanes columns from `w` on, given xᵀ W: vᵀ W = xᵀ W - alpha W_0.
template <int lanes>
inline void subtract(double* w, int length, int rows, const double* x, const Reflector& r, Lane* sum) {
  for (int c = 0; c < lanes; ++c) {
    const Lane top = load(w + kLane * c);
    sum[c] = r.beta * (sum[c] - r.alpha * top);
    store(w + kLane * c, top - r.first * sum[c]);
  }
  double* out = w + length;
  for (int i = 1; i < rows; ++i, out += length)
    for (int c = 0; c < lanes; ++c) store(out + kLane * c, load(out + kLane * c) - x[i] * sum[c]);
}

template <int lanes>
inline void reflect_panel(double* w, int length, int rows, const double* x, const Reflector& r) {
  Lane sum[lanes];
  sum_rows<lanes>(w, length, rows, x, sum);
  subtract<lanes>(w, length, rows, x, r, sum);
}

// Squares that would underflow or overflow, NaN, or nothing to do: x in units of its largest number.
// Alpha stays in those units; false if there is nothing below the first number.
inline bool rescale(int rows, double* x, double& unit, double& squares) {
  double largest = std::fabs(x[0]);
  bool below = false;
  for (int i = 1; i < rows; ++i) {
    below = below || x[i] != 0.0;
    largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
  }
  if (!below) return false;
  unit = largest > 0.0 && std::isfinite(largest) ? largest : 1.0;
  squares = 0.0;
  for (int i = 0; i < rows; ++i) {
    x[i] /= unit;
    squares += x[i] * x[i];
  }
  return true;
}

// The panel that begins with the lane of the column itself: its sums xᵀ W contain |x|², which makes
// the reflector. `at` is the column's place in the panel. Whether there was something to reflect.
template <int lanes>
inline bool reflect_first(double* w, int length, int rows, int at, double* x, Reflector& r) {
  Lane sum[lanes];
  sum_rows<lanes>(w, length, rows, x, sum);
  double numbers[kLane];
  store(numbers, sum[0]);
  double squares = numbers[at], unit = 1.0;
  if (!(squares > 1e-280 && squares < 1e280)) {
    if (!rescale(rows, x, unit, squares)) return false;
    sum_rows<lanes>(w, length, rows, x, sum);
  }
  r = Reflector(squares, x[0]);
  subtract<lanes>(w, length, rows, x, r, sum);
  w[at] = r.alpha * unit;  // what the formula says, without its rounding
  return true;
}

// One reflection of the rows from `pivot` to `end` (exclusive), applied to the columns from `column`
// up to `columns`, such that `column` would be zero below row `pivot`. What is left there is rounding
// errors, and in other columns of the same lane to its left products of them: the caller takes
// numbers below the pivots of columns dealt with as zero, and reads none.
//
// `x` is scratch space for `end - pivot` numbers. Exact zeros survive: a zero column is left alone.
inline void reflect(double* w, int length, int pivot, int end, int column, int columns, double* x) {
  const int rows = end - pivot, from = column / kLane * kLane, at = column - from;
  double* block = w + static_cast<long>(pivot) * length + from;
  for (int i = 0; i < rows; ++i) x[i] = block[static_cast<long>(i) * length + at];
  const int lanes = (columns - from + kLane - 1) / kLane;
  Reflector r(1.0, 1.0);
  bool changed;
  switch (lanes) {
    case 1: changed = reflect_first<1>(block, length, rows, at, x, r); break;
    case 2: changed = reflect_first<2>(block, length, rows, at, x, r); break;
    case 3: changed = reflect_first<3>(block, length, rows, at, x, r); break;
    case 4: changed = reflect_first<4>(block, length, rows, at, x, r); break;
    case 5: changed = reflect_first<5>(block, length, rows, at, x, r); break;
    default: changed = reflect_first<6>(block, length, rows, at, x, r); break;
  }
  if (!changed) return;
  for (int left = lanes - kPanel; left > 0; left -= kPanel) {
    block += kLane * kPanel;
    switch (left) {
      case 1: reflect_panel<1>(block, length, rows, x, r); break;
      case 2: reflect_panel<2>(block, length, rows, x, r); break;
      case 3: reflect_panel<3>(block, length, rows, x, r); break;
      case 4: reflect_panel<4>(block, length, rows, x, r); break;
      case 5: reflect_panel<5>(block, length, rows, x, r); break;
      default: reflect_panel<6>(block, length, rows, x, r); break;
    }
  }
}

}  // namespace PROBODE_ISA
}  // namespace probode
