// The density of a Gaussian vector from its covariance: log det, C⁻¹ z, and C⁻¹.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "common.hpp"

namespace probode {
namespace PROBODE_ISA {

// C = UᵀU in place (rows of the upper triangle), then, where `inverse` is wanted, C⁻¹ = U⁻¹ U⁻ᵀ. log det C and C⁻¹ z go to
// `out`, NaN where C is not positive definite.
inline void gaussian(long size, double* c, const double* z, double* log_det, double* solution, double* inverse) {
  double sum = 0.0;
  for (long k = 0; k < size; ++k) {
    double* row = c + k * size;
    const double pivot = std::sqrt(row[k]);  // NaN goes on to the result
    sum += 2.0 * std::log(pivot);
    for (long j = k; j < size; ++j) row[j] /= pivot;
    for (long i = k + 1; i < size; ++i) {
      const double weight = row[i];
      double* target = c + i * size;
      for (long j = i; j < size; ++j) target[j] -= weight * row[j];
    }
  }
  *log_det = sum;
  std::copy(z, z + size, solution);
  for (long k = 0; k < size; ++k) {  // Uᵀ w = z
    const double* row = c + k * size;
    solution[k] /= row[k];
    for (long j = k + 1; j < size; ++j) solution[j] -= solution[k] * row[j];
  }
  for (long k = size - 1; k >= 0; --k) {
    const double* row = c + k * size;
    double rest = solution[k];
    for (long j = k + 1; j < size; ++j) rest -= row[j] * solution[j];
    solution[k] = rest / row[k];
  }
  if (!inverse) return;
  // W = U⁻¹, row by row from the last: w_k = (e_k - Σ_{j>k} u_kj w_j) / u_kk.
  std::vector<double> w(static_cast<size_t>(size) * size);
  for (long k = size - 1; k >= 0; --k) {
    const double* row = c + k * size;
    double* out = w.data() + k * size;
    out[k] = 1.0;
    for (long j = k + 1; j < size; ++j) {
      const double* other = w.data() + j * size;
      for (long i = j; i < size; ++i) out[i] -= row[j] * other[i];
    }
    for (long i = k; i < size; ++i) out[i] /= row[k];
  }
  for (long i = 0; i < size; ++i)
    for (long j = i; j < size; ++j) {
      double entry = 0.0;
      for (long k = j; k < size; ++k) entry += w[i * size + k] * w[j * size + k];
      inverse[i * size + j] = inverse[j * size + i] = entry;
    }
}

}  // namespace PROBODE_ISA
}  // namespace probode
