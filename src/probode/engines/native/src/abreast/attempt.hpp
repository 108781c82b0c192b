// Attempted steps of members abreast: predict, judge, condition. The formulas are those of filter.hpp and condition.hpp,
// for an equation of first order; steps that are rejected are computed, and not taken.
#pragma once

#include "sizes.hpp"

namespace probode {
namespace PROBODE_ISA {

// Where a step ended. Factors are squares, block by block, of which the upper triangle is used.
struct Place {
  Number t, h;
  Number *scale, *mean, *factor;
};

// What links a step to the one before. Its prediction and the residual u are decomposed into rows (of a block, in the order
// of the columns u | y | y'' | ... | y^(q))
//
//   [ R Ãᵀ Hᵀ    R Ãᵀ ; ... ] = Q [ U; R⁺ ]
//
// with R and R⁺ filtered: x = Rᵀξ before and x⁺ = R⁺ᵀξ⁺ after, ξ and ξ⁺ white. `turned` has the first rows of Q, those of
// ξ, as columns, and `innovation` the mean of the white number that was observed. See look_back.hpp.
struct Link {
  Number* turned;      // (blocks, n w, n w - w)
  Number* taken;       // U (blocks, w, n w)
  Number* innovation;  // (d,)
  Number* jacobian;    // (d, d), or its diagonal (d,), or nothing
};

// T(h)_i = h^(1-i) (q-1)! / (q-i)!
template <class S>
inline void coordinates_of(S s, const Tables& tables, Number h, Number* out) {
  powers_of(h, s.n, out);
  PROBODE_UNROLL
  for (int i = 0; i < s.n; ++i) out[i] = out[i] * tables.weights[i];
}

// m + T (Ã - I) T⁻¹ m
template <class S>
inline void predict(S s, const Tables& tables, const Number* mean, const Number* coords, Number* out) {
  Number inverse[s.n];
  PROBODE_UNROLL
  for (int j = 1; j < s.n; ++j) inverse[j] = same(1.0) / coords[j];
  PROBODE_UNROLL
  for (int i = 0; i < s.n; ++i) {
    PROBODE_UNROLL
    for (int k = 0; k < s.d; ++k) {
      Number sum = same(0.0);
      PROBODE_UNROLL
      for (int j = i + 1; j < s.n; ++j) sum += tables.transition[i * s.n + j] * inverse[j] * mean[j * s.d + k];
      out[i * s.d + k] = mean[i * s.d + k] + coords[i] * sum;
    }
  }
}

// Ã in coordinates that change by `change`.
template <class S>
inline void moved_by(S s, const Tables& tables, const Number* change, Number* out) {
  PROBODE_UNROLL
  for (int i = 0; i < s.n; ++i) {
    PROBODE_UNROLL
    for (int j = i; j < s.n; ++j) out[i * s.n + j] = tables.transition[i * s.n + j] * change[j];
  }
}

// Row `from` of R, as a row of R Ãᵀ; `column(i)`: where the i-th derivative begins.
template <class S, class Column>
inline void moved_row(S s, const Number* factor, const Number* moving, int from, Column&& column, Number* out) {
  const int n = s.n, w = s.width, size = n * w;
  PROBODE_UNROLL
  for (int i = 0; i < n; ++i) {
    PROBODE_UNROLL
    for (int k = 0; k < w; ++k) {
      Number sum = same(0.0);
      PROBODE_UNROLL
      for (int j = i; j < n; ++j)
        if (j * w + k >= from) sum += moving[i * n + j] * factor[from * size + j * w + k];
      out[column(i) + k] = sum;
    }
  }
}

// The state of the members' filters, and what is known of the step that they attempt.
template <class S>
struct Attempt {
  S sizes;
  Tables tables;
  const Options& control;
  Place now, next;  // where they are, and where an attempted step leads
  Number *predicted, *coords, *rtol, *atol;
  Number *squares, *fresh;  // of whitened residuals: of all steps, and of the attempted one
  Number* gain;             // of the attempted step, if f is evaluated twice: (blocks, n)
  Link link;                // of the attempted step, if it is to be looked back over
  Number* pivots;           // inverses of the residuals' deviations (blocks,), with blocks of one component
  Number t1, t_next, step, error, status, attempted, accepted, evidence_steps, reference;
  Mask rejected;

  Mask going() const { return both(status == same(kGoing), attempted < same(control.last_attempt)); }

  // Where the next step ends, and the mean predicted there.
  void propose() {
    const S s = sizes;
    const Number left = t1 - now.t;
    const Mask reaches = size_of(step) * (1.0 + 1e-10) >= size_of(left);
    t_next = choose(reaches, t1, now.t + step);
    // Who is done goes along in steps of some length: by numbers that are not normal all would take longer.
    t_next = choose(going(), t_next, now.t + now.h);
    coordinates_of(s, tables, t_next - now.t, coords);
    predict(s, tables, now.mean, coords, predicted);
  }

  // The attempted step, with f and its Jacobian (d, d), or its diagonal, at the prediction: who takes it.
  Mask attempt(Mask on, const Number* f, const Number* jacobian) {
    const S s = sizes;
    const Number h = t_next - now.t;
    next.t = t_next, next.h = h;
    Number z[s.d], rounding[s.d], errors[s.d];
    residual(f, z, rounding);
    local(h, z, jacobian, errors);
    const Mask takes = both(on, judge(h, errors, on));
    if (any(takes)) update(h, jacobian, z, rounding);
    return takes;
  }

  // The second evaluation of f, where the first has corrected y: the mean is corrected with it instead, if it is finite.
  // Without a Jacobian a block is one component wide, and its gain serves all components that share it.
  void correct_again(const Number* f) {
    const S s = sizes;
    Mask finite = mask(true);
    PROBODE_UNROLL
    for (int k = 0; k < s.d; ++k) finite = both(finite, is_finite(f[k]));
    PROBODE_UNROLL
    for (int i = 0; i < s.n; ++i) {
      PROBODE_UNROLL
      for (int k = 0; k < s.d; ++k) {
        const Number z = predicted[s.d + k] - f[k], own = gain[(s.blocks > 1 ? k * s.n : 0) + i];
        Number& mean = next.mean[i * s.d + k];
        mean = choose(finite, predicted[i * s.d + k] - own * z, mean);
        if (s.smoothed && i == 0)
          link.innovation[k] = choose(finite, same(0.0) - pivots[s.blocks > 1 ? k : 0] * z, link.innovation[k]);
      }
    }
  }

  // Be where the attempted step leads, if it is taken.
  void take(Mask takes) {
    const S s = sizes;
    if (s.smoothed) stay(none_of(takes));
    now.t = choose(takes, next.t, now.t);
    now.h = choose(takes, next.h, now.h);
    exchange(takes, next.scale, now.scale, scales());
    exchange(takes, next.mean, now.mean, s.n * s.d);
    exchange(takes, next.factor, now.factor, s.blocks * s.n * s.width * s.n * s.width);
    if (s.fixed) {
      evidence_steps = choose(takes, evidence_steps + 1.0, evidence_steps);
      PROBODE_UNROLL
      for (int k = 0; k < sums(); ++k) squares[k] = choose(takes, squares[k] + fresh[k], squares[k]);
    }
    accepted = choose(takes, accepted + 1.0, accepted);
    status = choose(both(takes, both(status == same(kGoing), now.t == t1)), same(kArrived), status);
  }

  // Nothing comes before the start.
  void begin_links() {
    const S s = sizes;
    const int size = s.n * s.width;
    stay(mask(true));
    PROBODE_UNROLL
    for (int i = 0; i < s.blocks * s.width * size; ++i) link.taken[i] = same(0.0);
    PROBODE_UNROLL
    for (int k = 0; k < (s.follows == kFollowsAll ? s.d * s.d : s.follows == kFollowsDiagonal ? s.d : 0); ++k)
      link.jacobian[k] = same(0.0);
  }

  int sums() const {
    const S s = sizes;
    return s.multivariate ? s.d : 1;
  }

  // Process noises of a step.
  int scales() const {
    const S s = sizes;
    return s.multivariate && !s.fixed ? s.d : 1;
  }

 private:
  // The link of a step that is not taken: from a place to itself.
  void stay(Mask stays) {
    const S s = sizes;
    const int size = s.n * s.width, rows = size - s.width;
    if (!any(stays)) return;
    for (int block = 0; block < s.blocks; ++block) {
      Number* own = link.turned + block * size * rows;
      PROBODE_UNROLL
      for (int r = 0; r < size; ++r) {
        PROBODE_UNROLL
        for (int i = 0; i < rows; ++i)
          own[r * rows + i] = choose(stays, same(r == s.width + i ? 1.0 : 0.0), own[r * rows + i]);
      }
    }
    PROBODE_UNROLL
    for (int k = 0; k < s.d; ++k) link.innovation[k] = choose(stays, same(0.0), link.innovation[k]);
  }

  static void exchange(Mask takes, const Number* from, Number* to, int count) {
    PROBODE_UNROLL
    for (int i = 0; i < count; ++i) to[i] = choose(takes, from[i], to[i]);
  }

  bool shared() const {
    const S s = sizes;
    return s.width == 1 && s.blocks == 1;  // one block for all components
  }

  // z = y' - f, and the level of rounding in it: for each component, or where they share a block the root of its mean
  // square.
  void residual(const Number* f, Number* z, Number* rounding) const {
    const S s = sizes;
    const Number* slope = predicted + s.d;
    PROBODE_UNROLL
    for (int k = 0; k < s.d; ++k) {
      z[k] = slope[k] - f[k];
      rounding[k] = kEps * (size_of(slope[k]) + size_of(f[k]));
    }
    if (shared() && s.d > 1) rounding[0] = norm_of(rounding, 1, s.d) * same(1.0 / sqrt(double(s.d)));
  }

  Number plain_deviation() const {
    const S s = sizes;
    const double a = tables.noise[1], b = tables.noise[s.n + 1];
    return same(sqrt(a * a + b * b));
  }

  // Process noise of the step (`next.scale`) and the estimates of the local error, from z whitened with H Q̃ Hᵀ.
  void local(Number h, const Number* z, const Number* jacobian, Number* errors) {
    const S s = sizes;
    Number white[s.d], deviation[s.d];
    whiten(z, jacobian, white, deviation);
    const Number common = norm_of(white, 1, s.d) * same(1.0 / sqrt(double(s.d)));
    const Number unit = s.fixed ? noise_over(h / reference, s.n) : same(1.0);
    const Number growth = s.damped ? noise_over(h / now.h, s.n) : same(0.0);
    PROBODE_UNROLL
    for (int k = 0; k < s.d; ++k) {
      const Number own = s.multivariate ? size_of(white[k]) : common;
      Number error_scale = own;
      if (s.fixed) {
        const Number count = at_least(s.multivariate ? evidence_steps : evidence_steps * double(s.d), same(1.0));
        error_scale = larger_of(own, unit * root_of(squares[s.multivariate ? k : 0] / count));
      }
      if (k < scales()) {
        Number scale = s.fixed ? unit : own;
        if (s.damped) {
          const Number before = growth * now.scale[k];
          const Number bounded = at_most(at_least(before, own / 100.0), own * 100.0);
          scale = choose(before > same(0.0), root_of(own) * root_of(bounded), own);
        }
        next.scale[k] = scale;
      }
      errors[k] = size_of(h) * error_scale * deviation[k];
    }
  }

  // With J: a decomposition of the rows L_01 I - T_0 L_00 Jᵀ and L_11 I.
  void whiten(const Number* z, const Number* jacobian, Number* white, Number* deviation) const {
    const S s = sizes;
    const int d = s.d;
    const Number head = same(tables.noise[1]), own = same(tables.noise[s.n + 1]);
    const Number of = coords[0] * tables.noise[0];
    if (s.follows != kFollowsAll) {
      PROBODE_UNROLL
      for (int k = 0; k < d; ++k) {
        deviation[k] = plain_deviation();
        if (s.follows == kFollowsDiagonal) {
          const Number entry = head - of * jacobian[k];
          deviation[k] = root_of(own * own + entry * entry);
        }
        white[k] = z[k] / deviation[k];
      }
      return;
    }
    Number stack[2 * d * d];
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {
      Number sum = own * own;
      PROBODE_UNROLL
      for (int l = 0; l < d; ++l) {
        const Number entry = (a == l ? head : same(0.0)) - of * jacobian[a * d + l];
        stack[l * d + a] = entry;
        stack[(d + l) * d + a] = a == l ? own : same(0.0);
        sum += entry * entry;
      }
      deviation[a] = root_of(sum);
    }
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) reflect_rows(stack, d, a, d + a + 1, a, d);
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {
      Number rest = z[a];
      PROBODE_UNROLL
      for (int e = 0; e < a; ++e) rest -= stack[e * d + a] * white[e];
      white[a] = rest / stack[a * d + a];
    }
  }

  // Whether the step is accepted; the length of the next.
  Mask judge(Number h, const Number* errors, Mask on) {
    const S s = sizes;
    Number sum = same(0.0);
    Mask finite = mask(true);
    PROBODE_UNROLL
    for (int k = 0; k < s.d; ++k) {
      const Number tolerance = atol[k] + rtol[k] * larger_of(size_of(now.mean[k]), size_of(predicted[k]));
      const Number ratio = errors[k] / tolerance;
      sum += ratio * ratio;
      finite = both(finite, is_finite(errors[k]));
    }
    const Number norm = root_of(sum / double(s.d));
    const Mask accepts = norm <= same(1.0), known = is_finite(norm);
    const Number bounded = choose(known, at_least(norm, same(1e-10)), same(1.0));
    const double exponent = 1.0 / s.n;
    Number factor = power(bounded, s.integral ? -(control.integral + control.proportional) * exponent : -exponent);
    if (s.integral) {
      factor = factor * power(error, control.proportional * exponent);
      factor = choose(rejected, at_most(factor, same(1.0 / control.rho)), factor);
      const Mask above = bounded > same(1.0);
      if (any(above)) factor = choose(above, power(bounded, -exponent), factor);
    }
    factor = at_most(at_least(control.rho * factor, same(control.eta_min)), same(control.eta_max));
    factor = choose(known, factor, same(control.eta_min));
    Number size = size_of(h) * factor;
    const Number smallest = at_least(10.0 * kEps * size_of(now.t), same(control.min_step));
    const Mask refused = both(on, none_of(accepts));
    Mask failed = both(refused, both(size < smallest, size_of(h) <= 1.5 * smallest));
    failed = either(failed, either(both(refused, size < same(kLeastNormal)), both(on, h == same(0.0))));
    size = at_most(at_least(size, smallest), same(control.max_step));
    const Number signed_size = choose(h < same(0.0), same(0.0) - size, choose(h > same(0.0), size, same(0.0)));
    step = choose(on, signed_size, step);
    error = choose(both(on, accepts), bounded, error);
    rejected = choose_mask(on, none_of(accepts), rejected);
    attempted = choose(on, attempted + 1.0, attempted);
    const Number why = choose(either(finite, t_next == now.t), same(kStepTooSmall), same(kValueNotFinite));
    status = choose(failed, why, status);
    return accepts;
  }

  // Condition the prediction on z = 0: `next`, for all components of all blocks.
  void update(Number h, const Number* jacobian, const Number* z, const Number* rounding) {
    const S s = sizes;
    const int size = s.n * s.width;
    Number change[s.n];
    powers_of(now.h / h, s.n, change);
    if (s.smoothed) {
      PROBODE_UNROLL
      for (int k = 0; k < (s.follows == kFollowsAll ? s.d * s.d : s.follows == kFollowsDiagonal ? s.d : 0); ++k)
        link.jacobian[k] = jacobian[k];
    }
    for (int block = 0; block < s.blocks; ++block) {
      const int at = block * size * size, first = block * s.width;
      condition(now.factor + at, change, next.scale + (s.blocks > 1 && scales() > 1 ? block : 0),
                s.follows == kFollowsNothing ? nullptr : jacobian + (s.follows == kFollowsDiagonal ? block : 0), z,
                rounding + first, block, next.factor + at);
    }
  }

  // The update of one block: one decomposition of
  //
  //   [ R Ãᵀ Hᵀ    R Ãᵀ    ]                columns  u = H x | y' | y | y'' | ... | y^(q)
  //   [ diag(r)    0       ]
  //   [ s R_Q Hᵀ   s R_Q   ]
  //
  // The columns of y' are rotated, not eliminated: given u they follow from y. Rows of y' are zero, here as before.
  void condition(const Number* factor, const Number* change, const Number* scale, const Number* jacobian,
                 const Number* z, const Number* rounding, int block, Number* out) {
    const S s = sizes;
    const int n = s.n, w = s.width, size = n * w, columns = size + w, values = 2 * w, above = 2 * w;
    const int full = size - w, head = full + w, rows = head + size;
    Number stack[rows * columns], moving[n * n], identity[s.smoothed ? rows * full : 1];
    Number* beside = s.smoothed ? identity : nullptr;
    if (s.smoothed) {
      PROBODE_UNROLL
      for (int r = 0; r < rows; ++r) {
        PROBODE_UNROLL
        for (int i = 0; i < full; ++i) identity[r * full + i] = same(r == i ? 1.0 : 0.0);
      }
    }
    moved_by(s, tables, change, moving);
    auto column = [&](int i) { return i == 0 ? values : i == 1 ? w : (i + 1) * w; };
    PROBODE_UNROLL
    for (int r = 0; r < full; ++r) {  // R Ãᵀ
      moved_row(s, factor, moving, r < w ? r : r + w, column, stack + r * columns);
    }
    PROBODE_UNROLL
    for (int r = full; r < rows; ++r) {  // diag(r), s R_Q
      const int i = r < head ? n : (r - head) / w, k = r < head ? 0 : (r - head) % w;
      PROBODE_UNROLL
      for (int c = w; c < columns; ++c) stack[r * columns + c] = same(0.0);
      PROBODE_UNROLL
      for (int j = 0; j < n; ++j)
        if (j >= i) stack[r * columns + column(j) + k] = scale[s.width > 1 && scales() > 1 ? k : 0] * tables.noise[i * n + j];
    }
    PROBODE_UNROLL
    for (int r = 0; r < rows; ++r) {  // u = y' - T_0 J y
      Number* row = stack + r * columns;
      PROBODE_UNROLL
      for (int a = 0; a < w; ++a) {
        Number sum = r >= full && r < head ? same(0.0) : row[w + a];
        if (s.follows != kFollowsNothing && (r < full || (r >= head && r < head + w))) {
          Number slope = same(0.0);
          PROBODE_UNROLL
          for (int l = 0; l < w; ++l) slope += entry_of(jacobian, a, l) * row[values + l];
          sum -= coords[0] * slope;
        }
        row[a] = sum;
      }
    }
    Mask blank[w];
    PROBODE_UNROLL
    for (int a = 0; a < w; ++a) {
      Number largest = same(0.0);
      PROBODE_UNROLL
      for (int r = 0; r < head + above; ++r) largest = largest + size_of(stack[r * columns + a]);
      blank[a] = largest == same(0.0);
      if (s.fixed) continue;
      Number noise = rounding[a];
      noise = choose(both(blank[a], noise == same(0.0)), same(1.0), noise);
      const Number known = norm_of(stack + a, columns, full);
      const Number own = norm_of(stack + head * columns + a, columns, above);
      noise = choose(own < kHidden * known, at_least(noise, kHidden * known), noise);
      stack[(full + a) * columns + a] = noise;
    }

    PROBODE_UNROLL
    for (int a = 0; a < w; ++a) reflect_rows(stack, columns, a, head + above, a, columns, beside, full);
    PROBODE_UNROLL
    for (int k = 0; k < w; ++k) reflect_rows(stack, columns, w + k, head + above, values + k, columns, beside, full);
    PROBODE_UNROLL
    for (int c = above; c < size; ++c) reflect_rows(stack, columns, c, head + c + 1, c + w, columns, beside, full);

    Number white[w];
    PROBODE_UNROLL
    for (int a = 0; a < w; ++a) {
      const Number pivot = stack[a * columns + a];
      Number rest = w == 1 ? same(1.0) : z[a];
      PROBODE_UNROLL
      for (int e = 0; e < a; ++e) rest -= stack[e * columns + a] * white[e];
      const Mask none = size_of(pivot) < same(kLeastNormal);
      white[a] = choose(none, same(0.0), rest / choose(none, same(1.0), pivot));
    }
    if (s.fixed) count(white, z, blank, block);
    if (s.smoothed) {
      if (w == 1) pivots[block] = white[0];
      PROBODE_UNROLL
      for (int r = 0; r < size; ++r) {
        PROBODE_UNROLL
        for (int i = 0; i < full; ++i) link.turned[(block * size + r) * full + i] = identity[r * full + i];
      }
      PROBODE_UNROLL
      for (int a = 0; a < w; ++a) {
        PROBODE_UNROLL
        for (int c = 0; c < size; ++c)
          link.taken[(block * w + a) * size + c] = c < a ? same(0.0) : stack[a * columns + (c < w ? c : c + w)];
      }
      PROBODE_UNROLL
      for (int k = 0; k < s.d; ++k) {
        if (w > 1) link.innovation[k] = same(0.0) - white[k];
        else if (shared() || k == block) link.innovation[k] = same(0.0) - white[0] * z[k];
      }
    }
    PROBODE_UNROLL
    for (int i = 0; i < n; ++i) {
      PROBODE_UNROLL
      for (int k = 0; k < w; ++k) {
        Number correction = same(0.0);
        PROBODE_UNROLL
        for (int a = 0; a < w; ++a) correction += stack[a * columns + column(i) + k] * white[a];
        correction = coords[i] * correction;
        if (s.twice) gain[block * n + i] = correction;
        if (w > 1) {
          next.mean[i * s.d + k] = predicted[i * s.d + k] - correction;
        } else {  // a residual of one serves all components of the block
          PROBODE_UNROLL
          for (int c = 0; c < s.d; ++c)
            if (shared() || c == block) next.mean[i * s.d + c] = predicted[i * s.d + c] - correction * z[c];
        }
      }
    }

    PROBODE_UNROLL
    for (int r = 0; r < size; ++r) {
      const Number* row = stack + (r < w ? w + r : r) * columns;
      PROBODE_UNROLL
      for (int c = r; c < size; ++c) {
        Number entry = same(0.0);
        if (r < w) {
          if (c < w) entry = row[values + c];
          else if (c >= above) entry = row[c + w];
          else if (s.follows != kFollowsNothing) {  // y' = T_0 J y
            PROBODE_UNROLL
            for (int l = r; l < w; ++l) entry += entry_of(jacobian, c - w, l) * row[values + l];
            entry = coords[0] * entry;
          }
        } else if (r >= above) {
          entry = row[c + w];
        }
        out[r * size + c] = entry;
      }
    }
  }

  Number entry_of(const Number* jacobian, int a, int l) const {
    const S s = sizes;
    if (s.follows == kFollowsAll) return jacobian[a * s.d + l];
    return a == l ? jacobian[a] : same(0.0);
  }

  // Squares of the whitened residuals, of which fixed diffusions are the mean: kept aside until the step is taken.
  void count(const Number* white, const Number* z, const Mask* blank, int block) {
    const S s = sizes;
    if (s.width > 1) {
      PROBODE_UNROLL
      for (int a = 0; a < s.width; ++a) add(s.multivariate ? a : 0, white[a], blank[a], a == 0 || s.multivariate);
    } else if (shared() && !s.multivariate) {
      add(0, white[0] * norm_of(z, 1, s.d), blank[0], true);
    } else {
      PROBODE_UNROLL
      for (int k = 0; k < s.d; ++k)
        if (shared() || k == block)
          add(s.multivariate ? k : 0, white[0] * z[k], blank[0], s.multivariate || k == 0);
    }
  }

  void add(int which, Number x, Mask blank, bool first) {
    const Number square = choose(blank, same(0.0), x * x);
    fresh[which] = first ? square : fresh[which] + square;
  }
};

}  // namespace PROBODE_ISA
}  // namespace probode
