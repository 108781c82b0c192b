// The smoother: backward kernels and marginals, row by row from the end of a chunk.
//
// The same formulas as `smooth.py`, where they are explained.
#pragma once

#include "filter.hpp"
#include "several_by_information.hpp"
#include "whitened_smoother.hpp"

namespace probode {
namespace PROBODE_ISA {

// A smoothed row: (mean, triangle of the factor); time and coordinates are the filter's row's.
struct Marginal {
  double* mean;
  double* factor;
  Marginal(double* mean, double* factor) : mean(mean), factor(factor) {}
  Marginal(const Settings& s, double* x) : mean(x), factor(x + s.state_size()) {}
};

inline long marginal_size(const Settings& s) { return s.state_size() + s.triangle_size(); }

// The kernel of one block: p(x | x⁺) with gain Gᵀ, and the rows of the factor of its covariance.
struct BlockKernel {
  double* gain_transposed;  // D rows of length row_length(D)
  const double* rest;       // `rest_rows` rows of length `rest_length`
  int rest_rows, rest_length;
};

// Decompose
//
//   [ R Ãᵀ    R ]        columns  x⁺ | x          Gᵀ = R11⁻¹ R12
//   [ s R_Q   0 ]                                  Cov(x | x⁺) = R22ᵀ R22
//
// R22 need not be triangular: it goes into another decomposition.
template <int fixed_width>
BlockKernel regress_block(int n, int width, const double* factor, const double* change,
                                  const double* scale, const Settings& s, Scratch& scratch,
                                  double* gain) {
  const int w = fixed_width ? fixed_width : width;
  const int size = n * w, columns = 2 * size, length = row_length(columns + (fixed_width ? 0 : 3));
  const int stride = row_length(size);
  double* stack = room(scratch.stack, static_cast<size_t>(2 * size) * length);
  double* reflector = room(scratch.reflector, 10 * static_cast<size_t>(size));
  double* squares = room(scratch.vectors, size);
  std::fill(squares, squares + size, 0.0);

  // Narrow blocks: one matrix moves a row; wide ones use that it is sparse.
  double* matrix = nullptr;
  if constexpr (fixed_width != 0) {
    matrix = room(scratch.small_matrix, static_cast<size_t>(size) * stride);
    std::memset(matrix, 0, sizeof(double) * static_cast<size_t>(size) * stride);
    for (int j = 0; j < n; ++j)
      for (int i = 0; i <= j; ++i)
        for (int k = 0; k < w; ++k)
          matrix[static_cast<long>(j * w + k) * stride + i * w + k] =
              s.transition[i * n + j] * change[j * w];
  }

  int full = 0;
  for (int r = 0; r < size; ++r) {
    const double* row = triangle_row(factor, size, r);
    const int first = first_nonzero(row, size, r);
    if (first == size) continue;
    double* out = stack + static_cast<long>(full++) * length;
    if constexpr (fixed_width != 0) {
      combine(out, nullptr, row + first, matrix + static_cast<long>(first) * stride, stride,
              size - first, stride);
    } else {
      std::memset(out, 0, sizeof(double) * size);
      for (int j = first / w; j < n; ++j)
        for (int i = 0; i <= j; ++i) {
          const double entry = s.transition[i * n + j] * change[j * w];
          for (int k = std::max(first - j * w, 0); k < w; ++k)
            out[i * w + k] += entry * row[j * w + k];
        }
    }
    for (int c = 0; c < size; ++c) squares[c] += out[c] * out[c];
    std::memset(out + size, 0, sizeof(double) * first);
    for (int c = first; c < size; ++c) out[size + c] = row[c] * change[c];
    for (int c = columns; c < length; ++c) out[c] = 0.0;
  }
  bool resolved = true;
  std::memset(stack + static_cast<long>(full) * length, 0,
              sizeof(double) * static_cast<size_t>(size) * length);
  for (int i = 0; i < n; ++i)
    for (int k = 0; k < w; ++k) {
      double* out = stack + static_cast<long>(full + i * w + k) * length;
      for (int j = i; j < n; ++j) out[j * w + k] = scale[k] * s.noise[i * n + j];
      const double pivot = std::fabs(out[i * w + k]);
      const double known = squares[i * w + k];
      const double deviation =
          squares_hold(known) ? std::sqrt(known) : scaled_norm(stack + i * w + k, length, full);
      resolved = resolved && pivot >= kResolved * deviation;
    }
  if (!resolved) {  // rounding hides the noise: x⁺ = A x, and the kernel is A⁻¹
    std::fill(gain, gain + static_cast<long>(size) * stride, 0.0);
    for (int i = 0; i < n; ++i)
      for (int j = i; j < n; ++j)
        for (int k = 0; k < w; ++k)
          gain[static_cast<long>(j * w + k) * stride + i * w + k] =
              ((i + j) % 2 ? -1.0 : 1.0) * s.transition[i * n + j];
    return {gain, stack, 0, length};
  }
  if constexpr (fixed_width == 0) {
    reflect_many(stack, length, 0, full + 1, 1, 0, size, columns, reflector);
  } else {
    for (int c = 0; c < size; ++c)
      reflect(stack, length, c, full + c + 1, c, columns, reflector);
  }

  // Gᵀ = R11⁻¹ R12, from the last row: pivot * row + Σ_e R11_re gain_e = R12 row.
  if constexpr (fixed_width == 0) {
    solve_rows(stack, stack + size, length, size, gain, stride);
  } else {
    double* weights = room(scratch.vectors, size);
    for (int r = size - 1; r >= 0; --r) {
      const double* row = stack + static_cast<long>(r) * length;
      double* out = gain + static_cast<long>(r) * stride;
      const double inverse = inverse_pivot(row[r]);
      // The last row first: the one that was just computed is then needed last.
      for (int e = r + 1; e < size; ++e) weights[size - 1 - e] = -row[e] * inverse;
      for (int c = 0; c < size; ++c) out[c] = row[size + c] * inverse;
      for (int c = size; c < stride; ++c) out[c] = 0.0;
      combine(out, out, weights, gain + static_cast<long>(size - 1) * stride, -stride, size - r - 1,
              stride);
    }
  }
  return {gain, stack + static_cast<long>(size) * length + size, full, length};
}

constexpr int kWidestNarrow = 4;    // components; the loops over them are unrolled
constexpr int kNarrow = 36;  // columns up to which one reflection after the other is as fast

// Right factor of G P⁺ Gᵀ + Cov(x | x⁺); `change` rescales the columns of the factor of P⁺,
// `back` those of the result (numbers per column).
inline void marginalize_block(int size, const BlockKernel& kernel, const double* after,
                              const double* change, const double* back, Scratch& scratch,
                              double* out) {
  const int length = row_length(size);
  thread_local std::vector<double> memory;
  double* stack = room(memory, static_cast<size_t>(2 * size + kTile) * length);
  double* reflector = room(scratch.reflector, 10 * static_cast<size_t>(size));
  int full = 0;
  if (size <= kNarrow) {
    double* weights = room(scratch.vectors, size);
    for (int r = 0; r < size; ++r) {
      const double* row = triangle_row(after, size, r);
      const int first = first_nonzero(row, size, r);
      if (first == size) continue;
      for (int e = first; e < size; ++e) weights[e] = row[e] * change[e];
      combine(stack + static_cast<long>(full++) * length, nullptr, weights + first,
              kernel.gain_transposed + static_cast<long>(first) * length, length, size - first, length);
    }
  } else {
    double* weights = room(scratch.vectors, static_cast<size_t>(kTile) * size);
    int waiting = 0, begin = 0;  // rows in `weights`, zero before `begin`
    auto multiply = [&] {
      multiply_rows(weights, size, begin, size, kernel.gain_transposed, length, 0, size,
                    stack + static_cast<long>(full) * length, length);
      full += waiting;
      waiting = 0;
    };
    for (int r = 0; r < size; ++r) {
      const double* row = triangle_row(after, size, r);
      const int first = first_nonzero(row, size, r);
      if (first == size) continue;
      if (waiting == 0) begin = r;
      double* weight = weights + static_cast<long>(waiting++) * size;
      for (int e = begin; e < r; ++e) weight[e] = 0.0;
      for (int e = r; e < size; ++e) weight[e] = row[e] * change[e];
      if (waiting == kTile) multiply();
    }
    if (waiting) multiply();
  }
  for (int r = 0; r < kernel.rest_rows; ++r) {
    double* row = stack + static_cast<long>(full + r) * length;
    const double* from = kernel.rest + static_cast<long>(r) * kernel.rest_length;
    for (int c = 0; c < size; ++c) row[c] = from[c];
    for (int c = size; c < length; ++c) row[c] = 0.0;
  }
  const int total = full + kernel.rest_rows, pivots = std::min(size, total);
  if (size > kNarrow) {
    reflect_many(stack, length, 0, total, 0, 0, pivots, size, reflector);
  } else {
    for (int c = 0; c < pivots; ++c) reflect(stack, length, c, total, c, size, reflector);
  }
  for (int r = 0; r < size; ++r) {
    double* row = triangle_row(out, size, r);
    const double* from = stack + static_cast<long>(r) * length;
    for (int c = r; c < size; ++c) row[c] = r < total ? from[c] * back[c] : 0.0;
  }
}

// Whether a standard deviation is larger after a step back than before it, which is rounding: see `smooth.py`.
inline bool grown(int size, const BlockKernel& kernel, const double* factor, const double* change,
                  const double* after, const double* change_after) {
  const int stride = row_length(size);
  thread_local std::vector<double> memory;
  double* weights = room(memory, static_cast<size_t>(2 * size) + 2 * stride);
  double *squares = weights + size, *before = squares + size, *pulled = before + stride;
  std::fill(squares, squares + size, 0.0);
  std::fill(before, before + size, 0.0);
  for (int r = 0; r < size; ++r) {
    const double *row = triangle_row(factor, size, r), *next = triangle_row(after, size, r);
    for (int c = r; c < size; ++c) before[c] += square(row[c] * change[c]);
    const int first = first_nonzero(next, size, r);
    if (first == size) continue;
    for (int e = first; e < size; ++e) weights[e] = next[e] * change_after[e];
    combine(pulled, nullptr, weights + first, kernel.gain_transposed + static_cast<long>(first) * stride, stride,
            size - first, stride);
    for (int c = 0; c < size; ++c) squares[c] += square(pulled[c]);
  }
  for (int r = 0; r < kernel.rest_rows; ++r)
    for (int c = 0; c < size; ++c) squares[c] += square(kernel.rest[static_cast<long>(r) * kernel.rest_length + c]);
  for (int c = 0; c < size; ++c)
    if (squares[c] > square(kGrown) * before[c]) return true;
  return false;
}

// The kernel back from a state with the factor `after` (`change_after` rescales its columns).
inline BlockKernel backward_block(int n, int width, const double* factor, const double* change, const double* after,
                                  const double* change_after, const double* scale, const Settings& s,
                                  Scratch& scratch, double* gain) {
  const auto regress = width == 1   ? regress_block<1>
                       : width == 2 ? regress_block<2>
                       : width == 3 ? regress_block<3>
                       : width == 4 ? regress_block<4>
                                    : regress_block<0>;
  const BlockKernel kernel = regress(n, width, factor, change, scale, s, scratch, gain);
  const int size = n * width, stride = row_length(size);
  if (!grown(size, kernel, factor, change, after, change_after)) return kernel;
  // x does not depend on x⁺: no gain, and the factor as it is.
  double* rest = room(scratch.stack, static_cast<size_t>(size) * stride);
  std::fill(gain, gain + static_cast<long>(size) * stride, 0.0);
  std::fill(rest, rest + static_cast<long>(size) * stride, 0.0);
  for (int r = 0; r < size; ++r)
    for (int c = r; c < size; ++c) rest[static_cast<long>(r) * stride + c] = triangle_row(factor, size, r)[c] * change[c];
  return {gain, rest, size, stride};
}

// Smooth a block of the row `left` (filtered), given the next one smoothed. `whitened` goes from row to row.
inline void smooth_block(const Settings& s, int block, const Row& left, const Row& right_row, const Marginal& right,
                         Marginal out, WhitenedSmoother* whitened, Scratch& scratch) {
  const int n = s.n, w = s.width(), size = s.block_size(), stride = row_length(size);
  const long d = s.d, count = s.structure == kIsotropic ? d : w;  // components of the block
  const long first = block * w, offset = block * s.block_triangle();
  const double h = *right_row.t - *left.t;
  if (h == 0.0) {
    if (whitened) whitened->forget();
    for (int i = 0; i < n; ++i)
      std::memcpy(out.mean + i * d + first, right.mean + i * d + first, sizeof(double) * count);
    std::memcpy(out.factor + offset, right.factor + offset, sizeof(double) * s.block_triangle());
    return;
  }
  thread_local std::vector<double> memory;
  double* gain = room(memory, static_cast<size_t>(whole_tiles(size)) * stride + 3 * size);
  double* change = gain + static_cast<long>(whole_tiles(size)) * stride;
  double *after = change + size, *back = after + size;
  double coords[kMaxDerivatives], ratio[kMaxDerivatives];
  coordinates(s, h, coords);
  powers(*left.h / h, n, ratio);
  spread(ratio, n, w, change);
  powers(*right_row.h / h, n, ratio);
  spread(ratio, n, w, after);
  powers(h / *left.h, n, ratio);
  spread(ratio, n, w, back);

  double* difference = room(scratch.small, n * count + w);
  double* scale = difference + n * count;
  predict_mean(s, left.mean + first, count, coords, difference);
  for (int i = 0; i < n; ++i)
    for (long k = 0; k < count; ++k) {
      double& x = difference[i * count + k];
      x = (right.mean[i * d + first + k] - x) / coords[i];
    }
  double rounding = 0.0;
  for (long k = 0; k < count; ++k) {
    // A step adds at least the rounding of y, and of what else is given with it.
    double least = 0.0;
    for (int i = 0; i < s.determined && !s.fixed; ++i)
      least = larger(least, kEpsilon * std::fabs(left.mean[i * d + first + k] / coords[i]));
    // Numbers with fewer digits than others have no reflections. (XLA takes them for zero.)
    if (least < std::numeric_limits<double>::min()) least = 0.0;
    rounding = larger(rounding, least);
    if (s.structure != kIsotropic) scale[k] = larger(right_row.scale[s.scales() == 1 ? 0 : first + k], least);
  }
  if (s.structure == kIsotropic) scale[0] = larger(right_row.scale[0], rounding);

  // What the mean of a block changes by, in coordinates.
  auto move = [&](const double* pulled) {
    for (int i = 0; i < n; ++i)
      for (int k = 0; k < w; ++k)
        out.mean[i * d + first + k] = left.mean[i * d + first + k] + coords[i] * pulled[i * w + k];
  };
  if (whitened) {
    double* pulled = room(scratch.vectors, stride);
    if (whitened->step({n, w, s.determined, s.transition, s.noise, scale, left.factor, change, right_row.factor, after,
                        right.factor, difference},
                       out.factor, pulled))
      return move(pulled);
  }
  const BlockKernel kernel = backward_block(n, w, left.factor + offset, change, right.factor + offset, after,
                                            scale, s, scratch, gain);
  marginalize_block(size, kernel, right.factor + offset, after, back, scratch, out.factor + offset);
  if (s.structure != kIsotropic) {
    double* pulled = room(scratch.vectors, stride);
    combine(pulled, nullptr, difference, gain, stride, size, stride);
    return move(pulled);
  }
  for (int i = 0; i < n; ++i)  // components share the gain
    for (long k = 0; k < d; ++k) {
      double sum = 0.0;
      for (int r = 0; r < n; ++r) sum += gain[r * stride + i] * difference[r * d + k];
      out.mean[i * d + k] = left.mean[i * d + k] + coords[i] * sum;
    }
}

// The rows of a chunk, filtered and smoothed.
struct Smoothing {
  const Settings& s;
  double *rows, *out;
  Scratch& scratch = Scratch::mine();

  Row filtered(long i) const { return Row(s, rows + i * s.kept_size()); }
  Marginal smoothed(long i) const { return Marginal(s, out + i * marginal_size(s)); }
  void step(int block, long i, WhitenedSmoother* whitened) const {
    smooth_block(s, block, filtered(i), filtered(i + 1), smoothed(i + 1), smoothed(i), whitened, scratch);
  }
};

// What goes from step to step in a block where several are smoothed at a time: at a node, if any, the
// covariance of ξ and its mean. Where a step fails its neighbours do: then there is a pause.
struct Carry {
  long node = -1;
  int pause = 0, longest = 1;
  std::vector<double> covariance, mean;
};

constexpr int kLongestPause = 32;

// Several steps at a time, reflections for those that are left out.
template <typename Several>
void smooth_several(const Smoothing& chunk, long count) {
  const Settings& s = chunk.s;
  Several several(s, chunk.rows, chunk.out);
  std::vector<Carry> carries(s.blocks());
  for (Carry& carry : carries) {
    carry.covariance.resize(several.state_size());
    carry.mean.resize(static_cast<size_t>(whole_tiles(s.block_size())) * (s.structure == kIsotropic ? s.d : 1));
  }
  auto run = [&](Carry& carry, int block, long right, int wanted) {
    if (carry.pause > 0) return --carry.pause, 0;
    int done = 0;
    if (carry.node == right || several.start(block, right, carry.covariance.data(), carry.mean))
      done = several.attempt(block, right, wanted, carry.covariance.data(), carry.mean);
    carry.node = done == wanted ? right - done : -1;
    if (done == kSteps) carry.longest = 1;
    if (done < wanted) {
      carry.pause = carry.longest;
      carry.longest = std::min(2 * carry.longest, kLongestPause);
    }
    return done;
  };
  for (long end = count; end > 0; end -= kSteps) {
    const long begin = std::max(end - kSteps, 0L);
    for (int block = 0; block < s.blocks(); ++block)
      for (long i = end; i > begin;) {
        i -= run(carries[block], block, i, static_cast<int>(i - begin));
        if (i > begin) chunk.step(block, --i, nullptr);
      }
  }
}

constexpr int kFewDerivatives = 6;  // up to order 5 smoothing seldom leaves too little of a variance

// The orders that are used most are known at compile time for blocks of up to so many components.
#if !defined(PROBODE_KNOWN_WIDTH)
#define PROBODE_KNOWN_WIDTH 3
#endif
constexpr int kKnownWidth = PROBODE_KNOWN_WIDTH;

template <int w>
void smooth_narrow(const Smoothing& chunk, long count) {
  constexpr bool known = w <= kKnownWidth;
  if (chunk.s.determined == 1 && chunk.s.n == 4) return smooth_several<ByInformation<w, known ? 4 : 0>>(chunk, count);
  if (chunk.s.determined == 1 && chunk.s.n == 6) return smooth_several<ByInformation<w, known ? 6 : 0>>(chunk, count);
  if (chunk.s.n <= kFewDerivatives) return smooth_several<ByInformation<w, 0>>(chunk, count);
  for (long i = count - 1; i >= 0; --i)
    for (int block = 0; block < chunk.s.blocks(); ++block) chunk.step(block, i, nullptr);
}

// Smooth rows count-1 .. 0 of a chunk, given the smoothed row `count` in `out`.
inline void smooth(const Settings& s, const double* rows, long count, double* out) {
  const Smoothing chunk{s, const_cast<double*>(rows), out};
  switch (s.width()) {
    case 1: return smooth_narrow<1>(chunk, count);
    case 2: return smooth_narrow<2>(chunk, count);
    case 3: return smooth_narrow<3>(chunk, count);
    case 4: return smooth_narrow<4>(chunk, count);
  }
  WhitenedSmoother whitened;
  for (long i = count - 1; i >= 0; --i) chunk.step(0, i, &whitened);
}

}  // namespace PROBODE_ISA
}  // namespace probode
