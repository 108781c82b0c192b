// One attempted step of the filter: calibrate, judge, and if accepted condition; then predict.
//
// The same formulas as `step.py`, `diffusion.py` and `control.py`, where they are explained. `order` is that of the
// equation, k: known at compile time, since small steps take as long as a few dozen branches.
#pragma once

#include "wide.hpp"

namespace probode {
namespace PROBODE_ISA {

// `_MOVED_AGAIN` and `_FAR` in `step.py`, `MOST` in `linearize.py`: how many times what a second linearisation moves y
// by counts as an error; the tolerances from which on there is one; the corrections that a residual counts as at most.
constexpr double kMovedAgain = 10.0, kFar = 1000.0, kMost = 20.0;

// T_k, the coordinate of the derivative that the equation determines.
template <int order>
double coordinate_of(const double* coords) { return order == 1 ? 1.0 : coords[order]; }

// sqrt(H Q̃ Hᵀ) of one component where there is no Jacobian.
template <int order>
double plain_deviation(const Settings& s) {
  double sum = 0.0;
  for (int r = 0; r <= order; ++r) sum += square(s.noise[r * s.n + order]);
  return std::sqrt(sum);
}

// Whiten z with H Q̃ Hᵀ, H = E_k - Σ_{i<k} c_i J_i E_i (c_i: `weights`): a decomposition of the rows
//
//   L_rk I - Σ_{i=r..k-1} c_i L_ri J_iᵀ,  r = 0..k-1;   L_kk I
//
// Also sqrt(diag(H Q̃ Hᵀ)). Where steps are judged by corrections, y is carried along beside them (L_00 I; 0).
template <int order>
void local_noise(const Settings& s, const double* weights, const double* jacobian, const double* z,
                 Scratch& scratch, double* whitened, double* std_dev) {
  const int n = s.n, d = s.d;
  const double own = s.noise[order * n + order];
  double head[order], of[order][order];  // L_rk, and what it has of J_i
  for (int r = 0; r < order; ++r) {
    head[r] = s.noise[r * n + order];
    for (int i = r; i < order; ++i) of[r][i] = weights[i] * s.noise[r * n + i];
  }
  if (s.jacobian == kNone) {
    const double std = plain_deviation<order>(s);
    for (int k = 0; k < d; ++k) {
      std_dev[k] = std;
      whitened[k] = z[k] / std;
    }
    return;
  }
  if (s.jacobian == kDiagonal) {
    for (int k = 0; k < d; ++k) {
      double squares = own * own;
      for (int r = 0; r < order; ++r) {
        double entry = head[r];
        for (int i = r; i < order; ++i) entry -= of[r][i] * jacobian[i * d + k];
        squares += entry * entry;
      }
      std_dev[k] = std::sqrt(squares);
      whitened[k] = z[k] / std_dev[k];
    }
    return;
  }
  const int columns = s.correction ? 2 * d : d, length = row_length(columns), full = order * d;
  double* stack = room(scratch.stack, static_cast<size_t>(full + d) * length);
  double* reflector = room(scratch.reflector, full + d);
  std::memset(stack, 0, sizeof(double) * static_cast<size_t>(full + d) * length);
  for (int a = 0; a < d; ++a) {
    const double* row = jacobian + static_cast<long>(a) * full;
    double squares = own * own;
    for (int r = 0; r < order; ++r)
      for (int l = 0; l < d; ++l) {
        double entry = a == l ? head[r] : 0.0;
        for (int i = r; i < order; ++i) entry -= of[r][i] * row[i * d + l];
        stack[static_cast<long>(r * d + l) * length + a] = entry;
        squares += entry * entry;
      }
    stack[static_cast<long>(full + a) * length + a] = own;
    if (s.correction) stack[static_cast<long>(a) * length + d + a] = s.noise[0];
    std_dev[a] = std::sqrt(squares);
  }
  for (int a = 0; a < d; ++a) reflect(stack, length, a, full + a + 1, a, columns, reflector);
  for (int a = 0; a < d; ++a) {
    double rest = z[a];
    for (int e = 0; e < a; ++e) rest -= stack[static_cast<long>(e) * length + a] * whitened[e];
    whitened[a] = rest / stack[static_cast<long>(a) * length + a];
  }
}

// What the update from an exactly known state would move y by, for a whitened residual w, and the standard deviation
// of that, from the decomposition [R, C; 0, .] that `local_noise` has left, c = T_0:
//
//   δ = c Cᵀ w,      std = kMost (L_01² + L_11²) / (L_00 L_01) sqrt(diag(CᵀC))
//
// in units such that for J = 0 it is kMost times that of the residual. See `linearize.py`.
inline void correction_noise(const Settings& s, double c, const double* whitened, Scratch& scratch, double* moved,
                             double* std_dev) {
  const int d = s.d, length = row_length(2 * d);
  const double unit = kMost * square(plain_deviation<1>(s)) / (s.noise[0] * s.noise[1]);
  const double* cross = room(scratch.stack, 1) + d;  // where it was left
  for (int l = 0; l < d; ++l) {
    double sum = 0.0, squares = 0.0;
    for (int e = 0; e < d; ++e) {
      const double entry = cross[static_cast<long>(e) * length + l];
      sum += entry * whitened[e];
      squares += entry * entry;
    }
    moved[l] = c * sum;
    std_dev[l] = unit * std::sqrt(squares);
  }
}

// R⁻ᵀ x in place of x, with the triangle that `local_noise` has left.
inline void whiten(const Settings& s, Scratch& scratch, double* x) {
  const int d = s.d, length = row_length(2 * d);
  const double* triangle = room(scratch.stack, 1);  // where it was left
  for (int a = 0; a < d; ++a) {
    for (int e = 0; e < a; ++e) x[a] -= triangle[static_cast<long>(e) * length + a] * x[e];
    x[a] /= triangle[static_cast<long>(a) * length + a];
  }
}

// Latest time at which a step may end: the next stop in the order of integration, or the end of this part of the
// solve if that comes first (a solve has several parts if there are switches).
inline double next_stop(const Settings& s, double t) {
  if (s.points == 0) return s.t1;
  const bool backwards = s.t1 < t;
  const double* past = s.grid + s.points;
  const double* next = std::upper_bound(
      s.grid, past, t, [backwards](double t, double stop) { return backwards ? stop < t : t < stop; });
  if (next == past) return s.t1;
  return backwards ? std::max(*next, s.t1) : std::min(*next, s.t1);
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

// An estimate of the local error: one for each component, or the same for all. It is that of y^(k-1), the highest
// derivative that is controlled; the one below has |h|/2 times the error, integrated once more.
struct Errors {
  const double* each;  // null: all have the common one
  double common;
  double below;  // |h|/2

  double operator[](long k) const { return each ? each[k] : common; }
  bool finite(long d) const { return each ? all_finite(each, d) : std::isfinite(common); }

  // Σ (error / tolerance)² of all that is controlled.
  template <int order>
  double squares(const Settings& s, const State& x) const {
    if constexpr (order == 1) return squares(s, x, 0, 1.0);
    else return squares(s, x, s.d, 1.0) + squares(s, x, 0, below);
  }

  // The same of one derivative, whose numbers begin at `from`, in lanes.
  __attribute__((always_inline)) inline double squares(const Settings& s, const State& x, long from,
                                                       double factor) const {
    const long d = s.d;
    const double *before = x.row.mean + from, *after = x.predicted + from;
    const double *atol = s.atol + from, *rtol = s.rtol + from;
    Lane sums = {};
    long k = 0;
    for (; k + kLane <= d; k += kLane) {
      const Lane size = larger(absolute(load(before + k)), absolute(load(after + k)));
      const Lane tolerance = load(atol + k) + load(rtol + k) * size;
      const Lane ratio = factor * (each ? load(each + k) : Lane{} + common) / tolerance;
      sums += ratio * ratio;
    }
    double sum = 0.0;
    for (int c = 0; c < kLane; ++c) sum += sums[c];
    for (; k < d; ++k) {
      const double size = larger(std::fabs(before[k]), std::fabs(after[k]));
      sum += square(factor * (*this)[k] / (atol[k] + rtol[k] * size));
    }
    return sum;
  }
};

// What the control says of a step: whether it is accepted, and the length of the next.
template <int order>
bool judge(const Settings& s, State& x, const Errors& error, bool& failed) {
  if (s.control == kConstantStep || s.control == kGrid) {
    const bool finite = error.finite(s.d) && all_finite(x.predicted, order * s.d);
    *x.control_accepted += finite;
    *x.rejected = finite ? 0.0 : 1.0;
    failed = !finite;
    return finite;
  }
  const double h = *x.t_next - *x.row.t;
  const double norm = std::sqrt(error.squares<order>(s, x) / (order * s.d));
  const bool accepted = norm <= 1.0, finite = std::isfinite(norm);
  const double bounded = finite ? std::max(norm, 1e-10) : 1.0;
  const double power = 1.0 / (s.n + 1 - order);
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

// What an observation adds to the evidence; `which`: the sum that it belongs to. The pivot is in plain units.
inline void count(State& x, long which, double square_of_whitened, double pivot, bool blank, double times) {
  x.squares[which] += blank ? 0.0 : square_of_whitened;
  x.log_det[which] += times * 2.0 * std::log(pivot);
  x.terms[which] += blank ? 0.0 : times;
}

// The Jacobian as a block needs it, (width, k width).
template <int order>
const double* jacobian_of_block(const Settings& s, const double* jacobian, int block) {
  if (s.jacobian == kNone) return nullptr;
  if (s.jacobian == kFull) return jacobian;
  if (order == 1 && s.structure != kDense) return jacobian + block;
  const int d = s.d, w = s.width(), columns = order * w;
  thread_local std::vector<double> memory;
  double* matrix = room(memory, static_cast<size_t>(w) * columns);
  std::memset(matrix, 0, sizeof(double) * w * columns);
  for (int i = 0; i < order; ++i)
    for (int k = 0; k < w; ++k)
      matrix[static_cast<long>(k) * columns + i * w + k] = jacobian[static_cast<long>(i) * d + block * w + k];
  return matrix;
}

// Condition on z = 0: the covariance work of a step. Writes the new row into `x.row`; its mean too, unless
// a second evaluation is to follow: then what f takes is corrected alone, in the prediction, for `finish`.
// `weights` and `z` as in `advance`.
template <int order>
void update(const Settings& s, State& x, const double* jacobian, const double* weights, const double* z,
            const double* rounding, const double* scale, Scratch& scratch) {
  const int n = s.n, d = s.d, w = s.width(), size = s.block_size();
  const double h = *x.t_next - *x.row.t;
  double coords[kMaxDerivatives], change[kMaxDerivatives];
  coordinates(s, h, coords);
  powers(*x.row.h / h, n, change);
  const double unit = std::fabs(coordinate_of<order>(coords));

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
    for (int k = 0; k < w; ++k) noise[k] = rounding[block * w + k];
    const double* block_jacobian = jacobian_of_block<order>(s, jacobian, block);
    const double* block_scale = scale + (s.structure == kBlockDiagonal ? block : 0);
    // In place: the factor is not read any more when the posterior's is written.
    double* factor = x.row.factor + static_cast<long>(block) * size * size;
    double* correction = corrections + static_cast<long>(block) * size;
    // Of a block one component wide the correction for a residual of one is the gain: it serves all
    // components that share the block, and both evaluations.
    const double one = 1.0, *residual = w == 1 ? &one : z;
    double* gain = scratch.wants_gain && w > 1 ? room(scratch.gains, static_cast<size_t>(size) * w) : nullptr;
    condition<order>({n, w, order, factor, change, s.transition, block_scale, s.noise, weights, block_jacobian,
                      s.fixed ? nullptr : noise, residual, factor, correction, whitened, pivots, blank, s.keep,
                      gain},
                     scratch);
    scratch.gain = gain ? gain : corrections;

    auto pivot = [&](int a) { return blank[a] ? pivots[a] : unit * pivots[a]; };
    if (shared && !s.multivariate) {
      count(x, 0, square(whitened[0] * norm(z, d)), pivot(0), blank[0], d);
    } else if (w == 1) {
      for (int k = shared ? 0 : block; k < (shared ? d : block + 1); ++k)
        count(x, s.multivariate ? k : 0, square(whitened[0] * z[k]), pivot(0), blank[0], 1.0);
    } else {
      for (int a = 0; a < w; ++a)
        count(x, s.multivariate ? a : 0, square(whitened[a]), pivot(a), blank[a], 1.0);
    }
  }
  if (twice) {
    correct(s, coords, corrections, z, 0, order, 0, d, x.predicted, x.predicted);
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

// The second evaluation of a step, where the first has corrected what f takes: the mean is corrected with
// it instead, if it is finite.
template <int order>
void finish(const Settings& s, State& x, const double* f, Scratch& scratch) {
  const int n = s.n, d = s.d;
  double coords[kMaxDerivatives];
  coordinates(s, *x.row.h, coords);
  const double inverse = 1.0 / coordinate_of<order>(coords), *slope = x.predicted + order * d;
  double *z = room(scratch.small, 2 * static_cast<size_t>(d)), *change = z + d;
  if (!all_finite(f, d)) f = x.first_slope;
  for_pieces(d, [&](long from, long to) {
    for (long i = from; i < to; ++i) {
      z[i] = inverse * (slope[i] - f[i]);
      change[i] = inverse * (x.first_slope[i] - f[i]);
    }
    correct(s, coords, x.gain, change, 0, order, from, to, x.predicted, x.row.mean);
    correct(s, coords, x.gain, z, order, n, from, to, x.predicted, x.row.mean);
  });
  *x.waiting = 0.0;
}

// z = (y^(k) - f) / T_k and the level of rounding in it, ε (|y^(k)| + |f|) / |T_k|: one for each component, or,
// where they share a block, the root of its mean square. `slope` is y^(k), `inverse` 1 / T_k.
__attribute__((always_inline)) inline void observe(const Settings& s, const double* slope, const double* f,
                                                   double inverse, double* z, double* rounding) {
  const long d = s.d;
  const double epsilon = kEpsilon * std::fabs(inverse);
  if (s.structure != kIsotropic) {
    for (long k = 0; k < d; ++k) {
      z[k] = inverse * (slope[k] - f[k]);
      rounding[k] = epsilon * (std::fabs(slope[k]) + std::fabs(f[k]));
    }
    return;
  }
  Lane sums = {};
  long k = 0;
  for (; k + kLane <= d; k += kLane) {
    const Lane a = load(slope + k), b = load(f + k), size = absolute(a) + absolute(b);
    store(z + k, inverse * (a - b));
    sums += size * size;
  }
  double sum = 0.0;
  for (int c = 0; c < kLane; ++c) sum += sums[c];
  for (; k < d; ++k) {
    z[k] = inverse * (slope[k] - f[k]);
    sum += square(std::fabs(slope[k]) + std::fabs(f[k]));
  }
  if (squares_hold(sum)) {
    rounding[0] = epsilon * std::sqrt(sum / d);
    return;
  }
  double unit = 0.0;
  for (long i = 0; i < d; ++i) unit = larger(unit, std::fabs(slope[i]) + std::fabs(f[i]));
  sum = 0.0;
  for (long i = 0; i < d; ++i) sum += square((std::fabs(slope[i]) + std::fabs(f[i])) / unit);
  rounding[0] = unit > 0.0 ? epsilon * unit * std::sqrt(sum / d) : epsilon * unit;
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

// Whether a step is to be linearised again: its bounded error is tolerated, its residual alone would be by far too
// large. `unit` times a standard deviation is an error; steps of given lengths are not judged.
template <int order>
bool looks_again(const Settings& s, const State& x, double unit, const double* bounded, const double* residual,
                 double* memory) {
  if (s.control == kConstantStep || s.control == kGrid) return false;
  auto norm_of = [&](const double* deviation) {
    for (int k = 0; k < s.d; ++k) memory[k] = unit * deviation[k];
    return std::sqrt(Errors{memory, 0.0, 0.0}.squares<order>(s, x) / (order * s.d));
  };
  return norm_of(bounded) <= 1.0 && norm_of(residual) > kFar;
}

// The first linearisation of a step that is linearised twice: ask for the second, where the update by `moved` leads.
inline bool lead_on(const Settings& s, State& x, const double* f, const double* jacobian, const double* moved) {
  const long d = s.d;
  std::memcpy(x.gain, x.predicted, sizeof(double) * d);
  for (long a = 0; a < d; ++a) {
    double slope = f[a];
    for (long l = 0; l < d; ++l) slope -= jacobian[a * d + l] * moved[l];
    x.first_slope[a] = slope;
    x.predicted[a] -= moved[a];
  }
  *x.waiting = 1.0;
  *x.again += 1.0;
  return true;
}

// The second: `z` = y' - f is completed to that of the linearisation at the prediction, z - J (m⁻ - x); `left` is the
// residual at x.
inline void settle(const Settings& s, State& x, const double* f, const double* jacobian, double* z,
                             double* rounding, double* left) {
  const long d = s.d;
  for (long a = 0; a < d; ++a) {
    left[a] = x.first_slope[a] - f[a];
    rounding[a] = kEpsilon * (std::fabs(x.first_slope[a]) + std::fabs(f[a]));
    double sum = 0.0;
    for (long l = 0; l < d; ++l) sum += jacobian[a * d + l] * (x.gain[l] - x.predicted[l]);
    z[a] -= sum;
  }
  std::memcpy(x.predicted, x.gain, sizeof(double) * d);
  *x.waiting = 0.0;
}

// Attempt the step whose evaluation (f, J) is given, or finish the one whose second evaluation it is;
// propose the next. Whether to go on.
template <int order>
bool advance(const Settings& s, double* state, double* rows, const double* f, const double* jacobian) {
  State x(s, state);
  Scratch& scratch = Scratch::mine();
  const int d = s.d;
  if (s.evaluations == 2 && *x.waiting != 0.0) {
    finish<order>(s, x, f, scratch);
    arrive(s, x, rows);
    propose(s, x);
    return goes_on(s, x);
  }
  const double h = *x.t_next - *x.row.t;
  double coords[kMaxDerivatives], weights[order];
  coordinates(s, h, coords);
  // The observation in coordinates, those of the derivative that the equation determines: T_1 is one.
  const double own = coordinate_of<order>(coords), inverse = 1.0 / own;
  for (int i = 0; i < order; ++i) weights[i] = coords[i] * inverse;

  double* z = room(scratch.small, 7 * static_cast<size_t>(d));
  double *rounding = z + d, *whitened = rounding + d, *deviation = whitened + d;
  double *scale = deviation + d, *each = scale + d, *bounded = each + d;
  observe(s, x.predicted + order * d, f, inverse, z, rounding);
  const bool corrects = order == 1 && s.correction, second = corrects && *x.waiting != 0.0;
  if (second) settle(s, x, f, jacobian, z, rounding, scale);

  // Components that share a block, and one diffusion, have the same noise and the same error.
  const bool alike = s.structure == kIsotropic && !s.multivariate;
  if (!alike) local_noise<order>(s, weights, jacobian, z, scratch, whitened, deviation);
  const double plain = plain_deviation<order>(s);
  const double common = alike ? norm(z, d) / std::sqrt(d) / plain : norm(whitened, d) / std::sqrt(d);
  // The error of the equation, in plain units and over the step.
  const double over_step = std::fabs(h * own);
  if (corrects) {
    // At first where the residual leads, then where what it has left there does (`scale` holds that, see `settle`).
    if (second) whiten(s, scratch, scale);
    correction_noise(s, weights[0], second ? scale : whitened, scratch, each, bounded);
    for (int k = 0; k < d; ++k) bounded[k] = smaller(deviation[k], bounded[k]);
    if (!second && looks_again<order>(s, x, over_step * common, bounded, deviation, scale))
      return lead_on(s, x, f, jacobian, each);
    deviation = bounded;
  }
  const double unit = s.fixed ? noise_scale(s, h / *x.reference) : 1.0;
  const double growth = s.damped ? noise_scale(s, h / *x.row.h) : 0.0;
  auto step_scale = [&](double local, double before) {
    if (!(before > 0.0)) return local;
    const double bounded = std::min(std::max(before, local / kFurthest), local * kFurthest);
    return std::sqrt(local) * std::sqrt(bounded);
  };
  Errors error{alike ? nullptr : each, 0.0, 0.5 * std::fabs(h)};
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
    const double estimate = over_step * error_scale * (alike ? plain : deviation[k]);
    (alike ? error.common : each[k]) = second ? std::hypot(estimate, kMovedAgain * each[k]) : estimate;
  }
  const bool finite = error.finite(d);

  bool failed = false;
  const bool still = *x.t_next == *x.row.t;
  const bool accepted = judge<order>(s, x, error, failed);
  *x.attempted += 1.0;
  if (failed) *x.status = finite || still ? s.step_too_small : s.not_finite;
  if (accepted) {
    update<order>(s, x, jacobian, weights, z, rounding, scale, scratch);
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
