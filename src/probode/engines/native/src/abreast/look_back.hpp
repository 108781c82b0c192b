// Looking back: a step of the smoother, and the marginal at a time inside a step, for members abreast. The formulas are
// those of smoother.hpp and interpolate.hpp, by reflections alone.
#pragma once

#include "attempt.hpp"

namespace probode {
namespace PROBODE_ISA {

template <class S>
struct LookBack {
  S sizes;
  Tables tables;

  // The smoothed state on the left, in coordinates of `left`, from that on the right, a step `h` further (mean and factor,
  // in coordinates of a step `right_h`); `scale`: the process noise between them. `whole`: whether rows of y' may differ
  // from zero.
  template <bool whole>
  PROBODE_BACK void back(const Place& left, Number h, Number right_h, const Number* scale, const Number* mean,
                         const Number* factor, Number* out_mean, Number* out_factor) const {
    const S s = sizes;
    const int n = s.n, w = s.width, d = s.d, size = n * w;
    Number coords[n], change[n], after[n], returning[n], difference[n * d], noise[d];
    coordinates_of(s, tables, h, coords);
    powers_of(left.h / h, n, change);
    powers_of(right_h / h, n, after);
    powers_of(h / left.h, n, returning);
    predict(s, tables, left.mean, coords, difference);
    PROBODE_UNROLL_BACK
    for (int i = 0; i < n; ++i) {
      const Number inverse = same(1.0) / coords[i];
      PROBODE_UNROLL_BACK
      for (int k = 0; k < d; ++k) difference[i * d + k] = (mean[i * d + k] - difference[i * d + k]) * inverse;
    }
    Number rounding = same(0.0);
    PROBODE_UNROLL_BACK
    for (int k = 0; k < d; ++k) {  // a step adds at least the rounding of y
      Number least = s.fixed ? same(0.0) : kEps * size_of(left.mean[k] / coords[0]);
      least = choose(least < same(kLeastNormal), same(0.0), least);
      rounding = larger_of(rounding, least);
      noise[k] = larger_of(scale[s.multivariate && !s.fixed ? k : 0], least);
    }
    const bool shared = s.blocks == 1 && w == 1;
    if (shared) noise[0] = larger_of(scale[0], rounding);
    for (int block = 0; block < s.blocks; ++block) {
      const int at = block * size * size;
      back_in_block<whole>(left, left.factor + at, change, after, returning, coords, noise + block * w, factor + at,
                           difference, block, shared, out_mean, out_factor + at);
    }
  }

  // Decompose
  //
  //   [ R Ãᵀ    R ]        columns  x⁺ | x          Gᵀ = R11⁻¹ R12
  //   [ s R_Q   0 ]                                  Cov(x | x⁺) = R22ᵀ R22
  //
  // and then [R⁺ Gᵀ; R22], R⁺ smoothed.
  template <bool whole>
  void back_in_block(const Place& left, const Number* factor, const Number* change, const Number* after,
                     const Number* returning, const Number* coords, const Number* noise, const Number* smoothed,
                     const Number* difference, int block, bool shared, Number* out_mean, Number* out_factor) const {
    const S s = sizes;
    const int n = s.n, w = s.width, d = s.d, size = n * w, columns = 2 * size;
    const int full = whole ? size : size - w, rows = full + size;
    Number stack[rows * columns], moving[n * n];
    moved_by(s, tables, change, moving);
    auto plain = [&](int i) { return i * w; };
    PROBODE_UNROLL_BACK
    for (int r = 0; r < full; ++r) {
      const int from = whole || r < w ? r : r + w;
      moved_row(s, factor, moving, from, plain, stack + r * columns);
      PROBODE_UNROLL_BACK
      for (int c = 0; c < size; ++c)
        stack[r * columns + size + c] = c >= from ? factor[from * size + c] * change[c / w] : same(0.0);
    }
    put_noise(noise, true, stack, full, columns, columns);
    Mask resolved = mask(true);
    PROBODE_UNROLL_BACK
    for (int c = 0; c < size; ++c)
      resolved = both(resolved, size_of(stack[(full + c) * columns + c]) >= kLost * norm_of(stack + c, columns, full));
    PROBODE_UNROLL_BACK
    for (int c = 0; c < size; ++c) reflect_rows(stack, columns, c, full + c + 1, c, columns);
    PROBODE_UNROLL_BACK
    for (int r = size - 1; r >= 0; --r) {  // Gᵀ in the place of R12
      const Number pivot = stack[r * columns + r];
      const Mask none = size_of(pivot) < same(kLeastNormal);  // as `inverse_pivot` of qr.hpp
      const Number inverse = choose(none, same(0.0), same(1.0) / choose(none, same(1.0), pivot));
      in_groups(size, [&](auto width, int c) {
        Number *out = stack + r * columns + size + c, sum[decltype(width)::value];
        PROBODE_WRITTEN_OUT
        for (int j = 0; j < width; ++j) sum[j] = out[j];
        PROBODE_UNROLL_BACK
        for (int e = r + 1; e < size; ++e) {
          PROBODE_WRITTEN_OUT
          for (int j = 0; j < width; ++j) sum[j] -= stack[r * columns + e] * stack[e * columns + size + c + j];
        }
        PROBODE_WRITTEN_OUT
        for (int j = 0; j < width; ++j) out[j] = sum[j] * inverse;
      });
    }
    if (!every(resolved)) {  // rounding hides the noise: x⁺ = A x, and the kernel is A⁻¹
      PROBODE_UNROLL_BACK
      for (int r = 0; r < rows; ++r) {
        PROBODE_UNROLL_BACK
        for (int c = 0; c < size; ++c) {
          const int i = c / w, j = r / w;
          const bool entry = r < size && i <= j && r % w == c % w;
          const double certain = entry ? ((i + j) % 2 ? -1.0 : 1.0) * tables.transition[i * n + j] : 0.0;
          stack[r * columns + size + c] = choose(resolved, stack[r * columns + size + c], same(certain));
        }
      }
    }

    const int total = size + full;
    Number next[total * size];
    PROBODE_UNROLL_BACK
    for (int r = 0; r < size; ++r) {
      Number weight[size];
      PROBODE_UNROLL_BACK
      for (int e = r; e < size; ++e) weight[e] = smoothed[r * size + e] * after[e / w];
      in_groups(size, [&](auto width, int c) {
        Number sum[decltype(width)::value];
        PROBODE_WRITTEN_OUT
        for (int j = 0; j < width; ++j) sum[j] = same(0.0);
        PROBODE_UNROLL_BACK
        for (int e = r; e < size; ++e) {
          PROBODE_WRITTEN_OUT
          for (int j = 0; j < width; ++j) sum[j] += weight[e] * stack[e * columns + size + c + j];
        }
        PROBODE_WRITTEN_OUT
        for (int j = 0; j < width; ++j) next[r * size + c + j] = sum[j];
      });
    }
    PROBODE_UNROLL_BACK
    for (int r = 0; r < full; ++r) {
      PROBODE_UNROLL_BACK
      for (int c = 0; c < size; ++c) next[(size + r) * size + c] = stack[(size + r) * columns + size + c];
    }
    PROBODE_UNROLL_BACK
    for (int c = 0; c < size; ++c) reflect_rows(next, size, c, total, c, size);
    PROBODE_UNROLL_BACK
    for (int r = 0; r < size; ++r) {
      PROBODE_UNROLL_BACK
      for (int c = r; c < size; ++c) out_factor[r * size + c] = next[r * size + c] * returning[c / w];
    }

    PROBODE_UNROLL_BACK
    for (int i = 0; i < n; ++i) {
      PROBODE_UNROLL_BACK
      for (int k = 0; k < d; ++k) {
        if (!(w > 1 || shared || k == block)) continue;
        Number sum = same(0.0);
        if (w > 1) {
          PROBODE_UNROLL_BACK
          for (int r = 0; r < size; ++r) sum += stack[r * columns + size + i * w + k] * difference[r];
        } else {
          PROBODE_UNROLL_BACK
          for (int r = 0; r < n; ++r) sum += stack[r * columns + size + i] * difference[r * d + k];
        }
        out_mean[i * d + k] = left.mean[i * d + k] + coords[i] * sum;
      }
    }
  }

  // The prediction over `out.h`, a part of a step from `left` of length `whole`: R Ãᵀ over s R_Q, triangular.
  PROBODE_BACK void inside(const Place& left, Number whole, const Number* scale, const Place& out) const {
    const S s = sizes;
    const int n = s.n, w = s.width, size = n * w, full = size - w;
    Number coords[n], change[n], noise[s.d];
    coordinates_of(s, tables, out.h, coords);
    predict(s, tables, left.mean, coords, out.mean);
    powers_of(left.h / out.h, n, change);
    part_of(scale, out.h / whole, noise);
    Number moving[n * n];
    moved_by(s, tables, change, moving);
    auto plain = [&](int i) { return i * w; };
    for (int block = 0; block < s.blocks; ++block) {
      Number stack[(full + size) * size];
      PROBODE_UNROLL_BACK
      for (int r = 0; r < full; ++r)
        moved_row(s, left.factor + block * size * size, moving, r < w ? r : r + w, plain, stack + r * size);
      const bool own = s.multivariate && !s.fixed;
      put_noise(noise + (own ? block * w : 0), own, stack, full, size, size);
      PROBODE_UNROLL_BACK
      for (int c = 0; c < size; ++c) reflect_rows(stack, size, c, full + c + 1, c, size);
      PROBODE_UNROLL_BACK
      for (int r = 0; r < size; ++r) {
        PROBODE_UNROLL_BACK
        for (int c = r; c < size; ++c) out.factor[block * size * size + r * size + c] = stack[r * size + c];
      }
    }
  }

  // The process noise of a part of a step.
  void part_of(const Number* scale, Number part, Number* out) const {
    const S s = sizes;
    const Number factor = noise_over(part, s.n);
    PROBODE_UNROLL_BACK
    for (int k = 0; k < (s.multivariate && !s.fixed ? s.d : 1); ++k) out[k] = scale[k] * factor;
  }

 private:
  // s R_Q, from row `full` on; `own`: whether components have noises of their own.
  void put_noise(const Number* noise, bool own, Number* stack, int full, int length, int columns) const {
    const S s = sizes;
    const int n = s.n, w = s.width, size = n * w;
    PROBODE_UNROLL_BACK
    for (int r = 0; r < size; ++r) {
      PROBODE_UNROLL_BACK
      for (int c = 0; c < columns; ++c) {
        const bool entry = c < size && c % w == r % w && c / w >= r / w;
        stack[(full + r) * length + c] =
            entry ? noise[own ? r % w : 0] * tables.noise[(r / w) * n + c / w] : same(0.0);
      }
    }
  }
};

}  // namespace PROBODE_ISA
}  // namespace probode
