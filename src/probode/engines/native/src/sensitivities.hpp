// The filter with derivatives of its means by parameters, gains as they are: see `Method.frozen` in step.py.
//
// With m' = dm/dθ of all directions, a step of the filter is
//
//   m'⁻ = A m'      z' = E_k m'⁻ - J (m'_0⁻, ..., m'_(k-1)⁻) - ∂f/∂θ      m' = m'⁻ - K z'
//
// which is the same filter on the sensitivities. J and ∂f/∂θ are taken at the corrected mean, which is closer to the
// solution than the prediction. For EK0, whose gain has no Jacobian, they are taken where f was evaluated; with two
// evaluations in a step, at both places.
#pragma once

#include "crossing.hpp"
#include "filter.hpp"
#include "tape.hpp"

namespace probode {
namespace PROBODE_ISA {

// Derivatives in rows (n, directions, d). `start` may have more directions, in rows after the others.
class Sensitivities {
 public:
  Sensitivities(const Settings& s, int directions, const double* start, int of_start)
      : s_(s), count_(directions), wide_(static_cast<long>(directions) * s.d), now_(s.n * wide_),
        predicted_(now_.size()), z_(wide_) {
    for (int i = 0; i < s.n; ++i) std::copy_n(start + static_cast<long>(i) * of_start * s.d, wide_, now_.data() + i * wide_);
  }

  // Carry derivatives over a step across: `start` has those of the start there; its last directions are the arguments of f.
  void cross(const double* start, int of_start) {
    const int d = s_.d;
    const long reads = s_.reads();
    const int by_value = of_start - static_cast<int>(reads);
    std::vector<double> after(now_.size());
    for (int i = 0; i < s_.n; ++i) {
      const double* rows = start + static_cast<long>(i) * of_start * d;
      for (int p = 0; p < count_; ++p)
        for (int a = 0; a < d; ++a) {
          double sum = p < by_value ? rows[static_cast<long>(p) * d + a] : 0.0;
          for (long r = 0; r < reads; ++r)
            sum += rows[(by_value + r) * d + a] * now_[(r / d) * wide_ + static_cast<long>(p) * d + r % d];
          after[i * wide_ + static_cast<long>(p) * d + a] = sum;
        }
    }
    now_.swap(after);
  }

  // Over a step of length h: `first` and `second` hold J (d, reads) and ∂f/∂θ (d, directions), `second` may be null.
  void step(double h, const double* gain, const double* first, const double* second) {
    double coords[kMaxDerivatives];
    coordinates(s_, h, coords);
    predict(coords);
    residual(coords, predicted_.data(), first);
    if (second) {
      correct(coords, gain, s_.determined);
      residual(coords, now_.data(), second);
    }
    correct(coords, gain, s_.n);
  }

  // (directions, reads): of y, ..., y^(k-1).
  void save(double* out) const {
    for (int p = 0; p < count_; ++p)
      for (int i = 0; i < s_.determined; ++i, out += s_.d)
        std::memcpy(out, now_.data() + i * wide_ + static_cast<long>(p) * s_.d, sizeof(double) * s_.d);
  }

 private:
  void predict(const double* coords) {
    const int n = s_.n;
    for (int i = 0; i < n; ++i) {
      double* out = predicted_.data() + i * wide_;
      std::memcpy(out, now_.data() + i * wide_, sizeof(double) * wide_);
      for (int j = i + 1; j < n; ++j) {
        const double weight = coords[i] * s_.transition[i * n + j] / coords[j];
        const double* from = now_.data() + j * wide_;
        for (long c = 0; c < wide_; ++c) out[c] += weight * from[c];
      }
    }
  }

  // z' in units of T_k; what f takes is read from `known`.
  void residual(const double* coords, const double* known, const double* slopes) {
    const int d = s_.d, k = s_.determined;
    const long reads = s_.reads();
    const double inverse = 1.0 / (k == 1 ? 1.0 : coords[k]);
    const double* by_parameter = slopes + d * reads;
    for (int p = 0; p < count_; ++p) {
      const double* highest = predicted_.data() + k * wide_ + static_cast<long>(p) * d;
      for (int a = 0; a < d; ++a) {
        double sum = highest[a] - by_parameter[static_cast<long>(a) * count_ + p];
        for (int i = 0; i < k; ++i) {
          const double *row = slopes + a * reads + i * d, *y = known + i * wide_ + static_cast<long>(p) * d;
          for (int l = 0; l < d; ++l) sum -= row[l] * y[l];
        }
        z_[static_cast<long>(p) * d + a] = inverse * sum;
      }
    }
  }

  // m'⁻ - T K z' for the derivatives below `last`.
  void correct(const double* coords, const double* gain, int last) {
    const int d = s_.d;
    for (int i = 0; i < last; ++i) {
      const double* before = predicted_.data() + i * wide_;
      double* after = now_.data() + i * wide_;
      if (s_.structure == kIsotropic) {
        const double common = coords[i] * gain[i];
        for (long c = 0; c < wide_; ++c) after[c] = before[c] - common * z_[c];
        continue;
      }
      for (int p = 0; p < count_; ++p) {
        const double* z = z_.data() + static_cast<long>(p) * d;
        const long at = static_cast<long>(p) * d;
        for (int a = 0; a < d; ++a) {
          double sum = 0.0;
          if (s_.structure == kBlockDiagonal) {
            sum = gain[a * s_.n + i] * z[a];
          } else {
            const double* row = gain + static_cast<long>(i * d + a) * d;
            for (int l = 0; l < d; ++l) sum += row[l] * z[l];
          }
          after[at + a] = before[at + a] - coords[i] * sum;
        }
      }
    }
  }

  const Settings& s_;
  int count_;
  long wide_;
  std::vector<double> now_, predicted_, z_;
};

// All steps to the end; what f takes, and its derivatives, at `count` times where steps end. `out` has a row of `width`
// for each time, which begins with (reads) and (directions, reads). The number of times that were reached. `visit(x, k)`
// is told of every row, with the number of times up to there.
template <int order, typename Visit>
long run_to_times(const Settings& s, double* state, const TapeData& field, const TapeData& slopes, int directions,
                  const double* start, int of_start, const Crossings& crossings, const double* times, long count,
                  double* out, long width, Visit&& visit) {
  const int reads = static_cast<int>(s.reads());
  Tape tape(field, reads), derivatives(slopes, reads);
  Sensitivities sensitivities(s, directions, start, of_start);
  std::vector<double> value(tape.outputs()), first(derivatives.outputs()), second(derivatives.outputs());
  std::vector<double> at(reads + 1), row(s.kept_size()), begun;
  State x(s, state);
  Scratch& scratch = Scratch::mine();
  scratch.wants_gain = directions > 0;
  const bool evaluated = s.jacobian == kNone;  // at the argument of f, else at the corrected mean

  long reached = 0;
  auto save = [&] {
    for (; reached < count && times[reached] == *x.row.t; ++reached) {
      double* target = out + reached * width;
      std::memcpy(target, x.row.mean, sizeof(double) * reads);
      sensitivities.save(target + reads);
    }
    visit(x, reached);
  };
  bool go = open(s, state, row.data());
  save();
  while (go) {
    const long k = crossings.at(*x.row.t);
    if (k >= 0 && !(s.evaluations == 2 && *x.waiting != 0.0)) {
      if (!cross<order>(s, x, tape, crossings, k, begun)) break;
      if (directions > 0) sensitivities.cross(begun.data() + State::row_offset(s) + s.row_size(), of_start);
      save();
      std::fill(x.row.scale, x.row.scale + s.scales(), 0.0);  // its noise says nothing of that of the next step
      propose(s, x);
      go = goes_on(s, x);
      continue;
    }
    tape.evaluate(state, value.data());
    const bool again = s.evaluations == 2 && *x.waiting != 0.0;
    if (directions > 0) {
      if (again) derivatives.evaluate(state, second.data());
      else if (evaluated) std::memcpy(at.data(), state, sizeof(double) * (reads + 1));
    }
    const double before = *x.accepted;
    go = advance<order>(s, state, row.data(), value.data(), value.data() + s.d);
    if (*x.accepted == before) continue;
    if (directions > 0) {
      if (!evaluated) {
        at[0] = *x.row.t;
        std::memcpy(at.data() + 1, x.row.mean, sizeof(double) * reads);
      }
      derivatives.evaluate(at.data(), first.data());
      sensitivities.step(*x.row.h, again ? x.gain : scratch.gain, first.data(), again ? second.data() : nullptr);
    }
    save();
  }
  scratch.wants_gain = false;
  return reached;
}

}  // namespace PROBODE_ISA
}  // namespace probode
