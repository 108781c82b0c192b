// One attempted step of the filter: calibrate, judge, and if accepted condition; then predict.
//
// The same formulas as `step.py`, `diffusion.py` and `control.py`, where they are explained.
#pragma once

#include "wide.hpp"

namespace probode {
namespace PROBODE_ISA {

// sqrt(H Q̃ Hᵀ) of one component whose slope has no Jacobian.
inline double plain_deviation(const Settings& s) {
  const double l10 = s.noise[1], l11 = s.noise[s.n + 1];
  return std::sqrt(l10 * l10 + l11 * l11);
}

// Whiten z with H Q̃ Hᵀ: a decomposition of [l10 I - c l00 Jᵀ; l11 I]. Also sqrt(diag(H Q̃ Hᵀ)).
inline void local_noise(const Settings& s, double weight, const double* jacobian, const double* z,
                        Scratch& scratch, double* whitened, double* std_dev) {
  const int n = s.n, d = s.d;
  const double l00 = s.noise[0], l10 = s.noise[1], l11 = s.noise[n + 1];
  if (s.jacobian == kNone) {
    const double std = plain_deviation(s);
    for (int k = 0; k < d; ++k) {
      std_dev[k] = std;
      whitened[k] = z[k] / std;
    }
    return;
  }
  if (s.jacobian == kDiagonal) {
    for (int k = 0; k < d; ++k) {
      const double head = l10 - weight * l00 * jacobian[k];
      std_dev[k] = std::sqrt(head * head + l11 * l11);
      whitened[k] = z[k] / std_dev[k];
    }
    return;
  }
  const int length = row_length(d);
  double* stack = room(scratch.stack, static_cast<size_t>(2 * d) * length);
  double* reflector = room(scratch.reflector, 2 * d);
  std::memset(stack, 0, sizeof(double) * static_cast<size_t>(2 * d) * length);
  for (int a = 0; a < d; ++a) {
    double squares = l11 * l11;
    for (int l = 0; l < d; ++l) {
      const double entry = (a == l ? l10 : 0.0) - weight * l00 * jacobian[static_cast<long>(a) * d + l];
      stack[static_cast<long>(l) * length + a] = entry;
      squares += entry * entry;
    }
    stack[static_cast<long>(d + a) * length + a] = l11;
    std_dev[a] = std::sqrt(squares);
  }
  for (int a = 0; a < d; ++a) reflect(stack, length, a, d + a + 1, a, d, reflector);
  for (int a = 0; a < d; ++a) {
    double rest = z[a];
    for (int e = 0; e < a; ++e) rest -= stack[static_cast<long>(e) * length + a] * whitened[e];
    whitened[a] = rest / stack[static_cast<long>(a) * length + a];
  }
}

// Where a step must end at the latest: the next of the stops (in the order of integration), or the end.
inline double next_stop(const Settings& s, double t) {
  if (s.points == 0) return s.t1;
  const bool backwards = s.t1 < t;
  const double* past = s.grid + s.points;
  const double* next = std::upper_bound(
      s.grid, past, t, [backwards](double t, double stop) { return backwards ? stop < t : t < stop; });
  return next == past ? s.t1 : *next;
}

// Where the next step ends, and the mean predicted there.
inline double next_time(const Settings& s, const State& x) {
  const double step = *x.step;
  if (s.control == kGrid)
    return s.grid[std::min(static_cast<long>(*x.control_accepted) + 1, s.points - 1)];
  if (s.control == kConstantStep) {
    const double following = s.start + (*x.control_accepted + 1.0) * step;
    const bool reached = std::fabs(s.t1 - following) < 1e-6 * s.size;
    return reached || (following - s.t1) * step > 0.0 ? s.t1 : following;
  }
  const double end = next_stop(s, *x.row.t), left = end - *x.row.t;
  if (std::fabs(step) * (1.0 + 1e-10) >= std::fabs(left)) return end;
  // Two steps of one length to a stop, not a long one and a sliver.
  if (end != s.t1 && std::fabs(left) < 2.0 * std::fabs(step)) return *x.row.t + 0.5 * left;
  return *x.row.t + step;
}

inline void propose(const Settings& s, State& x) {
  *x.t_next = next_time(s, x);
  double coords[kMaxDerivatives];
  coordinates(s, *x.t_next - *x.row.t, coords);
  predict_mean(s, x.row.mean, s.d, coords, x.predicted);
}

inline bool goes_on(const Settings& s, const State& x) {
  return *x.status == s.running && *x.count < s.wanted && *x.attempted < s.last_attempt &&
         (std::isinf(s.seconds) || seconds_now() < *x.deadline);
}

// An estimate of the local error: one for each component, or the same for all.
struct Errors {
  const double* each;  // null: all have the common one
  double common;

  double operator[](long k) const { return each ? each[k] : common; }
  bool finite(long d) const { return each ? all_finite(each, d) : std::isfinite(common); }

  // Σ (error / tolerance)², in lanes.
  double squares(const Settings& s, const State& x) const {
    const long d = s.d;
    const double *before = x.row.mean, *after = x.predicted;
    Lane sums = {};
    long k = 0;
    for (; k + kLane <= d; k += kLane) {
      const Lane size = largest(absolute(load(before + k)), absolute(load(after + k)));
      const Lane tolerance = load(s.atol + k) + load(s.rtol + k) * size;
      const Lane ratio = (each ? load(each + k) : Lane{} + common) / tolerance;
      sums += ratio * ratio;
    }
    double sum = 0.0;
    for (int c = 0; c < kLane; ++c) sum += sums[c];
    for (; k < d; ++k) {
      const double size = larger(std::fabs(before[k]), std::fabs(after[k]));
      sum += square((*this)[k] / (s.atol[k] + s.rtol[k] * size));
    }
    return sum;
  }
};

// What the control says of a step: whether it is accepted, and the length of the next.
inline bool judge(const Settings& s, State& x, const Errors& error, bool& failed) {
  if (s.control == kConstantStep || s.control == kGrid) {
    const bool finite = error.finite(s.d) && all_finite(x.predicted, s.d);
    *x.control_accepted += finite;
    *x.rejected = finite ? 0.0 : 1.0;
    failed = !finite;
    return finite;
  }
  const double h = *x.t_next - *x.row.t;
  const double norm = std::sqrt(error.squares(s, x) / s.d);
  const bool accepted = norm <= 1.0, finite = std::isfinite(norm);
  const double bounded = finite ? std::max(norm, 1e-10) : 1.0;
  const double power = 1.0 / s.n;
  double factor;
  if (s.control == kProportional || bounded > 1.0) {
    factor = std::pow(bounded, -power);
  } else {
    factor = std::pow(bounded, -(s.integral + s.proportional) * power) *
             std::pow(*x.error, s.proportional * power);
    if (*x.rejected != 0.0) factor = std::min(factor, 1.0 / s.rho);
  }
  factor = finite ? std::min(std::max(s.rho * factor, s.eta_min), s.eta_max) : s.eta_min;
  double size = std::fabs(h) * factor;
  const double smallest = std::max(10.0 * kEpsilon * std::fabs(*x.row.t), s.min_step);
  failed = !accepted && size < smallest && std::fabs(h) <= 1.5 * smallest;
  failed = failed || (!accepted && size < std::numeric_limits<double>::min()) || h == 0.0;
  size = std::min(std::max(size, smallest), s.max_step);
  *x.step = h < 0.0 ? -size : h > 0.0 ? size : 0.0;
  if (accepted) *x.error = bounded;
  *x.control_accepted += accepted;
  *x.rejected = accepted ? 0.0 : 1.0;
  return accepted;
}

// m⁻ - T g z for the derivatives `first` to `last` of the components `from` to `to`; the gain g is a column per
// block.
inline void correct(const Settings& s, const double* coords, const double* gain, const double* z, int first,
                    int last, long from, long to, const double* predicted, double* mean) {
  const long d = s.d;
  for (int i = first; i < last; ++i) {
    const double* before = predicted + i * d;
    double* after = mean + i * d;
    if (s.structure == kBlockDiagonal) {
      for (long k = from; k < to; ++k) after[k] = before[k] - coords[i] * gain[k * s.n + i] * z[k];
    } else {
      const double common = coords[i] * gain[i];
      for (long k = from; k < to; ++k) after[k] = before[k] - common * z[k];
    }
  }
}

// What an observation adds to the evidence; `which`: the sum that it belongs to.
inline void count(State& x, long which, double square_of_whitened, double pivot, bool blank, double times) {
  x.squares[which] += blank ? 0.0 : square_of_whitened;
  x.log_det[which] += times * 2.0 * std::log(pivot);
  x.terms[which] += blank ? 0.0 : times;
}

// Condition on z = 0: the covariance work of a step. Writes the new row into `x.row`; its mean too, unless
// a second evaluation is to follow: then y alone is corrected, in the prediction, for `finish`.
inline void update(const Settings& s, State& x, const double* jacobian, const double* z,
                   const double* rounding, const double* scale, Scratch& scratch) {
  const int n = s.n, d = s.d, w = s.width(), size = s.block_size();
  const double h = *x.t_next - *x.row.t;
  double coords[kMaxDerivatives], change[kMaxDerivatives];
  coordinates(s, h, coords);
  powers(*x.row.h / h, n, change);

  const bool shared = s.structure == kIsotropic, twice = s.evaluations == 2;
  thread_local std::vector<double> memory;
  thread_local std::vector<char> flags;
  double* corrections = room(memory, static_cast<size_t>(s.blocks()) * size + 3 * d);
  double* whitened = corrections + static_cast<long>(s.blocks()) * size;
  double* pivots = whitened + d;
  double* noise = pivots + d;
  if (twice) corrections = x.gain;
  if (flags.size() < static_cast<size_t>(d)) flags.resize(d);
  bool* blank = reinterpret_cast<bool*>(flags.data());

  for (int block = 0; block < s.blocks(); ++block) {
    const double* block_jacobian = nullptr;
    for (int k = 0; k < w; ++k) noise[k] = rounding[block * w + k];
    thread_local std::vector<double> dense;
    if (s.jacobian == kFull) block_jacobian = jacobian;
    if (s.jacobian == kDiagonal) {
      if (s.structure == kDense) {
        double* matrix = room(dense, static_cast<size_t>(d) * d);
        std::memset(matrix, 0, sizeof(double) * d * d);
        for (int k = 0; k < d; ++k) matrix[static_cast<long>(k) * d + k] = jacobian[k];
        block_jacobian = matrix;
      } else {
        block_jacobian = jacobian + block;
      }
    }
    const double* block_scale = scale + (s.structure == kBlockDiagonal ? block : 0);
    // In place: the factor is not read any more when the posterior's is written.
    double* factor = x.row.factor + static_cast<long>(block) * size * size;
    double* correction = corrections + static_cast<long>(block) * size;
    // Of a block one component wide the correction for a residual of one is the gain: it serves all
    // components that share the block, and both evaluations.
    const double one = 1.0, *residual = w == 1 ? &one : z;
    condition_block({n, w, factor, change, s.transition, block_scale, s.noise, coords[0],
                     block_jacobian, s.fixed ? nullptr : noise, residual, factor, correction, whitened,
                     pivots, blank, s.keep},
                    scratch);

    if (shared && !s.multivariate) {
      count(x, 0, square(whitened[0] * norm(z, d)), pivots[0], blank[0], d);
    } else if (w == 1) {
      for (int k = shared ? 0 : block; k < (shared ? d : block + 1); ++k)
        count(x, s.multivariate ? k : 0, square(whitened[0] * z[k]), pivots[0], blank[0], 1.0);
    } else {
      for (int a = 0; a < w; ++a)
        count(x, s.multivariate ? a : 0, square(whitened[a]), pivots[a], blank[a], 1.0);
    }
  }
  if (twice) {
    correct(s, coords, corrections, z, 0, 1, 0, d, x.predicted, x.predicted);
  } else if (w == 1) {
    for_pieces(d, [&](long from, long to) {
      correct(s, coords, corrections, z, 0, n, from, to, x.predicted, x.row.mean);
    });
  } else {
    for (int i = 0; i < n; ++i)
      for (int k = 0; k < w; ++k)
        x.row.mean[i * w + k] = x.predicted[i * w + k] - coords[i] * corrections[i * w + k];
  }
  *x.evidence_steps += 1.0;
  for (int k = 0; k < s.scales(); ++k) x.row.scale[k] = scale[k];
  *x.row.t = *x.t_next;
  *x.row.h = h;
}

// The second evaluation of a step, where the first has corrected y: the mean is corrected with it
// instead, if it is finite.
inline void finish(const Settings& s, State& x, const double* f, Scratch& scratch) {
  const int n = s.n, d = s.d;
  double coords[kMaxDerivatives];
  coordinates(s, *x.row.h, coords);
  double *z = room(scratch.small, 2 * static_cast<size_t>(d)), *change = z + d;
  if (!all_finite(f, d)) f = x.first_slope;
  for_pieces(d, [&](long from, long to) {
    for (long k = from; k < to; ++k) {
      z[k] = x.predicted[d + k] - f[k];
      change[k] = x.first_slope[k] - f[k];
    }
    correct(s, coords, x.gain, change, 0, 1, from, to, x.predicted, x.row.mean);
    correct(s, coords, x.gain, z, 1, n, from, to, x.predicted, x.row.mean);
  });
  *x.waiting = 0.0;
}

// z = y' - f and the level of rounding in it, ε (|y'| + |f|): one for each component, or, where they share
// a block, the root of its mean square.
inline void observe(const Settings& s, const double* slope, const double* f, double* z, double* rounding) {
  const long d = s.d;
  if (s.structure != kIsotropic) {
    for (long k = 0; k < d; ++k) {
      z[k] = slope[k] - f[k];
      rounding[k] = kEpsilon * (std::fabs(slope[k]) + std::fabs(f[k]));
    }
    return;
  }
  Lane sums = {};
  long k = 0;
  for (; k + kLane <= d; k += kLane) {
    const Lane a = load(slope + k), b = load(f + k), size = absolute(a) + absolute(b);
    store(z + k, a - b);
    sums += size * size;
  }
  double sum = 0.0;
  for (int c = 0; c < kLane; ++c) sum += sums[c];
  for (; k < d; ++k) {
    z[k] = slope[k] - f[k];
    sum += square(std::fabs(slope[k]) + std::fabs(f[k]));
  }
  if (squares_hold(sum)) {
    rounding[0] = kEpsilon * std::sqrt(sum / d);
    return;
  }
  double unit = 0.0;
  for (long i = 0; i < d; ++i) unit = larger(unit, std::fabs(slope[i]) + std::fabs(f[i]));
  sum = 0.0;
  for (long i = 0; i < d; ++i) sum += square((std::fabs(slope[i]) + std::fabs(f[i])) / unit);
  rounding[0] = unit > 0.0 ? kEpsilon * unit * std::sqrt(sum / d) : kEpsilon * unit;
}

// Keep the current row of the state as row `i` of a chunk.
inline void keep_row(const Settings& s, const State& x, double* rows, long i) {
  double* out = rows + i * s.kept_size();
  const long head = s.kept_size() - s.triangle_size();
  std::memcpy(out, x.row.t, sizeof(double) * head);
  out += head;
  const int size = s.block_size();
  const double* row = x.row.factor;
  for (int block = 0; block < s.blocks(); ++block)
    for (int r = 0; r < size; ++r, row += size) {
      std::memcpy(out, row + r, sizeof(double) * (size - r));
      out += size - r;
    }
}

// An accepted step has been taken.
inline void arrive(const Settings& s, State& x, double* rows) {
  *x.accepted += 1.0;
  *x.count += 1.0;
  if (s.keep) keep_row(s, x, rows, static_cast<long>(*x.count));
  if (*x.status == s.running && *x.row.t == s.t1) *x.status = s.success;
}

// Attempt the step whose evaluation (f, J) is given, or finish the one whose second evaluation it is;
// propose the next. Whether to go on.
inline bool advance(const Settings& s, double* state, double* rows, const double* f,
                    const double* jacobian) {
  State x(s, state);
  Scratch& scratch = Scratch::mine();
  const int d = s.d;
  if (s.evaluations == 2 && *x.waiting != 0.0) {
    finish(s, x, f, scratch);
    arrive(s, x, rows);
    propose(s, x);
    return goes_on(s, x);
  }
  const double h = *x.t_next - *x.row.t;
  double coords[kMaxDerivatives];
  coordinates(s, h, coords);

  double* z = room(scratch.small, 6 * static_cast<size_t>(d));
  double *rounding = z + d, *whitened = rounding + d, *deviation = whitened + d;
  double *scale = deviation + d, *each = scale + d;
  observe(s, x.predicted + d, f, z, rounding);

  // Components that share a block, and one diffusion, have the same noise and the same error.
  const bool alike = s.structure == kIsotropic && !s.multivariate;
  if (!alike) local_noise(s, coords[0], jacobian, z, scratch, whitened, deviation);
  const double plain = plain_deviation(s);
  const double common = alike ? norm(z, d) / std::sqrt(d) / plain : norm(whitened, d) / std::sqrt(d);
  const double unit = s.fixed ? noise_scale(s, h / *x.reference) : 1.0;
  const double growth = s.damped ? noise_scale(s, h / *x.row.h) : 0.0;
  auto step_scale = [&](double local, double before) {
    if (!(before > 0.0)) return local;
    const double bounded = std::min(std::max(before, local / kFurthest), local * kFurthest);
    return std::sqrt(local) * std::sqrt(bounded);
  };
  Errors error{alike ? nullptr : each, 0.0};
  for (int k = 0; k < (alike ? 1 : d); ++k) {
    const double local = s.multivariate ? std::fabs(whitened[k]) : common;
    double error_scale = local;
    if (s.fixed) {
      const double steps = *x.evidence_steps;
      const double mean_square = s.multivariate
                                     ? x.squares[k] / std::max(steps, 1.0)
                                     : *x.squares / std::max(d * steps, 1.0);
      error_scale = larger(local, unit * std::sqrt(mean_square));
    }
    const double before = s.damped ? growth * x.row.scale[s.multivariate ? k : 0] : 0.0;
    scale[k] = s.fixed ? unit : step_scale(local, before);
    (alike ? error.common : each[k]) = std::fabs(h) * error_scale * (alike ? plain : deviation[k]);
  }
  const bool finite = error.finite(d);

  bool failed = false;
  const bool still = *x.t_next == *x.row.t;
  const bool accepted = judge(s, x, error, failed);
  *x.attempted += 1.0;
  if (failed) *x.status = finite || still ? s.step_too_small : s.not_finite;
  if (accepted) {
    update(s, x, jacobian, z, rounding, scale, scratch);
    if (s.evaluations == 2) {
      std::memcpy(x.first_slope, f, sizeof(double) * d);
      *x.waiting = 1.0;
      return true;
    }
    arrive(s, x, rows);
  }
  propose(s, x);
  return goes_on(s, x);
}

// Before the first step of a chunk: its first row, the clock, the first prediction. However late it is, one step
// is attempted.
inline bool open(const Settings& s, double* state, double* rows) {
  State x(s, state);
  *x.count = 0.0;
  *x.deadline = seconds_now() + s.seconds;
  keep_row(s, x, rows, 0);
  propose(s, x);
  return *x.status == s.running && *x.count < s.wanted && *x.attempted < s.last_attempt;
}

}  // namespace PROBODE_ISA
}  // namespace probode
