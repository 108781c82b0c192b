// Steps of the two-pole filter, as engines/two_pole/step.py has them: predict, correct by Newton's method, judge, choose
// the next. f is asked for by leaving: a call brings its value, and ends where the next one is wanted.
#pragma once
#include <cstring>
#include <limits>

#include "factors.hpp"
#include "kernels.hpp"
#include "passes.hpp"
#include "two_pole_error.hpp"

namespace probode {
namespace PROBODE_ISA {

constexpr int kHighestOrder = 5;

// Constants of step.py, in this order.
struct Habits {
  double iterations, enough, least, diverges, slow, mistrust, old, safety, growth, shrink, longer, shorter, careful, same,
      far, anew, stretch, amplified, remembered;
};

struct TwoPoleGain {
  double gamma, error, alpha[kHighestOrder + 1], beta[kHighestOrder + 1];
};

class TwoPole final : public Machine {
 public:
  // `numbers`: d, highest order, t, t1, following, h, smallest and longest step, whether atol and rtol are vectors; the
  // constants; for each order from one on its gains (gamma, error, then six alphas and betas).
  TwoPole(const double* numbers, const double* atol, const double* rtol, const double* x)
      : d_(static_cast<long>(numbers[0])), highest_(static_cast<int>(numbers[1])), t_(numbers[2]), t1_(numbers[3]),
        following_(numbers[4]), h_(numbers[5]), min_step_(numbers[6]), max_step_(numbers[7]),
        pool_(std::make_shared<Vectors>(d_)) {
    std::memcpy(&habits_, numbers + 10, sizeof(Habits));
    std::memcpy(gains_ + 1, numbers + 10 + sizeof(Habits) / sizeof(double), sizeof(TwoPoleGain) * highest_);
    atol_.assign(atol, atol + (numbers[8] ? d_ : 1));
    rtol_.assign(rtol, rtol + (numbers[9] ? d_ : 1));
    x_.reserve((highest_ + 1) * d_);
    x_.assign(x, x + 2 * d_);
  }

  Machine* copy() const override { return new TwoPole(*this); }

  void carry(const double* scheme, const double* times, long count, bool watched, const double* begins) override {
    error_ = ErrorTransport(scheme, d_, pool_, times, watched ? count : -1);
    error_.start(t_, x_.data(), begins);
  }

  void weigh(const double* entries, const int32_t* columns, const int32_t* ends) override {
    mass_ = std::make_shared<Rows>();
    mass_->ends.assign(ends, ends + d_ + 1);
    mass_->columns.assign(columns, columns + ends[d_]);
    mass_->entries.assign(entries, entries + ends[d_]);
  }

  void plan(long attempts, long wanted, double* rows, double* scalars, double save) override {
    attempts_ = attempts, wanted_ = wanted, rows_ = rows, scalars_ = scalars, save_ = save, taken_ = 0;
  }

  void finish() override {
    finishing_ = true;
    stage_ = Stage::finishing;
  }

  // ---- matrices

  void band(int below, int above, const int32_t* order, const int32_t* ends, const int32_t* rows,
            const double* entries, const int32_t* colours) override {
    const long w = below + above + 1;
    jacobian_ = std::make_shared<Jacobian>();
    jacobian_->below = below, jacobian_->above = above;
    jacobian_->entries.assign(d_ * w, 0.0);
    if (order != nullptr) jacobian_->order.assign(order, order + d_);
    const std::vector<int32_t> place = jacobian_->places();
    for (long j = 0; j < d_; ++j)
      for (int32_t p = ends[j]; p < ends[j + 1]; ++p) {
        const long i = place.empty() ? rows[p] : place[rows[p]], k = place.empty() ? j : place[j];
        jacobian_->entries[i * w + k - i + below] = colours == nullptr ? entries[p] : entries[colours[j] * d_ + rows[p]];
      }
    took_jacobian();
  }

  void took_jacobian() override {
    has_jacobian_ = true, age_ = 0, matrix_ = nullptr, rate_ = 1.0;
    ++counts_[3];
  }

  void sparse_factors(const double* lower, const int32_t* lower_rows, const int32_t* lower_ends, const double* upper,
                      const int32_t* upper_rows, const int32_t* upper_ends, const int32_t* rows,
                      const int32_t* columns, bool inverse) override {
    auto made = std::make_shared<SparseFactors>();
    made->d = d_;
    made->lower_ends.assign(lower_ends, lower_ends + d_ + 1), made->upper_ends.assign(upper_ends, upper_ends + d_ + 1);
    made->lower.assign(lower, lower + lower_ends[d_]), made->upper.assign(upper, upper + upper_ends[d_]);
    made->lower_rows.assign(lower_rows, lower_rows + lower_ends[d_]);
    made->upper_rows.assign(upper_rows, upper_rows + upper_ends[d_]);
    made->rows.assign(rows, rows + d_), made->columns.assign(columns, columns + d_);
    made->arrange();
    if (!inverse) return take(made);
    inverse_ = made;
    matrix_room_ = true;
  }

  bool fronts(const std::shared_ptr<const FrontPlan>& plan, const double* entries) override {
    matrix_ = nullptr;  // its memory may be used again
    if (!error_.carries()) used_ = nullptr;
    if (plan != plan_) plan_ = plan, front_memory_ = std::make_shared<Vectors>(plan->numbers);
    auto made = std::make_shared<FrontFactors>(plan, front_memory_);
    if (!made->factorise(entries)) return false;
    take(made);
    return true;
  }

  void full_factors(const double* both, const int32_t* exchanged) override {
    auto made = std::make_shared<FullFactors>();
    made->d = d_;
    made->both.assign(both, both + d_ * d_), made->exchanged.assign(exchanged, exchanged + d_);
    take(made);
  }

  void singular() override { singular_ = true; }

  // ---- what is known

  void scalars(double* out) const override {
    const double known[] = {t_, h_, following_, static_cast<double>(order()), std_, noise_, static_cast<double>(exit_),
                            static_cast<double>(status_), static_cast<double>(failures_),
                            static_cast<double>(taken_), gain().gamma * h_, target_, before_t_};
    std::copy(std::begin(known), std::end(known), out);
    std::copy(counts_, counts_ + 6, out + 13);
    error_.scalars(out + 19);
  }

  void vector(int which, long k, double* out) const override {
    if (which == 0) return row(out);
    if (which == 1) {  // where the Jacobian is wanted
      for (long i = 0; i < d_; ++i) out[i] = predicted(i);
      return;
    }
    if (which == 2) {  // value and slope before the last step, in plain units
      if (before_ == nullptr) return std::fill(out, out + 2 * d_, 0.0);
      std::copy(before_.get(), before_.get() + d_, out);
      std::copy(before_slope_.get(), before_slope_.get() + d_, out + d_);
      return;
    }
    error_.vector(which - 3, k, out);
  }

  bool advance(const double* f, double* t, double* y) override {
    switch (stage_) {
      case Stage::attempt: return next_attempt(t, y);
      case Stage::ready: return predict_and_go(t, y);
      case Stage::newton: return newton(f, t, y);
      case Stage::error: return carried(error_.take(f, t, y, work()), t, y);
      case Stage::finishing: return carry_on(t, y);
    }
    return false;
  }

 private:
  enum class Stage { attempt, ready, newton, error, finishing };

  struct Jacobian {
    int below, above;
    std::vector<int32_t> order;
    std::vector<double> entries;

    // Where each component has gone; none, if they are in their order.
    std::vector<int32_t> places() const {
      std::vector<int32_t> found(order.size());
      for (size_t i = 0; i < order.size(); ++i) found[order[i]] = static_cast<int32_t>(i);
      return found;
    }
  };

  // Memory that is of no use after a call, and not copied.
  struct Room {
    std::vector<double> memory;
    Room() = default;
    Room(const Room&) {}
    double* at(long size) {
      if (static_cast<long>(memory.size()) < size) memory.resize(size);
      return memory.data();
    }
  };

  int order() const { return static_cast<int>(x_.size() / d_) - 1; }
  const TwoPoleGain& gain() const { return gains_[order()]; }
  const double* x(int i) const { return x_.data() + i * d_; }
  double* x(int i) { return x_.data() + i * d_; }

  double predicted(long i) const {
    double sum = 0.0;
    for (int j = order(); j >= 0; --j) sum += x_[j * d_ + i];
    return sum;
  }

  Work work() { return {u_.at(d_), v_.at(d_), mass_ ? a_.at(d_) : nullptr, room(), mass_.get(), inverse_.get()}; }

  // For solving, where that is not done in place.
  double* room() { return matrix_room_ ? spare_.at(d_) : nullptr; }

  // ---- an attempt

  bool leave(int why) {
    exit_ = why;
    return false;
  }

  bool next_attempt(double* t, double* y) {
    stage_ = Stage::attempt;
    if (status_ != kRunning || attempts_ <= 0 || (wanted_ > 0 && taken_ >= wanted_)) return leave(kExitChunk);
    --attempts_;
    target_ = next_time();
    scale(target_ - t_);
    stage_ = Stage::ready;
    return predict_and_go(t, y);
  }

  double next_time() const {
    const double left = t1_ - t_, h = std::copysign(std::min(std::fabs(following_), max_step_), left);
    if (std::fabs(h) * habits_.stretch >= std::fabs(left)) return t1_;
    return t_ + (std::fabs(left) < 2.0 * std::fabs(h) ? 0.5 * left : h);
  }

  void scale(double h) {
    if (std::fabs(h - h_) <= habits_.same * std::fabs(h)) return;
    const double ratio = h / h_;
    double power = 1.0;
    for (int i = 1; i <= order(); ++i) {
      power *= ratio;
      double* row = x(i);
      for (long k = 0; k < d_; ++k) row[k] *= power;
    }
    h_ = h;
    changed_length();
  }

  void changed_length() { held_ = 0, known_errors_ = 0, growth_ = 0.0, earlier_ = nullptr; }

  // The prediction of x_0 and x_1, and what makes one of the tolerance; a matrix, if there is none; then f is wanted.
  bool predict_and_go(double* t, double* y) {
    if (!has_jacobian_) return leave(kExitJacobian);
    if (!singular_ && (matrix_ == nullptr || matrix_->h != h_ || matrix_->gamma != gain().gamma)) {
      if (jacobian_ == nullptr) return leave(kExitFactors);
      factorise();
    }
    if (singular_) {
      singular_ = false;
      ++counts_[0];
      fail(0.5, true, false);
      return rejected(t, y);
    }
    double *slope = slope_.at(d_), *weight = weight_.at(d_);
    const int q = order();
    const double careful = q < highest_ ? habits_.careful : 1.0;
    const bool vectors = atol_.size() > 1 || rtol_.size() > 1;
    const long a = atol_.size() > 1, r = rtol_.size() > 1;
    const double atol = atol_[0] / careful, rtol = rtol_[0] / careful;
    for (long begin = 0; begin < d_; begin += kBlock) {
      const long end = std::min(d_, begin + kBlock), size = end - begin;
      double value[kBlock], rise[kBlock];
      const double* first = x(0) + begin;
      for (long i = 0; i < size; ++i) value[i] = first[i] + x(1)[begin + i], rise[i] = x(1)[begin + i];
      for (int j = 2; j <= q; ++j) {
        const double* row = x(j) + begin;
        for (long i = 0; i < size; ++i) value[i] += row[i], rise[i] += j * row[i];
      }
      for (long i = 0; i < size; ++i) y[begin + i] = value[i], slope[begin + i] = rise[i];
      if (vectors)
        for (long i = 0; i < size; ++i)
          weight[begin + i] = careful / (atol_[(begin + i) * a] + rtol_[(begin + i) * r] *
                                         std::max(std::fabs(first[i]), std::fabs(value[i])));
      else
        for (long i = 0; i < size; ++i)
          weight[begin + i] = 1.0 / (atol + rtol * std::max(std::fabs(first[i]), std::fabs(value[i])));
    }
    iteration_ = 0, rating_ = rate_, before_length_ = 0.0;
    failed_error_ = std::numeric_limits<double>::infinity();
    stage_ = Stage::newton;
    *t = target_;
    return true;
  }

  void factorise() {
    matrix_ = nullptr;  // its memory may be used again
    if (!error_.carries()) used_ = nullptr;
    const double c = gain().gamma * h_;
    const int below = jacobian_->below, w = below + jacobian_->above + 1;
    std::vector<double> weighed;
    if (mass_ != nullptr) {
      weighed.resize(d_ * w);
      for (long i = 0; i < d_ * w; ++i) weighed[i] = -c * jacobian_->entries[i];
      const std::vector<int32_t> place = jacobian_->places();
      for (long row = 0; row < d_; ++row)
        for (int32_t p = mass_->ends[row]; p < mass_->ends[row + 1]; ++p) {
          const long column = mass_->columns[p], i = place.empty() ? row : place[row];
          weighed[i * w + (place.empty() ? column : place[column]) - i + below] += mass_->entries[p];
        }
    }
    auto made = mass_ == nullptr ? factorised_band(d_, below, jacobian_->above, jacobian_->entries, -c, 1.0)
                                 : factorised_band(d_, below, jacobian_->above, weighed, 1.0, 0.0);
    singular_ = made == nullptr;
    if (singular_) return;
    made->order = jacobian_->order;
    take(made);
  }

  void take(std::shared_ptr<Factors> made) {
    made->h = h_, made->gamma = gain().gamma;
    matrix_room_ = matrix_room_ || made->wants_room();
    matrix_ = std::move(made);
    ++counts_[4];
  }

  // ---- Newton's method

  bool newton(const double* f, double* t, double* y) {
    const TwoPoleGain& gain = this->gain();
    const int k = iteration_;
    double *u = k == 0 ? u_.at(d_) : a_.at(d_), *v = k == 0 ? v_.at(d_) : b_.at(d_);
    double *slope = slope_.at(d_), *spare = room();
    const double *weight = weight_.at(d_), h = h_;
    if (mass_ == nullptr) {
      for (long i = 0; i < d_; ++i) u[i] = slope[i] - h * f[i];
    } else {
      mass_->multiply(d_, slope, u);
      for (long i = 0; i < d_; ++i) u[i] -= h * f[i];
    }
    matrix_->solve(u, spare);
    const double total = sum_of(d_, [&](long i) { return square_of(u[i] * weight[i]); });
    const double length = gain.error * std::sqrt(total / d_);
    double amplified = k == 0 ? 1.0 : first_amplified_;
    bool done = false, finite = std::isfinite(length), broken = !finite;
    if (finite && k == 0) {
      failed_error_ = length;
      scale_ = std::sqrt(sum_of(d_, [&](long i) { return u[i] * u[i]; }) / d_);
      broken = length > 1.0;
      if (!broken) rating_ = std::min(1.0, habits_.mistrust * rating_);
    } else if (finite) {
      rating_ = before_length_ > 0.0 ? std::max(length / before_length_, 0.1 * rating_) : 0.0;
      broken = rating_ > habits_.diverges;
    }
    if (!broken) {
      if (mass_ == nullptr)
        std::memcpy(v, u, sizeof(double) * d_);
      else
        mass_->multiply(d_, u, v);
      matrix_->solve(v, spare);
      const double again = sum_of(d_, [&](long i) { return square_of(v[i] * weight[i]); });
      broken = !(finite = std::isfinite(again));
      if (finite && k == 0 && total > 0.0) {
        amplified = std::sqrt(again / total);
        broken = amplified > habits_.amplified;
      }
    }
    if (!broken) {
      done = length * std::min(1.0, rating_) < habits_.enough * std::min(1.0, std::max(failed_error_, habits_.least));
      if (k == 0 && order() < highest_ && !done) keep_first(u);
      if (k > 0) {
        double *all_u = u_.at(d_), *all_v = v_.at(d_);
        for (long i = 0; i < d_; ++i) all_u[i] += u[i], all_v[i] += v[i];
      }
      before_length_ = length;
      if (!done && k + 1 < static_cast<int>(habits_.iterations)) {
        const double a0 = gain.alpha[0], b0 = gain.beta[0], a1 = gain.alpha[1], b1 = gain.beta[1];
        for (long i = 0; i < d_; ++i) y[i] -= a0 * v[i] + b0 * u[i], slope[i] -= a1 * v[i] + b1 * u[i];
        ++iteration_, first_amplified_ = amplified;
        *t = target_;
        return true;
      }
    }
    rate_ = rating_;
    ++counts_[0], counts_[2] += k + 1, counts_[5] += 2 * k + 1 + done;
    if (failed_error_ > 1.0) {
      const bool stale = age_ > 0 && failed_error_ > habits_.far;
      fail(std::max(habits_.shrink, habits_.safety * std::pow(failed_error_, -1.0 / (order() + 1))), finite, stale);
      return rejected(t, y);
    }
    if (amplified > habits_.amplified) {
      fail(std::max(habits_.shrink, habits_.safety * room_to_grow(growth_of(amplified))), finite, false);
      return rejected(t, y);
    }
    if (!done) {
      if (age_ > 0) {
        forget_jacobian();
        resolved_ = finite;
      } else {
        fail(k > 0 ? 0.5 : 0.25, finite, false);
      }
      return rejected(t, y);
    }
    growth_ = std::max(growth_of(amplified), habits_.remembered * growth_);
    accept(k);
    return error_.carries() ? carried(error_.passed(t_, x(0), h_, used_, t, y, work()), t, y) : went_on(t, y);
  }

  void keep_first(const double* u) {
    first_ = Vectors::take(pool_);
    std::memcpy(first_.get(), u, sizeof(double) * d_);
  }

  void forget_jacobian() { has_jacobian_ = false, matrix_ = nullptr, jacobian_ = nullptr; }

  void fail(double factor, bool resolved, bool stale) {
    const bool anew = ++failures_ >= static_cast<int>(habits_.anew);
    if (anew) x_.resize(2 * d_);
    if (stale || anew) forget_jacobian();
    changed_length();
    following_ = h_ * factor;
    resolved_ = resolved;
  }

  bool rejected(double* t, double* y) {
    constexpr double epsilon = std::numeric_limits<double>::epsilon();
    const double smallest = std::max(10.0 * epsilon * std::fabs(t_), min_step_);
    if (!(std::fabs(following_) > std::max(smallest, std::numeric_limits<double>::min())))
      status_ = resolved_ ? kTooSmall : kNotFinite;
    return next_attempt(t, y);
  }

  // ---- an accepted step

  void accept(int iterations) {
    const int q = order();
    const TwoPoleGain& gain = gains_[q];
    const bool inside = save_ == save_ && (t1_ > t_ ? save_ < target_ : save_ > target_);
    before_t_ = t_;
    if (inside) {
      before_ = Vectors::take(pool_), before_slope_ = Vectors::take(pool_);
      std::memcpy(before_.get(), x(0), sizeof(double) * d_);
      for (long i = 0; i < d_; ++i) before_slope_.get()[i] = x(1)[i] / h_;
    }
    Shared highest;
    if (q < highest_) {
      highest = Vectors::take(pool_);
      std::memcpy(highest.get(), x(q), sizeof(double) * d_);
      if (iterations == 0) keep_first(u_.at(d_));
    }
    update(gain);
    const bool slow = iterations > 1 && rate_ > habits_.slow;
    t_ = target_;
    used_ = matrix_;
    following_ = h_;
    ++age_;
    earlier_ = held_ > 0 ? correction_ : nullptr;
    correction_ = std::move(first_);
    ++held_;
    recent_[0] = recent_[1], recent_[1] = recent_[2], recent_[2] = failed_error_;
    known_errors_ = std::min(known_errors_ + 1, 3);
    failures_ = 0;
    ++counts_[1], ++taken_;
    if (slow || age_ > static_cast<int>(habits_.old)) forget_jacobian();
    raise(q, highest.get());
    std_ = std::hypot(std_, this->gain().error * scale_);
    noise_ = scale_ / std::fabs(h_);
    if (t_ == t1_) status_ = kSuccess;
  }

  // x <- A x - α v - β u, A by additions as in Pascal's triangle.
  void update(const TwoPoleGain& gain) {
    const int q = order();
    const double *u = u_.at(d_), *v = v_.at(d_);
    for (long begin = 0; begin < d_; begin += kBlock) {
      const long size = std::min(d_, begin + kBlock) - begin;
      for (int i = 0; i < q; ++i)
        for (int j = q - 1; j >= i; --j) {
          double* to = x(j) + begin;
          const double* from = x(j + 1) + begin;
          for (long k = 0; k < size; ++k) to[k] += from[k];
        }
      for (int i = 0; i <= q; ++i) {
        double* row = x(i) + begin;
        const double a = gain.alpha[i], b = gain.beta[i];
        for (long k = 0; k < size; ++k) row[k] -= a * v[begin + k] + b * u[begin + k];
      }
    }
  }

  // The length and the order of the next step; `highest` was x_q before this one.
  void raise(int q, const double* highest) {
    if (held_ <= q + 1) return;
    double largest = 0.0;
    for (int i = 0; i < known_errors_; ++i) largest = std::max(largest, recent_[2 - i]);
    double factor = factor_of(largest, q);
    bool raised = false;
    if (q < highest_ && earlier_ != nullptr) {
      const double *now = correction_.get(), *before = earlier_.get(), *weight = weight_.at(d_);
      const double total = sum_of(d_, [&](long i) { return square_of((now[i] - before[i]) * weight[i]); });
      const double above = factor_of(gains_[q + 1].error * std::sqrt(total / d_) / (q + 1), q + 1);
      raised = above >= factor;
      factor = std::max(factor, above);
    }
    factor = std::min(factor, room_to_grow(growth_));
    factor = std::min(std::max(factor, habits_.shrink), habits_.growth);
    if (raised) {
      x_.resize((q + 2) * d_);
      for (long i = 0; i < d_; ++i) x(q + 1)[i] = (x(q)[i] - highest[i]) / (q + 1);
    } else if (habits_.shorter <= factor && factor <= habits_.longer) {
      return;
    }
    following_ = h_ * factor;
    changed_length();
  }

  // γ h λ, by what W does.
  static double growth_of(double amplified) { return amplified > 1.0 ? 1.0 - 1.0 / amplified : 0.0; }

  // How many times as long a step may be.
  double room_to_grow(double growth) const {
    if (!(growth > 0.0)) return std::numeric_limits<double>::infinity();
    return growth_of(habits_.amplified) / growth;
  }

  double factor_of(double error, int q) const {
    return habits_.safety * std::pow(std::max(error, 1e-10), -1.0 / (q + 1));
  }

  // ---- after a step

  bool carry_on(double* t, double* y) {
    if (error_.behind() == 0) {
      finishing_ = false;
      stage_ = Stage::attempt;
      return leave(kExitChunk);
    }
    return carried(error_.to_the_next(t, y, work()), t, y);
  }

  // Until the error has been carried as far as it can be.
  bool carried(bool wants_f, double* t, double* y) {
    stage_ = Stage::error;
    if (wants_f) return true;
    return finishing_ ? carry_on(t, y) : went_on(t, y);
  }

  bool went_on(double* t, double* y) {
    if (wanted_ > 0) {
      row(rows_ + taken_ * (highest_ + 1) * d_);
      const double known[] = {t_, h_, noise_, std_, static_cast<double>(order())};
      std::copy(std::begin(known), std::end(known), scalars_ + 5 * taken_);
    }
    stage_ = Stage::attempt;
    const bool passed = save_ == save_ && (t_ >= before_t_ ? save_ <= t_ : save_ >= t_);
    return passed ? leave(kExitSave) : next_attempt(t, y);
  }

  // Derivatives in plain units, those above the order zero.
  void row(double* out) const {
    double unit = 1.0;
    for (int i = 0; i <= highest_; ++i) {
      double* to = out + i * d_;
      if (i > order()) {
        std::fill(to, to + d_, 0.0);
        continue;
      }
      if (i > 0) unit *= i / h_;
      for (long k = 0; k < d_; ++k) to[k] = x(i)[k] * unit;
    }
  }

  long d_;
  int highest_;
  double t_, t1_, following_, h_, min_step_, max_step_;
  Habits habits_;
  TwoPoleGain gains_[kHighestOrder + 1];
  std::vector<double> atol_, rtol_, x_;
  std::shared_ptr<Vectors> pool_;
  std::shared_ptr<Rows> mass_;
  std::shared_ptr<const FrontPlan> plan_;
  std::shared_ptr<Vectors> front_memory_;
  std::shared_ptr<Factors> matrix_, used_, inverse_;
  std::shared_ptr<Jacobian> jacobian_;
  bool matrix_room_ = false, has_jacobian_ = false, singular_ = false, resolved_ = true, finishing_ = false;
  int age_ = 0, held_ = 0, failures_ = 0, known_errors_ = 0, iteration_ = 0, exit_ = 0, status_ = kRunning;
  double rate_ = 1.0, rating_ = 1.0, before_length_ = 0.0, failed_error_ = 0.0, recent_[3] = {}, scale_ = 0.0;
  double first_amplified_ = 1.0, growth_ = 0.0;  // γ h λ of what has grown in steps of this length and order
  double std_ = 0.0, noise_ = 0.0, target_ = 0.0, before_t_ = 0.0;
  double save_ = std::numeric_limits<double>::quiet_NaN();
  long attempts_ = 0, wanted_ = 0, taken_ = 0;
  double *rows_ = nullptr, *scalars_ = nullptr;
  double counts_[6] = {};  // attempted, accepted, f, Jacobians, factorisations, solves
  Shared first_, correction_, earlier_, before_, before_slope_;
  Room u_, v_, a_, b_, slope_, weight_, spare_;
  ErrorTransport error_;
  Stage stage_ = Stage::attempt;
};

}  // namespace PROBODE_ISA
}  // namespace probode
