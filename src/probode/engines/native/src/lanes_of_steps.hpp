// Lanes whose numbers belong to different steps: how they are filled, and what is done with matrices of them.
#pragma once

#include "gram.hpp"
#include "operations.hpp"

namespace probode {
namespace PROBODE_ISA {

constexpr int kSteps = kLane;
typedef decltype(Lane{} < Lane{}) Mask;

// How many steps are fine before the first that is not.
inline int leading(Mask fine) {
  int l = 0;
  while (l < kSteps && fine[l]) ++l;
  return l;
}

inline Mask all_fine() { return Lane{} == Lane{}; }

inline Mask representable(Lane square) { return (square > 1e-200) & (square < 1e200); }

inline Lane gather(const double* const (&from)[kSteps], long at) {
  return Lane{from[0][at], from[1][at], from[2][at], from[3][at]};
}

// The largest magnitude.
inline double largest(const double* x, long size) {
  Lane most = {};
  long k = 0;
  for (; k + kLane <= size; k += kLane) most = larger(magnitude(load(x + k)), most);
  double result = 0.0;
  for (int c = 0; c < kLane; ++c) result = larger(result, most[c]);
  for (; k < size; ++k) result = larger(result, std::fabs(x[k]));
  return result;
}

inline void turn_lanes(Lane a, Lane b, Lane c, Lane d, Lane (&out)[kSteps]) {
  static_assert(kSteps == 4, "a tile is four lanes");
  const Lane ab_even = {a[0], b[0], a[2], b[2]}, ab_odd = {a[1], b[1], a[3], b[3]};
  const Lane cd_even = {c[0], d[0], c[2], d[2]}, cd_odd = {c[1], d[1], c[3], d[3]};
  out[0] = Lane{ab_even[0], ab_even[1], cd_even[0], cd_even[1]};
  out[1] = Lane{ab_odd[0], ab_odd[1], cd_odd[0], cd_odd[1]};
  out[2] = Lane{ab_even[2], ab_even[3], cd_even[2], cd_even[3]};
  out[3] = Lane{ab_odd[2], ab_odd[3], cd_odd[2], cd_odd[3]};
}

// Four numbers in a row of each step, to lanes.
inline void turn(const double* const (&from)[kSteps], long at, Lane* out) {
  Lane turned[kSteps];
  turn_lanes(load(from[0] + at), load(from[1] + at), load(from[2] + at), load(from[3] + at), turned);
  for (int i = 0; i < kSteps; ++i) out[i] = turned[i];
}

// Lanes a `stride` apart, to four numbers in a row of each step.
inline void turn(const Lane* from, int stride, double* const (&to)[kSteps], long at) {
  Lane turned[kSteps];
  turn_lanes(from[0], from[stride], from[2 * stride], from[3 * stride], turned);
  for (int l = 0; l < kSteps; ++l) store(to[l] + at, turned[l]);
}

// Rows z U⁻¹ in place, U an upper triangle whose pivots' inverses are given. Two columns at a time, so that
// the sums of a few rows are enough not to wait for each other.
template <int rows>
inline void divide_rows(Lane* z, const Lane* u, const Lane* inverse, int size, int stride) {
  for (int c = 0; c < size; c += 2) {
    Lane sum[rows][2];
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < 2; ++j) sum[i][j] = z[i * stride + c + j];
    for (int e = 0; e < c; ++e)
      for (int i = 0; i < rows; ++i)
        for (int j = 0; j < 2; ++j) sum[i][j] -= z[i * stride + e] * u[e * stride + c + j];
    for (int i = 0; i < rows; ++i) {
      sum[i][0] *= inverse[c];
      z[i * stride + c] = sum[i][0];
      z[i * stride + c + 1] = (sum[i][1] - sum[i][0] * u[c * stride + c + 1]) * inverse[c + 1];
    }
  }
}

}  // namespace PROBODE_ISA
}  // namespace probode
