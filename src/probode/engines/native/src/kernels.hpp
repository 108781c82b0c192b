// The kernels by instruction set: the same source is compiled once for each.
#pragma once

#include <cstdint>

namespace probode {

// A vector field as a list of operations, and the numbers it reads.
struct TapeData {
  const int32_t* code;
  const double* numbers;
  long given;
};

struct Kernels {
  bool (*open)(const double* settings, double* state, double* rows);
  bool (*advance)(const double* settings, double* state, double* rows, const double* f,
                  const double* jacobian);
  void (*run)(const double* settings, double* state, double* rows, const TapeData& field);
  // All steps to the end, what f takes and its derivatives by parameters kept at given times: see sensitivities.hpp.
  // `start` holds the state, and as many derivatives of its mean as follow there.
  long (*run_to_times)(const double* settings, double* start, long size, const TapeData& field, const TapeData& slopes,
                       const double* times, long count, double* out);
  // The same with a posterior at the times, of an equation of first order: see posterior_at_times.hpp. `scheme` is that
  // of the transport, four lengths of windows follow it.
  long (*run_to_posterior)(const double* settings, double* start, long size, const TapeData& field,
                           const TapeData& slopes, const double* scheme, long scheme_size, const TapeData& value,
                           const TapeData& jacobian, const double* times, long count, double* out);
  void (*gaussian)(long size, double* c, const double* z, double* log_det, double* solution, double* inverse);
  void (*evaluate)(const TapeData& field, int d, const double* at, double* out);
  void (*transport)(const double* scheme, const TapeData& field, const TapeData& jacobian,
                    const double* t, const double* means, long stride, long steps, double* out);
  void (*smooth)(const double* settings, const double* rows, long count, double* out);
  void (*interpolate)(const double* settings, const double* const* nodes, const long* strides, bool smoothed,
                      int derivative, long count, const long* right, const double* t, long columns_size,
                      double* means, double* columns);
  // See band.hpp.
  long (*factorise_band)(long n, int below, int above, double* upper, double* lower, int* exchanged);
  void (*solve_band)(long n, int below, int above, const double* upper, const double* lower, const int* exchanged,
                     double* x);
};

namespace baseline { extern const Kernels kernels; }
#if defined(PROBODE_WITH_AVX2)
namespace avx2 { extern const Kernels kernels; }
#endif
#if defined(PROBODE_WITH_AVX512)
namespace avx512 { extern const Kernels kernels; }
#endif

}  // namespace probode
