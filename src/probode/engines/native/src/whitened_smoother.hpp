// A step of the smoother in a dense block, in units of the filter's own uncertainty.
#pragma once

#include "wide.hpp"

namespace probode {
namespace PROBODE_ISA {

// What a step back is made from; factors are triangles, changes of coordinates are numbers per column.
struct StepBack {
  int n, width, determined;                 // k: the derivative that the equation determines
  const double *transition, *noise_factor;  // (n, n), triangular
  const double* scale;                      // process noise, one per component
  const double *factor, *change;            // R, filtered
  const double *after, *change_after;       // R⁺, filtered a step later
  const double* smoothed;                   // likewise, smoothed
  const double* difference;                 // (D,) the mean a step later, smoothed minus predicted
};

// With x = Rᵀ ξ filtered, x⁺ = Ã x + noise predicted, and the filter's observation u of x⁺ (see `Block`),
//
//   Cov(ξ) = I,   E = R Ãᵀ,   Cov(x⁺) = EᵀE + s² Q = BᵀB,   B = [U; R⁺],   Z = E B⁻¹ = [Z₁ Z₂]
//
// where U has a row per component, what u took away: U = S^(-T/2) Cov(u, x⁺), S = Cov(u). If the observations
// after u make I - M⁺ of Cov(ξ⁺), x⁺ = R⁺ᵀ ξ⁺, then together with u they make
//
//   Cov(ξ) = I - M,   M = Z₁ Z₁ᵀ + Z₂ M⁺ Z₂ᵀ,        mean of ξ:  Z B⁻ᵀ (x⁺ smoothed - predicted)
//
// and the smoothed factor is C R, CᵀC = I - M: triangular, with the zeros of R. (The form of Bryson and
// Frazier, made white.) Cov(x⁺) is not decomposed: in the order of `slot` B is a triangle, and the filter has
// left it, but for U. A third of the operations of reflections, and in tiles.
//
// M is a sum of squares below I, so its errors are in units of the filter's variances, and digits are lost
// as far as smoothing makes a variance smaller. Reflections do the step where
//
//   - a variance, or a pivot of C, becomes less than kLeastShare of itself
//   - the variances of BᵀB and of the prediction differ by more than kConsistent: R⁺ is not what this
//     prediction was updated to (noise below the rounding of y; an update with noise of its own)
//   - R⁺ has zero pivots, R no rows, or rounding hides the noise
//
// With q = 3 and 5 that is the first step and a few others, with q = 8 nearly all of them.
//
// Measured with constant diffusion on HIRES (q = 3, 5), where filters that update by covariances and by
// reflections can be compared: standard deviations have the filter's own error, 2e-9 and 2e-6 at most; the
// smoother by reflections made 1e-7 and 2e-4 of it.
constexpr double kLeastShare = 1e-5, kConsistent = 1e-10;

class WhitenedSmoother {
 public:
  // Writes the smoothed factor (a triangle) and by how much the mean changes, in coordinates (with room for
  // whole lanes). False, with nothing written, where reflections should do the step.
  bool step(const StepBack& from, double* factor, double* moved) {
    const bool known = std::exchange(known_, false);
    b = &from;
    resize();
    if (!updated() || !(known || shrunk_little())) return false;
    copy_rows();
    if (count == 0) return false;
    recover_slopes();
    if (!predict() || !observe()) return false;
    copy_after();
    if (!consistent()) return false;
    if (!known) recover_information();
    solve_transposed(triangle_, stride, size, z_, stride, count + 1);
    inform();
    if (!decompose() || !multiply()) return false;
    write(factor, moved);
    // The next step back takes all rows but those of y^(k) for ξ⁺.
    known_ = count == size - w && begins_[read - 1] == read - 1 && (count == read || begins_[read] == above);
    std::swap(information_, next_);
    return true;
  }

  // The next step does not begin where the last one ended.
  void forget() { known_ = false; }

 private:
  double* row(double* x, long r) const { return x + r * stride; }
  const double* row(const double* x, long r) const { return x + r * stride; }
  void clear(double* x, long rows) const { std::memset(x, 0, sizeof(double) * rows * stride); }

  void resize() {
    if (n == b->n && w == b->width && order == b->determined) return;
    n = b->n, w = b->width, order = b->determined;
    size = n * w, whole = whole_tiles(size), stride = row_length(whole + kTile), read = order * w, above = read + w;
    length = row_length(whole_tiles(w));
    const size_t matrix = static_cast<size_t>(whole + kTile) * stride;
    const size_t narrow = static_cast<size_t>(whole + (order + 1) * whole_tiles(w)) * length;
    double* at = room(memory_, 7 * matrix + 2 * narrow + 5 * static_cast<size_t>(size + above) + 2 * whole);
    for (double** each : {&rows_, &turned_, &z_, &triangle_, &information_, &next_, &root_})
      *each = std::exchange(at, at + matrix);
    for (double** each : {&observed_, &cross_}) *each = std::exchange(at, at + narrow);
    for (double** each : {&variance_, &sums_}) *each = std::exchange(at, at + whole);
    reflector_ = at;
    begins_.resize(size);
    slopes_.resize(static_cast<size_t>(read) * w);
  }

  // Whether R⁺ is the factor of an update: no rows for y^(k), and no zero pivots elsewhere.
  bool updated() const {
    for (int r = 0; r < size; ++r) {
      const double* from = triangle_row(b->after, size, r);
      const bool slope = r >= read && r < above;
      if (slope ? first_nonzero(from, size, r) < size : from[r] == 0.0) return false;
    }
    return true;
  }

  // Whether smoothing left enough of the variances at x⁺: next to a step that failed, most do.
  bool shrunk_little() {
    std::fill(variance_, variance_ + size, 0.0);
    std::fill(sums_, sums_ + size, 0.0);
    for (int r = 0; r < size; ++r) {
      const double *filtered = triangle_row(b->after, size, r), *left = triangle_row(b->smoothed, size, r);
      for (int c = r; c < size; ++c) {
        variance_[c] += square(filtered[c]);
        sums_[c] += square(left[c]);
      }
    }
    return enough();
  }

  bool enough() const {
    for (int c = 0; c < size; ++c)
      if (!(sums_[c] >= kLeastShare * variance_[c])) return false;
    return true;
  }

  // `rows_` = R without its rows of zeros, `turned_` its transpose.
  void copy_rows() {
    clear(rows_, whole);
    count = 0;
    for (int r = 0; r < size; ++r) {
      const double* from = triangle_row(b->factor, size, r);
      if (first_nonzero(from, size, r) == size) continue;
      std::memcpy(row(rows_, count) + r, from + r, sizeof(double) * (size - r));
      begins_[count++] = r;
    }
    filled = whole_tiles(count);
    transpose(rows_, stride, count, size, turned_, stride);
  }

  // (-c_i J_i)ᵀ from R⁺, whose rows have y^(k) = Σ c_i J_i y_i.
  void recover_slopes() {
    const double* change = b->change_after;
    for (int r = read - 1; r >= 0; --r) {
      const double* from = triangle_row(b->after, size, r);
      double* out = slopes_.data() + static_cast<long>(r) * w;
      for (int a = 0; a < w; ++a) out[a] = -change[read] * from[read + a];
      for (int e = r + 1; e < read; ++e) {
        const double entry = change[e] * from[e];
        for (int a = 0; a < w; ++a) out[a] -= entry * slopes_[static_cast<long>(e) * w + a];
      }
      const double pivot = change[r] * from[r];
      for (int a = 0; a < w; ++a) out[a] /= pivot;
    }
  }

  // `z_` = Eᵀ = Ã Rᵀ with its rows in their slots, and after its columns the difference of the means. The
  // variances of x⁺. False where rounding hides the noise: that case is `backward_block`'s.
  bool predict() {
    bool resolved = true;
    for (int i = 0; i < n; ++i) {
      double weights[kMaxDerivatives], noise = 0.0;
      for (int j = i; j < n; ++j) weights[j] = b->transition[i * n + j] * b->change[j * w];
      for (int e = 0; e <= i; ++e) noise += square(b->noise_factor[e * n + i]);
      for (int k = 0; k < w; ++k) {
        const int r = slot(i, w, order) + k;
        double* out = row(z_, r);
        combine(out, nullptr, weights + i, row(turned_, i * w + k), w * stride, n - i, filled);
        const double squares = sum_of_squares(out, filled), pivot = b->scale[k] * b->noise_factor[i * n + i];
        resolved = resolved && std::fabs(pivot) >= kResolved * std::sqrt(squares);
        variance_[r] = squares + square(b->scale[k]) * noise;
        std::memset(out + filled, 0, sizeof(double) * (stride - filled));
        out[count] = b->difference[i * w + k];
      }
    }
    clear(row(z_, size), whole - size);
    return resolved;
  }

  // u takes the place of y^(k), and U that of the first rows of `triangle_`. S by reflections: where the
  // components of u depend on each other, its square would lose digits.
  bool observe() {
    for (int a = 0; a < w; ++a) {
      for (int l = 0; l < read; ++l) sums_[l] = slopes_[static_cast<long>(l) * w + a];
      combine(row(z_, a), row(z_, a), sums_, row(z_, w), stride, read, whole_tiles(count + 1));
    }
    const int rows = count + above, narrow = whole_tiles(w);
    std::memset(observed_, 0, sizeof(double) * static_cast<size_t>(rows) * length);
    transpose(z_, stride, narrow, count, observed_, length);
    for (int r = 0; r < size; r += kTile)
      multiply_rows(row(z_, r), stride, 0, count, observed_, length, 0, w, cross_ + r * length, length);
    for (int k = 0; k < w; ++k)
      for (int r = 0; r <= order; ++r) {  // what row r of the noise's factor adds to u, and to its cross covariances
        const double* noise = b->noise_factor + r * n;
        double* out = observed_ + (count + r * w + k) * length;
        std::fill(out, out + w, 0.0);  // what was transposed fills whole tiles
        for (int i = r; i < order; ++i) {
          const double *slope = slopes_.data() + static_cast<long>(i * w + k) * w, weight = b->scale[k] * noise[i];
          for (int a = 0; a < w; ++a) out[a] += weight * slope[a];
        }
        out[k] += b->scale[k] * noise[order];
        for (int j = r; j < n; ++j) {
          double* cross = cross_ + (slot(j, w, order) + k) * length;
          const double weight = b->scale[k] * noise[j];
          if (r == order) cross[k] += weight * out[k];  // there is nothing else in the row
          else for (int a = 0; a < w; ++a) cross[a] += weight * out[a];
        }
      }
    for (int c = w; c < narrow; ++c)  // columns that only fill the tile
      for (int r = 0; r < rows; ++r) observed_[r * length + c] = 0.0;
    reflect_many(observed_, length, 0, rows, 0, 0, w, w, reflector_);
    for (int a = 0; a < w; ++a)
      if (!representable(square(observed_[a * length + a]))) return false;

    transpose(cross_, length, size, narrow, triangle_, stride);
    solve_transposed(observed_, length, w, triangle_, stride, size);
    for (int a = 0; a < w; ++a) {
      std::memset(row(triangle_, a), 0, sizeof(double) * w);
      std::memcpy(row(triangle_, a) + a, observed_ + a * length + a, sizeof(double) * (w - a));
    }
    return true;
  }

  // The other rows of `triangle_`: R⁺ without y^(k).
  void copy_after() {
    clear(row(triangle_, w), whole - w);
    for (int r = 0; r < size; ++r) {
      if (r >= read && r < above) continue;
      const double* from = triangle_row(b->after, size, r);
      double* out = row(triangle_, r < read ? w + r : r);
      for (int c = r; c < read; ++c) out[w + c] = from[c] * b->change_after[c];
      for (int c = std::max(r, above); c < size; ++c) out[c] = from[c] * b->change_after[c];
    }
  }

  // Sums of the squares of the columns of `rows` rows, of which a row `r` is zero before column `r`.
  void sum_columns(const double* matrix, int rows, double* out) const {
    for (int c = 0; c < whole; c += kLane) {
      Lane even = {}, odd = {};
      const int end = std::min(rows, c + kLane);
      for (int r = 0; r < end; ++r) {
        const Lane x = load(row(matrix, r) + c);
        (r % 2 ? odd : even) += x * x;
      }
      store(out + c, even + odd);
    }
  }

  // Whether BᵀB has the variances of the prediction (u aside, whose rows are made from it).
  bool consistent() {
    sum_columns(triangle_, size, sums_);
    double worst = 0.0;
    for (int c = w; c < size; ++c) worst = larger(worst, std::fabs(sums_[c] - variance_[c]) / variance_[c]);
    return worst < kConsistent;
  }

  // M⁺ from the smoothed factor: I - M⁺ = XᵀX, X = R_s T⁻¹ with T being R⁺ without y^(k).
  void recover_information() {
    const int m = size - w;
    if (std::memcmp(b->smoothed, b->after, sizeof(double) * size * (size + 1) / 2) == 0) {
      clear(information_, whole);
      return;
    }
    double *in = root_, *out = next_;
    clear(in, whole);
    for (int r = 0; r < size; ++r) {
      double* to = row(in, r);
      const double* from = triangle_row(b->smoothed, size, r);
      for (int c = r; c < read; ++c) to[c] = from[c] * b->change_after[c];
      for (int c = std::max(r, above); c < size; ++c) to[c - w] = from[c] * b->change_after[c];
    }
    transpose(in, stride, size, m, out, stride);
    solve_transposed(row(triangle_, w) + w, stride, m, out, stride, size);
    transpose(out, stride, m, size, in, stride);
    square_of(in, in, size, m, information_);
    for (int r = 0; r < m; ++r)
      for (int c = r; c < m; ++c) row(information_, r)[c] = (c == r) - row(information_, r)[c];
    mirror(information_, stride, m);
  }

  // out = AᵀB, which is symmetric: right of the diagonal of tiles.
  void square_of(const double* a, const double* with, int depth, int columns, double* out) const {
    product(a, stride, with, stride, columns, columns, out, stride, [](int r) { return r; },
            [=](int) { return depth; });
  }

  // `next_` = M.
  void inform() {
    double *weighted = turned_, *second = row(z_, w);
    const int m = size - w;
    product(information_, stride, second, stride, m, count, row(weighted, w), stride, [](int) { return 0; },
            [=](int) { return m; });
    std::memcpy(weighted, z_, sizeof(double) * static_cast<size_t>(w) * stride);
    square_of(z_, weighted, size, count, next_);
  }

  // `root_` = C.
  bool decompose() {
    for (int r = 0; r < filled; ++r) {
      const double* from = row(next_, r);
      double* out = row(root_, r);
      const int begin = r / kTile * kTile;
      for (int c = begin; c < filled; c += kLane) store(out + c, -load(from + c));
      std::fill(out + begin, out + r, 0.0);
      out[r] += 1.0;
    }
    const int end = count;
    return cholesky(root_, stride, count, [=](int) { return end; },
                    [](int, double square) { return square > kLeastShare ? square : 0.0; });
  }

  // `turned_` = C R. Whether enough is left of R's variances.
  bool multiply() {
    clear(turned_, filled);
    for (int a = 0; a < count; a += kTile)
      multiply_rows(row(root_, a), stride, a, count, rows_, stride, begins_[a] / kLane * kLane, size,
                    row(turned_, a), stride);
    sum_columns(rows_, count, variance_);
    sum_columns(turned_, count, sums_);
    return enough();
  }

  void write(double* factor, double* moved) {
    int next = 0;
    for (int r = 0; r < size; ++r) {
      double* out = triangle_row(factor, size, r) + r;
      if (next < count && begins_[next] == r)
        std::memcpy(out, row(turned_, next++) + r, sizeof(double) * (size - r));
      else
        std::memset(out, 0, sizeof(double) * (size - r));
    }
    double *white = variance_, *mean = sums_;  // B⁻ᵀ times the difference, and the mean of ξ
    for (int r = 0; r < size; ++r) white[r] = row(z_, r)[count];
    combine(mean, nullptr, white, z_, stride, size, filled);
    combine(moved, nullptr, mean, rows_, stride, count, whole);
    for (int c = 0; c < size; ++c) moved[c] *= b->change[c];
    mirror(next_, stride, count);
  }

  const StepBack* b = nullptr;
  int n = 0, w = 0, order = 0, size = 0, whole = 0;  // order: k; size: D = n w
  int read = 0, above = 0;                // columns of y, ..., y^(k-1); where those above y^(k) begin
  int count = 0, filled = 0;              // rows of R that are not zero; the same, whole tiles
  int stride = 0, length = 0;             // of matrices with D columns, and with w
  bool known_ = false;                    // whether `information_` is M⁺ of the step that comes next
  double *rows_, *turned_, *z_, *triangle_, *information_, *next_, *root_;
  double *observed_, *cross_, *variance_, *sums_, *reflector_;
  std::vector<double> memory_, slopes_;
  std::vector<int> begins_;
};

}  // namespace PROBODE_ISA
}  // namespace probode
