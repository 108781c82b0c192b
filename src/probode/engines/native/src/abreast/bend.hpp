// Errors inside of a step, where their slope at its left end is known besides the stages.
#pragma once

namespace probode {
namespace PROBODE_ISA {

// B(τ) = b_1 τ + ... + b_(s+1) τ^(s+1), what a slope of one at τ = 0 adds to the error inside of a step where those at the
// nodes are to stay; see `Collocation.bend` of global_error/stages.py.
inline void bend_of(const double* nodes, int s, double* b) {
  b[0] = 1.0;
  for (int k = 1; k <= s; ++k) b[k] = 0.0;
  for (int i = 0; i < s; ++i)
    for (int k = i + 1; k >= 1; --k) b[k] -= b[k - 1] / nodes[i];  // times 1 - x/c_i
  for (int k = s; k >= 0; --k) b[k + 1] = b[k] / (k + 1);
  b[0] = 0.0;
}

template <class T>
inline T bent_by(const double* b, int s, T tau) {
  T sum = tau * b[s + 1];
  for (int k = s; k >= 1; --k) sum = tau * (sum + b[k]);
  return sum;
}

// The slope at the first of the points 0, ..., `last` of the polynomial that is one at point j, zero at the others.
inline double slope_at_start(const double* points, int last, int j) {
  double slope = j == 0 ? 0.0 : 1.0 / points[j];
  for (int i = 1; i <= last; ++i) {
    if (j == 0) slope -= 1.0 / points[i];
    else if (i != j) slope *= points[i] / (points[i] - points[j]);
  }
  return slope;
}

}  // namespace PROBODE_ISA
}  // namespace probode
