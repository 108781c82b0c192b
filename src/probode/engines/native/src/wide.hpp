// The update of a wide block by way of covariances, where that loses no digits that matter.
#pragma once

#include "condition.hpp"
#include "gram.hpp"

namespace probode {
namespace PROBODE_ISA {

// Covariances hold the squares of what the factors hold: a pivot is the square root of a difference, and
// what that lost is known if one knows how large the numbers were that went into it. `Wide` carries these
// bounds along, (Σ |coefficient| standard deviation)². A square that is less than its share of the bound
// is not trusted, and reflections do the update instead:
//
//   1e-8 for u and what it is made of, 1e-12 for the higher derivatives given these; 1e-6 for all if it will be smoothed
//
// Measured against reflections, step by step (HIRES, Pleiades, coupled Robertson and Van der Pol problems,
// q = 3, 5, 8), standard deviations differ by less than 5e-7 of themselves, those of y by less than 2e-8. That
// is decided by the shares of u and y. Those of the higher derivatives make no difference down to 1e-13: what
// their pivots lose is rounding of P⁻ in units of its bound, and whether the next step can bear that is what
// its own u and y say. A share of the diagonal of P⁻, which cancellation has made small already, would
// let through errors of 2e-3. The smoother depends on the small pivots more than the standard deviations
// of the filter do: where it makes them a thousand times smaller, 1e-8 led to errors of 2e-5.
constexpr double kShare = 1e-8, kShareOfHigher = 1e-12, kShareToSmooth = 1e-6;

// Beyond c |J| = 1/sqrt(kShare), u or what it leaves of y would be below its share: not worth trying.
constexpr double kSteep = 1e4;

// A square, sums of which neither overflow nor vanish. Zeros, which must stay zeros, are left to
// reflections, and so is NaN.
inline bool representable(double square) { return square > 1e-200 && square < 1e200; }

// Where a derivative of `w` components is found: u (first y^(k), k = `order`) | y | ... without y^(k) ... | y^(q).
inline int slot(int i, int w, int order) { return i < order ? (i + 1) * w : i == order ? 0 : i * w; }

struct Wide {
  const Block& b;
  const int n, w, order, size, whole, stride;
  const int read, above;       // columns of a factor: of what f takes; where those above y^(k) begin
  double *s, *first, *second;  // three matrices, whole x stride
  double* bound;               // (size,) in the order of s
  double* least;               // (size,) what the square of a pivot must exceed
  double* own;                 // (w,)    H s²Q Hᵀ, its diagonal
  double* slope;               // (read, w)  -c_i J_i, transposed

  Wide(const Block& block, Scratch& scratch)
      : b(block), n(b.n), w(b.width), order(b.determined), size(n * w), whole(whole_tiles(size)),
        stride(row_length(whole + w)), read(order * w), above(read + w) {
    const size_t matrix = static_cast<size_t>(whole) * stride;
    s = room(scratch.stack, 3 * matrix);
    first = s + matrix;
    second = first + matrix;
    bound = room(scratch.vectors, 3 * static_cast<size_t>(size));
    least = bound + size;
    own = least + size;
    slope = room(scratch.small_matrix, static_cast<size_t>(read) * w);
  }

  double* row(double* matrix, long r) const { return matrix + r * stride; }

  // -c_i J_iᵀ; whether it is not too steep.
  bool linearize() {
    double steepest = 0.0;
    for (int a = 0; a < w; ++a) {
      double sum = 0.0;
      for (int i = 0; i < order; ++i)
        for (int l = i * w; l < (i + 1) * w; ++l) {
          const double entry = b.jacobian ? -b.weights[i] * b.jacobian[static_cast<long>(a) * read + l] : 0.0;
          slope[static_cast<long>(l) * w + a] = entry;
          sum += std::fabs(entry);
        }
      steepest = larger(steepest, sum);
    }
    return steepest < kSteep;
  }

  // `first` = P = RᵀR in the coordinates of this step; standard deviations.
  void covariance(Scratch& scratch) {
    int* begin = reinterpret_cast<int*>(room(scratch.reflector, size));
    int rows = 0;
    for (int r = 0; r < size; ++r) {
      const double* from = b.factor + static_cast<long>(r) * size;
      if (first_nonzero(from, size, r) == size) continue;
      double* out = row(s, rows);
      begin[rows++] = r;
      std::memset(out, 0, sizeof(double) * stride);
      for (int j = r / w; j < n; ++j)
        for (int k = 0; k < w; ++k) out[j * w + k] = b.change[j] * from[j * w + k];
    }
    gram(s, stride, rows, begin, size, first, stride);
    mirror(first, stride, size);
  }

  // `second` = Ã P Ãᵀ with its rows in their slots: Ã (Ã P)ᵀ, Ã being n x n times the identity.
  void predict() {
    double* deviation = least;
    for (int c = 0; c < size; ++c) deviation[c] = std::sqrt(row(first, c)[c]);
    for (int i = 0; i < n; ++i) {
      const double* weights = b.transition + i * n + i;
      for (int k = 0; k < w; ++k) {
        combine(row(second, i * w + k), nullptr, weights, row(first, i * w + k), w * stride, n - i, whole);
        double sum = 0.0;
        for (int j = i; j < n; ++j) sum += weights[j - i] * deviation[j * w + k];
        bound[slot(i, w, order) + k] = square(sum);
      }
    }
    transpose(second, stride, size, size, first, stride);
    for (int i = 0; i < n; ++i)
      for (int k = 0; k < w; ++k)
        combine(row(second, slot(i, w, order) + k), nullptr, b.transition + i * n + i, row(first, i * w + k),
                w * stride, n - i, whole);
  }

  // `s` = Ã P Ãᵀ + s² Q, columns in their slots too.
  void add_noise() {
    for (int r = 0; r < size; ++r) {
      const double* from = row(second, r);
      double* to = row(s, r);
      std::memcpy(to, from + read, sizeof(double) * w);
      std::memcpy(to + w, from, sizeof(double) * read);
      std::memcpy(to + above, from + above, sizeof(double) * (size - above));
      std::memset(to + size, 0, sizeof(double) * (stride - size));
    }
    std::memset(row(s, size), 0, sizeof(double) * static_cast<size_t>(whole - size) * stride);
    for (int i = 0; i < n; ++i)
      for (int j = i; j < n; ++j) {
        double q = 0.0;
        for (int e = 0; e <= i; ++e) q += b.noise_factor[e * n + i] * b.noise_factor[e * n + j];
        for (int k = 0; k < w; ++k) {
          const double entry = square(b.scale[k]) * q;
          const int r = slot(i, w, order) + k, c = slot(j, w, order) + k;
          row(s, r)[c] += entry;
          if (i == j) bound[r] += entry;
          else row(s, c)[r] += entry;
        }
      }
  }

  // What the noise of y, ..., y^(k) adds to u: row `r` of the noise's factor, of a component `l`, to u of a
  // component `a`.
  double noise_of(int r, int l, int a) const {
    double sum = a == l ? b.noise_factor[r * n + order] : 0.0;
    for (int i = r; i < order; ++i) sum += slope[static_cast<long>(i * w + l) * w + a] * b.noise_factor[r * n + i];
    return b.scale[l] * sum;
  }

  // u takes the place of y^(k), rows and then columns; Cov(u, y^(k)) goes to the end of its rows.
  // Observation noise. False where this is not for squares to decide.
  bool observe() {
    double* deviation = least;
    for (int c = 0; c < above; ++c) deviation[c] = std::sqrt(bound[c]);
    for (int a = 0; a < w; ++a) {
      double sum = deviation[a];
      own[a] = square(noise_of(order, a, a));
      for (int l = 0; l < read; ++l) sum += std::fabs(slope[static_cast<long>(l) * w + a]) * deviation[w + l];
      for (int r = 0; r < order; ++r)
        for (int l = 0; l < w; ++l) own[a] += square(noise_of(r, l, a));
      bound[a] = square(sum);
    }
    if (b.jacobian)
      for (int a = 0; a < w; ++a)
        for (int l = 0; l < read; ++l) {
          const double entry = slope[static_cast<long>(l) * w + a];
          if (entry != 0.0) combine(row(s, a), row(s, a), &entry, row(s, w + l), stride, 1, whole);
        }
    for (int a = 0; a < w; ++a) {
      double* out = row(s, a);
      std::memcpy(out + whole, out, sizeof(double) * w);
      if (b.jacobian)
        for (int l = 0; l < read; ++l) {
          const double entry = out[w + l];
          for (int e = 0; e < w; ++e) out[e] += entry * slope[static_cast<long>(l) * w + e];
        }
      if (!b.observation_noise) continue;
      if (!(own[a] > square(2.0 * kUnresolved) * out[a])) return false;  // see `condition_block`
      out[a] += square(b.observation_noise[a]);
      bound[a] += square(b.observation_noise[a]);
    }
    for (int c = 0; c < size; ++c) {
      if (!representable(row(s, c)[c])) return false;
      least[c] = (b.smoothed ? kShareToSmooth : c < above ? kShare : kShareOfHigher) * bound[c];
    }
    return true;
  }

  // Whitened residual, correction and posterior factor, from the rows of the decomposition.
  void write() const {
    for (int a = 0; a < w; ++a) {
      b.pivots[a] = row(s, a)[a];
      b.blank[a] = false;
      double rest = b.residual[a];
      for (int e = 0; e < a; ++e) rest -= row(s, e)[a] * b.whitened[e];
      b.whitened[a] = rest / b.pivots[a];
    }
    for (int x = 0; x < size; ++x) {
      const int column = x < read ? x + w : x < above ? whole + x - read : x;
      double sum = 0.0;
      for (int a = 0; a < w; ++a) sum += row(s, a)[column] * b.whitened[a];
      b.correction[x] = sum;
    }
    // No rows for y^(k), whose columns follow from those below (R Hᵀ = 0).
    std::memset(b.posterior, 0, sizeof(double) * static_cast<size_t>(size) * size);
    for (int r = 0; r < read; ++r) {
      const double* from = row(s, w + r);
      double* out = b.posterior + static_cast<long>(r) * size;
      std::memcpy(out + r, from + w + r, sizeof(double) * (read - r));
      std::memcpy(out + above, from + above, sizeof(double) * (size - above));
      if (b.jacobian)
        for (int l = r; l < read; ++l)
          for (int a = 0; a < w; ++a) out[read + a] -= slope[static_cast<long>(l) * w + a] * out[l];
    }
    for (int r = above; r < size; ++r)
      std::memcpy(b.posterior + static_cast<long>(r) * size + r, row(s, r) + r, sizeof(double) * (size - r));
  }
};

// Condition a block on its observation: what `condition_block` computes, from the covariance
//
//   G = Cov(u, y, ..., y^(q)) without y^(k),   u = H x,   Cov(x) = Ã P Ãᵀ + s² Q,   P = RᵀR
//
// and its Cholesky decomposition G = UᵀU: the rows of U are those that reflections would leave. A third of
// the operations, and in tiles. False, with nothing written, where digits would be lost.
inline bool condition_wide(const Block& b, Scratch& scratch) {
  Wide wide(b, scratch);
  if (!wide.linearize()) return false;
  wide.covariance(scratch);
  wide.predict();
  wide.add_noise();
  if (!wide.observe()) return false;
  const int w = wide.w, end = wide.whole + w, size = wide.size;
  const double* least = wide.least;
  if (!cholesky(wide.s, wide.stride, size, [=](int row) { return row < w ? end : size; },
                [=](int row, double square) { return square > least[row] ? square : 0.0; }))
    return false;
  wide.write();
  return true;
}

template <int order>
void condition(const Block& b, Scratch& scratch) {
  switch (b.width) {
    case 1: return condition_block<1, order>(b, scratch);
    case 2: return condition_block<2, order>(b, scratch);
    case 3: return condition_block<3, order>(b, scratch);
    case 4: return condition_block<4, order>(b, scratch);
    default:
      if (b.gain || !condition_wide(b, scratch)) condition_block<0, order>(b, scratch);
  }
}

}  // namespace PROBODE_ISA
}  // namespace probode
