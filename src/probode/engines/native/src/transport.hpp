// Carrying the defect of the posterior mean along the solution: the error of every node.
//
// The same formulas as `global_error/transport.py`, where they are explained, one step after the other.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tape.hpp"

namespace probode {
namespace PROBODE_ISA {

enum SchemeKind { kNewton = 0, kSweeps = 1, kDiagonalSweeps = 2 };

// A collocation method and how its stages are found, as `global_error/native.py` lays it out.
struct Scheme {
  SchemeKind kind;
  int d, s, k, rounds, middle, pairs;  // rounds: corrections, or sweeps
  double left_over, most_iterations, first_credit, credit, rounding;
  double early, shrinks, look, most_sweeps, reach, patience;
  const double *nodes, *values, *slopes, *matrix, *weights, *inverse;
  const double *shift_re, *shift_im, *column_re, *column_im, *row_re, *row_im;

  explicit Scheme(const double* x) {
    kind = static_cast<SchemeKind>(static_cast<int>(x[0]));
    d = static_cast<int>(x[1]);
    s = static_cast<int>(x[2]);
    k = static_cast<int>(x[3]);
    rounds = static_cast<int>(x[4]);
    middle = static_cast<int>(x[5]);
    pairs = static_cast<int>(x[6]);
    left_over = x[7];
    most_iterations = x[8];
    first_credit = x[9];
    credit = x[10];
    rounding = x[11];
    early = x[12];
    shrinks = x[13];
    look = x[14];
    most_sweeps = x[15];
    reach = x[16];
    patience = x[17];
    nodes = x + 18;
    values = nodes + s;
    slopes = values + s * (2 * k + 1);
    matrix = slopes + s * (2 * k + 1);
    weights = matrix + s * s;
    inverse = weights + s;
    shift_re = inverse + s * s;
    shift_im = shift_re + pairs;
    column_re = shift_im + pairs;
    column_im = column_re + s * pairs;
    row_re = column_im + s * pairs;
    row_im = row_re + pairs * s;
  }
};

struct Complex {
  double re, im;
};

inline Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
inline Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// 1/z, without overflow of |z|².
inline Complex reciprocal(Complex z) {
  const double size = std::max(std::fabs(z.re), std::fabs(z.im));
  const double re = z.re / size, im = z.im / size;
  const double norm = 1.0 / (size * (re * re + im * im));
  return {re * norm, -im * norm};
}

// One matrix λ/h - J, decomposed with partial pivoting.
class Shifted {
 public:
  void decompose(int d, Complex shift, const double* jacobian) {
    entries_.resize(static_cast<size_t>(d) * d);
    swaps_.resize(d);
    switch (d) {  // small ones are unrolled
      case 1: return decompose_as<1>(d, shift, jacobian);
      case 2: return decompose_as<2>(d, shift, jacobian);
      case 3: return decompose_as<3>(d, shift, jacobian);
      case 4: return decompose_as<4>(d, shift, jacobian);
    }
    decompose_as<0>(d, shift, jacobian);
  }

  void solve(int d, Complex* x) const {
    switch (d) {
      case 1: return solve_as<1>(d, x);
      case 2: return solve_as<2>(d, x);
      case 3: return solve_as<3>(d, x);
      case 4: return solve_as<4>(d, x);
    }
    solve_as<0>(d, x);
  }

 private:
  template <int fixed>
  void decompose_as(int size, Complex shift, const double* jacobian) {
    const int d = fixed ? fixed : size;
    Complex* x = entries_.data();
    for (int i = 0; i < d; ++i)
      for (int j = 0; j < d; ++j)
        x[i * d + j] = {(i == j ? shift.re : 0.0) - jacobian[i * d + j], i == j ? shift.im : 0.0};
    for (int i = 0; i < d; ++i) {
      int best = i;
      double largest = size_of(x[i * d + i]);
      for (int r = i + 1; r < d; ++r)
        if (size_of(x[r * d + i]) > largest) {
          largest = size_of(x[r * d + i]);
          best = r;
        }
      swaps_[i] = best;
      if (best != i)
        for (int j = 0; j < d; ++j) std::swap(x[i * d + j], x[best * d + j]);
      x[i * d + i] = reciprocal(x[i * d + i]);  // the pivot's inverse in its place
      for (int r = i + 1; r < d; ++r) {
        const Complex factor = x[r * d + i] = x[r * d + i] * x[i * d + i];
        for (int j = i + 1; j < d; ++j) x[r * d + j] = x[r * d + j] - factor * x[i * d + j];
      }
    }
  }

  template <int fixed>
  void solve_as(int size, Complex* x) const {
    const int d = fixed ? fixed : size;
    const Complex* m = entries_.data();
    // All of them first: the factors were swapped along with their rows.
    for (int i = 0; i < d; ++i)
      if (swaps_[i] != i) std::swap(x[i], x[swaps_[i]]);
    for (int i = 0; i < d; ++i)
      for (int r = i + 1; r < d; ++r) x[r] = x[r] - m[r * d + i] * x[i];
    for (int i = d - 1; i >= 0; --i) {
      for (int j = i + 1; j < d; ++j) x[i] = x[i] - m[i * d + j] * x[j];
      x[i] = m[i * d + i] * x[i];
    }
  }

  static double size_of(Complex z) { return z.re * z.re + z.im * z.im; }

  std::vector<Complex> entries_;
  std::vector<int> swaps_;
};

inline double sum_of(Lane x) { return (x[0] + x[2]) + (x[1] + x[3]); }

inline double largest_of(Lane x) {
  x = larger(x, Lane{x[2], x[3], x[0], x[1]});
  return larger(x[0], x[1]);
}

// The stages of a component are one lane: at most four of them, the last one repeated where there are fewer.
class Transport {
 public:
  // `jacobian`: f and its Jacobian (Newton), or its diagonal (diagonal sweeps); else not used.
  Transport(const Scheme& scheme, const TapeData& field, const TapeData& jacobian)
      : c_(scheme), d_(scheme.d), s_(scheme.s), field_(field, scheme.d), jacobian_(jacobian, scheme.d),
        credit_(scheme.first_credit), error_(d_), slope_(d_), end_(d_), at_(d_ + 1), derivative_(jacobian_.outputs()),
        lanes_(kLane * static_cast<size_t>(kArrays) * d_ + 2 * kLane * (d_ + 1)), shifted_(scheme.pairs), turned_(d_) {
    double* memory = room(lanes_, kLane * (static_cast<size_t>(kArrays) * d_ + d_ + 1));
    auto take = [&](long count) {
      Lane* found = reinterpret_cast<Lane*>(memory);
      memory += kLane * count;
      return found;
    };
    value_ = take(d_), tangent_ = take(d_), f_ = take(d_), stages_ = take(d_), change_ = take(d_), right_ = take(d_);
    moved_ = take(d_), places_ = take(d_ + 1);
    nodes_ = stage_lane(c_.nodes, 1);
    weights_ = stage_lane(c_.weights, 1);
    for (int i = s_; i < kLane; ++i) weights_[i] = 0.0;
    const int count = 2 * c_.k + 1;
    for (int j = 0; j < count; ++j) {
      values_[j] = stage_lane(c_.values + j, count);
      slopes_[j] = stage_lane(c_.slopes + j, count);
    }
    for (int j = 0; j < s_; ++j) {
      matrix_[j] = stage_lane(c_.matrix + j, s_);
      inverse_[j] = stage_lane(c_.inverse + j, s_);
    }
    for (int p = 0; p < c_.pairs; ++p) {
      Pair pair = {stage_lane(c_.column_re + p, c_.pairs), stage_lane(c_.column_im + p, c_.pairs),
                   stage_lane(c_.row_re + p * s_, 1), stage_lane(c_.row_im + p * s_, 1), {0.0, 0.0}};
      for (int i = s_; i < kLane; ++i) pair.row_re[i] = pair.row_im[i] = 0.0;
      pair.sum = {sum_of(pair.row_re), sum_of(pair.row_im)};
      pairs_.push_back(pair);
    }
  }
  Transport(const Transport&) = delete;  // its arrays lie in memory of its own

  // Steps between nodes `t` with means of `stride` numbers, derivatives in rows of d. A row of `out`
  // holds the error at the end of a step, its first and second change, corrections, repeats, and the
  // stages.
  void run(const double* t, const double* means, long stride, long steps, double* out) {
    const long row = static_cast<long>(d_) * (s_ + 5);
    for (long n = 0; n < steps; ++n, means += stride, out += row) {
      const double h = t[n + 1] - t[n];
      double *first = out + d_, *second = first + d_, *more = second + d_, *repeats = more + d_;
      double* kept = repeats + d_;
      std::fill(first, kept, 0.0);
      if (h == 0.0) {
        for (int i = 0; i < s_; ++i) std::copy(error_.begin(), error_.end(), kept + i * d_);
      } else {
        curve(t[n], h, means, means + stride);
        corrections_ = repeats_ = 0.0;
        if (c_.kind == kNewton)
          newton(h, first, second);
        else
          sweep(h, first, second);
        for (int i = 0; i < s_; ++i)
          for (int a = 0; a < d_; ++a) kept[i * d_ + a] = stages_[a][i];
        std::fill(more, more + d_, corrections_);
        std::fill(repeats, repeats + d_, repeats_);
        steps_ += 1.0;
      }
      std::copy(error_.begin(), error_.end(), out);
    }
  }

 private:
  static constexpr int kArrays = 7;

  // A complex pair of eigenvalues: columns, rows, and the sum of a row.
  struct Pair {
    Lane column_re, column_im, row_re, row_im;
    Complex sum;
  };

  // A number for each stage, `stride` apart.
  Lane stage_lane(const double* x, int stride) const {
    Lane lane = {};
    for (int i = 0; i < kLane; ++i) lane[i] = x[static_cast<long>(std::min(i, s_ - 1)) * stride];
    return lane;
  }

  double last(Lane x) const { return x[s_ - 1]; }

  // P and P' at the stages.
  void curve(double t, double h, const double* left, const double* right) {
    const int k = c_.k, count = 2 * k + 1;
    const double inverse = 1.0 / h;
    data_.resize(count);
    times_ = t + h * nodes_;
    Lane top = {};
    for (int a = 0; a < d_; ++a) {
      double power = 1.0;
      data_[k] = right[a] - left[a];
      for (int j = 1; j <= k; ++j) {
        power *= h / j;
        data_[j - 1] = power * left[j * d_ + a];
        data_[k + j] = power * right[j * d_ + a];
      }
      Lane value = {}, slope = {};
      for (int j = 0; j < count; ++j) {
        value += values_[j] * data_[j];
        slope += slopes_[j] * data_[j];
      }
      value_[a] = left[a] + value;
      tangent_[a] = slope * inverse;
      top = larger(magnitude(value_[a]), top);
    }
    noise_ = c_.rounding * largest_of(top);
  }

  // f(t_i, P_i - E_i) at all stages; without stages on the interpolant itself.
  void evaluate(const Lane* stages, Lane* out) {
    places_[0] = times_;
    for (int a = 0; a < d_; ++a) places_[a + 1] = stages ? value_[a] - stages[a] : value_[a];
    field_.evaluate(places_, s_, out);
    for (int a = 0; a < d_; ++a)
      for (int i = s_; i < kLane; ++i) out[a][i] = out[a][s_ - 1];
  }

  // J there at the middle stage, or its diagonal.
  const double* jacobian(const Lane* stages) {
    at_[0] = times_[c_.middle];
    for (int a = 0; a < d_; ++a) at_[a + 1] = stages ? value_[a][c_.middle] - stages[a][c_.middle] : value_[a][c_.middle];
    jacobian_.evaluate(at_.data(), derivative_.data());
    return derivative_.data() + d_;
  }

  void linearize(double h, const double* j) {
    for (int p = 0; p < c_.pairs; ++p)
      shifted_[p].decompose(d_, {c_.shift_re[p] / h, c_.shift_im[p] / h}, j);
  }

  // ((h a)⁻¹ - J)⁻¹ (right + J e); (λ/h - J)⁻¹ J = λ/h (λ/h - J)⁻¹ - 1. Without e: of `right` alone.
  void apply(double h, const Lane* right, const double* e, Lane* out) {
    for (int a = 0; a < d_; ++a) out[a] = Lane{} - (e ? e[a] : 0.0);
    for (int p = 0; p < c_.pairs; ++p) {
      const Pair& pair = pairs_[p];
      const Complex weight = Complex{c_.shift_re[p] / h, c_.shift_im[p] / h} * pair.sum;
      for (int a = 0; a < d_; ++a) {
        turned_[a] = {sum_of(pair.row_re * right[a]), sum_of(pair.row_im * right[a])};
        if (e) turned_[a] = {turned_[a].re + weight.re * e[a], turned_[a].im + weight.im * e[a]};
      }
      shifted_[p].solve(d_, turned_.data());
      for (int a = 0; a < d_; ++a) out[a] += pair.column_re * turned_[a].re - pair.column_im * turned_[a].im;
    }
  }

  void newton(double h, double* first, double* second) {
    evaluate(nullptr, f_);
    const double* j = jacobian(nullptr);
    linear_.assign(j, j + static_cast<long>(d_) * d_);
    linearize(h, j);
    for (int a = 0; a < d_; ++a) right_[a] = tangent_[a] - f_[a];
    apply(h, right_, error_.data(), change_);
    for (int a = 0; a < d_; ++a) {
      stages_[a] = error_[a] + change_[a];
      first[a] = last(change_[a]);
    }
    const bool looks = c_.rounds > 0 || due_ || std::fmod(steps_, c_.look) == 0.0;
    due_ = false;
    if (looks) {
      std::memcpy(moved_, change_, sizeof(Lane) * d_);
      evaluate(stages_, right_);
      for (int a = 0; a < d_; ++a) {
        Lane linear = {};
        for (int b = 0; b < d_; ++b) linear += stages_[b] * linear_[a * d_ + b];
        right_[a] = (f_[a] - right_[a]) - linear;
      }
      apply(h, right_, nullptr, change_);
      for (int a = 0; a < d_; ++a) second[a] = last(change_[a]);
      measure();
      for (int a = 0; a < d_; ++a) stages_[a] += change_[a];
      due_ = !settled(1.0);
      if (due_) settle(h);
      if (!c_.rounds) corrections_ += 1.0;
      for (int a = 0; a < d_; ++a) {
        if (repeats_ > 0.0) second[a] = last(change_[a]);
        first[a] = last(stages_[a]) - second[a] - error_[a];
      }
    }
    credit_ += c_.credit - repeats_;
    for (int a = 0; a < d_; ++a) error_[a] = last(stages_[a]);
  }

  // Largest parts of the stages that `change_` and `moved_` are, rounding (`noise_`) left out.
  void measure() {
    Lane moved = {}, changed = {};
    for (int a = 0; a < d_; ++a) {
      const double inverse = 1.0 / larger(largest_of(magnitude(stages_[a])), noise_);
      moved = larger(magnitude(moved_[a]) * inverse, moved);
      changed = larger((magnitude(change_[a]) - noise_) * inverse, changed);  // at least zero
    }
    moved_part_ = largest_of(moved);
    changed_ = largest_of(changed);
  }

  // Whether the correction after this one can be left out.
  bool settled(double before) const {
    const double left = changed_ * changed_ / std::max(std::max(changed_, before), 1e-300);
    const double steps = c_.early + steps_;
    return left <= c_.left_over * moved_part_ && left * steps * steps <= 1.0;
  }

  // More corrections; where they do not shrink, Newton's method from E = e_n, each iteration with its
  // own Jacobian.
  void settle(double h) {
    const bool affordable = credit_ >= c_.most_iterations;
    bool anew = false, stuck = !(changed_ <= c_.shrinks);
    while (corrections_ < c_.most_iterations && repeats_ < c_.most_iterations) {
      double before = changed_;
      if (stuck) {
        if (!affordable) return;
        anew = true;
        before = 0.0;
        for (int a = 0; a < d_; ++a) stages_[a] = Lane{} + error_[a];
      }
      evaluate(stages_, f_);
      if (anew) linearize(h, jacobian(stages_));
      for (int a = 0; a < d_; ++a) right_[a] = pulled(h, a) - f_[a];
      apply(h, right_, nullptr, change_);
      for (int a = 0; a < d_; ++a) {
        stages_[a] += change_[a];
        moved_[a] = stages_[a] - error_[a];
      }
      (anew ? repeats_ : corrections_) += 1.0;
      measure();
      if (settled(before)) return;
      stuck = !anew && !(changed_ <= c_.shrinks * before);
    }
  }

  // (h a)⁻¹ (e_n - E) + P' of component a.
  Lane pulled(double h, int a) const {
    const Lane behind = error_[a] - stages_[a];
    Lane sum = {};
    for (int j = 0; j < s_; ++j) sum += inverse_[j] * behind[j];
    return sum / h + tangent_[a];
  }

  void sweep(double h, double* first, double* second) {
    const double* diagonal = c_.kind == kDiagonalSweeps ? jacobian(nullptr) : nullptr;
    // The slope over a step across a switch, shorter than any other, says nothing of the next one.
    const double reach = std::fabs(h) <= c_.reach * std::fabs(slope_step_) ? h : 0.0;
    for (int a = 0; a < d_; ++a) stages_[a] = error_[a] + nodes_ * (reach * slope_[a]);
    std::copy(error_.begin(), error_.end(), end_.begin());
    const bool looks = c_.rounds > 1 || due_ || std::fmod(steps_, c_.look) == 0.0;
    double before = 0.0;
    due_ = false;
    for (int round = 1;; ++round) {
      evaluate(stages_, f_);
      for (int a = 0; a < d_; ++a) {
        const double last_end = end_[a];
        const Lane old = stages_[a];
        if (diagonal) {
          relax(h, a, diagonal[a]);
          end_[a] = last(stages_[a]);
        } else {
          const Lane g = tangent_[a] - f_[a];
          Lane stage = {};
          for (int j = 0; j < s_; ++j) stage += matrix_[j] * g[j];
          end_[a] = error_[a] + h * sum_of(weights_ * g);
          stages_[a] = error_[a] + h * stage;
        }
        change_[a] = stages_[a] - old;
        moved_[a] = stages_[a] - error_[a];
        if (round == 1) first[a] = end_[a] - error_[a];
        if (round > 1) second[a] = end_[a] - last_end;
      }
      before = round == 1 ? 0.0 : changed_;
      measure();
      if (round > c_.rounds) corrections_ += 1.0;
      if (round == 1 && looks) continue;
      // Sweeps converge for `h |λ| < 4.6`; beyond that, more of them do not help.
      const bool shrinks = changed_ <= c_.shrinks * before || round < c_.patience;
      if (round == 1 || settled(before) || !shrinks || round >= c_.most_sweeps) break;
      due_ = true;
    }
    for (int a = 0; a < d_; ++a) {
      slope_[a] = (end_[a] - error_[a]) / h;
      error_[a] = end_[a];
    }
    slope_step_ = h;
  }

  // E + ((h a)⁻¹ - D)⁻¹ ((h a)⁻¹ (e_n - E) + G) for component a.
  void relax(double h, int a, double diagonal) {
    const Lane right = pulled(h, a) - f_[a];
    for (int p = 0; p < c_.pairs; ++p) {
      const Pair& pair = pairs_[p];
      Complex sum = {sum_of(pair.row_re * right), sum_of(pair.row_im * right)};
      sum = sum * reciprocal({c_.shift_re[p] / h - diagonal, c_.shift_im[p] / h});
      stages_[a] += pair.column_re * sum.re - pair.column_im * sum.im;
    }
  }

  const Scheme& c_;
  const int d_, s_;
  WideTape<Lane> field_;
  Tape jacobian_;
  double credit_, steps_ = 0.0, corrections_ = 0.0, repeats_ = 0.0, changed_ = 0.0, moved_part_ = 0.0;
  double slope_step_ = 0.0, noise_ = 0.0;
  bool due_ = false;
  std::vector<double> error_, slope_, end_, at_, derivative_, data_, linear_, lanes_;
  Lane *value_, *tangent_, *f_, *stages_, *change_, *right_, *moved_, *places_;
  Lane times_, nodes_, weights_, matrix_[kLane], inverse_[kLane];
  // No container of the standard library's holds lanes: its code would be shared by all instruction sets.
  Lane values_[2 * kMaxDerivatives + 1], slopes_[2 * kMaxDerivatives + 1];
  std::vector<Pair> pairs_;
  std::vector<Shifted> shifted_;
  std::vector<Complex> turned_;
};

}  // namespace PROBODE_ISA
}  // namespace probode
