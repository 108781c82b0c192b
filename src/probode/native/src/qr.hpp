// Householder reflections on small row-major matrices.
//
// The matrices met here are stacks of factors: a few full rows over the rows of a triangular one.
// A column is reflected over a contiguous range of rows, those that are not known to be zero; the
// caller lets the range grow as the triangular part enters.
#pragma once

#include <cmath>
#include <cstring>

namespace probode {
namespace PROBODE_ISA {

constexpr int kLane = 4;  // doubles per vector
typedef double Lane __attribute__((vector_size(8 * kLane)));

inline Lane load(const double* x) {
  Lane v;
  std::memcpy(&v, x, sizeof(Lane));
  return v;
}

inline void store(double* x, Lane v) { std::memcpy(x, &v, sizeof(Lane)); }

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

// Rows of W from `begin` to `end`: subtract beta v (vᵀ W), for kLane * lanes columns from `w` on.
template <int lanes>
inline void reflect_columns(double* w, int length, int rows, const double* v, double beta) {
  Lane sum[lanes];
  for (int c = 0; c < lanes; ++c) sum[c] = Lane{};
  const double* row = w;
  for (int i = 0; i < rows; ++i, row += length)
    for (int c = 0; c < lanes; ++c) sum[c] += v[i] * load(row + kLane * c);
  for (int c = 0; c < lanes; ++c) sum[c] *= beta;
  double* out = w;
  for (int i = 0; i < rows; ++i, out += length)
    for (int c = 0; c < lanes; ++c) store(out + kLane * c, load(out + kLane * c) - v[i] * sum[c]);
}

// One reflection: zero column `column` of W below row `pivot`, down to row `end` (exclusive), and
// apply it to the columns from `from` (a multiple of kLane is fastest) up to `columns`.
//
//   x = W[pivot:end, column],  alpha = -sign(x_0) |x|,  v = x - alpha e_0,  beta = 2 / vᵀv
//
// `v` is scratch space for `end - pivot` numbers. Exact zeros survive: a zero column is left alone.
inline void reflect(double* w, int length, int pivot, int end, int column, int columns, double* v) {
  const int rows = end - pivot;
  double* head = w + static_cast<long>(pivot) * length;
  double squares = 0.0;
  for (int i = 1; i < rows; ++i) {
    const double x = head[static_cast<long>(i) * length + column];
    v[i] = x;
    squares += x * x;
  }
  const double x0 = head[column];
  double unit = 1.0;
  if (!(squares > 1e-280 && squares + x0 * x0 < 1e280)) {
    // Nothing to do, or squares that would underflow or overflow: rescale. NaN passes through.
    double largest = std::fabs(x0);
    bool below = false;
    for (int i = 1; i < rows; ++i) {
      below = below || v[i] != 0.0;
      largest = std::fabs(v[i]) > largest ? std::fabs(v[i]) : largest;
    }
    if (!below) return;
    if (largest > 0.0 && std::isfinite(largest)) unit = largest;
    squares = 0.0;
    for (int i = 1; i < rows; ++i) {
      v[i] /= unit;
      squares += v[i] * v[i];
    }
  }
  const double first = x0 / unit;
  const double norm = std::sqrt(first * first + squares);
  const double alpha = first > 0.0 ? -norm : norm;
  v[0] = first - alpha;
  const double beta = -1.0 / (alpha * v[0]);

  for (int from = column / kLane * kLane; from < columns; from += kLane * kPanel) {
    const int lanes = (columns - from + kLane - 1) / kLane;
    double* block = head + from;
    switch (lanes) {
      case 1: reflect_columns<1>(block, length, rows, v, beta); break;
      case 2: reflect_columns<2>(block, length, rows, v, beta); break;
      case 3: reflect_columns<3>(block, length, rows, v, beta); break;
      case 4: reflect_columns<4>(block, length, rows, v, beta); break;
      case 5: reflect_columns<5>(block, length, rows, v, beta); break;
      default: reflect_columns<6>(block, length, rows, v, beta); break;
    }
  }
  // What the formula says, without its rounding. Columns left of this one are zero in these rows,
  // so the reflection has not changed them.
  head[column] = alpha * unit;
  for (int i = 1; i < rows; ++i) head[static_cast<long>(i) * length + column] = 0.0;
}

}  // namespace PROBODE_ISA
}  // namespace probode
