// Carrying the defect of the filter's mean along the solutions of members abreast: the error at the end of every step,
// and at its stages. The formulas are those of transport.hpp; a stage of a component is a number of each member.
#pragma once

#include "attempt.hpp"
#include "bend.hpp"

namespace probode {
namespace PROBODE_ISA {

// Arrays that outlive a step: errors, and their slopes.
struct CarriedMemory {
  Number *error, *slope;                                            // (d,)
  Number *value, *tangent, *f, *stages, *change, *right, *moved;    // (d, s)
  Number *first, *second;                                           // (d,) changes of the end
};

template <class S, class Field>
struct CarriedErrors {
  S sizes;
  Tables tables;
  const Options& control;
  Field& field;
  CarriedMemory m;
  Number credit, steps, corrections, repeats, slope_step;  // corrections and repeats: of all steps
  Mask due;
  Number noise_, turns_, again_, moved_part_, changed_;  // of the step

  void begin() {
    const S s = sizes;
    PROBODE_UNROLL
    for (int a = 0; a < s.d; ++a) m.error[a] = m.slope[a] = same(0.0);
    credit = same(control.first_credit);
    steps = corrections = repeats = slope_step = same(0.0);
    due = mask(false);
  }

  // Over the step between two places, for those members that take it.
  void step(Mask on, const Place& left, const Place& right) {
    const S s = sizes;
    const Number h = right.t - left.t;
    const Mask moves = both(on, h != same(0.0));
    Number times[s.stages];
    curve(left, right, h, times);
    turns_ = again_ = same(0.0);
    if (s.carried == kByNewton) newton(moves, h, times);
    else sweep(moves, h, times);
    corrections = choose(moves, corrections + turns_, corrections);
    repeats = choose(moves, repeats + again_, repeats);
    steps = choose(moves, steps + 1.0, steps);
    if (every(either(none_of(on), moves))) return;
    PROBODE_UNROLL
    for (int a = 0; a < s.d; ++a) {
      m.first[a] = choose(moves, m.first[a], same(0.0));
      m.second[a] = choose(moves, m.second[a], same(0.0));
      PROBODE_UNROLL
      for (int i = 0; i < s.stages; ++i) m.stages[a * s.stages + i] = choose(moves, m.stages[a * s.stages + i], m.error[a]);
    }
  }

 private:
  Number& last(Number* x, int a) const {
    const S s = sizes;
    return x[a * s.stages + s.stages - 1];
  }

  // P and P' at the stages.
  void curve(const Place& left, const Place& right, Number h, Number* times) {
    const S s = sizes;
    const int k = s.contact, count = 2 * k + 1;
    const Number inverse = same(1.0) / choose(h == same(0.0), same(1.0), h);
    PROBODE_UNROLL
    for (int i = 0; i < s.stages; ++i) times[i] = left.t + h * tables.nodes[i];
    Number top = same(0.0);
    PROBODE_UNROLL
    for (int a = 0; a < s.d; ++a) {
      Number data[count];
      Number power = same(1.0);
      data[k] = right.mean[a] - left.mean[a];
      PROBODE_UNROLL
      for (int j = 1; j <= k; ++j) {
        power = power * (h / double(j));
        data[j - 1] = power * left.mean[j * s.d + a];
        data[k + j] = power * right.mean[j * s.d + a];
      }
      PROBODE_UNROLL
      for (int i = 0; i < s.stages; ++i) {
        Number value = same(0.0), slope = same(0.0);
        PROBODE_UNROLL
        for (int j = 0; j < count; ++j) {
          value += tables.values[i * count + j] * data[j];
          slope += tables.slopes[i * count + j] * data[j];
        }
        m.value[a * s.stages + i] = left.mean[a] + value;
        m.tangent[a * s.stages + i] = slope * inverse;
        top = larger_of(size_of(m.value[a * s.stages + i]), top);
      }
    }
    noise_ = control.rounding * top;
  }

  // f(t_i, P_i - E_i) at all stages; without stages on the interpolant itself.
  void evaluate(const Number* times, const Number* stages, Number* out) {
    const S s = sizes;
    Number y[s.d], f[s.d];
    PROBODE_UNROLL_STAGES
    for (int i = 0; i < s.stages; ++i) {
      PROBODE_UNROLL
      for (int a = 0; a < s.d; ++a)
        y[a] = stages ? m.value[a * s.stages + i] - stages[a * s.stages + i] : m.value[a * s.stages + i];
      field.value(times[i], y, f);
      PROBODE_UNROLL
      for (int a = 0; a < s.d; ++a) out[a * s.stages + i] = f[a];
    }
  }

  // J there at the middle stage, or its diagonal.
  void jacobian(const Number* times, const Number* stages, Number* out) {
    const S s = sizes;
    Number y[s.d], f[s.d];
    PROBODE_UNROLL
    for (int a = 0; a < s.d; ++a) {
      const int i = a * s.stages + s.middle;
      y[a] = stages ? m.value[i] - stages[i] : m.value[i];
    }
    field.slopes(times[s.middle], y, f, out);
  }

  // λ/h - J for each pair of eigenvalues, decomposed with partial pivoting: (d, d) complex numbers, inverses of pivots
  // in their places.
  void linearize(Mask on, Number h, const Number* jacobian, Number* matrices, Number* swaps) const {
    const S s = sizes;
    const int d = s.d;
    for (int p = 0; p < s.pairs; ++p) {
      Number *re = matrices + p * 2 * d * d, *im = re + d * d, *swap = swaps + p * d;
      PROBODE_UNROLL
      for (int i = 0; i < d; ++i) {
        PROBODE_UNROLL
        for (int j = 0; j < d; ++j) {
          const Number own = (i == j ? tables.shift_re[p] / h : same(0.0)) - jacobian[i * d + j];
          re[i * d + j] = choose(on, own, re[i * d + j]);
          im[i * d + j] = choose(on, i == j ? tables.shift_im[p] / h : same(0.0), im[i * d + j]);
        }
      }
      PROBODE_UNROLL
      for (int i = 0; i < d; ++i) {
        Number best = same(double(i)), top = re[i * d + i] * re[i * d + i] + im[i * d + i] * im[i * d + i];
        PROBODE_UNROLL
        for (int r = i + 1; r < d; ++r) {
          const Number size = re[r * d + i] * re[r * d + i] + im[r * d + i] * im[r * d + i];
          best = choose(size > top, same(double(r)), best);
          top = choose(size > top, size, top);
        }
        swap[i] = choose(on, best, swap[i]);
        PROBODE_UNROLL
        for (int r = i + 1; r < d; ++r) {
          const Mask here = both(on, best == same(double(r)));
          if (!any(here)) continue;
          PROBODE_UNROLL
          for (int j = 0; j < d; ++j) {
            exchange(here, re[i * d + j], re[r * d + j]);
            exchange(here, im[i * d + j], im[r * d + j]);
          }
        }
        const Number a = re[i * d + i], b = im[i * d + i];
        const Number size = at_least(size_of(a), size_of(b)), x = a / size, y = b / size;
        const Number norm = same(1.0) / (size * (x * x + y * y));
        const Number pivot_re = x * norm, pivot_im = same(0.0) - y * norm;
        re[i * d + i] = choose(on, pivot_re, a), im[i * d + i] = choose(on, pivot_im, b);
        PROBODE_UNROLL
        for (int r = i + 1; r < d; ++r) {
          const Number u = re[r * d + i], v = im[r * d + i];
          const Number fre = u * pivot_re - v * pivot_im, fim = u * pivot_im + v * pivot_re;
          re[r * d + i] = choose(on, fre, u), im[r * d + i] = choose(on, fim, v);
          PROBODE_UNROLL
          for (int j = i + 1; j < d; ++j) {
            const Number gre = fre * re[i * d + j] - fim * im[i * d + j];
            const Number gim = fre * im[i * d + j] + fim * re[i * d + j];
            re[r * d + j] = choose(on, re[r * d + j] - gre, re[r * d + j]);
            im[r * d + j] = choose(on, im[r * d + j] - gim, im[r * d + j]);
          }
        }
      }
    }
  }

  static void exchange(Mask here, Number& a, Number& b) {
    const Number old = a;
    a = choose(here, b, a);
    b = choose(here, old, b);
  }

  void solve(const Number* re, const Number* im, const Number* swap, Number* x, Number* y) const {
    const S s = sizes;
    const int d = s.d;
    PROBODE_UNROLL
    for (int i = 0; i < d; ++i) {
      PROBODE_UNROLL
      for (int r = i + 1; r < d; ++r) {
        const Mask here = swap[i] == same(double(r));
        exchange(here, x[i], x[r]);
        exchange(here, y[i], y[r]);
      }
    }
    PROBODE_UNROLL
    for (int i = 0; i < d; ++i) {
      PROBODE_UNROLL
      for (int r = i + 1; r < d; ++r) {
        const Number u = re[r * d + i], v = im[r * d + i];
        x[r] -= u * x[i] - v * y[i];
        y[r] -= u * y[i] + v * x[i];
      }
    }
    PROBODE_UNROLL
    for (int i = d - 1; i >= 0; --i) {
      PROBODE_UNROLL
      for (int j = i + 1; j < d; ++j) {
        const Number u = re[i * d + j], v = im[i * d + j];
        x[i] -= u * x[j] - v * y[j];
        y[i] -= u * y[j] + v * x[j];
      }
      const Number u = re[i * d + i], v = im[i * d + i], old = x[i];
      x[i] = u * old - v * y[i];
      y[i] = u * y[i] + v * old;
    }
  }

  // ((h a)⁻¹ - J)⁻¹ (right + J e); (λ/h - J)⁻¹ J = λ/h (λ/h - J)⁻¹ - 1. Without e: of `right` alone.
  void apply(Number h, const Number* matrices, const Number* swaps, const Number* right, const Number* e,
             Number* out) const {
    const S s = sizes;
    const int d = s.d, count = s.stages;
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {
      PROBODE_UNROLL
      for (int i = 0; i < count; ++i) out[a * count + i] = e ? same(0.0) - e[a] : same(0.0);
    }
    for (int p = 0; p < s.pairs; ++p) {
      double sum_re = 0.0, sum_im = 0.0;
      PROBODE_UNROLL
      for (int i = 0; i < count; ++i) sum_re += tables.row_re[p * count + i], sum_im += tables.row_im[p * count + i];
      const double lambda_re = tables.shift_re[p], lambda_im = tables.shift_im[p];
      const Number weight_re = (lambda_re * sum_re - lambda_im * sum_im) / h;
      const Number weight_im = (lambda_re * sum_im + lambda_im * sum_re) / h;
      Number x[d], y[d];
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        x[a] = e ? weight_re * e[a] : same(0.0);
        y[a] = e ? weight_im * e[a] : same(0.0);
        PROBODE_UNROLL
        for (int i = 0; i < count; ++i) {
          x[a] += tables.row_re[p * count + i] * right[a * count + i];
          y[a] += tables.row_im[p * count + i] * right[a * count + i];
        }
      }
      const Number* re = matrices + p * 2 * d * d;
      solve(re, re + d * d, swaps + p * d, x, y);
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        PROBODE_UNROLL
        for (int i = 0; i < count; ++i)
          out[a * count + i] +=
              tables.column_re[i * s.pairs + p] * x[a] - tables.column_im[i * s.pairs + p] * y[a];
      }
    }
  }

  void newton(Mask on, Number h, const Number* times) {
    const S s = sizes;
    const int d = s.d, count = s.stages;
    Number linear[d * d], matrices[s.pairs * 2 * d * d], swaps[s.pairs * d];
    evaluate(times, nullptr, m.f);
    jacobian(times, nullptr, linear);
    linearize(mask(true), h, linear, matrices, swaps);
    PROBODE_UNROLL
    for (int i = 0; i < d * count; ++i) m.right[i] = m.tangent[i] - m.f[i];
    apply(h, matrices, swaps, m.right, m.error, m.change);
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {
      PROBODE_UNROLL
      for (int i = 0; i < count; ++i) m.stages[a * count + i] = m.error[a] + m.change[a * count + i];
      m.first[a] = last(m.change, a);
      m.second[a] = same(0.0);
    }
    const Mask looks = both(on, s.rounds > 0 ? mask(true) : either(due, turn()));
    due = both(due, none_of(on));
    if (any(looks)) correct(looks, h, times, linear, matrices, swaps);
    credit = choose(on, credit + control.credit - again_, credit);
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {  // the slope at the end
      Number sum = same(0.0);
      PROBODE_UNROLL
      for (int j = 0; j < count; ++j)
        sum += tables.inverse[(count - 1) * count + j] * (m.stages[a * count + j] - m.error[a]);
      m.slope[a] = choose(on, sum / h, m.slope[a]);
    }
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) m.error[a] = choose(on, last(m.stages, a), m.error[a]);
  }

  // Every so many steps of a transport that does not correct all of them.
  Mask turn() const {
    const Number part = steps / control.look;
#if PROBODE_ON_CARD
    return part == floor(part);
#else
    return part == each([&](int i) { return std::floor(part[i]); });
#endif
  }

  // What f has beyond its linearisation.
  void correct(Mask on, Number h, const Number* times, const Number* linear, Number* matrices, Number* swaps) {
    const S s = sizes;
    const int d = s.d, count = s.stages;
    PROBODE_UNROLL
    for (int i = 0; i < d * count; ++i) m.moved[i] = m.change[i];
    evaluate(times, m.stages, m.right);
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {
      PROBODE_UNROLL
      for (int i = 0; i < count; ++i) {
        Number product = same(0.0);
        PROBODE_UNROLL
        for (int b = 0; b < d; ++b) product += m.stages[b * count + i] * linear[a * d + b];
        m.change[a * count + i] = (m.f[a * count + i] - m.right[a * count + i]) - product;
      }
    }
    PROBODE_UNROLL
    for (int i = 0; i < d * count; ++i) m.right[i] = m.change[i];
    apply(h, matrices, swaps, m.right, nullptr, m.change);
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) m.second[a] = choose(on, last(m.change, a), m.second[a]);
    measure();
    PROBODE_UNROLL
    for (int i = 0; i < d * count; ++i) m.stages[i] = choose(on, m.stages[i] + m.change[i], m.stages[i]);
    due = choose_mask(on, none_of(settled(same(1.0))), due);
    const Mask goes_on = both(on, due);
    if (any(goes_on)) settle(goes_on, h, times, matrices, swaps);
    if (s.rounds == 0) turns_ = choose(on, turns_ + 1.0, turns_);
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {
      m.second[a] = choose(both(on, again_ > same(0.0)), last(m.change, a), m.second[a]);
      m.first[a] = choose(on, last(m.stages, a) - m.second[a] - m.error[a], m.first[a]);
    }
  }

  // Largest parts of the stages that `change` and `moved` are, rounding left out.
  void measure() {
    const S s = sizes;
    moved_part_ = changed_ = same(0.0);
    PROBODE_UNROLL
    for (int a = 0; a < s.d; ++a) {
      Number top = same(0.0), moved = same(0.0), changed = same(0.0);
      PROBODE_UNROLL
      for (int i = 0; i < s.stages; ++i) {
        top = larger_of(size_of(m.stages[a * s.stages + i]), top);
        moved = larger_of(size_of(m.moved[a * s.stages + i]), moved);
        changed = larger_of(size_of(m.change[a * s.stages + i]) - noise_, changed);  // at least zero
      }
      const Number inverse = same(1.0) / larger_of(top, noise_);
      moved_part_ = larger_of(moved * inverse, moved_part_);
      changed_ = larger_of(changed * inverse, changed_);
    }
  }

  // Whether the correction after this one can be left out.
  Mask settled(Number before) const {
    const Number left = changed_ * changed_ / at_least(at_least(changed_, before), same(1e-300));
    const Number count = control.early + steps;
    return both(left <= control.left_over * moved_part_, left * count * count <= same(1.0));
  }

  // More corrections; where they do not shrink, Newton's method from E = e_n, each iteration with its own Jacobian.
  void settle(Mask on, Number h, const Number* times, Number* matrices, Number* swaps) {
    const S s = sizes;
    const int d = s.d, count = s.stages;
    const Number most = same(control.most_iterations);
    const Mask affordable = credit >= most;
    Mask anew = mask(false), stuck = none_of(changed_ <= same(control.shrinks));
    while (true) {
      on = both(on, both(turns_ < most, again_ < most));
      on = both(on, either(none_of(stuck), affordable));
      if (!any(on)) return;
      const Mask begins = both(on, stuck);
      Number before = changed_;
      if (any(begins)) {
        anew = either(anew, begins);
        before = choose(begins, same(0.0), before);
        PROBODE_UNROLL
        for (int a = 0; a < d; ++a) {
          PROBODE_UNROLL
          for (int i = 0; i < count; ++i)
            m.stages[a * count + i] = choose(begins, m.error[a], m.stages[a * count + i]);
        }
      }
      evaluate(times, m.stages, m.f);
      const Mask fresh = both(on, anew);
      if (any(fresh)) {
        Number own[d * d];
        jacobian(times, m.stages, own);
        linearize(fresh, h, own, matrices, swaps);
      }
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        PROBODE_UNROLL
        for (int i = 0; i < count; ++i) m.right[a * count + i] = pulled(h, a, i) - m.f[a * count + i];
      }
      Number change[d * count];
      apply(h, matrices, swaps, m.right, nullptr, change);
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        PROBODE_UNROLL
        for (int i = 0; i < count; ++i) {
          const int at = a * count + i;
          m.change[at] = choose(on, change[at], m.change[at]);
          m.stages[at] = choose(on, m.stages[at] + change[at], m.stages[at]);
          m.moved[at] = choose(on, m.stages[at] - m.error[a], m.moved[at]);
        }
      }
      again_ = choose(fresh, again_ + 1.0, again_);
      turns_ = choose(both(on, none_of(anew)), turns_ + 1.0, turns_);
      const Number old = changed_;
      measure();
      changed_ = choose(on, changed_, old);
      on = both(on, none_of(settled(before)));
      stuck = both(none_of(anew), none_of(changed_ <= control.shrinks * before));
    }
  }

  // (h a)⁻¹ (e_n - E) + P' of component a at stage i.
  Number pulled(Number h, int a, int i) const {
    const S s = sizes;
    Number sum = same(0.0);
    PROBODE_UNROLL
    for (int j = 0; j < s.stages; ++j)
      sum += tables.inverse[i * s.stages + j] * (m.error[a] - m.stages[a * s.stages + j]);
    return sum / h + m.tangent[a * s.stages + i];
  }

  void sweep(Mask on, Number h, const Number* times) {
    const S s = sizes;
    const int d = s.d, count = s.stages;
    Number diagonal[d], end[d];
    if (s.carried == kByDiagonalSweeps) jacobian(times, nullptr, diagonal);
    // The slope over a step across a switch, shorter than any other, says nothing of the next one.
    const Number reach = choose(size_of(h) <= control.reach * size_of(slope_step), h, same(0.0));
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {
      PROBODE_UNROLL
      for (int i = 0; i < count; ++i) m.stages[a * count + i] = m.error[a] + tables.nodes[i] * (reach * m.slope[a]);
      end[a] = m.error[a];
      m.second[a] = same(0.0);
    }
    const Mask looks = s.rounds > 1 ? mask(true) : either(due, turn());
    due = both(due, none_of(on));
    changed_ = same(0.0);
    Mask going = on;
    for (int round = 1; any(going); ++round) {
      evaluate(times, m.stages, m.f);
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        Number stage[count], next_end = m.error[a];
        if (s.carried == kByDiagonalSweeps) {
          relaxed(h, a, diagonal[a], stage);
          next_end = stage[count - 1];
        } else {
          Number sum = same(0.0);
          PROBODE_UNROLL
          for (int i = 0; i < count; ++i) {
            Number part = same(0.0);
            PROBODE_UNROLL
            for (int j = 0; j < count; ++j)
              part += tables.matrix[i * count + j] * (m.tangent[a * count + j] - m.f[a * count + j]);
            stage[i] = m.error[a] + h * part;
            sum += tables.ends[i] * (m.tangent[a * count + i] - m.f[a * count + i]);
          }
          next_end = m.error[a] + h * sum;
        }
        PROBODE_UNROLL
        for (int i = 0; i < count; ++i) {
          const int at = a * count + i;
          m.change[at] = choose(going, stage[i] - m.stages[at], m.change[at]);
          m.stages[at] = choose(going, stage[i], m.stages[at]);
          m.moved[at] = m.stages[at] - m.error[a];
        }
        if (round == 1) m.first[a] = next_end - m.error[a];
        else m.second[a] = choose(going, next_end - end[a], m.second[a]);
        end[a] = choose(going, next_end, end[a]);
      }
      const Number before = round == 1 ? same(0.0) : changed_, old = changed_;
      measure();
      changed_ = choose(going, changed_, old);
      if (round > s.rounds) turns_ = choose(going, turns_ + 1.0, turns_);
      // Sweeps converge for `h |λ| < 4.6`; beyond that, more of them do not help.
      Mask more = none_of(settled(before));
      if (round == 1) {
        more = looks;  // one sweep, or as many as it takes
      } else {
        const Mask shrinks = either(changed_ <= control.shrinks * before, mask(round < control.patience));
        more = both(more, both(shrinks, mask(round < control.most_sweeps)));
        due = either(due, both(going, more));
      }
      going = both(going, more);
    }
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {
      m.slope[a] = choose(on, (end[a] - m.error[a]) / h, m.slope[a]);
      m.error[a] = choose(on, end[a], m.error[a]);
    }
    slope_step = choose(on, h, slope_step);
  }

  // E + ((h a)⁻¹ - D)⁻¹ ((h a)⁻¹ (e_n - E) + G) for component a.
  void relaxed(Number h, int a, Number diagonal, Number* out) const {
    const S s = sizes;
    const int count = s.stages;
    Number right[count];
    PROBODE_UNROLL
    for (int i = 0; i < count; ++i) {
      right[i] = pulled(h, a, i) - m.f[a * count + i];
      out[i] = m.stages[a * count + i];
    }
    for (int p = 0; p < s.pairs; ++p) {
      Number x = same(0.0), y = same(0.0);
      PROBODE_UNROLL
      for (int i = 0; i < count; ++i) {
        x += tables.row_re[p * count + i] * right[i];
        y += tables.row_im[p * count + i] * right[i];
      }
      const Number u = tables.shift_re[p] / h - diagonal, v = tables.shift_im[p] / h;
      const Number size = at_least(size_of(u), size_of(v)), scaled_u = u / size, scaled_v = v / size;
      const Number norm = same(1.0) / (size * (scaled_u * scaled_u + scaled_v * scaled_v));
      const Number re = scaled_u * norm, im = same(0.0) - scaled_v * norm;
      const Number solved_re = x * re - y * im, solved_im = x * im + y * re;
      PROBODE_UNROLL
      for (int i = 0; i < count; ++i)
        out[i] += tables.column_re[i * s.pairs + p] * solved_re - tables.column_im[i * s.pairs + p] * solved_im;
    }
  }
};

}  // namespace PROBODE_ISA
}  // namespace probode
