// The error of the two-pole filter, carried along with its steps as global_error/two_pole.py has it; and what is kept of
// it at chosen times, as in global_error/two_pole_bars.py.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "factors.hpp"
#include "passes.hpp"

namespace probode {
namespace PROBODE_ISA {

inline double square_of(double x) { return x * x; }

// Memory of a step for those who come after it, and the mass matrix if there is one.
struct Work {
  double *u, *v;
  double *a, *b;  // a with a mass matrix only; b for solving, where that is wanted
  const Rows* mass;
  const Factors* inverse;

  const double* weighed(long d, const double* x, double* room) const {
    if (mass == nullptr) return x;
    mass->multiply(d, x, room);
    return room;
  }
};

class ErrorTransport {
 public:
  ErrorTransport() = default;

  // `scheme`: w, and the constants as in Python. With `count` of at least zero, errors are kept at these times alone.
  ErrorTransport(const double* scheme, long d, std::shared_ptr<Vectors> pool, const double* times, long count)
      : d_(d), w_(static_cast<int>(scheme[0])), quick_(scheme[1]), mistrust_(scheme[2]), small_(scheme[3]),
        tiny_(scheme[4]), little_(scheme[5]), least_rate_(scheme[6]), iterations_(static_cast<int>(scheme[7])),
        window_(scheme[8]), least_(scheme[9]), pool_(std::move(pool)), watched_(count >= 0) {
    if (watched_) times_.assign(times, times + count);
  }

  bool carries() const { return w_ > 0; }
  int behind() const { return behind_; }

  // `begins`: the error of the start.
  void start(double t, const double* y, const double* begins) {
    e_.assign(begins, begins + d_), he_.assign(d_, 0.0), last_ = e_;
    nodes_.push_back({t, copied(y), 0.0, nullptr});
    if (!watched_) return;
    last_t_ = t, square_.assign(d_, 0.0), largest_.assign(d_, 0.0);
    low_.assign(y, y + d_), high_.assign(y, y + d_);
    save(t);
  }

  // After a step of the filter. The result of this and of those below: whether f is wanted at (t, y).
  bool passed(double time, const double* value, double h, std::shared_ptr<Factors> used, double* t, double* y,
              Work work) {
    nodes_.push_back({time, copied(value), h, std::move(used)});
    ++behind_;
    return behind_ > w_ ? to_the_next(t, y, work) : dropped();
  }

  bool to_the_next(double* t, double* y, Work work) {
    const Node& here = nodes_[index()];
    evaluations_ = 0;
    if (h_ == 0.0) {
      starting_ = true;
      return wanted(nodes_[index() - 1], t, y);
    }
    if (h_ != here.h) {  // what is stiff in h e' is of no use in other units
      const double ratio = here.h / h_;
      for (long i = 0; i < d_; ++i) he_[i] *= ratio;
      rate_ = 1.0;
      std::memcpy(work.u, work.weighed(d_, he_.data(), work.a), sizeof(double) * d_);
      here.used->solve(work.u, work.b);
      std::memcpy(work.v, work.weighed(d_, work.u, work.a), sizeof(double) * d_);
      here.used->solve(work.v, work.b);
      for (long i = 0; i < d_; ++i) he_[i] = 2.0 * work.u[i] - work.v[i];
    }
    return iterations(t, y);
  }

  bool take(const double* f, double* t, double* y, Work work) {
    if (!starting_) return iterate(f, t, y, work);
    starting_ = false;
    evaluations_ = 1;
    const double h = nodes_[index()].h;
    std::memcpy(work.u, f, sizeof(double) * d_);
    if (work.inverse != nullptr) work.inverse->solve(work.u, work.b);
    find_slope(index() - 1);
    for (long i = 0; i < d_; ++i) he_[i] = h * (slope_[i] - work.u[i]);
    return iterations(t, y);
  }

  void scalars(double* out) const {
    const double known[] = {unsettled_, largest_error_, errors_squared_, values_squared_, static_cast<double>(steps_),
                            static_cast<double>(f_), static_cast<double>(found_.size()),
                            static_cast<double>(around_.size())};
    std::copy(std::begin(known), std::end(known), out);
  }

  void vector(int which, long k, double* out) const {
    const double* kept[] = {nullptr, nullptr, largest_.data(), low_.data(), high_.data()};
    const double* from = which == 0 ? found_[k].get() : which == 1 ? around_[k].get() : kept[which];
    std::memcpy(out, from, sizeof(double) * d_);
  }

 private:
  struct Node {
    double t;
    Shared y;
    double h;
    std::shared_ptr<Factors> used;
  };

  int index() const { return static_cast<int>(nodes_.size()) - behind_; }

  Shared copied(const double* from) {
    Shared made = Vectors::take(pool_);
    std::memcpy(made.get(), from, sizeof(double) * d_);
    return made;
  }

  bool wanted(const Node& node, double* t, double* y) {
    const double* value = node.y.get();
    for (long i = 0; i < d_; ++i) y[i] = value[i] - e_[i];
    *t = node.t;
    return true;
  }

  bool iterations(double* t, double* y) {
    const Node& here = nodes_[index()];
    find_slope(index());
    round_ = 0, rounds_ = rate_ < quick_ ? 1 : iterations_;
    last_.swap(e_);
    const double* value = here.y.get();
    for (long i = 0; i < d_; ++i) e_[i] = last_[i] + he_[i], y[i] = value[i] - e_[i];
    *t = here.t;
    return true;
  }

  bool iterate(const double* f, double* t, double* y, Work work) {
    const Node& here = nodes_[index()];
    const double h = here.h, gamma = here.used->gamma;
    // l = (1/2, 1), b = (-γ², 1/2 - 2γ): α = l + b/γ, β = -b/γ.
    const double b0 = gamma, b1 = (2.0 * gamma - 0.5) / gamma, a0 = 0.5 - b0, a1 = 1.0 - b1;
    double *u = work.u, *v = work.v;
    if (work.mass == nullptr) {
      for (long i = 0; i < d_; ++i) u[i] = he_[i] - h * (slope_[i] - f[i]);
    } else {
      for (long i = 0; i < d_; ++i) work.a[i] = he_[i] - h * slope_[i];
      work.mass->multiply(d_, work.a, u);
      for (long i = 0; i < d_; ++i) u[i] += h * f[i];
    }
    here.used->solve(u, work.b);
    std::memcpy(v, work.weighed(d_, u, work.a), sizeof(double) * d_);
    here.used->solve(v, work.b);
    const double *value = here.y.get(), floor = small_ * largest_value_ + tiny_;
    double moved = 0.0, off = 0.0, size = 0.0;
    bool taken = true;
    if (round_ > 0) {  // what is longer than the change before it is not made
      moved = sum_of(d_, [&](long i) {
        return square_of((a0 * v[i] + b0 * u[i]) / (std::fabs(value[i]) + floor));
      });
      taken = std::sqrt(moved / d_) < moved_;
    }
    for (long begin = 0; begin < d_; begin += kBlock) {
      const long some = std::min(d_, begin + kBlock) - begin;
      double changes[kBlock], errors[kBlock], values[kBlock];
      const double *__restrict uu = u + begin, *__restrict vv = v + begin, *__restrict yy = value + begin;
      double *__restrict e = e_.data() + begin, *__restrict he = he_.data() + begin;
      if (taken)
        for (long k = 0; k < some; ++k) {
          changes[k] = a0 * vv[k] + b0 * uu[k];
          e[k] -= changes[k], he[k] -= a1 * vv[k] + b1 * uu[k];
        }
      for (long k = 0; k < some; ++k) {
        const double scale = 1.0 / (std::fabs(yy[k]) + floor);
        errors[k] = e[k] * scale, values[k] = yy[k] * scale;
        if (round_ == 0) changes[k] *= scale;
      }
      if (round_ == 0) moved += sum_of(some, [&](long k) { return square_of(changes[k]); });
      off += sum_of(some, [&](long k) { return square_of(errors[k]); });
      size += sum_of(some, [&](long k) { return square_of(values[k]); });
    }
    before_ = moved_, moved_ = std::sqrt(moved / d_);
    const bool settled = round_ > 0 && moved_ < quick_ * before_;
    if (++round_ < rounds_ && taken && !settled) return wanted(here, t, y);
    judge(std::sqrt(off / d_), std::sqrt(size / d_));
    h_ = h;
    f_ += evaluations_ + round_;
    note(here);
    nodes_[index()].used = nullptr;  // it is not solved with again
    --behind_;
    return dropped();
  }

  // Root mean squares of the error and of the value, relative to the latter.
  void judge(double off, double size) {
    if (!std::isfinite(off)) {
      rate_ = 1.0;
      return;
    }
    double left = 0.0;
    if (round_ > 1) {
      rate_ = std::min(1.0, moved_ / (before_ + tiny_));
      left = moved_ * rate_;
      if (!(moved_ > little_ * off)) rate_ = 0.0;
    }
    unsettled_ = std::hypot(unsettled_, left);
    largest_error_ = std::max(largest_error_, off);
    errors_squared_ = std::hypot(errors_squared_, off);
    values_squared_ = std::hypot(values_squared_, size);
    ++steps_;
    rate_ = mistrust_ * std::max(rate_, least_rate_);
  }

  // P' at a node, from w on both sides as far as there are; and the largest value there.
  void find_slope(int n) {
    const int last = static_cast<int>(nodes_.size()) - 1, first = std::max(0, std::min(n - w_, last - 2 * w_));
    const int count = std::min(2 * w_ + 1, last + 1 - first), at = n - first;
    double s[kMostNodes], weights[kMostNodes];
    const double unit = nodes_[n].h != 0.0 ? nodes_[n].h : nodes_[first + 1].h;
    s[0] = 0.0;
    for (int j = 1; j < count; ++j) s[j] = s[j - 1] + nodes_[first + j].h / unit;
    for (int j = 0; j < count; ++j) {  // (λ_j / λ_a) / (s_a - s_j), λ_j = 1 / Π (s_j - s_k)
      double quotient = 1.0;
      for (int k = 0; k < count; ++k)
        if (k != j && k != at) quotient *= (s[at] - s[k]) / (s[j] - s[k]);
      weights[j] = j == at ? 0.0 : quotient / ((s[j] - s[at]) * unit);
    }
    slope_.resize(d_);
    const double* here = nodes_[n].y.get();
    double largest = 0.0;
    for (long begin = 0; begin < d_; begin += kBlock) {
      const long size = std::min(d_, begin + kBlock) - begin;
      double sum[kBlock] = {};
      for (int j = 0; j < count; ++j) {
        if (j == at) continue;
        const double *value = nodes_[first + j].y.get() + begin, weight = weights[j];
        for (long i = 0; i < size; ++i) sum[i] += weight * (value[i] - here[begin + i]);
      }
      for (long i = 0; i < size; ++i) slope_[begin + i] = sum[i];
      largest = std::max(largest, largest_of(size, [&](long i) { return std::fabs(here[begin + i]); }));
    }
    largest_value_ = largest;
  }

  bool dropped() {
    const int last = static_cast<int>(nodes_.size()) - 1, reached = last - behind_;
    const int drop = std::max(0, std::min(reached - w_, last - 2 * w_));
    nodes_.erase(nodes_.begin(), nodes_.begin() + drop);
    return false;
  }

  void note(const Node& node) {
    if (!watched_) {
      found_.push_back(copied(e_.data()));
      return;
    }
    ++passed_;
    const double length = 2.0 * std::max(least_, window_ * passed_) + 1.0, part = 1.0 / std::min(1.0 * passed_, length);
    extend(d_, part, node.y.get(), e_.data(), square_.data(), low_.data(), high_.data(), largest_.data());
    save(node.t);
    last_t_ = node.t;
  }

  // The mean square of the error, its largest and the extremes of the value, with one node more.
  static void extend(long d, double part, const double* __restrict y, const double* __restrict e,
                     double* __restrict square, double* __restrict low, double* __restrict high,
                     double* __restrict largest) {
    for (long i = 0; i < d; ++i) {
      const double off = std::fabs(e[i]);
      square[i] += part * (off * off - square[i]);
      low[i] = y[i] < low[i] ? y[i] : low[i];
      high[i] = y[i] > high[i] ? y[i] : high[i];
      largest[i] = off > largest[i] ? off : largest[i];
    }
  }

  void save(double t) {
    while (around_.size() < times_.size()) {
      const double time = times_[around_.size()];
      if (time < std::min(last_t_, t) || time > std::max(last_t_, t)) return;
      const double part = t == last_t_ ? 1.0 : (time - last_t_) / (t - last_t_);
      Shared error = Vectors::take(pool_), local = Vectors::take(pool_);
      for (long i = 0; i < d_; ++i) error.get()[i] = (1.0 - part) * last_[i] + part * e_[i];
      for (long i = 0; i < d_; ++i) local.get()[i] = std::sqrt(square_[i]);
      found_.push_back(std::move(error)), around_.push_back(std::move(local));
    }
  }

  static constexpr int kMostNodes = 16;

  long d_ = 0;
  int w_ = 0, iterations_ = 0;
  double quick_ = 0, mistrust_ = 0, small_ = 0, tiny_ = 0, little_ = 0, least_rate_ = 0, window_ = 0, least_ = 0;
  std::shared_ptr<Vectors> pool_;
  std::vector<Node> nodes_;
  int behind_ = 0, round_ = 0, rounds_ = 0, evaluations_ = 0;
  bool starting_ = false, watched_ = false;
  std::vector<double> e_, he_, slope_;
  double h_ = 0.0, rate_ = 1.0, moved_ = 0.0, before_ = 0.0, largest_value_ = 0.0;
  double unsettled_ = 0.0, largest_error_ = 0.0, errors_squared_ = 0.0, values_squared_ = 0.0;
  long steps_ = 0, f_ = 0, passed_ = 0;
  std::vector<Shared> found_, around_;
  std::vector<double> times_, last_, square_, largest_, low_, high_;
  double last_t_ = 0.0;
};

}  // namespace PROBODE_ISA
}  // namespace probode
