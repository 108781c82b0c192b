// What members of one problem have in common: sizes and kinds, the tables of the prior and of the transport, the control.
//
// On the host these are numbers. A program for a card is compiled for one problem: it defines `Sizes` with constants of
// the same names, and the tables, before it includes this.
#pragma once

#include "given.hpp"
#include "number.hpp"

namespace probode {
namespace PROBODE_ISA {

enum Follows { kFollowsNothing = 0, kFollowsDiagonal = 1, kFollowsAll = 2 };  // the Jacobian that a step reads
enum Carried { kByNewton = 0, kBySweeps = 1, kByDiagonalSweeps = 2 };         // how errors are transported

// as in base/status.py
constexpr double kGoing = 1.0, kArrived = 0.0, kStepTooSmall = -1.0, kValueNotFinite = -2.0;
constexpr double kNoRoom = -99.0;  // more steps than there is memory to look back over: to be solved again

#if !PROBODE_ON_CARD

// `n` derivatives of `d` components; `width` of them in a block of the covariance, of which there are `blocks`. `twice`:
// whether f is evaluated once more where the first evaluation has corrected y.
template <int known_n, int known_width>
struct SizesOf {
  static constexpr int n = known_n, width = known_width;
  int d, blocks, follows;
  bool fixed, multivariate, damped, twice, integral, smoothed, only_end, calibrated, covariance;
  int carried, stages, contact, rounds, middle, pairs;  // of the transport
};

template <>
struct SizesOf<0, 0> {
  int n, width, d, blocks, follows;
  bool fixed, multivariate, damped, twice, integral, smoothed, only_end, calibrated, covariance;
  int carried, stages, contact, rounds, middle, pairs;
};

// Tables as layout.py and global_error/native.py lay them out.
struct Tables {
  const double *transition, *noise, *weights;
  const double *nodes, *values, *slopes, *matrix, *ends, *inverse;
  const double *shift_re, *shift_im, *column_re, *column_im, *row_re, *row_im;
};

#endif

// ratio^(1-i), i = 0..n-1.
inline void powers_of(Number ratio, int n, Number* out) {
  const Number inverse = same(1.0) / ratio;
  Number power = same(1.0);
  out[0] = ratio;
  PROBODE_UNROLL
  for (int i = 1; i < n; ++i) {
    out[i] = power;
    power = power * inverse;
  }
}

// |ratio|^(q-1/2), q = n - 1.
inline Number noise_over(Number ratio, int n) {
  const Number size = size_of(ratio);
  Number power = root_of(size);
  PROBODE_UNROLL
  for (int i = 2; i < n; ++i) power = power * size;
  return power;
}

}  // namespace PROBODE_ISA
}  // namespace probode
