// What is kept of members abreast: rows of numbers, and what a row of a step holds.
#pragma once

#include "attempt.hpp"

namespace probode {
namespace PROBODE_ISA {

// Numbers of the members in rows, as many as there is room for: a row of every member has a place of its own.
struct Store {
  double* first;  // on a card: of this thread
  long stride;    // from one number of a member to the next
  int width;      // numbers of a row

  double& of(int lane, long row, int entry) const { return first[(row * width + entry) * stride + lane]; }

  // A row of each member, to be read.
  struct Reading {
    const double* from[kAbreast];
    long stride;

    Number operator[](int entry) const {
      Number x = same(0.0);
      PROBODE_UNROLL
      for (int lane = 0; lane < kAbreast; ++lane) PROBODE_ISA::put(x, lane, from[lane][entry * stride]);
      return x;
    }
  };

  Reading read(Number row) const {
    Reading found{{}, stride};
    PROBODE_UNROLL
    for (int lane = 0; lane < kAbreast; ++lane) found.from[lane] = &of(lane, static_cast<long>(at(row, lane)), 0);
    return found;
  }

  // Numbers of the same row of all members.
  void put(long row, const Number* x, int from, int count) const {
#if PROBODE_ON_CARD
    PROBODE_UNROLL
    for (int i = 0; i < count; ++i) of(0, row, from + i) = x[i];
#else
    std::memcpy(first + (row * width + from) * kAbreast, x, sizeof(Number) * count);
#endif
  }

  // Numbers of rows that each member has for itself.
  void put(Mask on, Number row, const Number* x, int from, int count) const {
    for (int lane = 0; lane < kAbreast; ++lane) {
      if (!holds(on, lane)) continue;
      const long own = static_cast<long>(at(row, lane));
      PROBODE_UNROLL
      for (int i = 0; i < count; ++i) of(lane, own, from + i) = at(x[i], lane);
    }
  }
};

// What is kept of a step: t, h, scales, mean, the factor without the rows of y', which are zero, and its link.
template <class S>
struct Kept {
  S sizes;

  int mean() const {
    const S s = sizes;
    return 2 + (s.multivariate && !s.fixed ? s.d : 1);
  }
  int factor() const {
    const S s = sizes;
    return mean() + s.n * s.d;
  }
  int turned() const {
    const S s = sizes;
    const int w = s.width, size = s.n * w, above = size - 2 * w;
    return factor() + s.blocks * (size * w - w * (w - 1) / 2 + above * (above + 1) / 2);
  }
  int innovation() const {
    const S s = sizes;
    const int w = s.width, size = s.n * w;
    return turned() + s.blocks * size * (size - w);
  }
  int taken() const {
    const S s = sizes;
    return innovation() + s.d;
  }
  int jacobian() const {
    const S s = sizes;
    return taken() + s.blocks * s.width * s.n * s.width;
  }
  int slopes() const {
    const S s = sizes;
    return s.follows == kFollowsAll ? s.d * s.d : s.follows == kFollowsDiagonal ? s.d : 0;
  }
  int width() const { return jacobian() + slopes(); }

  void put(const Store& rows, long row, const Place& place, const Link& link) const {
    const S s = sizes;
    const int w = s.width, size = s.n * w;
    rows.put(row, &place.t, 0, 1);
    rows.put(row, &place.h, 1, 1);
    rows.put(row, place.scale, 2, mean() - 2);
    rows.put(row, place.mean, mean(), s.n * s.d);
    int to = factor();
    for (int block = 0; block < s.blocks; ++block) {
      const Number* own = place.factor + block * size * size;
      PROBODE_UNROLL
      for (int r = 0; r < size; ++r) {
        if (r >= w && r < 2 * w) continue;
        rows.put(row, own + r * size + r, to, size - r);
        to += size - r;
      }
    }
    rows.put(row, link.turned, turned(), s.blocks * size * (size - w));
    rows.put(row, link.innovation, innovation(), s.d);
    rows.put(row, link.taken, taken(), s.blocks * w * size);
    rows.put(row, link.jacobian, jacobian(), slopes());
  }

  // What a step is looked back over with.
  void get(const Store::Reading& row, Link& link) const {
    const S s = sizes;
    const int size = s.n * s.width;
    take(row, turned(), s.blocks * size * (size - s.width), link.turned);
    take(row, innovation(), s.d, link.innovation);
  }
  // And the rest of it.
  void get_more(const Store::Reading& row, Link& link) const {
    const S s = sizes;
    take(row, taken(), s.blocks * s.width * s.n * s.width, link.taken);
    take(row, jacobian(), slopes(), link.jacobian);
  }
  void get(const Store::Reading& row, Place& place) const {
    const S s = sizes;
    const int size = s.n * s.width;
    place.t = row[0], place.h = row[1];
    take(row, 2, mean() - 2, place.scale);
    take(row, mean(), s.n * s.d, place.mean);
    int from = factor();
    for (int block = 0; block < s.blocks; ++block) {
      Number* own = place.factor + block * size * size;
      PROBODE_UNROLL
      for (int r = 0; r < size; ++r) {
        PROBODE_UNROLL
        for (int c = r; c < size; ++c) own[r * size + c] = r >= s.width && r < 2 * s.width ? same(0.0) : row[from++];
      }
    }
  }

 private:
  static void take(const Store::Reading& row, int from, int count, Number* out) {
    PROBODE_UNROLL
    for (int i = 0; i < count; ++i) out[i] = row[from + i];
  }
};

}  // namespace PROBODE_ISA
}  // namespace probode
