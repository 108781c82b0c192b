// Whole solves of members abreast: steps to the end, with the transport of errors beside them, then back through the rows
// that were kept, and the bars.
//
// What `filter/saving.py` does in bounded memory is done here with all steps of the members kept, and smoothed together;
// the transport goes along beside the filter, as in `global_error/beside.py`.
#pragma once

#include "bars.hpp"
#include "kept.hpp"
#include "look_back.hpp"

namespace probode {
namespace PROBODE_ISA {

template <class S, class Field, class Rows>
struct Solve {
  S sizes;
  Tables tables;
  const Options& control;
  const Given& given;
  Field& field;
  Rows& rows;          // of the steps
  const Store& noted;  // of the save points
  long first;          // of the first lane, in the order of the members
  int lanes;           // members that there are
  Mask backwards = mask(false);  // from t0 to t1
  Number upcoming = same(0.0);   // the next save point

  // How many numbers the list of the start gives: see `State` of layout.hpp. Some are of steps between two evaluations.
  static constexpr int between(S s) { return s.twice ? 2 + s.d + s.blocks * s.n : 0; }
  static constexpr int begun(S s) {
    const int size = s.n * s.width, sums = s.multivariate ? s.d : 1;
    return 1 + s.n * s.d + 11 + 3 * sums + between(s) + 2 + (s.multivariate && !s.fixed ? s.d : 1) + s.n * s.d +
           s.blocks * size * size;
  }

  void run() {
    const S s = sizes;
    const int d = s.d, nd = s.n * d, size = s.n * s.width, entries = s.blocks * size * size;
    Number now_scale[d], now_mean[nd], now_factor[entries], next_scale[d], next_mean[nd], next_factor[entries];
    Number predicted[nd], coords[s.n], rtol[d], atol[d], squares[d], fresh[d], gain[s.twice ? s.blocks * s.n : 1];
    const int linked = s.smoothed ? s.blocks * size * (size - s.width) : 1;
    Number turned[linked], taken[s.smoothed ? s.blocks * s.width * size : 1], innovation[s.smoothed ? d : 1];
    Number slopes[s.smoothed ? d * (s.follows == kFollowsAll ? d : 1) : 1], pivots[s.smoothed ? s.blocks : 1];
    Attempt<S> x{sizes, tables, control, {}, {}, predicted, coords, rtol, atol, squares, fresh, gain,
                 {turned, taken, innovation, slopes}, pivots};
    x.now = {same(0.0), same(0.0), now_scale, now_mean, now_factor};
    x.next = {same(0.0), same(0.0), next_scale, next_mean, next_factor};
    begin(x);

    const int stages = s.calibrated ? d * s.stages : 1, each = s.calibrated ? d : 1;
    Number error[each], slope[each], value[stages], tangent[stages], f_there[stages], at_stages[stages];
    Number change[stages], right[stages], moved[stages], first_change[each], second_change[each], before[each];
    Number slope_before[each];
    CarriedErrors<S, Field> carried{sizes, tables, control, field,
                                    {error, slope, value, tangent, f_there, at_stages, change, right, moved,
                                     first_change, second_change}};
    Number square[each], low[each], high[each], largest[each], least[each], most[each];
    SquaresAbreast unsettled[each], values[each], errors[each];
    Gathered<S> gathered{sizes, control, {square, low, high, largest, least, most, unsettled, values, errors}};
    if (s.calibrated) {
      carried.begin();
      gathered.begin(now_mean);
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) before[a] = slope_before[a] = same(0.0);
    }

    const bool keeps = s.smoothed && !s.only_end;
    Kept<S> kept{sizes};
    Number point = same(0.0);  // save points passed
    upcoming = time_of(mask(true), point);
    arrive(mask(true), x.now, x.now, carried, before, slope_before, gathered, point);
    long row = 0;  // of the last attempt; whoever did not take it is where it was
    if (keeps) {
      x.begin_links();
      keep(kept, row, x);
    }
    Mask going = x.going();
    Number f[d], jacobian[s.follows == kFollowsAll ? d * d : d];
    while (any(going)) {
      x.propose();
      if (s.follows == kFollowsNothing) field.value(x.t_next, predicted, f);
      else field.slopes(x.t_next, predicted, f, jacobian);
      const Mask takes = x.attempt(going, f, jacobian);
      if (any(takes)) {
        if (s.twice) {
          field.value(x.t_next, x.next.mean, f);
          x.correct_again(f);
        }
        if (s.calibrated) {
          PROBODE_UNROLL
          for (int a = 0; a < d; ++a) before[a] = error[a], slope_before[a] = slope[a];
          carried.step(takes, x.now, x.next);
          gathered.add(takes, x.next, x.coords[0], carried.m);
        }
        arrive(takes, x.now, x.next, carried, before, slope_before, gathered, point);
        x.take(takes);
        if (keeps && has_row(takes)) keep(kept, ++row, x);
      }
      going = x.going();
    }
    if (s.only_end && any(point > same(0.0))) {
      Number mean[d], unit[d], cov[s.blocks * s.width * s.width];
      const Seen seen{mean, unit, cov};
      LookBack<S>{sizes, tables}.at(x.now, nullptr, seen);
      write(point > same(0.0), same(0.0), seen);
    }
    if (keeps) back(kept, row, x, point);
    finish(x, carried, gathered, point);
  }

 private:
  // A row has a place for all members of a vector; on a card each has its own.
  static bool has_row(Mask takes) { return kAbreast > 1 || holds(takes, 0); }

  long member(int lane) const { return given.order ? given.order[first + lane] : first + lane; }
  bool is_there(int lane) const { return lane < lanes; }

  Number time_of(Mask on, Number point) const {
    Number time = same(0.0);
    for (int lane = 0; lane < kAbreast; ++lane) {
      const long k = static_cast<long>(at(point, lane));
      if (holds(on, lane) && is_there(lane) && k >= 0 && k < given.times)
        put(time, lane, given.save_at[member(lane) * given.save_stride + k]);
    }
    return time;
  }

  void begin(Attempt<S>& x) {
    const S s = sizes;
    const int d = s.d;
    Number at_start[d + 1], out[begun(s)];
    Number there = same(0.0);
    for (int lane = 0; lane < kAbreast; ++lane) {
      const long i = member(is_there(lane) ? lane : 0);
      put(there, lane, is_there(lane) ? 1.0 : 0.0);
      put(at_start[0], lane, given.t0[i * given.t0_stride]);
      put(x.t1, lane, given.t1[i * given.t1_stride]);
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        put(at_start[1 + a], lane, given.y0[i * given.y0_stride + a]);
        put(x.rtol[a], lane, given.rtol[i * given.rtol_stride + a * given.rtol_component]);
        put(x.atol[a], lane, given.atol[i * given.atol_stride + a * given.atol_component]);
      }
      field.take(lane, given.numbers + i * given.numbers_stride);
    }
    field.start(at_start, out);
    const Number* numbers = out + 1 + s.n * d;
    const int sums = s.multivariate ? d : 1, scales = x.scales();
    x.step = numbers[0], x.error = numbers[1];
    x.rejected = numbers[3] != same(0.0);
    x.status = choose(there != same(0.0), numbers[4], same(kArrived));
    x.attempted = numbers[5], x.accepted = numbers[6], x.reference = numbers[7];
    x.evidence_steps = numbers[10];
    PROBODE_UNROLL
    for (int k = 0; k < sums; ++k) x.squares[k] = numbers[11 + k];
    const Number* row = numbers + 11 + 3 * sums + between(s);
    backwards = x.t1 < row[0];
    x.now.t = row[0], x.now.h = row[1];
    PROBODE_UNROLL
    for (int k = 0; k < scales; ++k) x.now.scale[k] = row[2 + k];
    PROBODE_UNROLL
    for (int k = 0; k < s.n * d; ++k) x.now.mean[k] = row[2 + scales + k];
    PROBODE_UNROLL
    for (int k = 0; k < s.blocks * s.n * s.width * s.n * s.width; ++k)
      x.now.factor[k] = row[2 + scales + s.n * d + k];
  }

  void keep(const Kept<S>& kept, long row, Attempt<S>& x) {
    if (rows.make_room(row)) kept.put(rows.store, row, x.now, x.link);
    else x.status = choose(x.status == same(kGoing), same(kNoRoom), x.status);
  }

  // Save points in a step that is taken, one after the other: what the transport says there; where nothing is smoothed,
  // the marginal.
  void arrive(Mask takes, const Place& left, const Place& right, const CarriedErrors<S, Field>& carried,
              const Number* before, const Number* slope_before, const Gathered<S>& gathered, Number& point) {
    const S s = sizes;
    while (true) {
      const Mask more = both(takes, point < same(double(given.times)));
      const Number time = upcoming;
      const Mask beyond = choose_mask(backwards, time < right.t, time > right.t);
      const Mask passed = both(more, none_of(beyond));
      if (!any(passed)) return;
      if (s.calibrated) note(passed, left, right, time, carried, before, slope_before, gathered, point);
      if (!s.smoothed && !s.only_end) marginal(passed, left, right, time, point);
      point = choose(passed, point + 1.0, point);
      upcoming = choose(passed, time_of(passed, point), upcoming);
    }
  }

  void note(Mask on, const Place& left, const Place& right, Number t, const CarriedErrors<S, Field>& carried,
            const Number* before, const Number* slope_before, const Gathered<S>& gathered, Number point) {
    const S s = sizes;
    const int d = s.d, count = s.stages;
    const Number h = right.t - left.t;
    const Mask still = h == same(0.0);
    const Number tau = choose(still, same(0.0), (t - left.t) / choose(still, same(1.0), h));
    const bool ends = tables.nodes[count - 1] != 1.0;  // Gauss: the end is no stage
    const int points = count + 1 + (ends ? 1 : 0);
    auto place = [&](int j) { return j == 0 ? 0.0 : j <= count ? tables.nodes[j - 1] : 1.0; };
    Number out[2 * s.d + 1];
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {  // the cubic through values and slopes
      const Number jump = right.mean[a] - left.mean[a], one = h * left.mean[d + a], two = h * right.mean[d + a];
      out[a] = left.mean[a] + tau * (one + tau * ((3.0 * jump - 2.0 * one - two) + tau * (one + two - 2.0 * jump)));
    }
    const bool bends = s.carried == kByNewton;
    double where[s.stages + 2], bend[s.stages + 2];
    PROBODE_UNROLL
    for (int j = 0; j < points; ++j) where[j] = place(j);
    if (bends) bend_of(where + 1, count, bend);
    const Number bent = bends ? bent_by(bend, count, tau) : same(0.0);
    PROBODE_UNROLL
    for (int j = 0; j < points; ++j) {  // and that of the error through its stages
      Number weight = same(1.0);
      PROBODE_UNROLL
      for (int i = 0; i < points; ++i)
        if (i != j) weight = weight * ((tau - place(i)) / (place(j) - place(i)));
      if (bends) weight -= bent * slope_at_start(where, points - 1, j);
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        const Number error = j == 0 ? before[a]
                             : j == points - 1 ? carried.m.error[a]
                                               : carried.m.stages[a * count + j - 1];
        out[a] -= choose(still, same(0.0), weight * error);
      }
    }
    if (bends) {  // with its slope at the left end
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) out[a] -= choose(still, same(0.0), bent * h * slope_before[a]);
    }
    out[d] = gathered.misfit;
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) out[d + 1 + a] = gathered.m.square[a];
    noted.put(on, point, out, 0, 2 * d + 1);
  }

  // What the filter says of a time in a step.
  void marginal(Mask on, const Place& left, const Place& right, Number t, Number point) {
    const S s = sizes;
    Number mean[s.d], unit[s.d], cov[s.blocks * s.width * s.width];
    const Seen seen{mean, unit, cov};
    const LookBack<S> look{sizes, tables};
    const Mask at_end = t == right.t, ends = both(on, at_end), within = both(on, none_of(at_end));
    if (any(ends)) {
      look.at(right, nullptr, seen);
      write(ends, point, seen);
    }
    if (!any(within)) return;
    const Number part = choose(within, t - left.t, right.h);
    look.between(left, right, part, right.t - t, right.scale, nullptr, nullptr, seen);
    write(within, point, seen);
  }

  // Mean, standard deviation and covariance of y as those of save point `point`.
  void write(Mask on, Number point, const Seen& seen) {
    const S s = sizes;
    const int d = s.d, w = s.width;
    Number std[d];
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a)
      std[a] = seen.unit[a] * root_of(seen.cov[w > 1 ? a * w + a : s.blocks > 1 ? a : 0]);
    for (int lane = 0; lane < kAbreast; ++lane) {
      if (!holds(on, lane) || !is_there(lane)) continue;
      const long row = (member(lane) * given.times + static_cast<long>(at(point, lane))) * d;
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        given.mean[row + a] = at(seen.mean[a], lane);
        given.std[row + a] = at(std[a], lane);
      }
      if (!s.covariance) continue;
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        PROBODE_UNROLL
        for (int b = 0; b < d; ++b) {
          double entry = 0.0;
          if (a == b) entry = at(std[a], lane) * at(std[a], lane);
          else if (w > 1) entry = at(seen.unit[a], lane) * at(seen.cov[a * w + b], lane) * at(seen.unit[b], lane);
          given.cov[(row + a) * d + b] = entry;
        }
      }
    }
  }

  // From the last row to the first that is asked for. Each member goes at its own pace to its next save point, where it waits
  // for the others: what is done there is done for all of them at once.
  void back(const Kept<S>& kept, long top, const Attempt<S>& x, Number reached) {
    const S s = sizes;
    const int d = s.d, nd = s.n * d, w = s.width, size = s.n * w, entries = s.blocks * size * size;
    const int m = size - w, means = w == 1 && s.blocks == 1 ? m * d : s.blocks * m;  // a mean for each component
    const LookBack<S> look{sizes, tables};
    Number mu[means], information[s.blocks * m * m];
    PROBODE_UNROLL
    for (int i = 0; i < means; ++i) mu[i] = same(0.0);
    PROBODE_UNROLL
    for (int i = 0; i < s.blocks * m * m; ++i) information[i] = same(0.0);
    const Later later{mu, information};
    Number turned[s.blocks * size * m], taken[s.blocks * w * size], innovation[d], slopes[s.follows == kFollowsAll ? d * d : d];
    Link link{turned, taken, innovation, slopes};
    const Mask fits = x.status != same(kNoRoom);
    Number point = choose(fits, reached - 1.0, same(-1.0)), row = same(double(top < rows.most ? top : rows.most - 1));
    Number time = time_of(point >= same(0.0), point);
    while (true) {
      const Mask on = point >= same(0.0);
      if (!any(on)) return;
      const Store::Reading right_row = rows.store.read(row), left_row = rows.store.read(at_least(row - 1.0, same(0.0)));
      const Mask first = row == same(0.0), inside = choose_mask(backwards, time < left_row[0], time > left_row[0]);
      const Mask waits = either(first, inside), goes = both(on, none_of(waits));
      kept.get(right_row, link);
      if (any(goes)) {
        look.over(goes, link, later);
        row = choose(goes, row - 1.0, row);
        continue;
      }
      Number right_scale[d], right_mean[nd], right_factor[entries], left_scale[d], left_mean[nd], left_factor[entries];
      Number mean[d], unit[d], cov[s.blocks * w * w];
      const Seen seen{mean, unit, cov};
      Place right{same(0.0), same(0.0), right_scale, right_mean, right_factor};
      Place left{same(0.0), same(0.0), left_scale, left_mean, left_factor};
      kept.get(right_row, right);
      const Mask at_end = either(first, time == right.t), ends = both(on, at_end), within = both(on, none_of(at_end));
      if (any(ends)) {
        look.at(right, &later, seen);
        write(ends, point, seen);
      }
      if (any(within)) {
        kept.get(left_row, left);
        kept.get_more(right_row, link);
        const Number part = choose(within, time - left.t, right.h);
        look.between(left, right, part, choose(within, right.t - time, same(0.0)), right_scale, &link, &later, seen);
        write(within, point, seen);
      }
      point = choose(on, point - 1.0, point);
      time = time_of(point >= same(0.0), point);
    }
  }

  void finish(const Attempt<S>& x, const CarriedErrors<S, Field>& carried, const Gathered<S>& gathered, Number reached) {
    const S s = sizes;
    const int d = s.d;
    for (int lane = 0; lane < kAbreast; ++lane) {
      if (!is_there(lane)) continue;
      const long i = member(lane), here = static_cast<long>(at(reached, lane));
      double *mean = given.mean + i * given.times * d, *std = given.std + i * given.times * d;
      double* cov = s.covariance ? given.cov + i * given.times * d * d : nullptr;
      auto note = [&](int k) -> double& { return given.notes[k * given.count + i]; };
      note(0) = at(x.status, lane), note(1) = at(x.attempted, lane), note(2) = at(x.accepted, lane);
      for (int k = 3; k < kNotes; ++k) note(k) = 0.0;
      for (long k = here * d; k < given.times * d; ++k) mean[k] = std[k] = nan("");
      for (long k = here * d * d; cov && k < given.times * d * d; ++k) cov[k] = nan("");
      if (note(0) == kNoRoom) continue;
      // A step is judged before its update: one whose update overflows is found out in the next, if there is one.
      for (long k = 0; k < here * d && note(0) == kArrived; ++k)
        if (!(fabs(mean[k]) <= 1.7976931348623157e308)) note(0) = kValueNotFinite;
      double spread[d];
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) spread[a] = 1.0;
      if (s.fixed) {
        const double steps = at(x.evidence_steps, lane), least = steps > 1.0 ? steps : 1.0;
        const double all = d * steps > 1.0 ? d * steps : 1.0;
        PROBODE_UNROLL
        for (int a = 0; a < d; ++a)
          spread[a] = s.multivariate ? sqrt(at(x.squares[a], lane) / least) : sqrt(at(x.squares[0], lane) / all);
      }
      if (s.calibrated) {
        note(3) = at(carried.corrections, lane), note(4) = at(carried.repeats, lane);
        double signs[3];
        gathered.signs(lane, signs);
        for (int k = 0; k < 3; ++k) note(5 + k) = signs[k];
      }
      if (!s.fixed && !s.calibrated) continue;
      double extent[d];
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) extent[a] = s.calibrated ? gathered.extent(a, lane) : 0.0;
      const Bars<S> bars{sizes, control, extent, noted, lane, mean, std, cov, here, given.times};
      note(8) = bars.make(spread) ? 1.0 : 0.0;
    }
  }

};

}  // namespace PROBODE_ISA
}  // namespace probode
