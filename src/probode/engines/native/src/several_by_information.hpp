// Several steps of the smoother of a narrow block at a time, by products.
#pragma once

#include "several_steps.hpp"

namespace probode {
namespace PROBODE_ISA {

// The formulas of `WhitenedSmoother`: Z by division, and with Cov(ξ) = I - M smoothed,
//
//   M = Z₁ Z₁ᵀ + Z₂ M⁺ Z₂ᵀ,   CᵀC = I - M,   smoothed factor C R
//
// M goes from step to step. Where smoothing leaves less than kLeastShare of a variance, I - M loses digits:
// such steps are left to others.
template <int w, int fixed>
class ByInformation : public SeveralSteps<w, fixed> {
  using Base = SeveralSteps<w, fixed>;
  using Base::at, Base::b_, Base::count, Base::filled, Base::inverse_, Base::length, Base::n, Base::order, Base::own_,
      Base::root_, Base::s, Base::scale_, Base::size, Base::turned_, Base::wide, Base::z_, Base::kMost, Base::above;

 public:
  ByInformation(const Settings& settings, const double* rows, double* out) : Base(settings, rows, out) {
    const size_t matrix = static_cast<size_t>(filled) * length;
    double* numbers = room(numbers_, (kSteps + 2) * matrix + static_cast<size_t>(w) * length);
    for (double*& each : information_) each = std::exchange(numbers, numbers + matrix);
    weighted_ = numbers;
    scaled_ = Base::lanes_of(memory_, static_cast<size_t>(filled) * filled + kTile);
    state_ = static_cast<size_t>(size + kTile) * length;
  }

  // M at a node; false where too little is left of the variances there.
  bool start(int block, long node, double* information, std::vector<double>& mean) {
    bool same;
    std::vector<double> x(state_);
    if (!Base::recover(block, node, x.data(), mean, same)) return false;
    std::memset(information, 0, sizeof(double) * state_);
    if (same) return true;
    const double* before = Base::filtered(node).factor + block * s.block_triangle();
    const double* after = Base::smoothed_factor(node, block);
    for (int c = 0; c < size; ++c) {
      double known = 0.0, left = 0.0;
      for (int r = 0; r <= c; ++r) {
        known += square(triangle_row(before, size, r)[c]);
        left += square(triangle_row(after, size, r)[c]);
      }
      if (!(left >= kLeastShare * known)) return false;
    }
    for (int a = 0; a < count; ++a)
      for (int b = 0; b < count; ++b) {
        double sum = a == b;
        for (int r = 0; r < size; ++r) sum -= x[r * length + a] * x[r * length + b];
        information[a * length + b] = sum;
      }
    return true;
  }

  int attempt(int block, long right, int wanted, double* information, std::vector<double>& mean) {
    Mask fine = Base::load(block, right, wanted);
    fine &= Base::predict();
    fine &= Base::observe();
    fine &= whiten();
    if (s.structure != kIsotropic) Base::innovate();
    fine &= Base::consistent();
    const int ready = std::min(wanted, leading(fine));
    if (ready == 0) return 0;
    solve();
    for (int l = 0; l < ready; ++l) inform(l ? information_[l - 1] : information, l);
    fine = decompose();
    fine &= Base::multiply();
    const int done = std::min(ready, leading(fine));
    if (done == 0) return 0;
    Base::write(block, right, done, mean);
    std::memcpy(information, information_[done - 1], sizeof(double) * filled * length);
    return done;
  }

  size_t state_size() const { return state_; }

 private:
  // U, the first rows of `b_`: Cov(u, x⁺) divided by S^(T/2). S by orthogonal columns, not by its square:
  // where the components of u depend on each other, that would lose digits.
  Mask whiten() {
    const int total = count + above;
    Lane u[w][kMost + (Base::kHighest + 1) * w];
    for (int a = 0; a < w; ++a) {
      for (int r = 0; r < count; ++r) u[a][r] = at(z_, r)[a];
      for (int k = 0; k < above; ++k) u[a][count + k] = own_[k][a];
    }
    for (int c = w / kTile * kTile; c < size; c += kTile) {
      Lane sum[w][kTile] = {};
      for (int r = 0; r < count; ++r)
        for (int a = 0; a < w; ++a)
          for (int i = 0; i < kTile; ++i) sum[a][i] += u[a][r] * at(z_, r)[c + i];
      for (int a = 0; a < w; ++a)
        for (int i = 0; i < kTile; ++i) at(b_, a)[c + i] = sum[a][i];
    }
    for (int a = 0; a < w; ++a)
      for (int j = 0; j < n; ++j)
        for (int k = 0; k < w && j != order; ++k) {
          Lane sum = own_[k][a] * s.noise[j];
          for (int r = 1; r <= std::min(j, order); ++r) sum += own_[r * w + k][a] * s.noise[r * n + j];
          at(b_, a)[slot(j, w, order) + k] += scale_[k] * sum;
        }
    Mask fine = all_fine();
    for (int a = 0; a < w; ++a) {
      Lane first = {}, second = {};
      for (int r = 0; r < total; ++r) (r % 2 ? second : first) += u[a][r] * u[a][r];
      fine &= representable(first + second);
      at(b_, a)[a] = root(first + second);
      inverse_[a] = 1.0 / at(b_, a)[a];
      for (int e = a + 1; e < w; ++e) {
        Lane product = {};
        for (int r = 0; r < total; ++r) product += u[a][r] * u[e][r];
        product *= inverse_[a];
        at(b_, a)[e] = product;
        for (int r = 0; r < total; ++r) u[e][r] -= product * inverse_[a] * u[a][r];
      }
    }
    for (int a = 0; a < w; ++a)
      for (int c = w; c < size; ++c) {
        Lane sum = at(b_, a)[c];
        for (int e = 0; e < a; ++e) sum -= at(b_, e)[a] * at(b_, e)[c];
        at(b_, a)[c] = sum * inverse_[a];
      }
    return fine;
  }

  // `z_` = Z, and each step's Zᵀ on its own.
  void solve() {
    for (int r = 0; r < count; r += kTile) {
      if (r + 2 < count) divide_rows<kTile>(at(z_, r), b_, inverse_, size, wide);
      else divide_rows<2>(at(z_, r), b_, inverse_, size, wide);
      for (int c = 0; c < size; ++c) turn(at(z_, r) + c, wide, turned_, static_cast<long>(c) * length + r);
    }
  }

  // M from M⁺.
  void inform(const double* after, int l) {
    const double *z = turned_[l], *second = z + w * length;
    const int depth = size, rows = count;
    product(after, length, second, length, rows, rows, weighted_ + w * length, length, [](int) { return 0; },
            [=](int) { return rows; });
    std::memcpy(weighted_, z, sizeof(double) * w * length);
    product(z, length, weighted_, length, rows, rows, information_[l], length, [](int r) { return r; },
            [=](int) { return depth; });
    mirror(information_[l], length, rows);
  }

  // `root_` = C by I - M = Lᵀ D² L, C = D L: no roots until the end, they would wait for each other.
  Mask decompose() {
    const double* from[kSteps];
    std::copy(information_, information_ + kSteps, from);
    for (int r = 0; r < count; ++r)
      for (int c = r / kTile * kTile; c < filled; c += kTile)
        turn(from, static_cast<long>(r) * length + c, root_ + static_cast<long>(r) * filled + c);
    Mask fine = all_fine();
    Lane pivots[kMost];
    for (int r = 0; r < count; ++r) {
      Lane *out = root_ + static_cast<long>(r) * filled, *scaled = scaled_ + static_cast<long>(r) * filled;
      Lane inverse = {};
      for (int c = r; c < count; c += kTile) {
        Lane sum[kTile];
        for (int i = 0; i < kTile; ++i) sum[i] = -out[c + i];
        for (int e = 0; e < r; ++e)
          for (int i = 0; i < kTile; ++i) sum[i] -= scaled_[e * filled + r] * root_[e * filled + c + i];
        if (c == r) {
          pivots[r] = sum[0] = 1.0 + sum[0];
          fine &= sum[0] > kLeastShare;
          inverse = 1.0 / sum[0];
        }
        for (int i = 0; i < kTile; ++i) {
          scaled[c + i] = sum[i];
          out[c + i] = sum[i] * inverse;
        }
      }
    }
    for (int r = 0; r < count; ++r) {
      const Lane scale = root(pivots[r]);
      for (int c = r; c < count; ++c) root_[static_cast<long>(r) * filled + c] *= scale;
    }
    return fine;
  }

  size_t state_;
  std::vector<double> numbers_, memory_;
  double *information_[kSteps], *weighted_;
  Lane* scaled_;  // D² L
};

}  // namespace PROBODE_ISA
}  // namespace probode
