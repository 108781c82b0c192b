// Looking back: what the steps after a time say of it, for members abreast.
//
// With the numbers of `Link` (attempt.hpp), Q₁ = [Z₁ Z₂] being the rows of Q that belong to ξ,
//
//   ξ = Z₁ η + Z₂ ξ⁺ + what is independent of both,     η, of mean ν: what was observed
//
// so if the observations after a step make the mean of ξ⁺ μ⁺ and its covariance I - M⁺, then with u
//
//   μ = Z₁ ν + Z₂ μ⁺,      M = Z₁ Z₁ᵀ + Z₂ M⁺ Z₂ᵀ
//
// and the smoothed state is m + Rᵀμ with the covariance Rᵀ (I - M) R: the form of Bryson and Frazier, made white. Rows of Q
// are no longer than one, so nothing grows, and nothing is decomposed. M is a sum of squares below I: digits of a
// variance are lost as far as smoothing makes it smaller than the filter's.
#pragma once

#include "attempt.hpp"

namespace probode {
namespace PROBODE_ISA {

// What later steps say, in white numbers.
struct Later {
  Number *mean, *information;  // μ: (rows, components of a block), block by block; M: (blocks, rows, rows)
};

// y at a time: means, and covariances in units of `unit`.
struct Seen {
  Number *mean, *unit, *cov;  // (d,), (d,), (blocks, w, w)
};

template <class S>
struct LookBack {
  S sizes;
  Tables tables;

  // Over a step, for those who take it.
  void over(Mask on, const Link& link, const Later& later) const {
    const S s = sizes;
    const int w = s.width, size = s.n * w, m = size - w, count = w == 1 && s.blocks == 1 ? s.d : 1;
    for (int block = 0; block < s.blocks; ++block) {
      const Number* turned = link.turned + block * size * m;
      Number *mu = later.mean + block * m * count, *known = later.information + block * m * m;
      Number moved[m * s.d], product[m * m];
      PROBODE_UNROLL
      for (int i = 0; i < m; ++i) {
        PROBODE_UNROLL
        for (int k = 0; k < count; ++k) {
          Number sum = same(0.0);
          PROBODE_UNROLL
          for (int a = 0; a < w; ++a) sum += turned[a * m + i] * link.innovation[w > 1 ? a : block + k];
          PROBODE_UNROLL
          for (int e = 0; e < m; ++e) sum += turned[(w + e) * m + i] * mu[e * count + k];
          moved[i * count + k] = sum;
        }
      }
      PROBODE_UNROLL
      for (int i = 0; i < m * count; ++i) mu[i] = choose(on, moved[i], mu[i]);
      PROBODE_UNROLL
      for (int e = 0; e < m; ++e) {  // M⁺ Z₂ᵀ
        in_groups(m, [&](auto width, int i) {
          Number sum[decltype(width)::value];
          PROBODE_WRITTEN_OUT
          for (int j = 0; j < width; ++j) sum[j] = same(0.0);
          PROBODE_UNROLL
          for (int f = 0; f < m; ++f) {
            const Number entry = known[f < e ? f * m + e : e * m + f];
            PROBODE_WRITTEN_OUT
            for (int j = 0; j < width; ++j) sum[j] += entry * turned[(w + f) * m + i + j];
          }
          PROBODE_WRITTEN_OUT
          for (int j = 0; j < width; ++j) product[e * m + i + j] = sum[j];
        });
      }
      PROBODE_UNROLL
      for (int i = 0; i < m; ++i) {  // right of the diagonal
        PROBODE_UNROLL
        for (int k = i; k < m; ++k) {
          Number sum = same(0.0);
          PROBODE_UNROLL
          for (int a = 0; a < w; ++a) sum += turned[a * m + i] * turned[a * m + k];
          PROBODE_UNROLL
          for (int e = 0; e < m; ++e) sum += turned[(w + e) * m + i] * product[e * m + k];
          known[i * m + k] = choose(on, sum, known[i * m + k]);
        }
      }
    }
  }

  // At a place where a step ended: y = m + T_0 R_yᵀ μ, Cov(y) = T_0² R_yᵀ (I - M) R_y. Nothing later: what the filter says.
  void at(const Place& place, const Later* later, const Seen& out) const {
    const S s = sizes;
    const int w = s.width, size = s.n * w, m = size - w, count = w == 1 && s.blocks == 1 ? s.d : 1;
    Number coords[s.n];
    coordinates_of(s, tables, place.h, coords);
    for (int block = 0; block < s.blocks; ++block) {
      const Number* factor = place.factor + block * size * size;
      Number row[w * w];  // of each component, the entries that are not zero
      PROBODE_UNROLL
      for (int a = 0; a < w; ++a) {
        PROBODE_UNROLL
        for (int r = 0; r < w; ++r) row[a * w + r] = r <= a ? coords[0] * factor[r * size + a] : same(0.0);
        scale_row(row + a * w, w, block, a, out);
      }
      PROBODE_UNROLL
      for (int a = 0; a < w; ++a) {
        PROBODE_UNROLL
        for (int k = 0; k < count; ++k) {
          Number sum = same(0.0);
          PROBODE_UNROLL
          for (int r = 0; later && r < w; ++r) sum += row[a * w + r] * later->mean[(block * m + r) * count + k];
          out.mean[component(block, a, k)] = place.mean[component(block, a, k)] + unit_of(block, a, out) * sum;
        }
        PROBODE_UNROLL
        for (int b = 0; b < w; ++b) {
          Number sum = same(0.0);
          PROBODE_UNROLL
          for (int r = 0; r < w; ++r) {
            Number left = row[b * w + r];
            PROBODE_UNROLL
            for (int e = 0; later && e < w; ++e) left -= entry(*later, block, r, e) * row[b * w + e];
            sum += row[a * w + r] * left;
          }
          out.cov[(block * w + a) * w + b] = sum;
        }
      }
    }
    share(out);
  }

  // At a time `part` of a step behind `left`, before it ends at `right`, `rest` later: y_t = p ξ + noise, and
  //
  //   ζ = Cov(y_t, x⁺) [U; R⁺]⁻¹ = p Z + Cov(noise, x⁺) [U; R⁺]⁻¹,     y = (predicted) + ζ [ν; μ⁺]
  //   Cov(y) = (predicted) - ζ [I 0; 0 M⁺] ζᵀ
  //
  // Nothing later: what is predicted. `scale`: the process noise of the step.
  void between(const Place& left, const Place& right, Number part, Number rest, const Number* scale, const Link* link,
               const Later* later, const Seen& out) const {
    const S s = sizes;
    const int n = s.n, w = s.width, d = s.d, size = n * w, m = size - w, count = w == 1 && s.blocks == 1 ? s.d : 1;
    Number near[n], change[n], coords[n], noise[d], crossing[n];
    coordinates_of(s, tables, part, near);
    coordinates_of(s, tables, right.h, coords);
    powers_of(left.h / part, n, change);
    const Number theta = part / right.h, factor = noise_over(theta, n);
    PROBODE_UNROLL
    for (int k = 0; k < (s.multivariate && !s.fixed ? d : 1); ++k) noise[k] = scale[k] * factor;
    PROBODE_UNROLL
    for (int k = 0; k < d; ++k) {  // the mean that is predicted
      Number sum = same(0.0);
      PROBODE_UNROLL
      for (int j = 1; j < n; ++j) sum += tables.transition[j] * left.mean[j * d + k] / near[j];
      out.mean[k] = left.mean[k] + near[0] * sum;
    }
    if (later) cross(theta, rest / right.h, near[0], crossing);
    for (int block = 0; block < s.blocks; ++block) {
      const Number* before = left.factor + block * size * size;
      const Number* turned = later ? link->turned + block * size * m : nullptr;
      Number p[w * (m + 1)], zeta[w * size];  // the last of p: the noise
      PROBODE_UNROLL
      for (int a = 0; a < w; ++a) {
        const Number own = noise[s.multivariate && !s.fixed ? (w > 1 ? a : block) : 0];
        Number* row = p + a * (m + 1);
        PROBODE_UNROLL
        for (int i = 0; i < m; ++i) {
          const int r = i < w ? i : i + w;
          Number sum = same(0.0);
          PROBODE_UNROLL
          for (int j = 0; j < n; ++j)
            if (j * w + a >= r) sum += tables.transition[j] * change[j] * before[r * size + j * w + a];
          row[i] = near[0] * sum;
        }
        row[m] = near[0] * own * tables.noise[0];
        scale_row(row, m + 1, block, a, out);
        if (!later) continue;
        Number* z = zeta + a * size;
        const Number unit = unit_of(block, a, out);
        const Number square = own * own / choose(unit > same(0.0), unit, same(1.0));
        PROBODE_UNROLL
        for (int c = 0; c < size; ++c) {  // of the noise, with u, y, y'' ...
          z[c] = c % w == a ? square * crossing[c < w ? 1 : c < 2 * w ? 0 : c / w] : same(0.0);
          if (c < w && s.follows == kFollowsAll) z[c] -= coords[0] * link->jacobian[c * d + a] * square * crossing[0];
          if (s.follows == kFollowsDiagonal && c == 0) z[c] -= coords[0] * link->jacobian[block] * square * crossing[0];
        }
        divide(link->taken + block * w * size, right.factor + block * size * size, z);
        PROBODE_UNROLL
        for (int c = 0; c < size; ++c) {
          PROBODE_UNROLL
          for (int i = 0; i < m; ++i) z[c] += row[i] * turned[c * m + i];
        }
        PROBODE_UNROLL
        for (int k = 0; k < count; ++k) {
          Number sum = same(0.0);
          PROBODE_UNROLL
          for (int b = 0; b < w; ++b) sum += z[b] * link->innovation[component(block, b, k)];
          PROBODE_UNROLL
          for (int e = 0; e < m; ++e) sum += z[w + e] * later->mean[(block * m + e) * count + k];
          out.mean[component(block, a, k)] += unit * sum;
        }
      }
      PROBODE_UNROLL
      for (int a = 0; a < w; ++a) {
        PROBODE_UNROLL
        for (int b = 0; b <= a; ++b) {
          Number sum = a == b ? p[a * (m + 1) + m] * p[a * (m + 1) + m] : same(0.0);
          PROBODE_UNROLL
          for (int i = 0; i < m; ++i) sum += p[a * (m + 1) + i] * p[b * (m + 1) + i];
          if (later) sum -= told(*later, block, zeta + a * size, zeta + b * size);
          out.cov[(block * w + a) * w + b] = out.cov[(block * w + b) * w + a] = sum;
        }
      }
    }
    share(out);
  }

 private:
  // Of those that component `a` of a block stands for, the k-th.
  int component(int block, int a, int k) const {
    const S s = sizes;
    return s.width > 1 ? a : block + k;
  }
  Number entry(const Later& later, int block, int i, int k) const {
    const S s = sizes;
    const int m = s.n * s.width - s.width;
    return later.information[(block * m + (i < k ? i : k)) * m + (i < k ? k : i)];
  }
  Number unit_of(int block, int a, const Seen& out) const { return out.unit[component(block, a, 0)]; }

  // A row in units of its own length, which is kept.
  void scale_row(Number* row, int count, int block, int a, const Seen& out) const {
    const S s = sizes;
    const Number unit = norm_of(row, 1, count), divisor = choose(unit > same(0.0), unit, same(1.0));
    PROBODE_UNROLL
    for (int i = 0; i < count; ++i) row[i] = row[i] / divisor;  // the inverse of some numbers overflows
    PROBODE_UNROLL
    for (int k = 0; k < (s.width == 1 && s.blocks == 1 ? s.d : 1); ++k) out.unit[component(block, a, k)] = unit;
  }

  // Cov(noise of y, noise of x⁺ in its coordinates), for a process noise of one.
  void cross(Number theta, Number rho, Number near, Number* out) const {
    const S s = sizes;
    const int n = s.n;
    Number back[n];
    powers_of(theta, n, back);
    PROBODE_UNROLL
    for (int i = 0; i < n; ++i) {
      Number sum = same(0.0), power = same(1.0);
      PROBODE_UNROLL
      for (int j = i; j < n; ++j) {
        sum += tables.transition[i * n + j] * tables.noise[0] * tables.noise[j] * power * back[j];
        power = power * rho;
      }
      out[i] = near * sum;
    }
  }

  // z [U; R⁺]⁻¹, a triangle in the order of u, y, y'', ...
  void divide(const Number* taken, const Number* after, Number* z) const {
    const S s = sizes;
    const int w = s.width, size = s.n * w;
    PROBODE_UNROLL
    for (int c = 0; c < size; ++c) {
      const int column = c < 2 * w ? c - w : c;
      Number rest = z[c];
      PROBODE_UNROLL
      for (int e = 0; e < c; ++e)
        rest -= z[e] * (e < w ? taken[e * size + c] : after[(e < 2 * w ? e - w : e) * size + column]);
      const Number pivot = c < w ? taken[c * size + c] : after[column * size + column];
      const Mask none = size_of(pivot) < same(kLeastNormal);
      z[c] = choose(none, same(0.0), rest / choose(none, same(1.0), pivot));
    }
  }

  // x [I 0; 0 M⁺] yᵀ
  Number told(const Later& later, int block, const Number* x, const Number* y) const {
    const S s = sizes;
    const int w = s.width, m = s.n * w - w;
    Number sum = same(0.0);
    PROBODE_UNROLL
    for (int c = 0; c < w; ++c) sum += x[c] * y[c];
    PROBODE_UNROLL
    for (int e = 0; e < m; ++e) {
      Number inner = same(0.0);
      PROBODE_UNROLL
      for (int f = 0; f < m; ++f) inner += entry(later, block, e, f) * y[w + f];
      sum += x[w + e] * inner;
    }
    return sum;
  }

  // What is left of a variance is not negative.
  void share(const Seen& out) const {
    const S s = sizes;
    PROBODE_UNROLL
    for (int k = 0; k < s.blocks * s.width; ++k) {
      Number& own = out.cov[s.width > 1 ? k * s.width + k : k];
      own = at_least(own, same(0.0));
    }
  }
};

}  // namespace PROBODE_ISA
}  // namespace probode
