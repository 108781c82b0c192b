// Many members of one problem of first order, one after the other: each to its end, with the posterior at its save
// points.
//
// What `filter/saving.py` does in bounded memory is done here with all steps of one member kept, and smoothed together;
// the transport goes along beside the filter, as in `global_error/beside.py`, and its scales are those of
// `global_error/scales.py`. The formulas are explained there.
#pragma once

#include <memory>

#include "abreast/bend.hpp"
#include "interpolate.hpp"
#include "posterior_at_times.hpp"

namespace probode {
namespace PROBODE_ISA {

// A root of a sum of squares; in plain squares as long as none overflows or vanishes.
class Squares {
 public:
  void add(double x) {
    const double square = x * x;
    if (square > 1e-280 && square < 1e280) sum_ += square;
    else if (x != 0.0) rest_ = std::hypot(rest_, x);
  }
  double root() const { return std::hypot(std::sqrt(sum_), rest_); }

 private:
  double sum_ = 0.0, rest_ = 0.0;
};

// Sums over the steps of a transport by which it is judged: `Tally` of global_error/diagnosis.py.
class Tally {
 public:
  explicit Tally(int d)
      : d_(d), largest_(d), least_(d), most_(d), unsettled_(d), square_(d), error_square_(d) {}

  void begin(const double* y) {
    least_.assign(y, y + d_);
    most_.assign(y, y + d_);
  }

  // A step that ended at `y`; `moved` holds its error, the first estimate of its change, and the correction.
  void add(const double* y, const double* moved) {
    const double *first = moved + d_, *second = first + d_;
    for (int a = 0; a < d_; ++a) {
      const double correction = std::fabs(second[a]);
      const double left = correction * smaller(correction / (std::fabs(first[a]) + kTiny), 1.0);
      unsettled_[a].add(left);
      largest_[a] = larger(std::fabs(moved[a]), largest_[a]);
      square_[a].add(y[a]);
      error_square_[a].add(moved[a]);
      least_[a] = smaller(y[a] - moved[a], least_[a]);
      most_[a] = larger(y[a] - moved[a], most_[a]);
    }
    steps_ += 1.0;
  }

  // convergence, rounding, size
  void signs(const double* extent, double harmless, double* out) const {
    out[0] = out[1] = out[2] = 0.0;
    const double floor = kQuiet * *std::max_element(extent, extent + d_);
    for (int a = 0; a < d_; ++a) {
      if (!(largest_[a] > 0.0)) continue;
      const bool loud = !(extent[a] <= floor && largest_[a] <= floor);
      const bool moves = loud && !(most_[a] - least_[a] <= kRests * extent[a]);
      if (loud) out[0] = larger(unsettled_[a].root() / (harmless * largest_[a]), out[0]);
      out[1] = larger(kEpsilon * std::sqrt(steps_) * square_[a].root() / (error_square_[a].root() + kTiny), out[1]);
      if (moves && extent[a] > 0.0) out[2] = larger(largest_[a] / extent[a], out[2]);
    }
  }

 private:
  static constexpr double kTiny = 1e-300, kQuiet = 1e-11, kRests = 0.1;
  int d_;
  double steps_ = 0.0;
  std::vector<double> largest_, least_, most_;
  std::vector<Squares> unsettled_, square_, error_square_;
};

// The transport beside a filter, and what it notes at a save point: the solution with the error taken off (d), the
// misfit, the squares of errors around (d). `Tracker` of global_error/beside.py.
class Beside {
 public:
  Beside(const Scheme& scheme, const Windows& windows, const TapeData& field, const TapeData& jacobian)
      : c_(scheme), d_(scheme.d), transport_(scheme, field, jacobian), running_(windows, scheme.d), tally_(scheme.d),
        moved_(static_cast<size_t>(scheme.d) * (scheme.s + 5)), before_(scheme.d), slope_(scheme.d), next_(scheme.d),
        std_(scheme.d), bend_(scheme.s + 2) {
    points_.push_back(0.0);
    points_.insert(points_.end(), c_.nodes, c_.nodes + c_.s);
    if (c_.nodes[c_.s - 1] != 1.0) points_.push_back(1.0);  // Gauss: the end is no stage
    bend_of(c_.nodes, c_.s, bend_.data());
  }

  void begin(const double* mean) {
    running_.begin(mean);
    tally_.begin(mean);
  }

  // Over the step between two rows of the filter, which lie side by side.
  void step(const Settings& s, const Row& left, const Row& right) {
    const double t[2] = {*left.t, *right.t};
    std::copy(moved_.begin(), moved_.begin() + d_, before_.begin());
    slope_ = next_;
    transport_.run(t, left.mean, right.mean - left.mean, 1, moved_.data());
    filtered_deviations(s, right, std_.data());
    running_.add(right.mean, moved_.data(), std_.data());
    tally_.add(right.mean, moved_.data());
    corrections += moved_[3 * d_];
    repeats += moved_[4 * d_];
    if (c_.kind != kNewton || t[0] == t[1]) return;
    const double* row = c_.inverse + static_cast<long>(c_.s - 1) * c_.s;
    for (int a = 0; a < d_; ++a) {
      next_[a] = 0.0;
      for (int j = 0; j < c_.s; ++j) next_[a] += row[j] * (moved_[static_cast<long>(d_) * (5 + j) + a] - before_[a]);
      next_[a] /= t[1] - t[0];
    }
  }

  void note(const Row& left, const Row& right, double t, double* out) const {
    const double h = *right.t - *left.t, tau = h == 0.0 ? 0.0 : (t - *left.t) / h;
    const int last = static_cast<int>(points_.size()) - 1;
    for (int a = 0; a < d_; ++a) {  // the cubic through values and slopes
      const double change = right.mean[a] - left.mean[a];
      const double first = h * left.mean[d_ + a], second = h * right.mean[d_ + a];
      const double square = 3.0 * change - 2.0 * first - second, cube = first + second - 2.0 * change;
      out[a] = left.mean[a] + tau * (first + tau * (square + tau * cube));
    }
    for (int j = 0; j <= last; ++j) {  // and that of the error through its stages
      double weight = 1.0;
      for (int i = 0; i <= last; ++i)
        if (i != j) weight *= (tau - points_[i]) / (points_[j] - points_[i]);
      const double* error = j == 0 ? before_.data() : stage(j, last);
      if (c_.kind == kNewton) weight -= bent_by(bend_.data(), c_.s, tau) * slope_at_start(points_.data(), last, j);
      for (int a = 0; a < d_; ++a) out[a] -= weight * error[a];
    }
    if (c_.kind == kNewton)  // and that has a slope at the left end
      for (int a = 0; a < d_; ++a) out[a] -= bent_by(bend_.data(), c_.s, tau) * h * slope_[a];
    running_.save(out + d_);
  }

  void extent(double* out) const { running_.extent(out); }
  void signs(const double* extent, double harmless, double* out) const { tally_.signs(extent, harmless, out); }

  double corrections = 0.0, repeats = 0.0;

 private:
  // The errors of point j: a stage, or the end.
  const double* stage(int j, int last) const {
    return j == last ? moved_.data() : moved_.data() + static_cast<long>(d_) * (4 + j);
  }

  const Scheme& c_;
  const int d_;
  Transport transport_;
  RunningScales running_;
  Tally tally_;
  std::vector<double> moved_, before_, slope_, next_, std_, bend_, points_;  // next_: the slope at the right end
};

// Sums over `half` neighbours on both sides, fewer at the ends, as in `window_mean` of global_error/scales.py: those of 1,
// 2, 4, ... numbers are put together with `add`.
template <typename Add>
std::vector<double> window_sums(const std::vector<double>& x, long half, Add&& add) {
  const long n = static_cast<long>(x.size()), length = 2 * half + 1;
  std::vector<double> power(n + 2 * half), total(n);
  std::copy(x.begin(), x.end(), power.begin() + half);
  for (long width = 1, start = 0;; width *= 2) {
    if (length & width) {
      for (long i = 0; i < n; ++i) total[i] = add(total[i], power[start + i]);
      start += width;
    }
    if (2 * width > length) return total;
    for (size_t i = 0; i + width < power.size(); ++i) power[i] = add(power[i], power[i + width]);
    power.resize(power.size() - width);
  }
}

// The same of a single save point: no larger than the model says of its own step; `around_end` of global_error/scales.py.
inline void note_alone(int d, const double* stds, double* noted) {
  for (int a = 0; a < d; ++a)
    if (stds[a] > 1e-290) noted[d + 1 + a] = std::min(noted[d + 1 + a], std::sqrt(noted[d]) * stds[a]);
}

// What `Beside` noted of the errors around each of `n` save points, of `times` that were asked for (2 d + 1 numbers),
// replaced by what the errors at all of them say: `around_saved` of global_error/scales.py.
inline void note_around(int d, long n, long times, const double* means, const double* stds, double* noted) {
  const long row = 2 * d + 1;
  auto error = [&](long k, int a) { return means[k * d + a] - noted[k * row + a]; };
  const long far = std::min(std::max(2L, static_cast<long>(0.02 * times)), n - 1);
  const long near = std::min(std::max(1L, static_cast<long>(0.1 * times)), n - 1);
  std::vector<double> rows(n), known(n);
  for (long k = 0; k < n; ++k) {
    double sum = 0.0, varying = 0.0;
    for (int a = 0; a < d; ++a) {
      if (!(stds[k * d + a] > 1e-290)) continue;
      sum += square(std::min(std::max(error(k, a) / stds[k * d + a], -1e150), 1e150));
      varying += 1.0;
    }
    known[k] = all_finite(noted + k * row, d);
    rows[k] = known[k] != 0.0 ? sum / std::max(varying, 1.0) : 0.0;
  }
  auto add = [](double a, double b) { return a + b; };
  const std::vector<double> misfits = window_sums(rows, far, add), far_counts = window_sums(known, far, add);
  const long next = std::min(1L, n - 1);
  const std::vector<double> nearest = window_sums(rows, next, add), next_counts = window_sums(known, next, add);
  const std::vector<double> near_counts = window_sums(known, near, add);
  for (int a = 0; a < d; ++a) {
    for (long k = 0; k < n; ++k) rows[k] = known[k] != 0.0 ? std::fabs(error(k, a)) : 0.0;
    const std::vector<double> local = window_sums(rows, near, root_of_squares);
    for (long k = 0; k < n; ++k) {
      const bool exact = error(k, a) == 0.0 && !(stds[k * d + a] > 1e-290);
      noted[k * row + d + 1 + a] = exact ? 0.0 : local[k] / std::sqrt(std::max(near_counts[k], 1.0));
    }
  }
  for (long k = 0; k < n; ++k) {
    const double most = 4.0 * nearest[k] / std::max(next_counts[k], 1.0);
    noted[k * row + d] = smaller(misfits[k] / std::max(far_counts[k], 1.0), most);
  }
}

// The factors of the model's standard deviations, and those where it has none: `combine` of global_error/scales.py.
// `noted` is what `Beside` wrote down, `alone`: of a single save point.
inline void calibrate(int d, const double* mean, const double* std, const double* noted, const double* extent,
                      double doubt, bool alone, double* ratio, double* own) {
  constexpr double tiny = 1e-290, largest = 1e150, most = 1.5;
  const double *corrected = noted, around_misfit = noted[d], *local = noted + d + 1;
  double sum = 0.0, known = 0.0;
  for (int a = 0; a < d; ++a) {
    if (!(std[a] > tiny)) continue;
    const double part = (mean[a] - corrected[a]) / std[a];
    sum += square(part > largest ? largest : part < -largest ? -largest : part);
    known += 1.0;
  }
  const double c = sum / std::max(known, 1.0);
  const double blended = c / 2.0 + (alone ? smaller(around_misfit, 4.0 * c) : around_misfit) / 2.0;
  for (int a = 0; a < d; ++a) {
    const bool has = std[a] > tiny;
    const double size = std::fabs(mean[a] - corrected[a]), around = root_of_squares(size, local[a]);
    double scale = size;
    if (has) {
      const double model = std::sqrt(blended / 2.0) * std[a];
      scale = root_of_squares(std::sqrt(0.5) * size, around > 0.0 ? smaller(model, most * around) : model);
    }
    const double within = smaller(larger(local[a], scale / 2.0), 2.0 * scale);
    scale = root_of_squares(within, doubt * local[a]);
    if (has || scale != 0.0) scale = larger(scale, kEpsilon * std::fabs(mean[a]));
    if (!std::isfinite(scale)) scale = larger(extent[a], std[a]);
    own[a] = has ? 0.0 : scale;
    ratio[a] = has ? scale / std[a] : 1.0;
  }
}

// Memory and lists of one thread, for one member after the other.
class Members {
 public:
  explicit Members(const MembersData& given)
      : g_(given), settings_(given.settings, given.settings + given.settings_size), start_(given.start),
        field_(given.field), value_(given.value), jacobian_(given.jacobian) {}

  void solve(long i) {
    take(i);
    const Settings s(settings_.data());
    Tape start(start_.data, s.d), field(field_.data, s.d);
    const bool interior = !g_.only_end, smooth = s.keep;
    state_.resize(start.outputs());
    out_.resize(field.outputs());
    pair_.resize(2 * s.kept_size());
    rows_.clear();
    node_.clear();
    noted_.resize(g_.times * (2 * s.d + 1));
    start.evaluate(g_.at + i * (s.d + 1), state_.data());
    State x(s, state_.data());
    const bool backwards = s.t1 < *x.row.t;
    const double* times = g_.save_at + i * g_.save_stride;

    std::unique_ptr<Beside> beside;
    std::unique_ptr<Scheme> scheme;
    if (g_.scheme) {
      const double* w = g_.scheme + g_.scheme_size - 4;
      scheme.reset(new Scheme(g_.scheme));
      beside.reset(new Beside(*scheme, {w[0], w[1], w[2], w[3]}, value_.data, jacobian_.data));
      beside->begin(x.row.mean);
    }
    // Rows 0 and 1 of the pair: the ends of the last step.
    const Row left(s, pair_.data()), right(s, pair_.data() + s.kept_size());
    long steps = 0;
    auto arrive = [&] {
      if (smooth && interior) rows_.insert(rows_.end(), right.t, right.t + s.kept_size());
      if (beside && steps > 0) beside->step(s, left, right);
      while (static_cast<long>(node_.size()) < g_.times) {
        const long k = static_cast<long>(node_.size());
        const double t = times[k];
        if (backwards ? t < *right.t : t > *right.t) break;
        if (beside) beside->note(left, right, t, noted_.data() + k * (2 * s.d + 1));
        if (!smooth && interior) marginal(s, i, k, pair_.data(), nullptr, 1, t);
        node_.push_back(steps);
      }
    };
    bool go = open(s, state_.data(), pair_.data());
    std::copy(left.t, left.t + s.kept_size(), right.t);
    blank(s, i);
    arrive();
    while (go) {
      field.evaluate(state_.data(), out_.data());
      const double before = *x.accepted;
      go = advance<1>(s, state_.data(), pair_.data(), out_.data(), out_.data() + s.d);
      if (*x.accepted == before) continue;
      *x.count = 0.0;  // rows beyond the pair are kept here
      if (!s.keep && (interior || beside || *x.status == s.success)) keep_row(s, x, pair_.data(), 1);
      ++steps;
      arrive();
      std::copy(right.t, right.t + s.kept_size(), left.t);
    }
    finish(s, i, x, beside.get());
  }

 private:
  // A list with numbers of its own.
  struct Own {
    std::vector<double> numbers;
    TapeData data;
    explicit Own(const TapeData& given)
        : numbers(given.numbers, given.numbers + given.given), data{given.code, numbers.data(), given.given} {}
  };

  // What is given of member `i`, in its places.
  void take(long i) {
    const int d = g_.d;
    double* x = settings_.data();
    x[15] = g_.t1[i];
    std::copy(g_.rtol + i * d, g_.rtol + (i + 1) * d, x + 30);
    std::copy(g_.atol + i * d, g_.atol + (i + 1) * d, x + 30 + d);
    for (long k = 0; k < g_.own; ++k) {
      const double number = g_.numbers[i * g_.own + k];
      const int32_t place = g_.places[k];
      start_.numbers[place] = number;
      if (place >= g_.of_field) continue;
      field_.numbers[place] = number;
      if (g_.scheme) value_.numbers[place] = jacobian_.numbers[place] = number;
    }
  }

  double* mean(const Settings& s, long i, long k) const { return g_.mean + (i * g_.times + k) * s.d; }
  double* std(const Settings& s, long i, long k) const { return g_.std + (i * g_.times + k) * s.d; }
  double* cov(const Settings& s, long i, long k) const { return g_.cov + (i * g_.times + k) * s.d * s.d; }

  void blank(const Settings& s, long i) const {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::fill(mean(s, i, 0), mean(s, i, g_.times), nan);
    std::fill(std(s, i, 0), std(s, i, g_.times), nan);
    if (g_.cov) std::fill(cov(s, i, 0), cov(s, i, g_.times), nan);
  }

  // Write down time `k`, which lies in the step to node `j`, from rows that are smoothed, or not.
  void marginal(const Settings& s, long i, long k, const double* rows, const double* smoothed, long j, double t) {
    const long head = 2 + s.scales(), stride = s.kept_size(), n = s.state_size();
    const double* filtered = rows + head;
    const double* own = smoothed ? smoothed : filtered;
    const long own_stride = smoothed ? marginal_size(s) : stride;
    const double* nodes[] = {rows, rows + 1, rows + 2, own, own + n, filtered, filtered + n};
    const long strides[] = {stride, stride, stride, own_stride, own_stride, stride, stride};
    const Nodes all(nodes, strides, smoothed != nullptr);
    const int w = s.width();
    columns_.resize(static_cast<size_t>(s.blocks()) * w * w);
    Interpolation(s, all, 0).evaluate(j, t, mean(s, i, k), columns_.data());
    double *deviation = std(s, i, k), *covariance = g_.cov ? cov(s, i, k) : nullptr;
    if (covariance) std::fill(covariance, covariance + static_cast<long>(s.d) * s.d, 0.0);
    for (int b = 0; b < s.blocks(); ++b) {
      const double* columns = columns_.data() + static_cast<long>(b) * w * w;
      for (int a = 0; a < w; ++a) {
        double size = 0.0;
        for (int r = 0; r < w; ++r) size = root_of_squares(size, columns[r * w + a]);
        deviation[b * w + a] = size;
        for (int c = 0; covariance && c < w; ++c) {
          double sum = 0.0;
          for (int r = 0; r < w; ++r) sum += columns[r * w + a] * columns[r * w + c];
          covariance[static_cast<long>(b * w + a) * s.d + b * w + c] = sum;
        }
      }
    }
    if (s.structure != kIsotropic) return;
    std::fill(deviation + 1, deviation + s.d, deviation[0]);
    for (int a = 1; covariance && a < s.d; ++a) covariance[static_cast<long>(a) * s.d + a] = covariance[0];
  }

  // When the steps are over.
  void finish(const Settings& s, long i, const State& x, const Beside* beside) {
    const int d = s.d;
    const long reached = static_cast<long>(node_.size());
    const double* times = g_.save_at + i * g_.save_stride;
    if (g_.only_end && reached > 0) marginal(s, i, 0, pair_.data(), nullptr, 1, times[0]);
    if (!g_.only_end && s.keep && reached > 0) {
      const long stride = s.kept_size(), across = marginal_size(s), head = 2 + s.scales();
      const long steps = static_cast<long>(rows_.size()) / stride - 1;
      const long first = std::max(node_[0] - 1, 0L);  // what lies before is not asked for
      smoothed_.resize((steps + 1) * across);
      const double* last = rows_.data() + steps * stride + head;
      std::copy(last, last + across, smoothed_.data() + steps * across);
      smooth(s, rows_.data() + first * stride, steps - first, smoothed_.data() + first * across);
      for (long k = 0; k < reached; ++k) marginal(s, i, k, rows_.data(), smoothed_.data(), node_[k], times[k]);
    }
    auto note = [&](int k) -> double& { return g_.notes[k * g_.count + i]; };
    for (int k = 0; k < kNotes; ++k) note(k) = 0.0;
    note(0) = *x.status;
    note(1) = *x.attempted;
    note(2) = *x.accepted;
    if (!s.fixed && !beside) return;

    std::vector<double> extent(d), ratio(d, 1.0), own(d), spread(d, 1.0);
    if (beside) {
      beside->extent(extent.data());
      note(3) = beside->corrections;
      note(4) = beside->repeats;
      double signs[3];
      beside->signs(extent.data(), g_.harmless, signs);
      for (int k = 0; k < 3; ++k) note(5 + k) = signs[k];
    }
    if (s.fixed)
      for (int a = 0; a < d; ++a)
        spread[a] = std::sqrt(s.multivariate ? x.squares[a] / std::max(*x.evidence_steps, 1.0)
                                             : *x.squares / std::max(d * *x.evidence_steps, 1.0));
    for (long k = 0; k < reached; ++k)
      for (int a = 0; a < d; ++a) std(s, i, k)[a] *= spread[a];
    if (beside && reached >= kEnough)
      note_around(d, reached, g_.times, mean(s, i, 0), std(s, i, 0), noted_.data());
    else if (beside && reached == 1)
      note_alone(d, std(s, i, 0), noted_.data());
    for (long k = 0; k < reached; ++k) {
      double* deviation = std(s, i, k);
      if (beside) {
        const double* noted = noted_.data() + k * (2 * d + 1);
        if (!all_finite(noted, d)) note(8) = 1.0;
        calibrate(d, mean(s, i, k), deviation, noted, extent.data(), g_.doubt, reached < kEnough, ratio.data(),
                  own.data());
      }
      for (int a = 0; a < d; ++a) deviation[a] = root_of_squares(deviation[a] * ratio[a], own[a]);
      for (int a = 0; g_.cov && a < d; ++a)
        for (int c = 0; c < d; ++c) {
          double& entry = cov(s, i, k)[static_cast<long>(a) * d + c];
          entry = entry * (spread[a] * ratio[a]) * (spread[c] * ratio[c]) + (a == c ? square(own[a]) : 0.0);
        }
    }
  }

  // Save points whose own errors say how large errors are around: `_ENOUGH` of global_error/beside.py.
  static constexpr long kEnough = 2;

  const MembersData& g_;
  std::vector<double> settings_;
  Own start_, field_, value_, jacobian_;
  std::vector<double> state_, out_, pair_, rows_, smoothed_, noted_, columns_;
  std::vector<long> node_;  // the row at which each save point was passed
};

}  // namespace PROBODE_ISA
}  // namespace probode
