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
  double early, shrinks, look, most_sweeps, reach;
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
    nodes = x + 17;
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
    d_ = d;
    entries_.resize(static_cast<size_t>(d) * d);
    swaps_.resize(d);
    for (int i = 0; i < d; ++i)
      for (int j = 0; j < d; ++j)
        entries_[i * d + j] = {(i == j ? shift.re : 0.0) - jacobian[i * d + j],
                               i == j ? shift.im : 0.0};
    for (int i = 0; i < d; ++i) {
      int best = i;
      double largest = square(at(i, i));
      for (int r = i + 1; r < d; ++r)
        if (square(at(r, i)) > largest) {
          largest = square(at(r, i));
          best = r;
        }
      swaps_[i] = best;
      if (best != i)
        for (int j = 0; j < d; ++j) std::swap(at(i, j), at(best, j));
      at(i, i) = reciprocal(at(i, i));  // the pivot's inverse in its place
      for (int r = i + 1; r < d; ++r) {
        const Complex factor = at(r, i) = at(r, i) * at(i, i);
        for (int j = i + 1; j < d; ++j) at(r, j) = at(r, j) - factor * at(i, j);
      }
    }
  }

  void solve(Complex* x) {
    // All of them first: the factors were swapped along with their rows.
    for (int i = 0; i < d_; ++i)
      if (swaps_[i] != i) std::swap(x[i], x[swaps_[i]]);
    for (int i = 0; i < d_; ++i)
      for (int r = i + 1; r < d_; ++r) x[r] = x[r] - at(r, i) * x[i];
    for (int i = d_ - 1; i >= 0; --i) {
      for (int j = i + 1; j < d_; ++j) x[i] = x[i] - at(i, j) * x[j];
      x[i] = at(i, i) * x[i];
    }
  }

 private:
  static double square(Complex z) { return z.re * z.re + z.im * z.im; }
  Complex& at(int i, int j) { return entries_[i * d_ + j]; }

  int d_;
  std::vector<Complex> entries_;
  std::vector<int> swaps_;
};

class Transport {
 public:
  // `jacobian`: f and its Jacobian (Newton), or its diagonal (diagonal sweeps); else not used.
  Transport(const Scheme& scheme, Tape& field, Tape& jacobian)
      : c_(scheme), d_(scheme.d), s_(scheme.s), size_(d_ * s_), field_(field),
        jacobian_(jacobian), credit_(scheme.first_credit), error_(d_), slope_(d_), at_(d_ + 1),
        derivative_(jacobian.outputs()), times_(s_), value_(size_), tangent_(size_), f_(size_),
        stages_(size_), change_(size_), right_(size_), shifted_(scheme.pairs), turned_(d_) {}

  // Steps between nodes `t` with means of `stride` numbers, derivatives in rows of d. A row of `out`
  // holds the error at the end of a step, its first and second change, corrections, repeats, and the
  // stages.
  void run(const double* t, const double* means, long stride, long steps, double* out) {
    for (long n = 0; n < steps; ++n, means += stride, out += size_ + 5 * d_) {
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
        std::copy(stages_.begin(), stages_.end(), kept);
        std::fill(more, more + d_, corrections_);
        std::fill(repeats, repeats + d_, repeats_);
        steps_ += 1.0;
      }
      std::copy(error_.begin(), error_.end(), out);
    }
  }

 private:
  // P and P' at the stages.
  void curve(double t, double h, const double* left, const double* right) {
    const int k = c_.k, count = 2 * k + 1;
    data_.resize(static_cast<size_t>(count) * d_);
    double power = 1.0;
    for (int a = 0; a < d_; ++a) data_[k * d_ + a] = right[a] - left[a];
    for (int j = 1; j <= k; ++j) {
      power *= h / j;
      for (int a = 0; a < d_; ++a) {
        data_[(j - 1) * d_ + a] = power * left[j * d_ + a];
        data_[(k + j) * d_ + a] = power * right[j * d_ + a];
      }
    }
    for (int i = 0; i < s_; ++i) {
      times_[i] = t + h * c_.nodes[i];
      const double *values = c_.values + i * count, *slopes = c_.slopes + i * count;
      for (int a = 0; a < d_; ++a) {
        double value = 0.0, slope = 0.0;
        for (int j = 0; j < count; ++j) {
          value += values[j] * data_[j * d_ + a];
          slope += slopes[j] * data_[j * d_ + a];
        }
        value_[i * d_ + a] = left[a] + value;
        tangent_[i * d_ + a] = slope / h;
      }
    }
  }

  // f(t_i, P_i - E_i) at all stages; without stages on the interpolant itself.
  void evaluate(const double* stages, double* out) {
    for (int i = 0; i < s_; ++i) {
      place(i, stages);
      field_.evaluate(at_.data(), out + i * d_);
    }
  }

  // J there at the middle stage, or its diagonal.
  const double* jacobian(const double* stages) {
    place(c_.middle, stages);
    jacobian_.evaluate(at_.data(), derivative_.data());
    return derivative_.data() + d_;
  }

  void place(int i, const double* stages) {
    at_[0] = times_[i];
    for (int a = 0; a < d_; ++a)
      at_[a + 1] = stages ? value_[i * d_ + a] - stages[i * d_ + a] : value_[i * d_ + a];
  }

  void linearize(double h, const double* j) {
    for (int p = 0; p < c_.pairs; ++p)
      shifted_[p].decompose(d_, {c_.shift_re[p] / h, c_.shift_im[p] / h}, j);
  }

  // ((h a)⁻¹ - J)⁻¹ (right + J e); (λ/h - J)⁻¹ J = λ/h (λ/h - J)⁻¹ - 1. Without e: of `right` alone.
  void apply(double h, const double* right, const double* e, double* out) {
    for (int i = 0; i < s_; ++i)
      for (int a = 0; a < d_; ++a) out[i * d_ + a] = e ? -e[a] : 0.0;
    for (int p = 0; p < c_.pairs; ++p) {
      const double *re = c_.row_re + p * s_, *im = c_.row_im + p * s_;
      double sum_re = 0.0, sum_im = 0.0;
      for (int i = 0; i < s_; ++i) {
        sum_re += re[i];
        sum_im += im[i];
      }
      const Complex shift = {c_.shift_re[p] / h, c_.shift_im[p] / h};
      const Complex weight = shift * Complex{sum_re, sum_im};
      for (int a = 0; a < d_; ++a) {
        Complex sum = e ? Complex{weight.re * e[a], weight.im * e[a]} : Complex{0.0, 0.0};
        for (int i = 0; i < s_; ++i) {
          sum.re += re[i] * right[i * d_ + a];
          sum.im += im[i] * right[i * d_ + a];
        }
        turned_[a] = sum;
      }
      shifted_[p].solve(turned_.data());
      for (int i = 0; i < s_; ++i) {
        const double cr = c_.column_re[i * c_.pairs + p], ci = c_.column_im[i * c_.pairs + p];
        for (int a = 0; a < d_; ++a) out[i * d_ + a] += cr * turned_[a].re - ci * turned_[a].im;
      }
    }
  }

  void newton(double h, double* first, double* second) {
    const int last = size_ - d_;
    evaluate(nullptr, f_.data());
    const double* j = jacobian(nullptr);
    linear_.assign(j, j + static_cast<long>(d_) * d_);
    linearize(h, j);
    for (int x = 0; x < size_; ++x) right_[x] = tangent_[x] - f_[x];
    apply(h, right_.data(), error_.data(), change_.data());
    for (int i = 0; i < s_; ++i)
      for (int a = 0; a < d_; ++a) stages_[i * d_ + a] = error_[a] + change_[i * d_ + a];
    for (int a = 0; a < d_; ++a) first[a] = change_[last + a];
    const bool looks = due_ || std::fmod(steps_, c_.look) == 0.0;
    due_ = false;
    if (c_.rounds || looks) {
      moved_ = change_;
      evaluate(stages_.data(), right_.data());
      for (int i = 0; i < s_; ++i)
        for (int a = 0; a < d_; ++a) {
          double linear = 0.0;
          for (int b = 0; b < d_; ++b) linear += stages_[i * d_ + b] * linear_[a * d_ + b];
          right_[i * d_ + a] = (f_[i * d_ + a] - right_[i * d_ + a]) - linear;
        }
      apply(h, right_.data(), nullptr, change_.data());
      measure();
      for (int x = 0; x < size_; ++x) stages_[x] += change_[x];
      for (int a = 0; a < d_; ++a) second[a] = change_[last + a];
      due_ = !settled(1.0);
      if (due_) settle(h);
      if (!c_.rounds) corrections_ += 1.0;
      for (int a = 0; a < d_; ++a) {
        if (repeats_ > 0.0) second[a] = change_[last + a];
        first[a] = stages_[last + a] - second[a] - error_[a];
      }
    }
    credit_ += c_.credit - repeats_;
    for (int a = 0; a < d_; ++a) error_[a] = stages_[last + a];
  }

  // Largest parts of the stages that `change_` and `moved_` are, rounding left out.
  void measure() {
    double largest = 0.0;
    for (int x = 0; x < size_; ++x) largest = larger(std::fabs(value_[x]), largest);
    const double noise = c_.rounding * largest;
    moved_part_ = changed_ = 0.0;
    for (int a = 0; a < d_; ++a) {
      double size = noise;
      for (int x = a; x < size_; x += d_) size = larger(std::fabs(stages_[x]), size);
      for (int x = a; x < size_; x += d_) {
        moved_part_ = larger(std::fabs(moved_[x]) / size, moved_part_);
        changed_ = larger(larger(std::fabs(change_[x]) - noise, 0.0) / size, changed_);
      }
    }
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
        for (int i = 0; i < s_; ++i) std::copy(error_.begin(), error_.end(), &stages_[i * d_]);
      }
      evaluate(stages_.data(), f_.data());
      if (anew) linearize(h, jacobian(stages_.data()));
      for (int i = 0; i < s_; ++i)
        for (int a = 0; a < d_; ++a) right_[i * d_ + a] = pulled(h, i, a) - f_[i * d_ + a];
      apply(h, right_.data(), nullptr, change_.data());
      for (int i = 0; i < s_; ++i)
        for (int a = 0; a < d_; ++a) {
          stages_[i * d_ + a] += change_[i * d_ + a];
          moved_[i * d_ + a] = stages_[i * d_ + a] - error_[a];
        }
      (anew ? repeats_ : corrections_) += 1.0;
      measure();
      if (settled(before)) return;
      stuck = !anew && !(changed_ <= c_.shrinks * before);
    }
  }

  // (h a)⁻¹ (e_n - E) + P', component a of stage i.
  double pulled(double h, int i, int a) {
    double sum = 0.0;
    for (int j = 0; j < s_; ++j) sum += c_.inverse[i * s_ + j] * (error_[a] - stages_[j * d_ + a]);
    return sum / h + tangent_[i * d_ + a];
  }

  void sweep(double h, double* first, double* second) {
    const double* diagonal = c_.kind == kDiagonalSweeps ? jacobian(nullptr) : nullptr;
    // The slope over a step across a switch, shorter than any other, says nothing of the next one.
    const double reach = std::fabs(h) <= c_.reach * std::fabs(slope_step_) ? h : 0.0;
    for (int i = 0; i < s_; ++i)
      for (int a = 0; a < d_; ++a)
        stages_[i * d_ + a] = error_[a] + c_.nodes[i] * (reach * slope_[a]);
    end_.assign(error_.begin(), error_.end());
    const bool looks = c_.rounds > 1 || due_ || std::fmod(steps_, c_.look) == 0.0;
    double before = 0.0;
    due_ = false;
    for (int round = 1;; ++round) {
      change_ = stages_;
      evaluate(stages_.data(), f_.data());
      for (int a = 0; a < d_; ++a) {
        const double last = end_[a];
        if (diagonal) {
          relax(h, a, diagonal[a]);
          end_[a] = stages_[size_ - d_ + a];
        } else {
          double sum = 0.0;
          for (int j = 0; j < s_; ++j) sum += c_.weights[j] * (tangent_[j * d_ + a] - f_[j * d_ + a]);
          end_[a] = error_[a] + h * sum;
          for (int i = 0; i < s_; ++i) {
            double stage = 0.0;
            for (int j = 0; j < s_; ++j)
              stage += c_.matrix[i * s_ + j] * (tangent_[j * d_ + a] - f_[j * d_ + a]);
            stages_[i * d_ + a] = error_[a] + h * stage;
          }
        }
        if (round == 1) first[a] = end_[a] - error_[a];
        if (round > 1) second[a] = end_[a] - last;
      }
      moved_.resize(size_);
      for (int i = 0; i < s_; ++i)
        for (int a = 0; a < d_; ++a) {
          change_[i * d_ + a] = stages_[i * d_ + a] - change_[i * d_ + a];
          moved_[i * d_ + a] = stages_[i * d_ + a] - error_[a];
        }
      before = round == 1 ? 0.0 : changed_;
      measure();
      if (round > c_.rounds) corrections_ += 1.0;
      if (round == 1 && looks) continue;
      // Where `h J` is not small, more sweeps do not help.
      const bool shrinks = changed_ <= c_.shrinks * before && round < c_.most_sweeps;
      if (round == 1 || settled(before) || !shrinks) break;
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
    for (int i = 0; i < s_; ++i) right_[i] = pulled(h, i, a) - f_[i * d_ + a];
    for (int p = 0; p < c_.pairs; ++p) {
      Complex sum = {0.0, 0.0};
      for (int i = 0; i < s_; ++i) {
        sum.re += c_.row_re[p * s_ + i] * right_[i];
        sum.im += c_.row_im[p * s_ + i] * right_[i];
      }
      sum = sum * reciprocal({c_.shift_re[p] / h - diagonal, c_.shift_im[p] / h});
      for (int i = 0; i < s_; ++i)
        stages_[i * d_ + a] +=
            c_.column_re[i * c_.pairs + p] * sum.re - c_.column_im[i * c_.pairs + p] * sum.im;
    }
  }

  const Scheme& c_;
  const int d_, s_, size_;
  Tape &field_, &jacobian_;
  double credit_, steps_ = 0.0, corrections_ = 0.0, repeats_ = 0.0, changed_ = 0.0, moved_part_ = 0.0;
  double slope_step_ = 0.0;
  bool due_ = false;
  std::vector<double> error_, slope_, at_, derivative_, times_, value_, tangent_, f_;
  std::vector<double> stages_, change_, right_, data_, linear_, moved_, end_;
  std::vector<Shifted> shifted_;
  std::vector<Complex> turned_;
};

}  // namespace PROBODE_ISA
}  // namespace probode
