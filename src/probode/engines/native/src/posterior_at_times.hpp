// The posterior at given times, all steps of the filter kept on the way: smoothed means, their joint covariance, and
// what the transport of the defect says about the filter's means there.
//
// The same as `filter/saving.py` with kernels and `global_error/beside.py`, where the formulas are explained; the joint
// covariance is Cov(x_j, x_k) = G_j Cov(x_(j+1), x_k), back in time through the kernels p(x_j | x_(j+1)).
#pragma once

#include "sensitivities.hpp"
#include "smoother.hpp"
#include "transport.hpp"

namespace probode {
namespace PROBODE_ISA {

// Back in time from the last row: one block of the smoothed covariance, and its covariances with later times. Vectors
// lie in rows of whole lanes.
class JointCovariance {
 public:
  // `columns` of y, ..., y^(k-1) in a block; `count` times.
  JointCovariance(const Settings& s, long count)
      : size_(s.block_size()), columns_(s.determined * s.width()), stride_(row_length(s.block_size())), count_(count),
        own_(static_cast<size_t>(size_) * stride_), other_(own_.size()), gain_(own_.size()),
        later_(static_cast<size_t>(count) * columns_ * stride_), moved_(stride_) {}

  // The last row: its factor, a triangle, in coordinates `scale` (one number per column).
  void start(const double* triangle, const double* scale) {
    std::fill(own_.begin(), own_.end(), 0.0);
    for (int r = 0; r < size_; ++r) add(triangle_row(triangle, size_, r), scale, r);
  }

  // Time `k`, at the current row: its covariances with itself and all later times, in both triangles of `out`.
  void save(long k, double* out) {
    const long total = count_ * columns_;
    for (int a = 0; a < columns_; ++a) std::memcpy(later(k, a), row(own_, a), sizeof(double) * stride_);
    for (long l = k; l < count_; ++l)
      for (int b = 0; b < columns_; ++b)
        for (int a = 0; a < columns_; ++a) {
          const double entry = later(l, b)[a];
          out[(k * columns_ + a) * total + l * columns_ + b] = entry;
          out[(l * columns_ + b) * total + k * columns_ + a] = entry;
        }
  }

  // One row back: x = G x⁺ + noise, both in coordinates `scale`; `from`: the first time that was saved.
  void back(const BlockKernel& kernel, const double* scale, long from) {
    for (int r = 0; r < size_; ++r) {  // (T G T⁻¹)ᵀ
      const double inverse = 1.0 / scale[r], *given = kernel.gain_transposed + static_cast<long>(r) * stride_;
      double* out = row(gain_, r);
      for (int c = 0; c < size_; ++c) out[c] = inverse * scale[c] * given[c];
    }
    for (int i = 0; i < size_; ++i) {  // Σ Gᵀ, transposed: rows of G Σ
      multiply(row(own_, i), moved_.data());
      for (int j = 0; j < size_; ++j) row(other_, j)[i] = moved_[j];
    }
    for (int i = 0; i < size_; ++i) multiply(row(other_, i), row(own_, i));
    for (int r = 0; r < kernel.rest_rows; ++r) add(kernel.rest + static_cast<long>(r) * kernel.rest_length, scale, 0);
    for (long l = from; l < count_; ++l)
      for (int b = 0; b < columns_; ++b) {
        multiply(later(l, b), moved_.data());
        std::memcpy(later(l, b), moved_.data(), sizeof(double) * stride_);
      }
  }

 private:
  double* row(std::vector<double>& matrix, int i) { return matrix.data() + static_cast<long>(i) * stride_; }
  double* later(long l, int column) { return later_.data() + (l * columns_ + column) * stride_; }
  void multiply(const double* x, double* out) { combine(out, nullptr, x, gain_.data(), stride_, size_, stride_); }

  // Σ + xᵀx for a row of a factor in coordinates `scale`, zero before `first`.
  void add(const double* x, const double* scale, int first) {
    for (int j = first; j < size_; ++j) moved_[j] = scale[j] * x[j];
    for (int i = first; i < size_; ++i) {
      double* out = row(own_, i);
      for (int j = first; j < size_; ++j) out[j] += moved_[i] * moved_[j];
    }
  }

  int size_, columns_, stride_;
  long count_;
  std::vector<double> own_, other_, gain_, later_, moved_;
};

// sqrt(Var y) of a filtered row that was kept.
inline void filtered_deviations(const Settings& s, const Row& at, double* out) {
  const int w = s.width(), size = s.block_size(), d = s.d;
  double coords[kMaxDerivatives];
  coordinates(s, *at.h, coords);
  for (int block = 0; block < s.blocks(); ++block) {
    const double* triangle = at.factor + block * s.block_triangle();
    for (int a = 0; a < w; ++a) {
      double sum = 0.0;
      for (int r = 0; r <= a; ++r) sum += square(triangle_row(triangle, size, r)[a]);
      out[block * w + a] = std::fabs(coords[0]) * std::sqrt(sum);
    }
  }
  if (s.structure == kIsotropic) std::fill(out + 1, out + d, out[0]);
}

// Lengths of the causal windows, as in beside.py.
struct Windows {
  double square, least_square, misfit, least_misfit;
  static double length(double n, double least, double part) { return std::min(n, std::max(least, part * n)); }
};

// Filter means of an equation of first order at nodes, errors of the same: running means of both kinds.
class RunningScales {
 public:
  RunningScales(const Windows& windows, int d) : w_(windows), d_(d), square_(d), low_(d), high_(d) {}

  void begin(const double* mean) {
    std::copy(mean, mean + d_, low_.begin());
    std::copy(mean, mean + d_, high_.begin());
  }

  void add(const double* mean, const double* error, const double* std) {
    n_ += 1.0;
    double sum = 0.0, known = 0.0;
    for (int a = 0; a < d_; ++a) {
      if (!(std[a] > 1e-290)) continue;
      const double ratio = std::min(std::max(error[a] / std[a], -1e150), 1e150);
      sum += ratio * ratio;
      known += 1.0;
    }
    const double c = sum / std::max(known, 1.0);
    misfit_ += (c - misfit_) / Windows::length(n_, w_.least_misfit, w_.misfit);
    const double part = 1.0 / Windows::length(n_, w_.least_square, w_.square);
    const double old = std::sqrt(1.0 - part), added = std::sqrt(part);
    for (int a = 0; a < d_; ++a) {
      square_[a] = root_of_squares(old * square_[a], added * error[a]);
      low_[a] = std::min(low_[a], mean[a]);
      high_[a] = std::max(high_[a], mean[a]);
    }
  }

  // (misfit, squares)
  void save(double* out) const {
    out[0] = misfit_;
    std::copy(square_.begin(), square_.end(), out + 1);
  }

  void extent(double* out) const {
    for (int a = 0; a < d_; ++a) out[a] = high_[a] - low_[a];
  }

 private:
  const Windows w_;
  int d_;
  double n_ = 0.0, misfit_ = 0.0;
  std::vector<double> square_, low_, high_;
};

// A solve of an equation of first order to `count` times, with everything that a calibrated posterior there needs:
//
//   out    for each time: mean (d), derivatives (directions, d), smoothed mean (d), error (d), misfit, squares (d);
//          then the extent (d), and the joint covariance (blocks, count columns, count columns)
struct PosteriorAtTimes {
  const Settings& s;
  const double* times;
  long count;

  long steps = -1;  // rows after the first
  std::vector<double> rows;
  std::vector<long> node;  // at which row each time was reached

  long width(int directions) const { return static_cast<long>(s.d) * (4 + directions) + 1; }

  // One more row, where as many times have been reached.
  void append(const double* kept, long reached) {
    rows.insert(rows.end(), kept, kept + s.kept_size());
    ++steps;
    while (static_cast<long>(node.size()) < reached) node.push_back(steps);
  }

  Row row(long i) { return Row(s, rows.data() + i * s.kept_size()); }

  void scales(const double* scheme, const TapeData& field, const TapeData& jacobian, const Windows& windows,
              int directions, double* out, double* extent) {
    const Scheme c(scheme);
    const int d = s.d;
    const long length = static_cast<long>(d) * (c.s + 5), across = width(directions);
    std::vector<double> t(steps + 1), errors(static_cast<size_t>(steps) * length), std(d), zero(d);
    for (long i = 0; i <= steps; ++i) t[i] = *row(i).t;
    Transport(c, field, jacobian).run(t.data(), row(0).mean, s.kept_size(), steps, errors.data());
    RunningScales running(windows, d);
    running.begin(row(0).mean);
    long k = 0;
    for (long i = 0; i <= steps; ++i) {
      const double* error = i == 0 ? zero.data() : errors.data() + (i - 1) * length;
      if (i > 0) {
        filtered_deviations(s, row(i), std.data());
        running.add(row(i).mean, error, std.data());
      }
      for (; k < static_cast<long>(node.size()) && node[k] == i; ++k) {
        double* target = out + k * across + static_cast<long>(d) * (2 + directions);
        std::copy(error, error + d, target);
        running.save(target + d);
      }
    }
    running.extent(extent);
  }

  void smooth(int directions, double* out, double* covariance) {
    const int n = s.n, w = s.width(), size = s.block_size(), stride = row_length(size), d = s.d;
    const long across = width(directions), total = count * s.determined * w;
    Scratch& scratch = Scratch::mine();
    std::vector<JointCovariance> blocks(s.blocks(), JointCovariance(s, count));
    std::vector<double> mean(row(steps).mean, row(steps).mean + s.state_size());
    std::vector<double> scale(size), change(size), after(size), memory, difference(s.state_size()), noise(d);
    double coords[kMaxDerivatives], ratio[kMaxDerivatives];
    double* gain = room(memory, static_cast<size_t>(whole_tiles(size)) * stride);

    coordinates(s, *row(steps).h, coords);
    spread(coords, n, w, scale.data());
    for (int b = 0; b < s.blocks(); ++b) blocks[b].start(row(steps).factor + b * s.block_triangle(), scale.data());
    long k = static_cast<long>(node.size());
    auto save = [&](long i) {
      for (; k > 0 && node[k - 1] == i; --k) {
        std::copy(mean.begin(), mean.begin() + d, out + (k - 1) * across + static_cast<long>(d) * (1 + directions));
        for (int b = 0; b < s.blocks(); ++b) blocks[b].save(k - 1, covariance + b * total * total);
      }
    };
    save(steps);
    for (long i = steps - 1; i >= 0 && k > 0; --i) {
      const Row left = row(i), right = row(i + 1);
      const double h = *right.t - *left.t;
      coordinates(s, h, coords);
      spread(coords, n, w, scale.data());
      powers(*left.h / h, n, ratio);
      spread(ratio, n, w, change.data());
      powers(*right.h / h, n, ratio);
      spread(ratio, n, w, after.data());
      predict_mean(s, left.mean, d, coords, difference.data());
      for (int j = 0; j < n; ++j)
        for (int a = 0; a < d; ++a) {
          double& x = difference[j * d + a];
          x = (mean[j * d + a] - x) / coords[j];
        }
      double rounding = 0.0;
      for (int a = 0; a < d; ++a) {
        double least = 0.0;
        for (int j = 0; j < s.determined && !s.fixed; ++j)
          least = larger(least, kEpsilon * std::fabs(left.mean[j * d + a] / coords[j]));
        rounding = larger(rounding, least);
        noise[a] = larger(right.scale[s.scales() == 1 ? 0 : a], least);
      }
      if (s.structure == kIsotropic) noise[0] = larger(right.scale[0], rounding);
      for (int b = 0; b < s.blocks(); ++b) {
        const BlockKernel kernel = backward_block(n, w, left.factor + b * s.block_triangle(), change.data(),
                                                  right.factor + b * s.block_triangle(), after.data(),
                                                  noise.data() + b * w, s, scratch, gain);
        blocks[b].back(kernel, scale.data(), k);
        const int across_block = s.structure == kIsotropic ? d : w;
        for (int j = 0; j < n; ++j)
          for (int a = 0; a < across_block; ++a) {
            double sum = 0.0;
            if (w == 1)
              for (int r = 0; r < n; ++r) sum += gain[r * stride + j] * difference[r * d + b + a];
            else
              for (int r = 0; r < size; ++r) sum += gain[static_cast<long>(r) * stride + j * w + a] * difference[r];
            mean[j * d + b + a] = left.mean[j * d + b + a] + coords[j] * sum;
          }
      }
      save(i);
    }
  }
};

}  // namespace PROBODE_ISA
}  // namespace probode
