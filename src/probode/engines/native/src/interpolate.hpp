// Dense output: one derivative of the posterior at any times. The same formulas as `_evaluate` in `paths.py`.
#pragma once

#include "smoother.hpp"

namespace probode {
namespace PROBODE_ISA {

// A column of numbers or of arrays, one for each node: where it begins, and how far it is to the next.
struct Column {
  double* first;
  long stride;
  Column(const double* x, long stride) : first(const_cast<double*>(x)), stride(stride) {}
  double* at(long i) const { return first + i * stride; }
};

// The nodes of a solve: times, lengths, noise and marginals; to predict from inside a step, filtering states.
struct Nodes {
  Column t, h, scale, mean, factor, filtered_mean, filtered_factor;
  bool smoothed;

  Nodes(const double* const* x, const long* stride, bool smoothed)
      : t(x[0], stride[0]), h(x[1], stride[1]), scale(x[2], stride[2]), mean(x[3], stride[3]),
        factor(x[4], stride[4]), filtered_mean(x[5], stride[5]), filtered_factor(x[6], stride[6]),
        smoothed(smoothed) {}

  Row marginal(long i) const { return {t.at(i), h.at(i), scale.at(i), mean.at(i), factor.at(i)}; }
  Row filtered(long i) const {
    return {t.at(i), h.at(i), scale.at(i), filtered_mean.at(i), filtered_factor.at(i)};
  }
};

// A row with memory of its own.
struct OwnRow {
  std::vector<double> memory;
  Row row;
  explicit OwnRow(const Settings& s) : memory(s.kept_size()), row(s, memory.data()) {}
};

class Interpolation {
 public:
  Interpolation(const Settings& s, const Nodes& nodes, int derivative)
      : s(s), nodes(nodes), k(derivative), inside(s), result(s), rest(s.scales()),
        stride(row_length(s.block_size())), tables(2 * table_size() + 2 * s.block_size()) {
    // The transition, as a kernel whose gain it is: Gᵀ = Ãᵀ.
    const int w = s.width();
    for (int j = 0; j < s.n; ++j)
      for (int i = 0; i <= j; ++i)
        for (int c = 0; c < w; ++c) moving()[(j * w + c) * stride + i * w + c] = s.transition[i * s.n + j];
  }

  // At time `t` in the step that ends at node `j`, or outside of it: the mean (d,), the columns of the factor.
  void evaluate(long j, double t, double* mean, double* columns) {
    const long i = j > 0 ? j - 1 : 0;
    const Row left = nodes.marginal(i), right = nodes.marginal(j);
    if (t == *left.t) return write(left, mean, columns);
    if (t == *right.t) return write(right, mean, columns);
    const double step = *right.t == *left.t ? 1.0 : *right.t - *left.t;
    const bool before = (*left.t - t) * step > 0.0, after = (t - *right.t) * step > 0.0;
    // Off the grid one prediction, from the state that speaks for this time.
    predict(before ? left : after ? right : nodes.filtered(i), t, step, right.scale);
    if (before || after || !nodes.smoothed) return write(inside.row, mean, columns);

    // One kernel back from the right.
    scale_noise(right.scale, (*right.t - t) / step, rest.data());
    const Row next(right.t, right.h, rest.data(), right.mean, right.factor);
    *result.row.t = t;
    *result.row.h = *inside.row.h;
    for (int block = 0; block < s.blocks(); ++block)
      smooth_block(s, block, inside.row, next, {right.mean, right.factor}, {result.row.mean, result.row.factor},
                   nullptr, scratch);
    write(result.row, mean, columns);
  }

 private:
  const Settings& s;
  const Nodes& nodes;
  const int k;
  OwnRow inside, result;
  std::vector<double> rest;
  const int stride;
  std::vector<double> tables;  // Ãᵀ and s R_Q of a block, numbers per column
  Scratch& scratch = Scratch::mine();

  long table_size() const { return static_cast<long>(whole_tiles(s.block_size())) * stride; }
  double* moving() { return tables.data(); }

  // The process noise of a part of a step.
  void scale_noise(const double* scale, double part, double* out) const {
    const double factor = noise_scale(s, part);
    for (int c = 0; c < s.scales(); ++c) out[c] = scale[c] * factor;
  }

  // `inside` at time `t`: R Ãᵀ over s R_Q, triangular.
  void predict(const Row& from, double t, double step, const double* scale) {
    const int n = s.n, w = s.width(), size = s.block_size();
    const double h = t - *from.t;
    double coords[kMaxDerivatives], ratio[kMaxDerivatives];
    *inside.row.t = t;
    *inside.row.h = h;
    coordinates(s, h, coords);
    predict_mean(s, from.mean, s.d, coords, inside.row.mean);
    scale_noise(scale, h / step, inside.row.scale);

    double* noise = moving() + table_size();
    double *change = noise + table_size(), *same = change + size;
    powers(*from.h / h, n, ratio);
    spread(ratio, n, w, change);
    std::fill(same, same + size, 1.0);
    const BlockKernel kernel = {moving(), noise, size, stride};
    for (int block = 0; block < s.blocks(); ++block) {
      for (int i = 0; i < n; ++i)
        for (int j = i; j < n; ++j)
          for (int c = 0; c < w; ++c)
            noise[static_cast<long>(i * w + c) * stride + j * w + c] =
                inside.row.scale[s.scales() == 1 ? 0 : block * w + c] * s.noise[i * n + j];
      const long offset = block * s.block_triangle();
      marginalize_block(size, kernel, from.factor + offset, change, same, scratch, inside.row.factor + offset);
    }
  }

  // The `k`-th derivative of a state: columns in plain units, down to the last row that is not zero there.
  void write(const Row& row, double* mean, double* columns) const {
    const int w = s.width(), size = s.block_size();
    double coords[kMaxDerivatives];
    coordinates(s, *row.h, coords);
    const double weight = std::fabs(coords[k]);
    std::memcpy(mean, row.mean + static_cast<long>(k) * s.d, sizeof(double) * s.d);
    for (int block = 0; block < s.blocks(); ++block)
      for (int r = 0; r < (k + 1) * w; ++r) {
        const double* from = triangle_row(row.factor + block * s.block_triangle(), size, r);
        for (int c = k * w; c < (k + 1) * w; ++c) *columns++ = c < r ? 0.0 : weight * from[c];
      }
  }
};

}  // namespace PROBODE_ISA
}  // namespace probode
