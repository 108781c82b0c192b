// The update of one block: condition its prediction on the observation, by reflections.
#pragma once

#include "common.hpp"
#include "panel.hpp"

namespace probode {
namespace PROBODE_ISA {

// What the update of one block needs and gives. The observation is in the coordinates of the step,
//
//   u = x_k - Σ_{i<k} c_i J_i x_i,   c_i = T_i / T_k        for an equation of order k
struct Block {
  int n, width;
  int determined;             // k
  const double* factor;       // (D, D)
  const double* change;       // of coordinates, per derivative
  const double* transition;   // (n, n), triangular
  const double* scale;        // process noise, one per component
  const double* noise_factor; // (n, n), triangular
  const double* weights;      // c_i, i < k
  const double* jacobian;     // (width, k width): J_0 beside J_1, or null for zero
  double* observation_noise;  // (width,), or null
  const double* residual;     // (width,)
  double* posterior;          // (D, D), may be the factor
  double* correction;         // (D,)
  double* whitened;           // (width,)
  double* pivots;             // (width,)
  bool* blank;                // (width,)
  bool smoothed;              // whether the posterior will be smoothed
  double* gain = nullptr;     // (D, width): corrections for residuals of one; null: not wanted
};

// Condition a block on its observation, in one decomposition
//
//   [ R Ãᵀ Hᵀ    R Ãᵀ    ]                columns  u = H x | y^(k) | y | ... | y^(k-1) | y^(k+1) | ... | y^(q)
//   [ diag(r)    0       ]
//   [ s R_Q Hᵀ   s R_Q   ]
//
// The columns of y^(k) are rotated but not eliminated: given u, they follow from those below (see `pin`).
//
// `fixed_width` is the width where it is known at compile time: loops over it are then unrolled. `order` is that of
// the equation, k.
template <int fixed_width, int order>
void condition_block(const Block& b, Scratch& scratch) {
  const int n = b.n, w = fixed_width ? fixed_width : b.width;
  const int size = n * w, columns = size + w, length = row_length(columns + (fixed_width ? 0 : 3));
  const int slopes = w, values = 2 * w;  // where the columns of y^(k) and of y begin; the others follow
  const int read = order * w, above = read + w;  // columns of a factor: of what f takes; where those above y^(k) begin
  double* stack = room(scratch.stack, static_cast<size_t>(2 * size + w) * length);
  double* reflector = room(scratch.reflector, 5 * static_cast<size_t>(2 * size + w));

  auto place = [&](int i) { return i < order ? values + i * w : i == order ? slopes : (i + 1) * w; };

  // Σ c_i J_i y_i for a row of values. Wide blocks keep c Jᵀ in rows of whole lanes.
  const int stride = row_length(w);
  double* product = room(scratch.small_matrix, static_cast<size_t>(read + 1) * stride);
  double* transposed = product + stride;
  if (b.jacobian && fixed_width == 0) {
    std::memset(transposed, 0, sizeof(double) * static_cast<size_t>(read) * stride);
    for (int a = 0; a < w; ++a)
      for (int i = 0; i < order; ++i)
        for (int l = i * w; l < (i + 1) * w; ++l)
          transposed[static_cast<long>(l) * stride + a] =
              b.weights[i] * b.jacobian[static_cast<long>(a) * read + l];
  }
  auto times_jacobian = [&](const double* y) {
    if constexpr (fixed_width == 0) {
      combine(product, nullptr, y, transposed, stride, read, stride);
    } else {
      for (int a = 0; a < w; ++a) {
        double total = 0.0;
        for (int i = 0; i < order; ++i) {
          double sum = 0.0;
          for (int l = i * w; l < (i + 1) * w; ++l) sum += b.jacobian[a * read + l] * y[l];
          total += b.weights[i] * sum;
        }
        product[a] = total;
      }
    }
  };
  auto observe = [&](double* row) {
    for (int a = 0; a < w; ++a) row[a] = row[slopes + a];
    if (!b.jacobian) return;
    times_jacobian(row + values);
    for (int a = 0; a < w; ++a) row[a] -= product[a];
  };

  // The same for a row that has the component `k` alone.
  auto observe_one = [&](double* row, int k) {
    const double slope = row[slopes + k];
    for (int a = 0; a < w; ++a) row[a] = a == k ? slope : 0.0;
    if (!b.jacobian) return;
    for (int i = 0; i < order; ++i) {
      const double weighted = b.weights[i] * row[values + i * w + k];
      for (int a = 0; a < w; ++a) row[a] -= b.jacobian[static_cast<long>(a) * read + i * w + k] * weighted;
    }
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
    if (i <= order)
      for (int k = 0; k < w; ++k) observe_one(block + k * length, k);
  }
  for (int a = 0; a < w; ++a) {
    b.blank[a] = true;
    for (int i = 0; b.blank[a] && i < head + above; ++i)
      b.blank[a] = stack[static_cast<long>(i) * length + a] == 0.0;
    if (!b.observation_noise) continue;
    double noise = b.observation_noise[a];
    if (b.blank[a] && noise == 0.0) noise = 1.0;
    const double known = column_norm(stack + a, length, full);
    const double own = column_norm(stack + static_cast<long>(head) * length + a, length, above);
    if (own < kUnresolved * known) noise = std::max(noise, kUnresolved * known);
    stack[static_cast<long>(full + a) * length + a] = noise;
  }

  if constexpr (fixed_width == 0) {
    reflect_many(stack, length, 0, head + above, 0, 0, w, columns, reflector);
    reflect_many(stack, length, w, head + above, 0, values, read, columns, reflector);
    reflect_many(stack, length, above, head + above + 1, 1, above + w, size - above, columns, reflector);
  } else {
    for (int a = 0; a < w; ++a) reflect(stack, length, a, head + above, a, columns, reflector);
    for (int k = 0; k < read; ++k)
      reflect(stack, length, w + k, head + above, values + k, columns, reflector);
    for (int c = above; c < size; ++c)
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
    const int column = x < read ? values + x : x < above ? slopes + x - read : x + w;
    double sum = 0.0;
    for (int a = 0; a < w; ++a)  // few: the innovation's rows
      sum += stack[static_cast<long>(a) * length + column] * b.whitened[a];
    b.correction[x] = sum;
  }

  // The same for a residual of one in each component.
  for (int c = 0; b.gain && c < w; ++c) {
    double* white = reflector;
    for (int a = 0; a < w; ++a) {
      const double pivot = stack[static_cast<long>(a) * length + a];
      double rest = a == c ? 1.0 : 0.0;
      for (int e = 0; e < a; ++e) rest -= stack[static_cast<long>(e) * length + a] * white[e];
      white[a] = std::fabs(pivot) < std::numeric_limits<double>::min() ? 0.0 : rest / pivot;
    }
    for (int x = 0; x < size; ++x) {
      const int column = x < read ? values + x : x < above ? slopes + x - read : x + w;
      double sum = 0.0;
      for (int a = 0; a < w; ++a) sum += stack[static_cast<long>(a) * length + column] * white[a];
      b.gain[static_cast<long>(x) * w + c] = sum;
    }
  }

  // The factor, triangular: no row for y^(k), whose columns follow from those below (R Hᵀ = 0).
  std::memset(b.posterior, 0, sizeof(double) * static_cast<size_t>(size) * size);
  for (int r = 0; r < read; ++r) {
    const double* row = stack + static_cast<long>(w + r) * length;
    double* out = b.posterior + static_cast<long>(r) * size;
    for (int k = r; k < read; ++k) out[k] = row[values + k];
    if (b.jacobian) {
      times_jacobian(out);
      for (int a = 0; a < w; ++a) out[read + a] = product[a];
    }
    for (int c = above; c < size; ++c) out[c] = row[c + w];
  }
  for (int r = above; r < size; ++r) {
    const double* row = stack + static_cast<long>(r) * length + w;
    double* out = b.posterior + static_cast<long>(r) * size;
    for (int c = r; c < size; ++c) out[c] = row[c];
  }
}

}  // namespace PROBODE_ISA
}  // namespace probode
