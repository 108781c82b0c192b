// How large errors are: what is gathered beside the steps of members abreast, and the bars that are made of it at the end,
// member by member. The formulas are those of members.hpp and posterior_at_times.hpp.
#pragma once

#include "carried_errors.hpp"
#include "kept.hpp"

namespace probode {
namespace PROBODE_ISA {

// sqrt(a² + b²). What is handed to a function that is not inlined by its place, a card keeps in memory all along, instead
// of in registers: such functions take numbers.
PROBODE_APART inline double distance_of(double a, double b) { return hypot(a, b); }

// A sum of squares, of which none overflows or vanishes.
struct SquaresAbreast {
  Number sum, rest;

  void begin() { sum = rest = same(0.0); }
  void add(Mask on, Number x) {
    const Number square = x * x;
    const Mask fits = squares_fit(square), odd = both(on, both(none_of(fits), x != same(0.0)));
    sum = choose(both(on, fits), sum + square, sum);
    if (any(odd)) rest = choose(odd, distance(rest, x), rest);
  }
  double root(int lane) const { return distance_of(sqrt(at(sum, lane)), at(rest, lane)); }
};

// Gathered along the steps: running means of errors, and what a transport is judged by.
struct GatheredMemory {
  Number *square, *low, *high, *largest;           // (d,)
  Number *least, *most;                            // (d,), of values with their errors taken off
  SquaresAbreast *unsettled, *values, *errors;     // (d,)
};

template <class S>
struct Gathered {
  S sizes;
  const Options& control;
  GatheredMemory m;
  Number count, misfit, extent_;

  void begin(const Number* mean) {
    const S s = sizes;
    count = misfit = same(0.0);
    PROBODE_UNROLL
    for (int a = 0; a < s.d; ++a) {
      m.square[a] = m.largest[a] = same(0.0);
      m.low[a] = m.high[a] = m.least[a] = m.most[a] = mean[a];
      m.unsettled[a].begin(), m.values[a].begin(), m.errors[a].begin();
    }
  }

  // A step that ended at `place`; its error, the first and second change of that, as `CarriedMemory` has them.
  void add(Mask on, const Place& place, Number coordinate, const CarriedMemory& carried) {
    const S s = sizes;
    const int size = s.n * s.width;
    count = choose(on, count + 1.0, count);
    Number sum = same(0.0), known = same(0.0);
    PROBODE_UNROLL
    for (int a = 0; a < s.d; ++a) {
      const int block = s.width > 1 || s.blocks == 1 ? 0 : a, column = s.width > 1 ? a : 0;
      const Number std = size_of(coordinate) * norm_of(place.factor + block * size * size + column, size, column + 1);
      const Mask has = std > same(1e-290);
      const Number ratio = at_most(at_least(carried.error[a] / choose(has, std, same(1.0)), same(-1e150)), same(1e150));
      sum += choose(has, ratio * ratio, same(0.0));
      known += choose(has, same(1.0), same(0.0));
    }
    const Number c = sum / at_least(known, same(1.0));
    misfit = choose(on, misfit + (c - misfit) / length(3, 2), misfit);
    const Number part = same(1.0) / length(1, 0), old = root_of(same(1.0) - part), added = root_of(part);
    PROBODE_UNROLL
    for (int a = 0; a < s.d; ++a) {
      const Number error = carried.error[a], correction = size_of(carried.second[a]);
      m.square[a] = choose(on, hypotenuse(old * m.square[a], added * error), m.square[a]);
      m.low[a] = choose(on, at_most(place.mean[a], m.low[a]), m.low[a]);
      m.high[a] = choose(on, at_least(place.mean[a], m.high[a]), m.high[a]);
      m.least[a] = choose(on, at_most(place.mean[a] - error, m.least[a]), m.least[a]);
      m.most[a] = choose(on, at_least(place.mean[a] - error, m.most[a]), m.most[a]);
      m.largest[a] = choose(on, larger_of(size_of(error), m.largest[a]), m.largest[a]);
      const Number ratio = correction / (size_of(carried.first[a]) + 1e-300);
      m.unsettled[a].add(on, correction * smaller_of(ratio, same(1.0)));
      m.values[a].add(on, place.mean[a]);
      m.errors[a].add(on, error);
    }
  }

  double extent(int a, int lane) const { return at(m.high[a], lane) - at(m.low[a], lane); }

  // convergence, rounding, size
  void signs(int lane, double* out) const {
    const S s = sizes;
    out[0] = out[1] = out[2] = 0.0;
    double floor = 0.0;
    PROBODE_UNROLL
    for (int a = 0; a < s.d; ++a) floor = greater(kQuiet * extent(a, lane), floor);
    PROBODE_UNROLL
    for (int a = 0; a < s.d; ++a) {
      const double top = at(m.largest[a], lane);
      if (!(top > 0.0)) continue;
      const bool loud = !(extent(a, lane) <= floor && top <= floor);
      const bool moves = loud && !(at(m.most[a], lane) - at(m.least[a], lane) <= kRests * extent(a, lane));
      if (loud) out[0] = greater(m.unsettled[a].root(lane) / (control.harmless * top), out[0]);
      const double rounding = kEps * sqrt(at(count, lane)) * m.values[a].root(lane);
      out[1] = greater(rounding / (m.errors[a].root(lane) + 1e-300), out[1]);
      if (moves && extent(a, lane) > 0.0) out[2] = greater(top / extent(a, lane), out[2]);
    }
  }

  static constexpr double kQuiet = 1e-11, kRests = 0.1;  // as in global_error/diagnosis.py
  static double greater(double a, double b) { return a > b || a != a ? a : b; }

 private:
  Number length(int least, int part) const {
    return at_most(count, at_least(same(control.windows[least]), control.windows[part] * count));
  }
};

// Columns of a row of what is noted at a save point: the solution with the error taken off (d), the misfit, squares of
// errors around (d); three to work with.
template <class S>
inline int noted_width(S s) { return 2 * s.d + 4; }

// The bars of one member, from what was noted of it: `note_around` and `calibrate` of members.hpp.
template <class S>
struct Bars {
  S sizes;
  const Options& control;
  const double* extent;  // of each component
  const Store& noted;
  int lane;
  const double* mean;
  double *std, *cov;  // of all save points
  long reached, times;

  // `spread`: what fixed diffusions multiply standard deviations by. Whether the estimate was lost.
  PROBODE_APART bool make(const double* spread) const {
    const S s = sizes;
    const int d = s.d;
    bool lost = false;
    if (s.calibrated && reached >= 2) around(spread);
    else if (s.calibrated && reached == 1) alone(spread);
    Misfit before{}, now = reached > 0 && s.calibrated ? misfit_of(0, spread) : Misfit{};
    for (long k = 0; k < reached; ++k) {
      const Misfit after = k + 1 < reached && s.calibrated ? misfit_of(k + 1, spread) : Misfit{};
      lost = lost || (s.calibrated && !now.known);
      const double members = before.known + now.known + after.known;
      const double around = (before.known ? before.c : 0.0) + (now.known ? now.c : 0.0) + (after.known ? after.c : 0.0);
      const double c = now.c, near = reached < 2 ? c : around / (members > 1.0 ? members : 1.0);
      before = now, now = after;
      double ratio[d], more[d];
      for (int a = 0; a < d; ++a) {
        ratio[a] = spread[a], more[a] = 0.0;
        if (s.calibrated) calibrate(k, a, c, near, std[k * d + a] * spread[a], spread[a], ratio[a], more[a]);
      }
      for (int a = 0; a < d; ++a) {
        std[k * d + a] = root(std[k * d + a] * ratio[a], more[a]);
        for (int b = 0; cov && b < d; ++b) {
          double& x = cov[(k * d + a) * d + b];
          x = x * ratio[a] * ratio[b] + (a == b ? more[a] * more[a] : 0.0);
        }
      }
    }
    return lost;
  }

 private:
  static constexpr double kTiny = 1e-290, kFar = 1e150;

  struct Misfit {
    double c;
    bool known;
  };

  // How far the model's scale is off at a save point whose `std` is still the model's, and whether there is an estimate.
  Misfit misfit_of(long k, const double* spread) const {
    const int d = sizes.d;
    double c = 0.0, varying = 0.0;
    bool known = true;
    for (int a = 0; a < d; ++a) {
      const double own = std[k * d + a] * spread[a];
      known = known && is_number(entry(k, a));
      if (!(own > kTiny)) continue;
      const double part = bounded((mean[k * d + a] - entry(k, a)) / own, kFar);
      c += part * part;
      varying += 1.0;
    }
    return {c / (varying > 1.0 ? varying : 1.0), known};
  }

  double& entry(long k, int column) const { return noted.of(lane, k, column); }
  static double bounded(double x, double by) { return x > by ? by : x < -by ? -by : x; }
  static double lesser(double a, double b) { return a < b || a != a ? a : b; }
  static constexpr double kQuiet = 1e-11, kRests = 0.1;  // as in global_error/diagnosis.py
  static double greater(double a, double b) { return a > b || a != a ? a : b; }
  static bool is_number(double x) { return fabs(x) <= 1.7976931348623157e308; }
  static double root(double a, double b) {
    const double sum = a * a + b * b;
    return sum > 1e-290 && sum < 1e290 ? sqrt(sum) : distance_of(a, b);
  }

  // The factor of the model's standard deviation `own`, or what takes its place where it has none.
  void calibrate(long k, int a, double c, double near_c, double own, double spread, double& ratio, double& more) const {
    const double misfit = entry(k, sizes.d), local = entry(k, sizes.d + 1 + a), value = mean[k * sizes.d + a];
    const double blended = c / 2.0 + lesser(misfit, 4.0 * near_c) / 2.0;
    const bool has = own > kTiny;
    const double size = fabs(value - entry(k, a)), near = root(size, local);
    double scale = size;
    if (has) {
      const double model = sqrt(blended / 2.0) * own;
      scale = root(sqrt(0.5) * size, near > 0.0 ? lesser(model, 1.5 * near) : model);
    }
    scale = root(lesser(greater(local, scale / 2.0), 2.0 * scale), control.doubt * local);
    if (has || scale != 0.0) scale = greater(scale, kEps * fabs(value));
    if (!is_number(scale)) scale = greater(extent[a], own);
    ratio = has ? scale / own * spread : spread;
    more = has ? 0.0 : scale;
  }

  // Errors around a single save point: no larger than the model says of its own step.
  void alone(const double* spread) const {
    const int d = sizes.d;
    for (int a = 0; a < d; ++a) {
      const double own = std[a] * spread[a];
      if (own > kTiny) entry(0, d + 1 + a) = lesser(entry(0, d + 1 + a), sqrt(entry(0, d)) * own);
    }
  }

  // What the errors at all save points say of those around each of them.
  void around(const double* spread) const {
    const S s = sizes;
    const int d = s.d, misfit = d, count = 2 * d + 3;
    const long n = reached;
    const long far = shorter(longer(2, static_cast<long>(0.02 * times)), n - 1);
    const long near = shorter(longer(1, static_cast<long>(0.1 * times)), n - 1);
    for (long k = 0; k < n; ++k) {
      double sum = 0.0, varying = 0.0;
      bool known = true;
      for (int a = 0; a < d; ++a) {
        const double error = mean[k * d + a] - entry(k, a), own = std[k * d + a] * spread[a];
        known = known && is_number(entry(k, a));
        entry(k, d + 1 + a) = fabs(error);
        if (!(own > kTiny)) continue;
        const double part = bounded(error / own, kFar);
        sum += part * part;
        varying += 1.0;
      }
      entry(k, misfit) = known ? sum / (varying > 1.0 ? varying : 1.0) : 0.0;
      for (int a = 0; a < d; ++a)
        if (!known) entry(k, d + 1 + a) = 0.0;
    }
    for (int round = 0; round < 2; ++round) {
      const long half = round == 0 ? far : near;
      for (long k = 0; k < n; ++k) {
        bool known = true;
        for (int a = 0; a < d; ++a) known = known && is_number(entry(k, a));
        entry(k, count) = known ? 1.0 : 0.0;
      }
      window(half, count, false);
      const int from = round == 0 ? misfit : d + 1, to = round == 0 ? d + 1 : 2 * d + 1;
      for (int column = from; column < to; ++column) {
        window(half, column, round == 1);
        for (long k = 0; k < n; ++k) {
          const double members = entry(k, count) > 1.0 ? entry(k, count) : 1.0;
          entry(k, column) /= round == 0 ? members : sqrt(members);
        }
      }
    }
    for (long k = 0; k < n; ++k)
      for (int a = 0; a < d; ++a)
        if (mean[k * d + a] == entry(k, a) && !(std[k * d + a] * spread[a] > kTiny)) entry(k, d + 1 + a) = 0.0;
  }

  static long longer(long a, long b) { return a > b ? a : b; }
  static long shorter(long a, long b) { return a < b ? a : b; }

  // A column replaced by sums over `half` neighbours on both sides, fewer at the ends; or by roots of sums of squares.
  // Of runs as long as a window, sums from their beginnings and to their ends are kept: a window is the end of one and
  // the beginning of the next.
  PROBODE_APART void window(long half, int column, bool squares) const {
    const int begun = 2 * sizes.d + 1, left = begun + 1;
    const long n = reached, run = 2 * half + 1;
    auto add = [&](double a, double b) { return squares ? root(a, b) : a + b; };
    for (long k = 0; k < n; ++k) {
      const double x = entry(k, column);
      entry(k, begun) = k % run == 0 ? x : add(entry(k - 1, begun), x);
    }
    for (long k = n - 1; k >= 0; --k) {
      const double x = entry(k, column);
      entry(k, left) = k == n - 1 || k % run == run - 1 ? x : add(entry(k + 1, left), x);
    }
    for (long k = 0; k < n; ++k) {
      const long from = longer(k - half, 0), to = shorter(k + half, n - 1);
      if (from / run != to / run) entry(k, column) = add(entry(from, left), entry(to, begun));
      else entry(k, column) = from % run == 0 ? entry(to, begun) : entry(from, left);
    }
  }
};

}  // namespace PROBODE_ISA
}  // namespace probode
