// One attempted step of the filter: calibrate, judge, and if accepted condition; then predict.
//
// The same formulas as `step.py`, `diffusion.py` and `control.py`, where they are explained.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "layout.hpp"
#include "qr.hpp"

namespace probode {
namespace PROBODE_ISA {

constexpr int kMaxDerivatives = 12;
constexpr double kUnresolved = 1e-10;  // as UNRESOLVED in step.py
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

// Memory that keeps its size from step to step.
struct Scratch {
  std::vector<double> stack, reflector, small, small_matrix, vectors;
  static Scratch& mine() {
    thread_local Scratch scratch;
    return scratch;
  }
};

inline double* room(std::vector<double>& memory, size_t size) {
  if (memory.size() < size) memory.resize(size);
  return memory.data();
}

// The larger number; NaN wins, so that a failed evaluation is never taken for a small error.
inline double larger(double a, double b) { return a > b || a != a ? a : b; }

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double square(double x) { return x * x; }

// ratio^(1-i), i = 0..n-1.
inline void powers(double ratio, int n, double* out) {
  const double inverse = 1.0 / ratio;
  out[0] = ratio;
  double power = 1.0;
  for (int i = 1; i < n; ++i) {
    out[i] = power;
    power *= inverse;
  }
}

// T(h)_i = h^(1-i) (q-1)! / (q-i)!
inline void coordinates(const Settings& s, double h, double* out) {
  powers(h, s.n, out);
  for (int i = 0; i < s.n; ++i) out[i] *= s.weights[i];
}

// |ratio|^(q-1/2)
inline double noise_scale(const Settings& s, double ratio) {
  const double size = std::fabs(ratio);
  double power = std::sqrt(size);
  for (int i = 1; i < s.order(); ++i) power *= size;
  return power;
}

// m + T (Ã - I) T⁻¹ m: the increment first, to lose no digit.
inline void predict_mean(const Settings& s, const double* mean, const double* coords, double* out) {
  const int n = s.n, d = s.d;
  for (int i = 0; i < n; ++i) {
    double weights[kMaxDerivatives];
    for (int j = i + 1; j < n; ++j) weights[j] = s.transition[i * n + j] / coords[j];
    for (int k = 0; k < d; ++k) {
      double sum = 0.0;
      for (int j = i + 1; j < n; ++j) sum += weights[j] * mean[static_cast<long>(j) * d + k];
      out[static_cast<long>(i) * d + k] = mean[static_cast<long>(i) * d + k] + coords[i] * sum;
    }
  }
}

// A number per derivative, as a number per column of a factor.
inline void spread(const double* per_derivative, int n, int width, double* out) {
  for (int j = 0; j < n; ++j)
    for (int k = 0; k < width; ++k) out[j * width + k] = per_derivative[j];
}

// Where a row begins, at `from` or later: factors are zero before that. `size` if all of it is.
inline int first_nonzero(const double* x, int size, int from = 0) {
  int i = from;
  while (i < size && x[i] == 0.0) ++i;
  return i;
}

// What the update of one block needs and gives.
struct Block {
  int n, width, columns;      // columns: how many residuals share the covariance (isotropic: d)
  const double* factor;       // (D, D)
  const double* change;       // of coordinates, per derivative
  const double* transition;   // (n, n), triangular
  const double* scale;        // process noise, one per component
  const double* noise_factor; // (n, n), triangular
  double weight;              // c = T_0
  const double* jacobian;     // (width, width), or null for zero
  double* observation_noise;  // (width,), or null
  const double* residual;     // (width, columns)
  double* posterior;          // (D, D)
  double* correction;         // (D, columns)
  double* whitened;           // (width, columns)
  double* pivots;             // (width,)
  bool* blank;                // (width,)
};

// Condition a block on its observation, in one decomposition
//
//   [ R Ãᵀ Hᵀ    R Ãᵀ    ]                       columns  u = H x | y' | y | y'' | ... | y^(q)
//   [ diag(r)    0       ]
//   [ s R_Q Hᵀ   s R_Q   ]
//
// The columns of y' are rotated but not eliminated: given u, they follow from y (see `pin`).
//
// `fixed_width` is the width where it is known at compile time: loops over it are then unrolled.
template <int fixed_width>
void condition_block(const Block& b, Scratch& scratch) {
  const int n = b.n, w = fixed_width ? fixed_width : b.width;
  const int size = n * w, columns = size + w, length = row_length(columns);
  const int slopes = w, values = 2 * w;  // where the columns of y' and of y begin; y'' ... follow
  double* stack = room(scratch.stack, static_cast<size_t>(2 * size + w) * length);
  double* reflector = room(scratch.reflector, 2 * size + w);

  auto place = [&](int i) { return i == 0 ? values : i == 1 ? slopes : (i + 1) * w; };

  // c J y for a row of values. Wide blocks keep c Jᵀ in rows of whole lanes.
  const int stride = row_length(w);
  double* product = room(scratch.small_matrix, static_cast<size_t>(w + 1) * stride);
  double* transposed = product + stride;
  if (b.jacobian && fixed_width == 0) {
    std::memset(transposed, 0, sizeof(double) * static_cast<size_t>(w) * stride);
    for (int a = 0; a < w; ++a)
      for (int l = 0; l < w; ++l)
        transposed[static_cast<long>(l) * stride + a] =
            b.weight * b.jacobian[static_cast<long>(a) * w + l];
  }
  auto times_jacobian = [&](const double* y) {
    if constexpr (fixed_width == 0) {
      combine(product, nullptr, y, transposed, stride, w, stride);
    } else {
      for (int a = 0; a < w; ++a) {
        double sum = 0.0;
        for (int l = 0; l < w; ++l) sum += b.jacobian[a * w + l] * y[l];
        product[a] = b.weight * sum;
      }
    }
  };
  auto observe = [&](double* row) {
    for (int a = 0; a < w; ++a) row[a] = row[slopes + a];
    if (!b.jacobian) return;
    times_jacobian(row + values);
    for (int a = 0; a < w; ++a) row[a] -= product[a];
  };

  int rows = 0;
  if constexpr (fixed_width == 0) {
    for (int r = 0; r < size; ++r) {
      const double* row = b.factor + static_cast<long>(r) * size;
      const int first = first_nonzero(row, size);
      if (first == size) continue;
      double* out = stack + static_cast<long>(rows++) * length;
      std::memset(out, 0, sizeof(double) * length);
      for (int j = first / w; j < n; ++j)
        for (int i = 0; i <= j; ++i) {
          const double entry = b.transition[i * n + j] * b.change[j];
          for (int k = 0; k < w; ++k) out[place(i) + k] += entry * row[j * w + k];
        }
      observe(out);
    }
  } else {
    // Narrow blocks: one matrix takes a row of R to a row of [R Ãᵀ Hᵀ, R Ãᵀ], columns in place.
    double* matrix = room(scratch.vectors, static_cast<size_t>(size) * length);
    std::memset(matrix, 0, sizeof(double) * static_cast<size_t>(size) * length);
    for (int j = 0; j < n; ++j) {
      double* block = matrix + static_cast<long>(j * w) * length;
      for (int i = 0; i <= j; ++i) {
        const double entry = b.transition[i * n + j] * b.change[j];
        for (int k = 0; k < w; ++k) block[k * length + place(i) + k] = entry;
      }
      for (int k = 0; k < w; ++k) observe(block + k * length);
    }
    for (int r = 0; r < size; ++r) {
      const double* row = b.factor + static_cast<long>(r) * size;
      const int first = first_nonzero(row, size);
      if (first == size) continue;
      combine(stack + static_cast<long>(rows++) * length, nullptr, row + first,
              matrix + static_cast<long>(first) * length, length, size - first, length);
    }
  }
  const int full = rows, head = full + w;  // the noise's rows begin at `head`
  std::memset(stack + static_cast<long>(full) * length, 0,
              sizeof(double) * static_cast<size_t>(w + size) * length);
  for (int i = 0; i < n; ++i) {
    double* block = stack + static_cast<long>(head + i * w) * length;
    for (int j = i; j < n; ++j) {
      const double entry = b.noise_factor[i * n + j];
      for (int k = 0; k < w; ++k) block[k * length + place(j) + k] = b.scale[k] * entry;
    }
    if (i < 2)
      for (int k = 0; k < w; ++k) observe(block + k * length);
  }
  for (int a = 0; a < w; ++a) {
    b.blank[a] = true;
    for (int i = 0; b.blank[a] && i < full + 3 * w; ++i)
      b.blank[a] = stack[static_cast<long>(i) * length + a] == 0.0;
    if (!b.observation_noise) continue;
    double noise = b.observation_noise[a];
    if (b.blank[a] && noise == 0.0) noise = 1.0;
    double known = 0.0, own = 0.0;
    for (int i = 0; i < full; ++i) known += square(stack[static_cast<long>(i) * length + a]);
    for (int i = head; i < head + 2 * w; ++i) own += square(stack[static_cast<long>(i) * length + a]);
    if (own < kUnresolved * kUnresolved * known)
      noise = std::max(noise, kUnresolved * std::sqrt(known));
    stack[static_cast<long>(full + a) * length + a] = noise;
  }

  for (int a = 0; a < w; ++a) reflect(stack, length, a, head + 2 * w, a, columns, reflector);
  for (int k = 0; k < w; ++k)
    reflect(stack, length, w + k, head + 2 * w, values + k, columns, reflector);
  for (int c = 2 * w; c < size; ++c)
    reflect(stack, length, c, head + c + 1, c + w, columns, reflector);

  for (int a = 0; a < w; ++a) {
    const double pivot = stack[static_cast<long>(a) * length + a];
    b.pivots[a] = b.blank[a] ? 1.0 : std::fabs(pivot);
    for (int p = 0; p < b.columns; ++p) {
      double rest = b.residual[static_cast<long>(a) * b.columns + p];
      for (int e = 0; e < a; ++e)
        rest -= stack[static_cast<long>(e) * length + a] *
                b.whitened[static_cast<long>(e) * b.columns + p];
      b.whitened[static_cast<long>(a) * b.columns + p] = pivot == 0.0 ? 0.0 : rest / pivot;
    }
  }
  for (int x = 0; x < size; ++x) {
    const int column = x < w ? values + x : x < 2 * w ? slopes + x - w : x + w;
    double* out = b.correction + static_cast<long>(x) * b.columns;
    for (int p = 0; p < b.columns; ++p) {
      double sum = 0.0;
      for (int a = 0; a < w; ++a)  // few: the innovation's rows
        sum += stack[static_cast<long>(a) * length + column] *
               b.whitened[static_cast<long>(a) * b.columns + p];
      out[p] = sum;
    }
  }

  // The factor, triangular: no row for y', whose columns follow from those of y (R Hᵀ = 0).
  std::memset(b.posterior, 0, sizeof(double) * static_cast<size_t>(size) * size);
  for (int r = 0; r < w; ++r) {
    const double* row = stack + static_cast<long>(w + r) * length;
    double* out = b.posterior + static_cast<long>(r) * size;
    for (int k = r; k < w; ++k) out[k] = row[values + k];
    if (b.jacobian) {
      times_jacobian(out);
      for (int a = 0; a < w; ++a) out[w + a] = product[a];
    }
    for (int c = 2 * w; c < size; ++c) out[c] = row[c + w];
  }
  for (int r = 2 * w; r < size; ++r) {
    const double* row = stack + static_cast<long>(r) * length + w;
    double* out = b.posterior + static_cast<long>(r) * size;
    for (int c = r; c < size; ++c) out[c] = row[c];
  }
}

inline void condition_block(const Block& b, Scratch& scratch) {
  switch (b.width) {
    case 1: return condition_block<1>(b, scratch);
    case 2: return condition_block<2>(b, scratch);
    case 3: return condition_block<3>(b, scratch);
    case 4: return condition_block<4>(b, scratch);
    default: return condition_block<0>(b, scratch);
  }
}

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
  predict_mean(s, x.row.mean, coords, x.predicted);
}

inline bool goes_on(const Settings& s, const State& x) {
  return *x.status == s.running && *x.count < s.wanted && *x.attempted < s.last_attempt &&
         seconds_now() < *x.deadline;
}

// What the control says of a step: whether it is accepted, and the length of the next.
inline bool judge(const Settings& s, State& x, const double* error, bool& failed) {
  if (s.control == kConstantStep || s.control == kGrid) {
    bool finite = true;
    for (int k = 0; k < s.d; ++k)
      finite = finite && std::isfinite(error[k]) && std::isfinite(x.predicted[k]);
    *x.control_accepted += finite;
    *x.rejected = finite ? 0.0 : 1.0;
    failed = !finite;
    return finite;
  }
  const double h = *x.t_next - *x.row.t;
  double squares = 0.0;
  for (int k = 0; k < s.d; ++k) {
    const double size = larger(std::fabs(x.row.mean[k]), std::fabs(x.predicted[k]));
    const double part = error[k] / (s.atol[k] + s.rtol[k] * size);
    squares += part * part;
  }
  const double norm = std::sqrt(squares / s.d);
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
  double* posterior = room(memory, s.factor_size() + static_cast<size_t>(size + w) * residuals + 2 * d);
  double* correction = posterior + s.factor_size();
  double* whitened = correction + static_cast<long>(size) * residuals;
  double* pivots = whitened + static_cast<long>(w) * residuals;
  double* noise = pivots + d;
  if (flags.size() < static_cast<size_t>(d)) flags.resize(d);
  bool* blank = reinterpret_cast<bool*>(flags.data());

  for (int block = 0; block < s.blocks(); ++block) {
    double mean_noise = 0.0;
    const double* block_jacobian = nullptr;
    if (s.structure == kIsotropic) {
      for (int k = 0; k < d; ++k) mean_noise += rounding[k] * rounding[k];
      noise[0] = std::sqrt(mean_noise / d);
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
    const long offset = static_cast<long>(block) * size * size;
    condition_block({n, w, residuals, x.row.factor + offset, change, s.transition, block_scale, s.noise, coords[0],
                     block_jacobian, s.fixed ? nullptr : noise, z + static_cast<long>(block) * w,
                     posterior + offset, correction, whitened, pivots, blank},
                    scratch);

    if (s.structure == kIsotropic) {
      for (int i = 0; i < n; ++i)
        for (int k = 0; k < d; ++k)
          x.predicted[static_cast<long>(i) * d + k] -= coords[i] * correction[static_cast<long>(i) * d + k];
      double squares = 0.0;
      for (int k = 0; k < d; ++k) squares += blank[0] ? 0.0 : whitened[k] * whitened[k];
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
  std::memcpy(x.row.factor, posterior, sizeof(double) * s.factor_size());
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
  double common = 0.0;
  for (int k = 0; k < d; ++k) common += whitened[k] * whitened[k];
  common = std::sqrt(common / d);
  bool finite = true;
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
    finite = finite && std::isfinite(error[k]);
  }

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
