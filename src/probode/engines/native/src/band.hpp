// LU of a band matrix with row exchanges, and solving with it: for millions of rows and a few diagonals, where a call
// of BLAS for every column takes longer than its arithmetic.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace probode {
namespace PROBODE_ISA {

// Row i of `upper` has w = below + above + 1 numbers, those of the columns i - below .. i + above. Afterwards it is
// row i of U from the diagonal on, divided by it (which is inverted), `lower` has `below` multipliers for each column, and
// `exchanged` the row that took the place of each. The result: 0, or the number of the first row without a pivot.
inline long factorise_band(long n, int below, int above, double* upper, double* lower, int* exchanged) {
  const int w = below + above + 1;
  for (int i = 0; i < below && i < n; ++i) {  // what lies before the first column
    double* row = upper + static_cast<long>(i) * w;
    const int gone = below - i;
    std::memmove(row, row + gone, sizeof(double) * (w - gone));
    std::fill(row + w - gone, row + w, 0.0);
  }
  for (long k = 0; k < n; ++k) {
    double* pivot = upper + k * w;
    const int others = static_cast<int>(std::min<long>(below, n - 1 - k));
    int best = 0;
    for (int i = 1; i <= others; ++i)
      if (std::fabs(pivot[static_cast<long>(i) * w]) > std::fabs(pivot[static_cast<long>(best) * w])) best = i;
    exchanged[k] = best;
    if (best > 0) std::swap_ranges(pivot, pivot + w, pivot + static_cast<long>(best) * w);
    if (!(std::fabs(pivot[0]) > 0.0) || !std::isfinite(pivot[0])) return k + 1;
    const double inverse = 1.0 / pivot[0];
    for (int i = 1; i <= others; ++i) {
      double* row = pivot + static_cast<long>(i) * w;
      const double factor = row[0] * inverse;
      lower[k * below + i - 1] = factor;
      for (int j = 1; j < w; ++j) row[j - 1] = row[j] - factor * pivot[j];
      row[w - 1] = 0.0;
    }
    pivot[0] = inverse;
    for (int j = 1; j < w; ++j) pivot[j] *= inverse;  // what waits for the next value is then one product
  }
  return 0;
}

// With the bandwidths in the program where they are those of the usual discretisations (zero: they are not).
template <int Below, int Above>
void solve_band(long n, int some_below, int some_above, const double* upper, const double* lower, const int* exchanged,
                double* x) {
  const int below = Below ? Below : some_below, above = Above ? Above : some_above, w = below + above + 1;
  for (long k = 0; k < n; ++k) {
    if (exchanged[k] > 0) std::swap(x[k], x[k + exchanged[k]]);
    const double value = x[k];
    const int others = static_cast<int>(std::min<long>(below, n - 1 - k));
    const double* factors = lower + k * below;
    if (others == below)
      for (int i = 0; i < below; ++i) x[k + 1 + i] -= factors[i] * value;
    else
      for (int i = 0; i < others; ++i) x[k + 1 + i] -= factors[i] * value;
  }
  for (long k = n - 1; k >= 0; --k) {
    const double* row = upper + k * w;
    const int others = static_cast<int>(std::min<long>(w - 1, n - 1 - k));
    double value = x[k] * row[0];
    if (others == w - 1)
      for (int j = w - 1; j > 0; --j) value -= row[j] * x[k + j];
    else
      for (int j = others; j > 0; --j) value -= row[j] * x[k + j];
    x[k] = value;
  }
}

inline void solve_band_of(long n, int below, int above, const double* upper, const double* lower, const int* exchanged,
                          double* x) {
  auto solve = solve_band<0, 0>;
  if (below == above && below == 1) solve = solve_band<1, 1>;
  if (below == above && below == 2) solve = solve_band<2, 2>;
  if (below == above && below == 3) solve = solve_band<3, 3>;
  if (below == above && below == 4) solve = solve_band<4, 4>;
  solve(n, below, above, upper, lower, exchanged, x);
}

// The same where no row was exchanged: U is as narrow as the matrix was.
inline void solve_plain_band(long n, int below, int above, const double* upper, const double* lower, double* x) {
  const int w = below + above + 1;
  for (long k = 0; k < n; ++k) {
    const double value = x[k];
    const int others = static_cast<int>(std::min<long>(below, n - 1 - k));
    for (int i = 0; i < others; ++i) x[k + 1 + i] -= lower[k * below + i] * value;
  }
  for (long k = n - 1; k >= 0; --k) {
    const double* row = upper + k * w;
    const int others = static_cast<int>(std::min<long>(above, n - 1 - k));
    double value = x[k] * row[0];
    for (int j = others; j > 0; --j) value -= row[j] * x[k + j];
    x[k] = value;
  }
}

}  // namespace PROBODE_ISA
}  // namespace probode
