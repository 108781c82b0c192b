// The update of one block: condition its prediction on the observation, by reflections.
#pragma once

#include "common.hpp"
#include "panel.hpp"

namespace probode {
namespace PROBODE_ISA {

// What the update of one block needs and gives.
struct Block {
  int n, width;
  const double* factor;       // (D, D)
  const double* change;       // of coordinates, per derivative
  const double* transition;   // (n, n), triangular
  const double* scale;        // process noise, one per component
  const double* noise_factor; // (n, n), triangular
  double weight;              // c = T_0
  const double* jacobian;     // (width, width), or null for zero
  double* observation_noise;  // (width,), or null
  const double* residual;     // (width,)
  double* posterior;          // (D, D), may be the factor
  double* correction;         // (D,)
  double* whitened;           // (width,)
  double* pivots;             // (width,)
  bool* blank;                // (width,)
  bool smoothed;              // whether the posterior will be smoothed
};

// Condition a block on its observation, in one decomposition
//
//   [ R Ãᵀ Hᵀ    R Ãᵀ    ]                       columns  u = H x | y' | y | y'' | ... | y^(q)
//   [ diag(r)    0       ]
//   [ s R_Q Hᵀ   s R_Q   ]
//
// The columns of y' are rotated but not eliminated: given u, they follow from y (see `pin`).
//
// `fixed_width` is the width where it is known at compile time: loops over it are then unrolled.
template <int fixed_width>
void condition_block(const Block& b, Scratch& scratch) {
  const int n = b.n, w = fixed_width ? fixed_width : b.width;
  const int size = n * w, columns = size + w, length = row_length(columns + (fixed_width ? 0 : 3));
  const int slopes = w, values = 2 * w;  // where the columns of y' and of y begin; y'' ... follow
  double* stack = room(scratch.stack, static_cast<size_t>(2 * size + w) * length);
  double* reflector = room(scratch.reflector, 5 * static_cast<size_t>(2 * size + w));

  auto place = [&](int i) { return i == 0 ? values : i == 1 ? slopes : (i + 1) * w; };

  // c J y for a row of values. Wide blocks keep c Jᵀ in rows of whole lanes.
  const int stride = row_length(w);
  double* product = room(scratch.small_matrix, static_cast<size_t>(w + 1) * stride);
  double* transposed = product + stride;
  if (b.jacobian && fixed_width == 0) {
    std::memset(transposed, 0, sizeof(double) * static_cast<size_t>(w) * stride);
    for (int a = 0; a < w; ++a)
      for (int l = 0; l < w; ++l)
        transposed[static_cast<long>(l) * stride + a] =
            b.weight * b.jacobian[static_cast<long>(a) * w + l];
  }
  auto times_jacobian = [&](const double* y) {
    if constexpr (fixed_width == 0) {
      combine(product, nullptr, y, transposed, stride, w, stride);
    } else {
      for (int a = 0; a < w; ++a) {
        double sum = 0.0;
        for (int l = 0; l < w; ++l) sum += b.jacobian[a * w + l] * y[l];
        product[a] = b.weight * sum;
      }
    }
  };
  auto observe = [&](double* row) {
    for (int a = 0; a < w; ++a) row[a] = row[slopes + a];
    if (!b.jacobian) return;
    times_jacobian(row + values);
    for (int a = 0; a < w; ++a) row[a] -= product[a];
  };

  // The same for a row that has the component `k` alone: u_a = (a == k) y' - c J_ak y.
  auto observe_one = [&](double* row, int k) {
    const double value = row[values + k], slope = row[slopes + k];
    for (int a = 0; a < w; ++a) row[a] = a == k ? slope : 0.0;
    if (!b.jacobian) return;
    const double weighted = b.weight * value;
    for (int a = 0; a < w; ++a) row[a] -= b.jacobian[static_cast<long>(a) * w + k] * weighted;
  };

  int rows = 0;
  if constexpr (fixed_width == 0) {
    for (int r = 0; r < size; ++r) {
      const double* row = b.factor + static_cast<long>(r) * size;
      const int first = first_nonzero(row, size, r);
      if (first == size) continue;
      double* out = stack + static_cast<long>(rows++) * length;
      std::memset(out, 0, sizeof(double) * length);
      for (int j = first / w; j < n; ++j)
        for (int i = 0; i <= j; ++i) {
          const double entry = b.transition[i * n + j] * b.change[j];
          for (int k = 0; k < w; ++k) out[place(i) + k] += entry * row[j * w + k];
        }
      observe(out);
    }
  } else {
    // Narrow blocks: one matrix takes a row of R to a row of [R Ãᵀ Hᵀ, R Ãᵀ], columns in place.
    double* matrix = room(scratch.vectors, static_cast<size_t>(size) * length);
    std::memset(matrix, 0, sizeof(double) * static_cast<size_t>(size) * length);
    for (int j = 0; j < n; ++j) {
      double* block = matrix + static_cast<long>(j * w) * length;
      for (int i = 0; i <= j; ++i) {
        const double entry = b.transition[i * n + j] * b.change[j];
        for (int k = 0; k < w; ++k) block[k * length + place(i) + k] = entry;
      }
      for (int k = 0; k < w; ++k) observe_one(block + k * length, k);
    }
    for (int r = 0; r < size; ++r) {
      const double* row = b.factor + static_cast<long>(r) * size;
      const int first = first_nonzero(row, size, r);
      if (first == size) continue;
      combine(stack + static_cast<long>(rows++) * length, nullptr, row + first,
              matrix + static_cast<long>(first) * length, length, size - first, length);
    }
  }
  const int full = rows, head = full + w;  // the noise's rows begin at `head`
  std::memset(stack + static_cast<long>(full) * length, 0,
              sizeof(double) * static_cast<size_t>(w + size) * length);
  for (int i = 0; i < n; ++i) {
    double* block = stack + static_cast<long>(head + i * w) * length;
    for (int j = i; j < n; ++j) {
      const double entry = b.noise_factor[i * n + j];
      for (int k = 0; k < w; ++k) block[k * length + place(j) + k] = b.scale[k] * entry;
    }
    if (i < 2)
      for (int k = 0; k < w; ++k) observe_one(block + k * length, k);
  }
  for (int a = 0; a < w; ++a) {
    b.blank[a] = true;
    for (int i = 0; b.blank[a] && i < full + 3 * w; ++i)
      b.blank[a] = stack[static_cast<long>(i) * length + a] == 0.0;
    if (!b.observation_noise) continue;
    double noise = b.observation_noise[a];
    if (b.blank[a] && noise == 0.0) noise = 1.0;
    const double known = column_norm(stack + a, length, full);
    const double own = column_norm(stack + static_cast<long>(head) * length + a, length, 2 * w);
    if (own < kUnresolved * known) noise = std::max(noise, kUnresolved * known);
    stack[static_cast<long>(full + a) * length + a] = noise;
  }

  if constexpr (fixed_width == 0) {
    reflect_many(stack, length, 0, head + 2 * w, 0, 0, w, columns, reflector);
    reflect_many(stack, length, w, head + 2 * w, 0, values, w, columns, reflector);
    reflect_many(stack, length, 2 * w, head + 2 * w + 1, 1, 3 * w, size - 2 * w, columns, reflector);
  } else {
    for (int a = 0; a < w; ++a) reflect(stack, length, a, head + 2 * w, a, columns, reflector);
    for (int k = 0; k < w; ++k)
      reflect(stack, length, w + k, head + 2 * w, values + k, columns, reflector);
    for (int c = 2 * w; c < size; ++c)
      reflect(stack, length, c, head + c + 1, c + w, columns, reflector);
  }

  for (int a = 0; a < w; ++a) {
    const double pivot = stack[static_cast<long>(a) * length + a];
    b.pivots[a] = b.blank[a] ? 1.0 : std::fabs(pivot);
    double rest = b.residual[a];
    for (int e = 0; e < a; ++e) rest -= stack[static_cast<long>(e) * length + a] * b.whitened[e];
    // What is below the smallest normal number is on its way to zero: its inverse would overflow.
    const bool none = std::fabs(pivot) < std::numeric_limits<double>::min();
    b.whitened[a] = none ? 0.0 : rest / pivot;
  }
  for (int x = 0; x < size; ++x) {
    const int column = x < w ? values + x : x < 2 * w ? slopes + x - w : x + w;
    double sum = 0.0;
    for (int a = 0; a < w; ++a)  // few: the innovation's rows
      sum += stack[static_cast<long>(a) * length + column] * b.whitened[a];
    b.correction[x] = sum;
  }

  // The factor, triangular: no row for y', whose columns follow from those of y (R Hᵀ = 0).
  std::memset(b.posterior, 0, sizeof(double) * static_cast<size_t>(size) * size);
  for (int r = 0; r < w; ++r) {
    const double* row = stack + static_cast<long>(w + r) * length;
    double* out = b.posterior + static_cast<long>(r) * size;
    for (int k = r; k < w; ++k) out[k] = row[values + k];
    if (b.jacobian) {
      times_jacobian(out);
      for (int a = 0; a < w; ++a) out[w + a] = product[a];
    }
    for (int c = 2 * w; c < size; ++c) out[c] = row[c + w];
  }
  for (int r = 2 * w; r < size; ++r) {
    const double* row = stack + static_cast<long>(r) * length + w;
    double* out = b.posterior + static_cast<long>(r) * size;
    for (int c = r; c < size; ++c) out[c] = row[c];
  }
}

}  // namespace PROBODE_ISA
}  // namespace probode
