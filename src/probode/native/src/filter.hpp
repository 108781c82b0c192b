// One attempted step of the filter: calibrate, judge, and if accepted condition; then predict.
//
// The same formulas as `step.py`, `diffusion.py` and `control.py`, where they are explained.
#pragma once

#include "wide.hpp"

namespace probode {
namespace PROBODE_ISA {

// Whiten z with H Q̃ Hᵀ: a decomposition of [l10 I - c l00 Jᵀ; l11 I]. Also sqrt(diag(H Q̃ Hᵀ)).
inline void local_noise(const Settings& s, double weight, const double* jacobian, const double* z,
                        Scratch& scratch, double* whitened, double* std_dev) {
  const int n = s.n, d = s.d;
  const double l00 = s.noise[0], l10 = s.noise[1], l11 = s.noise[n + 1];
  if (s.jacobian == kNone) {
    const double std = std::sqrt(l10 * l10 + l11 * l11);
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
  const double left = s.t1 - *x.row.t;
  return std::fabs(step) * (1.0 + 1e-10) >= std::fabs(left) ? s.t1 : *x.row.t + step;
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

// What the control says of a step: whether it is accepted, and the length of the next. `error` is
// then in units of the tolerance.
inline bool judge(const Settings& s, State& x, double* error, bool& failed) {
  if (s.control == kConstantStep || s.control == kGrid) {
    const bool finite = all_finite(error, s.d) && all_finite(x.predicted, s.d);
    *x.control_accepted += finite;
    *x.rejected = finite ? 0.0 : 1.0;
    failed = !finite;
    return finite;
  }
  const double h = *x.t_next - *x.row.t;
  for (int k = 0; k < s.d; ++k) {
    const double size = larger(std::fabs(x.row.mean[k]), std::fabs(x.predicted[k]));
    error[k] /= s.atol[k] + s.rtol[k] * size;
  }
  const double norm = std::sqrt(sum_of_squares(error, s.d) / s.d);
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

// Condition on z = 0: the covariance work of a step. Writes the new row into `x.row`.
inline void update(const Settings& s, State& x, const double* jacobian, const double* z,
                   const double* rounding, const double* scale, Scratch& scratch) {
  const int n = s.n, d = s.d, w = s.width(), size = s.block_size();
  const double h = *x.t_next - *x.row.t;
  double coords[kMaxDerivatives], change[kMaxDerivatives];
  coordinates(s, h, coords);
  powers(*x.row.h / h, n, change);

  const int residuals = s.structure == kIsotropic ? d : 1;
  thread_local std::vector<double> memory;
  thread_local std::vector<char> flags;
  double* correction = room(memory, static_cast<size_t>(size + w) * residuals + 2 * d);
  double* whitened = correction + static_cast<long>(size) * residuals;
  double* pivots = whitened + static_cast<long>(w) * residuals;
  double* noise = pivots + d;
  if (flags.size() < static_cast<size_t>(d)) flags.resize(d);
  bool* blank = reinterpret_cast<bool*>(flags.data());

  for (int block = 0; block < s.blocks(); ++block) {
    const double* block_jacobian = nullptr;
    if (s.structure == kIsotropic) {
      noise[0] = std::sqrt(sum_of_squares(rounding, d) / d);
    } else {
      for (int k = 0; k < w; ++k) noise[k] = rounding[block * w + k];
    }
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
    condition_block({n, w, residuals, factor, change, s.transition, block_scale, s.noise, coords[0],
                     block_jacobian, s.fixed ? nullptr : noise, z + static_cast<long>(block) * w,
                     factor, correction, whitened, pivots, blank, s.keep},
                    scratch);

    if (s.structure == kIsotropic) {
      for (int i = 0; i < n; ++i)
        for (int k = 0; k < d; ++k)
          x.predicted[static_cast<long>(i) * d + k] -= coords[i] * correction[static_cast<long>(i) * d + k];
      const double squares = blank[0] ? 0.0 : sum_of_squares(whitened, d);
      if (s.multivariate) {
        for (int k = 0; k < d; ++k) {
          x.squares[k] += blank[0] ? 0.0 : whitened[k] * whitened[k];
          x.log_det[k] += 2.0 * std::log(pivots[0]);
          x.terms[k] += blank[0] ? 0.0 : 1.0;
        }
      } else {
        *x.squares += squares;
        *x.log_det += d * 2.0 * std::log(pivots[0]);
        *x.terms += blank[0] ? 0.0 : d;
      }
    } else {
      for (int i = 0; i < n; ++i)
        for (int k = 0; k < w; ++k)
          x.predicted[static_cast<long>(i) * d + block * w + k] -= coords[i] * correction[i * w + k];
      for (int a = 0; a < w; ++a) {
        const int sum = s.multivariate ? block * w + a : 0;
        x.squares[sum] += blank[a] ? 0.0 : whitened[a] * whitened[a];
        x.log_det[sum] += 2.0 * std::log(pivots[a]);
        x.terms[sum] += blank[a] ? 0.0 : 1.0;
      }
    }
  }
  *x.evidence_steps += 1.0;
  std::memcpy(x.row.mean, x.predicted, sizeof(double) * s.state_size());
  for (int k = 0; k < s.scales(); ++k) x.row.scale[k] = scale[k];
  *x.row.t = *x.t_next;
  *x.row.h = h;
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

// Attempt the step whose evaluation (f, J) is given; propose the next. Whether to go on.
inline bool advance(const Settings& s, double* state, double* rows, const double* f,
                    const double* jacobian) {
  State x(s, state);
  Scratch& scratch = Scratch::mine();
  const int d = s.d;
  const double h = *x.t_next - *x.row.t;
  double coords[kMaxDerivatives];
  coordinates(s, h, coords);

  double* z = room(scratch.small, 6 * static_cast<size_t>(d));
  double *rounding = z + d, *whitened = rounding + d, *deviation = whitened + d;
  double *scale = deviation + d, *error = scale + d;
  for (int k = 0; k < d; ++k) {
    const double slope = x.predicted[d + k];
    z[k] = slope - f[k];
    rounding[k] = kEpsilon * (std::fabs(slope) + std::fabs(f[k]));
  }
  local_noise(s, coords[0], jacobian, z, scratch, whitened, deviation);

  const double unit = s.fixed ? noise_scale(s, h / *x.reference) : 1.0;
  const double common = std::sqrt(sum_of_squares(whitened, d) / d);
  for (int k = 0; k < d; ++k) {
    const double local = s.multivariate ? std::fabs(whitened[k]) : common;
    double error_scale = local;
    if (s.fixed) {
      const double steps = *x.evidence_steps;
      const double mean_square = s.multivariate
                                     ? x.squares[k] / std::max(steps, 1.0)
                                     : *x.squares / std::max(d * steps, 1.0);
      error_scale = larger(local, unit * std::sqrt(mean_square));
    }
    scale[k] = s.fixed ? unit : local;
    error[k] = std::fabs(h) * error_scale * deviation[k];
  }
  const bool finite = all_finite(error, d);

  bool failed = false;
  const bool still = *x.t_next == *x.row.t;
  const bool accepted = judge(s, x, error, failed);
  *x.attempted += 1.0;
  if (accepted) {
    update(s, x, jacobian, z, rounding, scale, scratch);
    *x.accepted += 1.0;
    *x.count += 1.0;
    if (s.keep) keep_row(s, x, rows, static_cast<long>(*x.count));
  }
  if (failed)
    *x.status = finite || still ? s.step_too_small : s.not_finite;
  else
    *x.status = accepted && *x.row.t == s.t1 ? s.success : s.running;
  propose(s, x);
  return goes_on(s, x);
}

// Before the first step of a chunk: its first row, the clock, the first prediction.
inline bool open(const Settings& s, double* state, double* rows) {
  State x(s, state);
  *x.count = 0.0;
  *x.deadline = seconds_now() + s.seconds;
  keep_row(s, x, rows, 0);
  propose(s, x);
  return goes_on(s, x);
}

}  // namespace PROBODE_ISA
}  // namespace probode
