// Whole solves of members abreast: steps to the end, with the transport of errors beside them, then back through the rows
// that were kept, and the bars.
//
// What `filter/saving.py` does in bounded memory is done here with all steps of the members kept, and smoothed together;
// the transport goes along beside the filter, as in `global_error/beside.py`.
#pragma once

#include "bars.hpp"
#include "look_back.hpp"

namespace probode {
namespace PROBODE_ISA {

// What is kept of a step: t, h, scales, mean, and the factor without the rows of y', which are zero.
template <class S>
struct Kept {
  S sizes;

  int head() const {
    const S s = sizes;
    return 2 + (s.multivariate && !s.fixed ? s.d : 1) + s.n * s.d;
  }
  int width() const {
    const S s = sizes;
    const int w = s.width, size = s.n * w, above = size - 2 * w;
    return head() + s.blocks * (size * w - w * (w - 1) / 2 + above * (above + 1) / 2);
  }

  void put(const Store& rows, long row, const Place& place) const {
    const S s = sizes;
    const int scales = s.multivariate && !s.fixed ? s.d : 1, size = s.n * s.width;
    rows.put(row, &place.t, 0, 1);
    rows.put(row, &place.h, 1, 1);
    rows.put(row, place.scale, 2, scales);
    rows.put(row, place.mean, 2 + scales, s.n * s.d);
    int to = head();
    for (int block = 0; block < s.blocks; ++block) {
      const Number* factor = place.factor + block * size * size;
      PROBODE_UNROLL
      for (int r = 0; r < size; ++r) {
        if (r >= s.width && r < 2 * s.width) continue;
        rows.put(row, factor + r * size + r, to, size - r);
        to += size - r;
      }
    }
  }

  // The row of each member.
  void get(const Store& rows, Number row, Place& place) const {
    const S s = sizes;
    const int scales = s.multivariate && !s.fixed ? s.d : 1, size = s.n * s.width;
    const Store::Reading kept = rows.read(row);
    place.t = kept[0], place.h = kept[1];
    PROBODE_UNROLL
    for (int k = 0; k < scales; ++k) place.scale[k] = kept[2 + k];
    PROBODE_UNROLL
    for (int k = 0; k < s.n * s.d; ++k) place.mean[k] = kept[2 + scales + k];
    int from = head();
    for (int block = 0; block < s.blocks; ++block) {
      Number* factor = place.factor + block * size * size;
      PROBODE_UNROLL
      for (int r = 0; r < size; ++r) {
        PROBODE_UNROLL
        for (int c = r; c < size; ++c)
          factor[r * size + c] = r >= s.width && r < 2 * s.width ? same(0.0) : kept[from++];
      }
    }
  }
};

template <class S, class Field, class Rows>
struct Solve {
  S sizes;
  Tables tables;
  const Options& control;
  const Given& given;
  Field& field;
  Rows& rows;          // of the steps
  const Store& noted;  // of the save points
  long first;          // member of the first lane
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
    Attempt<S> x{sizes, tables, control, {}, {}, predicted, coords, rtol, atol, squares, fresh, gain};
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
    Number square[each], low[each], high[each], largest[each];
    SquaresAbreast unsettled[each], values[each], errors[each];
    Gathered<S> gathered{sizes, control, {square, low, high, largest, unsettled, values, errors}};
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
    if (keeps) keep(kept, row, x);
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
    if (s.only_end && any(point > same(0.0))) write(point > same(0.0), same(0.0), x.now);
    if (keeps) back(kept, row, x, point);
    finish(x, carried, gathered, point);
  }

 private:
  // A row has a place for all members of a vector; on a card each has its own.
  static bool has_row(Mask takes) { return kAbreast > 1 || holds(takes, 0); }

  long member(int lane) const { return first + lane; }
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
    if (rows.make_room(row)) kept.put(rows.store, row, x.now);
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
    const int nd = s.n * s.d, size = s.n * s.width, entries = s.blocks * size * size;
    const Mask at_end = t == right.t;
    if (any(both(on, at_end))) write(both(on, at_end), point, right);
    const Mask within = both(on, none_of(at_end));
    if (!any(within)) return;
    const Number step = right.t - left.t, whole = choose(step == same(0.0), same(1.0), step);
    const Number length = choose(within, t - left.t, whole);
    Number scale[s.d], inside_mean[nd], inside_factor[entries];
    const Place inside{left.t + length, length, scale, inside_mean, inside_factor};
    LookBack<S>{sizes, tables}.inside(left, whole, right.scale, inside);
    write(within, point, inside);
  }

  // Mean, standard deviation and covariance of y at a place, as those of save point `point`.
  void write(Mask on, Number point, const Place& place) {
    const S s = sizes;
    const int d = s.d, w = s.width, size = s.n * w;
    Number coords[s.n];
    coordinates_of(s, tables, place.h, coords);
    const Number unit = size_of(coords[0]);
    Number std[d];
    PROBODE_UNROLL
    for (int a = 0; a < d; ++a) {
      const int block = w > 1 || s.blocks == 1 ? 0 : a, column = w > 1 ? a : 0;
      std[a] = unit * norm_of(place.factor + block * size * size + column, size, column + 1);
    }
    for (int lane = 0; lane < kAbreast; ++lane) {
      if (!holds(on, lane) || !is_there(lane)) continue;
      const long row = (member(lane) * given.times + static_cast<long>(at(point, lane))) * d;
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        given.mean[row + a] = at(place.mean[a], lane);
        given.std[row + a] = at(std[a], lane);
      }
      if (!s.covariance) continue;
      PROBODE_UNROLL
      for (int a = 0; a < d; ++a) {
        PROBODE_UNROLL
        for (int b = 0; b < d; ++b) {
          double sum = 0.0;
          if (w > 1) {
            PROBODE_UNROLL
            for (int r = 0; r < w; ++r)
              if (r <= a && r <= b)
                sum += at(unit, lane) * at(place.factor[r * size + a], lane) * at(unit, lane) *
                       at(place.factor[r * size + b], lane);
          } else if (a == b) {
            sum = at(std[a], lane) * at(std[a], lane);
          }
          given.cov[(row + a) * d + b] = sum;
        }
      }
    }
  }

  // From the last row to the first that is asked for. Each member goes at its own pace: what comes next is a save point
  // inside of a step, or the whole step.
  void back(const Kept<S>& kept, long top, const Attempt<S>& x, Number reached) {
    const S s = sizes;
    const int d = s.d, nd = s.n * d, size = s.n * s.width, entries = s.blocks * size * size, scales = x.scales();
    const LookBack<S> look{sizes, tables};
    Number right_scale[s.d], right_mean[nd], right_factor[entries], left_scale[s.d], left_mean[nd], left_factor[entries];
    Number mean[nd], factor[entries], new_mean[nd], new_factor[entries];
    const Mask fits = x.status != same(kNoRoom);
    Number point = choose(fits, reached - 1.0, same(-1.0)), row = same(double(top < rows.most ? top : rows.most - 1));
    Place right{same(0.0), same(0.0), right_scale, right_mean, right_factor};
    Place left{same(0.0), same(0.0), left_scale, left_mean, left_factor};
    kept.get(rows.store, row, right);
    copy(right_mean, mean, nd);
    copy(right_factor, factor, entries);
    while (true) {
      Number time = same(0.0);
      while (true) {  // on the right, or on the first row
        const Mask on = point >= same(0.0);
        if (!any(on)) return;
        time = time_of(on, point);
        const Mask here = both(on, either(time == right.t, row == same(0.0)));
        if (!any(here)) break;
        write(here, point, {right.t, right.h, right_scale, mean, factor});
        point = choose(here, point - 1.0, point);
      }
      const Mask on = point >= same(0.0);
      row = choose(on, row - 1.0, row);
      kept.get(rows.store, row, left);
      const Mask within = both(on, choose_mask(backwards, time < left.t, time > left.t));
      const Mask still = left.t == right.t;  // of an attempt that was not taken, or without a step to go
      const Number step = choose(still, same(1.0), right.t - left.t);
      const bool some = any(within);
      if (some || PROBODE_ON_CARD) {  // the program for a card has this once
        Number from_scale[s.d], from_mean[nd], from_factor[entries];
        copy(right_scale, from_scale, scales);
        copy(left_mean, from_mean, nd);
        copy(left_factor, from_factor, entries);
        Number length = left.h, rest = step;
        if (some) {
          Number inside_scale[s.d], inside_mean[nd], inside_factor[entries];
          const Number part = choose(within, time - left.t, step);
          length = choose(within, part, left.h), rest = choose(within, right.t - time, step);
          look.inside(left, step, right_scale, {left.t + part, part, inside_scale, inside_mean, inside_factor});
          look.part_of(right_scale, rest / step, inside_scale);
          choose_all(within, inside_scale, from_scale, from_scale, scales);
          choose_all(within, inside_mean, from_mean, from_mean, nd);
          choose_all(within, inside_factor, from_factor, from_factor, entries);
        }
        const Place from{time, length, from_scale, from_mean, from_factor};
        look.template back<true>(from, rest, right.h, from_scale, mean, factor, new_mean, new_factor);
        if (some) write(within, point, {time, length, from_scale, new_mean, new_factor});
        point = choose(within, point - 1.0, point);
        row = choose(within, row + 1.0, row);
      } else {
        look.template back<false>(left, step, right.h, right_scale, mean, factor, new_mean, new_factor);
      }
      const Mask moves = both(on, none_of(within)), changes = both(moves, none_of(still));
      choose_all(changes, new_mean, mean, mean, nd);
      choose_all(changes, new_factor, factor, factor, entries);
      right.t = choose(moves, left.t, right.t), right.h = choose(moves, left.h, right.h);
      choose_all(moves, left_scale, right_scale, right_scale, scales);
    }
  }

  static void copy(const Number* from, Number* to, int count) {
    PROBODE_UNROLL
    for (int i = 0; i < count; ++i) to[i] = from[i];
  }
  static void choose_all(Mask m, const Number* a, const Number* b, Number* out, int count) {
    PROBODE_UNROLL
    for (int i = 0; i < count; ++i) out[i] = choose(m, a[i], b[i]);
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
