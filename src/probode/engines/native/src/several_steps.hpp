// Several steps of the smoother of a narrow block at a time, each number of a lane belonging to another step:
// what they are made from, and what is made from them.
#pragma once

#include "lanes_of_steps.hpp"
#include "whitened_smoother.hpp"

namespace probode {
namespace PROBODE_ISA {

// Sizes of a block of `w` components; `fixed` is the number of derivatives where it is known at compile time, for an
// equation of first order. Known sizes gain a few per cent, and take as long to compile as all others together.
template <int w, int fixed>
struct Shape {
  static constexpr int n = fixed, size = n * w, count = size - w;  // count: rows of R
  static constexpr int order = 1, read = w, above = 2 * w;  // columns of what f takes; where those above y^(k) begin
  static constexpr int wide = (size + kTile - 1) / kTile * kTile, filled = (count + kTile - 1) / kTile * kTile;
  static constexpr int length = filled % 16 == 0 ? filled + kLane : filled;
  Shape(int, int) {}
};

template <int w>
struct Shape<w, 0> {
  const int n, size, count, order, read, above, wide, filled, length;
  Shape(int n, int order)
      : n(n), size(n * w), count(size - w), order(order), read(order * w), above(read + w), wide(whole_tiles(size)),
        filled(whole_tiles(count)), length(row_length(filled)) {}
};

// Blocks so small that a step by itself waits for its roots and divisions most of the time. In the units of
// `WhitenedSmoother`, x = Rᵀ ξ, only two things go from step to step: the smoothed covariance of ξ and its mean.
// All else is done for kSteps steps at once, without waste for zeros or for rows that do not fill a lane. With
//
//   E = R Ãᵀ,   EᵀE + s² Q = BᵀB,   B = [U; R⁺],   Z = E B⁻¹ = [Z₁ Z₂],   a = S^(-T/2) u(x⁺ filtered - predicted)
//
// a is the part of B⁻ᵀ (x⁺ smoothed - predicted) that belongs to u, and the mean of ξ⁺ is the other:
//
//   mean of ξ = Z₁ a + Z₂ (mean of ξ⁺),   smoothed mean = filtered mean + Rᵀ (mean of ξ)
//
// Steps are left to others where R or R⁺ are not those of an update (rows for all but y^(k)), where they do not
// fit each other, and where rounding hides the noise. `order` is that of the equation, k: one or two.
template <int w, int fixed>
class SeveralSteps : protected Shape<w, fixed> {
 public:
  SeveralSteps(const Settings& settings, const double* rows, double* out)
      : Shape<w, fixed>(settings.n, settings.determined), s(settings), columns(s.structure == kIsotropic ? s.d : 1), rows_(rows), out_(out),
        next_(static_cast<size_t>(filled) * columns), unused_(static_cast<size_t>(s.block_triangle())) {
    const size_t lanes = 3 * static_cast<size_t>(filled) * wide + static_cast<size_t>(wide) * wide +
                         static_cast<size_t>(filled) * filled + kTile;
    Lane* at = lanes_of(memory_, lanes);
    for (Lane** each : {&r_, &after_, &z_}) *each = std::exchange(at, at + static_cast<long>(filled) * wide);
    b_ = std::exchange(at, at + static_cast<long>(wide) * wide);
    root_ = at;
    double* numbers = room(numbers_, static_cast<size_t>(kSteps) * (size + kTile) * length);
    for (double*& each : turned_) each = std::exchange(numbers, numbers + static_cast<long>(size) * length);
    for (int i = 0; i < n; ++i) {
      variance_of_noise_[i] = 0.0;
      for (int e = 0; e <= i; ++e) variance_of_noise_[i] += square(s.noise[e * n + i]);
    }
  }

 protected:
  using Shape<w, fixed>::n, Shape<w, fixed>::size, Shape<w, fixed>::count, Shape<w, fixed>::order,
      Shape<w, fixed>::read, Shape<w, fixed>::above, Shape<w, fixed>::wide, Shape<w, fixed>::filled,
      Shape<w, fixed>::length;
  static constexpr int kHighest = fixed ? 1 : 2;  // order
  static constexpr int kMost = kMaxDerivatives * w + kTile;

  static Lane* lanes_of(std::vector<double>& memory, size_t lanes) {
    double* begin = room(memory, kLane * lanes);
    std::memset(begin, 0, sizeof(Lane) * lanes);
    return reinterpret_cast<Lane*>(begin);
  }

  // The rows of R are those of all derivatives but y^(k): where they begin. Place: in the order of `slot`.
  int begin(int r) const { return r < read ? r : r + w; }
  static constexpr int place(int r) { return r + w; }
  // How many of these rows have begun at a column.
  int begun(int c) const { return c < read ? c + 1 : c < above ? read : std::min(c + 1 - w, count); }

  Row filtered(long i) const { return Row(s, const_cast<double*>(rows_) + i * s.kept_size()); }
  double* smoothed_mean(long i) const { return out_ + i * (s.state_size() + s.triangle_size()); }
  double* smoothed_factor(long i, int block) const {
    return smoothed_mean(i) + s.state_size() + block * s.block_triangle();
  }

  // R, R⁺ and the means; lengths of steps, coordinates, noise. Whether the rows are those of an update.
  Mask load(int block, long right, int wanted) {
    const double *factors[kSteps], *factors_after[kSteps];
    Lane t = {}, t_after = {}, h_before = {}, h_after = {};
    for (int l = 0; l < kSteps; ++l) {
      const long i = right - 1 - std::min(l, wanted - 1);
      const Row left = filtered(i), after = filtered(i + 1);
      factors[l] = left.factor + block * s.block_triangle();
      factors_after[l] = after.factor + block * s.block_triangle();
      means_[l] = left.mean + block * w;
      means_after_[l] = after.mean + block * w;
      scales_[l] = after.scale + (s.scales() == 1 ? 0 : block * w);
      t[l] = *left.t, t_after[l] = *after.t, h_before[l] = *left.h, h_after[l] = *after.h;
    }
    const Lane h = t_after - t, inverse = 1.0 / h, back = h / h_before;
    change_[0] = h_before / h, coords_[0] = h * s.weights[0];
    Lane power = Lane{} + 1.0, other = power;
    for (int i = 1; i < n; ++i) {
      change_[i] = power, coords_[i] = other * s.weights[i];
      power *= back, other *= inverse;
    }
    Mask fine = (h == h_after) & (h != 0.0);
    fine &= load_triangle(factors, r_);
    load_triangle(factors_after, after_);  // looked at as R of the step after
    for (int r = 0; r < count; ++r) fine &= (at(r_, r)[begin(r)] != 0.0) & (at(after_, r)[begin(r)] != 0.0);
    // A step adds at least the rounding of y, and of what else is given with it.
    for (int k = 0; k < w; ++k) {
      for (int l = 0; l < kSteps; ++l) scale_[k][l] = scales_[l][s.scales() == 1 ? 0 : k];
      for (int i = 0; i < order && !s.fixed; ++i) {
        Lane size = {};
        for (int l = 0; l < kSteps; ++l) {
          const double* mean = means_[l] + static_cast<long>(i) * s.d;
          size[l] = s.structure == kIsotropic ? largest(mean, s.d) : mean[k];
        }
        scale_[k] = larger(scale_[k], kEpsilon * magnitude(size / coords_[i]));
      }
    }
    return fine;
  }

  // `z_` = E, columns in their slots; the variances of x⁺. False where rounding hides the noise.
  Mask predict() {
    Lane squares[kMost] = {};
    for (int r = 0; r < count; ++r) {
      const Lane* from = at(r_, r);
      Lane* out = at(z_, r);
      for (int k = 0; k < w; ++k) {
        const int first = std::max(begin(r) - k + w - 1, 0) / w;
        Lane x[kMaxDerivatives];
        for (int j = first; j < n; ++j) x[j] = from[j * w + k] * change_[j];
        for (int i = 0; i < n; ++i) {
          Lane sum = {};
          for (int j = std::max(i, first); j < n; ++j) sum += s.transition[i * n + j] * x[j];
          out[slot(i, w, order) + k] = sum;
          squares[slot(i, w, order) + k] += sum * sum;
        }
      }
    }
    Mask fine = all_fine();
    for (int i = 0; i < n; ++i)
      for (int k = 0; k < w; ++k) {
        const int at = slot(i, w, order) + k;
        const Lane known = squares[at], own = scale_[k] * scale_[k];
        fine &= own * square(s.noise[i * n + i]) >= square(kResolved) * known;
        variance_[at] = known + own * variance_of_noise_[i];
        fine &= representable(variance_[at]);
      }
    return fine;
  }

  // u takes the place of y^(k), with c_i J_i from R⁺, whose rows have y^(k) = Σ c_i J_i y_i. `own_`: what the
  // noise of y, ..., y^(k) adds to u.
  Mask observe() {
    for (int r = 0; r < count; ++r) inverse_[place(r)] = 1.0 / at(after_, r)[begin(r)];
    for (int r = read - 1; r >= 0; --r) {
      const Lane* from = at(after_, r);
      for (int a = 0; a < w; ++a) {
        Lane sum = -from[read + a];
        for (int e = r + 1; e < read; ++e) sum -= from[e] * slopes_[e][a];
        slopes_[r][a] = sum * inverse_[place(r)];
      }
    }
    for (int r = 0; r < count; ++r)
      for (int a = 0; a < w; ++a) {
        Lane sum = at(z_, r)[a];
        for (int e = 0; e < read; ++e) sum += slopes_[e][a] * at(z_, r)[w + e];
        at(z_, r)[a] = sum;
      }
    for (int r = 0; r <= order; ++r)
      for (int a = 0; a < w; ++a)
        for (int k = 0; k < w; ++k) {
          Lane sum = Lane{} + (a == k ? s.noise[r * n + order] : 0.0);
          for (int i = r; i < order; ++i) sum += s.noise[r * n + i] * slopes_[i * w + k][a];
          own_[r * w + k][a] = scale_[k] * sum;
        }
    Mask fine = all_fine();
    for (int i = 0; i < order && s.structure == kIsotropic; ++i) fine &= slopes_[i][0] == 0.0;
    return fine;
  }

  // a, from U in `b_`. The prediction is rounded as the filter's.
  void innovate() {
    Lane difference[kHighest + 1][w], inverse[kMaxDerivatives];
    for (int j = 1; j < n; ++j) inverse[j] = 1.0 / coords_[j];
    for (int k = 0; k < w; ++k) {
      for (int j = 0; j < n; ++j) mean_[j * w + k] = gather(means_, static_cast<long>(j) * s.d + k);
      for (int i = 0; i <= order; ++i) {
        Lane sum = {};
        for (int j = i + 1; j < n; ++j) sum += s.transition[i * n + j] * inverse[j] * mean_[j * w + k];
        const Lane predicted = mean_[i * w + k] + coords_[i] * sum;
        difference[i][k] = (gather(means_after_, static_cast<long>(i) * s.d + k) - predicted) / coords_[i];
      }
    }
    for (int a = 0; a < w; ++a) {
      Lane sum = difference[order][a];
      for (int e = 0; e < read; ++e) sum += slopes_[e][a] * difference[e / w][e % w];
      for (int e = 0; e < a; ++e) sum -= at(b_, e)[a] * innovation_[e];
      innovation_[a] = sum * inverse_[a];
    }
  }

  // The other rows of `b_`: R⁺ without y^(k). Whether BᵀB has the variances of the prediction (u aside).
  Mask consistent() {
    Lane sums[kMost] = {};
    for (int a = 0; a < w; ++a)
      for (int c = w; c < size; ++c) sums[c] += at(b_, a)[c] * at(b_, a)[c];
    for (int r = 0; r < count; ++r)
      for (int c = r; c < count; ++c) {
        const Lane x = at(after_, r)[begin(c)];
        at(b_, place(r))[place(c)] = x;
        sums[place(c)] += x * x;
      }
    Mask fine = all_fine();
    for (int c = w; c < size; ++c) fine &= magnitude(sums[c] - variance_[c]) < kConsistent * variance_[c];
    return fine;
  }

  // `z_` = C R for C in `root_`. Whether enough is left of R's variances.
  Mask multiply() {
    Lane before[kMost] = {}, left[kMost] = {};
    for (int r = 0; r < count; ++r) {
      const Lane* weights = root_ + static_cast<long>(r) * filled;
      for (int c = begin(r) / kTile * kTile; c < size; c += kTile) {
        Lane sum[kTile] = {};
        const int end = begun(c + kTile - 1);
        for (int e = r; e < end; ++e)
          for (int i = 0; i < kTile; ++i) sum[i] += weights[e] * at(r_, e)[c + i];
        for (int i = 0; i < kTile; ++i) {
          before[c + i] += at(r_, r)[c + i] * at(r_, r)[c + i];
          left[c + i] += sum[i] * sum[i];
          at(z_, r)[c + i] = sum[i];
        }
      }
    }
    Mask fine = all_fine();
    for (int c = 0; c < size; ++c) fine &= left[c] >= kLeastShare * before[c];
    return fine;
  }

  // The first `done` of the steps before `right`; `mean` is that of ξ there, and then of the first node.
  void write(int block, long right, int done, std::vector<double>& mean) {
    double* to[kSteps];
    for (int l = 0; l < kSteps; ++l) to[l] = l < done ? smoothed_factor(right - 1 - l, block) : unused_.data();
    const long slopes = triangle_row(to[0], size, read) + read - to[0];
    const long end = triangle_row(to[0], size, above) + above - to[0];
    for (int l = 0; l < done; ++l) std::memset(to[l] + slopes, 0, sizeof(double) * (end - slopes));
    for (int r = 0; r < count; ++r) {
      const Lane* from = at(z_, r);
      const long offset = triangle_row(to[0], size, begin(r)) - to[0];
      int c = begin(r);
      for (; c + kLane <= size; c += kLane) turn(from + c, 1, to, offset + c);
      for (; c < size; ++c)
        for (int l = 0; l < kSteps; ++l) to[l][offset + c] = from[c][l];
    }
    if constexpr (w == 1)
      if (s.structure == kIsotropic) {
        for (int l = 0; l < done; ++l) move_shared_means(mean, right - 1 - l, l);
        return;
      }
    move_means(mean, block, right, done);
  }

  // R and means at a node, to begin with: X = R_s R⁻¹ without y^(k) (`size` rows of `length` numbers), and the
  // mean of ξ. False where the filter's row is not that of an update. `same`: not smoothed, X is not written.
  bool recover(int block, long node, double* x, std::vector<double>& xi, bool& same) const {
    const Row row = filtered(node);
    const double *factor = row.factor + block * s.block_triangle(), *left = smoothed_factor(node, block);
    const double* mean = smoothed_mean(node);
    for (int r = read; r < above; ++r)
      if (first_nonzero(triangle_row(factor, size, r), size, r) < size) return false;
    double inverse[kMost];
    for (int r = 0; r < count; ++r) {
      inverse[r] = 1.0 / triangle_row(factor, size, begin(r))[begin(r)];
      if (!std::isfinite(inverse[r])) return false;
    }
    auto divide = [&](double* given) {  // by R
      for (int c = 0; c < count; ++c) {
        for (int e = 0; e < c; ++e) given[c] -= given[e] * triangle_row(factor, size, begin(e))[begin(c)];
        given[c] *= inverse[c];
      }
    };
    same = std::memcmp(left, factor, sizeof(double) * s.block_triangle()) == 0;
    for (int r = 0; r < size && !same; ++r) {
      double* out = x + static_cast<long>(r) * length;
      for (int c = 0; c < count; ++c) out[c] = begin(c) < r ? 0.0 : triangle_row(left, size, r)[begin(c)];
      divide(out);
    }
    double coords[kMaxDerivatives], given[kMost];
    coordinates(s, *row.h, coords);
    for (long k = 0; k < columns; ++k) {
      for (int c = 0; c < count; ++c) {
        const long at = static_cast<long>(begin(c) / w) * s.d + block * w + begin(c) % w + k;
        given[c] = (mean[at] - row.mean[at]) / coords[begin(c) / w];
      }
      divide(given);
      for (int c = 0; c < count; ++c) xi[c * columns + k] = given[c];
    }
    return true;
  }

  Lane* at(Lane* matrix, long r) const { return matrix + r * wide; }
  const Lane* at(const Lane* matrix, long r) const { return matrix + r * wide; }

  const Settings& s;
  const long columns;                   // of means that share a block
  Lane *r_, *after_, *z_, *b_, *root_;  // root_: rows of `filled` lanes
  Lane inverse_[kMost] = {}, variance_[kMost], own_[(kHighest + 1) * w][w], innovation_[w], scale_[w];
  double* turned_[kSteps];  // Zᵀ of each step, rows of `length` numbers

 private:
  // The rows of a triangle but those of y^(k), which should be zero: whether they are.
  Mask load_triangle(const double* const (&from)[kSteps], Lane* out) const {
    Mask fine = all_fine();
    Lane slopes[kMost];
    for (int r = 0; r < size; ++r) {
      const long offset = triangle_row(from[0], size, r) - from[0];
      const bool slope = r >= read && r < above;
      Lane* row = slope ? slopes : at(out, r < read ? r : r - w);
      int c = r;
      for (; c + kLane <= size; c += kLane) turn(from, offset + c, row + c);
      for (; c < size; ++c) row[c] = gather(from, offset + c);
      for (c = r; c < size && slope; ++c) fine &= row[c] == 0.0;
    }
    return fine;
  }

  // The means of a block of its own.
  void move_means(std::vector<double>& mean, int block, long right, int done) {
    Lane xi[kMost] = {};
    for (int l = 0; l < done; ++l) {
      double white[kMost], moved[kMost];
      for (int a = 0; a < w; ++a) white[a] = innovation_[a][l];
      for (int e = 0; e < count; ++e) white[w + e] = mean[e];
      combine(moved, nullptr, white, turned_[l], length, size, filled);
      for (int r = 0; r < count; ++r) xi[r][l] = mean[r] = moved[r];
    }
    for (int c = 0; c < size; ++c) {
      Lane sum = {};
      for (int r = 0; r < begun(c); ++r) sum += at(r_, r)[c] * xi[r];
      const Lane result = mean_[c] + coords_[c / w] * change_[c / w] * sum;
      for (int l = 0; l < done; ++l)
        smoothed_mean(right - 1 - l)[static_cast<long>(c / w) * s.d + block * w + c % w] = result[l];
    }
  }

  // Those of components that share a block, lanes of them.
  void move_shared_means(std::vector<double>& mean, long i, int l) {
    const long d = s.d;
    const double *before = means_[l], *after = means_after_[l], *z = turned_[l];
    double *out = smoothed_mean(i), *next = next_.data();
    const double* xi = mean.data();
    double weights[kMaxDerivatives], factor[kMaxDerivatives][kMaxDerivatives];
    for (int j = order + 1; j < n; ++j) weights[j] = s.transition[order * n + j] / coords_[j][l];
    for (int r = 0; r < count; ++r)
      for (int c = 0; c < n; ++c) factor[r][c] = coords_[c][l] * change_[c][l] * at(r_, r)[c][l];
    const double unit = coords_[order][l], share = inverse_[0][l] / unit;
    auto move = [&](long k, auto load, auto store) {
      using Number = decltype(load(before));
      Number sum = {}, x[kMaxDerivatives], moved[kMaxDerivatives];
      for (int j = order + 1; j < n; ++j) sum += weights[j] * load(before + j * d + k);
      const Number a = (load(after + order * d + k) - (load(before + order * d + k) + unit * sum)) * share;
      for (int r = 0; r < count; ++r) x[r] = load(xi + r * d + k);
      for (int r = 0; r < count; ++r) {
        moved[r] = z[r] * a;
        for (int e = 0; e < count; ++e) moved[r] += z[(1 + e) * length + r] * x[e];
        store(next + r * d + k, moved[r]);
      }
      for (int c = 0; c < n; ++c) {
        Number change = {};
        for (int r = 0; r < begun(c); ++r) change += factor[r][c] * moved[r];
        store(out + c * d + k, load(before + c * d + k) + change);
      }
    };
    long k = 0;
    for (; k + kLane <= d; k += kLane)
      move(k, [](const double* p) { return PROBODE_ISA::load(p); },
           [](double* p, Lane v) { PROBODE_ISA::store(p, v); });
    for (; k < d; ++k) move(k, [](const double* p) { return *p; }, [](double* p, double v) { *p = v; });
    std::swap(mean, next_);
  }

  const double* rows_;
  double* out_;
  double variance_of_noise_[kMaxDerivatives];
  Lane change_[kMaxDerivatives], coords_[kMaxDerivatives], slopes_[kHighest * w][w], mean_[kMost];
  const double *means_[kSteps], *means_after_[kSteps], *scales_[kSteps];
  std::vector<double> memory_, numbers_, next_, unused_;
};

}  // namespace PROBODE_ISA
}  // namespace probode
