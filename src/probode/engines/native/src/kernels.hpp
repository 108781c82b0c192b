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

// Members of one problem of first order, and where their results go: see members.hpp. Arrays have a row for each.
struct MembersData {
  const double* settings;  // those of any of them: the end and the tolerances are taken from what follows
  long settings_size;
  TapeData start, field, value, jacobian;  // with the numbers of any of them
  long own;                // numbers that members have of their own
  const int32_t* places;   // where these are among the numbers of the start;
  long of_field;           // below this they are the vector field's, and at the same places in all lists
  int d, only_end;
  long times, save_stride;  // save points; zero: all members have the same
  const double *at, *t1, *rtol, *atol, *numbers, *save_at;  // at: (t0, y0)
  const double* scheme;     // of the transport, the lengths of four windows after it; null: the model's error bars
  long scheme_size;
  double harmless, doubt;
  double *mean, *std, *cov, *notes;  // cov may be null
};

// status, attempted, accepted; of the transport: corrections, repeats, three signs, and whether it was lost
constexpr int kNotes = 9;

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
  void (*solve_members)(const MembersData& given, long from, long to);
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
