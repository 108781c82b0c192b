// Reflections of wide matrices: four columns are dealt with on their own, and the rest of the matrix is
// read and written once for all four.
#pragma once

#include "gram.hpp"

namespace probode {
namespace PROBODE_ISA {

// Reflect columns `column` ... `column + 3` with pivots in rows `pivot` ..., over rows up to `end`, which
// grows by `growth` with each column; apply that to the columns up to `columns`. With reflections
// I - beta_j v_j v_jᵀ, j = 1 ... 4, applied one after the other:
//
//   W - Σ_j v_j z_j,   z_j = beta_j (v_jᵀ W - Σ_{i<j} v_jᵀ v_i z_i)
//
// `scratch` has room for 5 (end + 3 growth - pivot) numbers.
inline void reflect_four(double* w, int length, int pivot, int end, int growth, int column, int columns,
                         double* scratch) {
  const int rows = end + (kTile - 1) * growth - pivot;
  double* x = scratch;
  double* v = x + rows;  // (rows, 4)
  double beta[kTile];
  std::memset(v, 0, sizeof(double) * static_cast<size_t>(kTile) * rows);
  for (int j = 0; j < kTile; ++j) {
    const int own = end + j * growth - pivot - j;
    double* block = w + static_cast<long>(pivot + j) * length + column;
    for (int i = 0; i < own; ++i) x[i] = block[static_cast<long>(i) * length + j];
    Reflector r(1.0, 1.0);
    const bool changed = reflect_first<1>(block, length, own, j, x, r);
    beta[j] = changed ? r.beta : 0.0;
    if (!changed) continue;
    double* out = v + kTile * j + j;
    out[0] = r.first;
    for (int i = 1; i < own; ++i) out[kTile * i] = x[i];
  }
  Lane products[kTile][1] = {};
  add_products<1, 1>(v, kTile, 1, v, kTile, rows, products);
  double cross[kTile][kTile];
  for (int j = 0; j < kTile; ++j) store(cross[j], products[j][0]);

  double* top = w + static_cast<long>(pivot) * length;
  for_strips(column + kTile, columns, [&](int from, auto width) {
    constexpr int lanes = decltype(width)::value;
    Lane z[kTile][lanes] = {};
    add_products<lanes, 1>(v, kTile, 1, top + from, length, rows, z);
    for (int j = 0; j < kTile; ++j)
      for (int c = 0; c < lanes; ++c) {
        for (int i = 0; i < j; ++i) z[j][c] -= cross[j][i] * z[i][c];
        z[j][c] *= beta[j];
      }
    double* row = top + from;
    for (int i = 0; i < rows; ++i, row += length) {
      Lane sum[lanes];
      for (int c = 0; c < lanes; ++c) sum[c] = load(row + kLane * c);
      for (int j = 0; j < kTile; ++j)
        for (int c = 0; c < lanes; ++c) sum[c] -= v[kTile * i + j] * z[j][c];
      for (int c = 0; c < lanes; ++c) store(row + kLane * c, sum[c]);
    }
  });
}

// `reflect` for `count` columns and pivots, one after the other. If the first column is not at the
// beginning of a lane, three numbers beyond `columns` are written.
inline void reflect_many(double* w, int length, int pivot, int end, int growth, int column, int count,
                         int columns, double* scratch) {
  int c = 0;
  for (; c + kTile <= count; c += kTile)
    reflect_four(w, length, pivot + c, end + c * growth, growth, column + c, columns, scratch);
  for (; c < count; ++c)
    reflect(w, length, pivot + c, end + c * growth, column + c, columns, scratch);
}

}  // namespace PROBODE_ISA
}  // namespace probode
