// The kernels by instruction set: the same source is compiled once for each.
#pragma once

#include <cstdint>
#include <memory>

#include "abreast/given.hpp"
#include "front_plan.hpp"

namespace probode {

// A vector field as a list of operations, and the numbers it reads.
struct TapeData {
  const int32_t* code;
  const double* numbers;
  long given;
};

// Steps that go on by themselves until f is wanted, or something that only Python has: see two_pole.hpp.
enum Exit { kExitChunk, kExitJacobian, kExitFactors, kExitSave };
enum Ending { kRunning = 1, kSuccess = 0, kTooSmall = -1, kNotFinite = -2 };  // as in base/status.py

struct Asking {
  virtual ~Asking() = default;
  // With f where it was wanted: whether it is wanted again, and where.
  virtual bool advance(const double* f, double* t, double* y) = 0;
};

// A matrix that was factorised.
struct Factors {
  double h = 0.0, gamma = 0.0;  // of the step that it was made for

  virtual ~Factors() = default;
  // In place; `room` has as many numbers as x, if that is wanted.
  virtual void solve(double* x, double* room) const = 0;
  virtual bool wants_room() const { return true; }
};

struct Machine : Asking {
  virtual Machine* copy() const = 0;
  // Its error is to be carried along; if it is watched, to be kept at these times alone.
  virtual void carry(const double* scheme, const double* times, long count, bool watched, const double* begins) = 0;
  virtual void weigh(const double* entries, const int32_t* columns, const int32_t* ends) = 0;
  // So many attempts and (if any are to be kept) accepted steps; leave after the step that has passed the time `save`.
  virtual void plan(long attempts, long wanted, double* rows, double* scalars, double save) = 0;
  virtual void finish() = 0;
  // The Jacobian that was asked for: kept elsewhere, or in a band. Then it is given in compressed columns, its rows and
  // columns to be taken in an order (if there is one); with colours, `entries` are products, a vector for each colour.
  virtual void band(int below, int above, const int32_t* order, const int32_t* ends, const int32_t* rows,
                    const double* entries, const int32_t* colours) = 0;
  virtual void took_jacobian() = 0;
  // The matrix that was asked for, by fronts: whether that can be done.
  virtual bool fronts(const std::shared_ptr<const FrontPlan>& plan, const double* entries) = 0;
  virtual void sparse_factors(const double* lower, const int32_t* lower_rows, const int32_t* lower_ends,
                              const double* upper, const int32_t* upper_rows, const int32_t* upper_ends,
                              const int32_t* rows, const int32_t* columns, bool inverse) = 0;
  virtual void full_factors(const double* both, const int32_t* exchanged) = 0;
  virtual void singular() = 0;
  virtual void scalars(double* out) const = 0;
  virtual void vector(int which, long k, double* out) const = 0;
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
  double *mean, *std, *cov, *notes;  // cov may be null; notes have a row for each of their kinds
  long count;  // of all members
};

// Members side by side, a lane for each: see abreast/solve.hpp.
struct AbreastData {
  const int32_t* sizes;    // as `SizesOf` lists them
  const double* control;   // as `Options` does
  const double* prior;     // transition, noise, weights
  const double* scheme;    // of the transport; null: the model's error bars
  TapeData start, value, slopes;  // with the numbers of any of the members
  long own;                // numbers that members have of their own
  const int32_t* places;   // where these are among the numbers of the start;
  long of_field;           // below this they are the vector field's, and at the same places in all lists
  long most_bytes;         // memory for the rows of the members that are solved side by side
  Given given;
};

// Steps across switches, and the start after them: see crossing.hpp.
struct CrossingsData {
  const double* given;
  long size;
  TapeData start;
};

struct Kernels {
  bool (*open)(const double* settings, double* state, double* rows);
  bool (*advance)(const double* settings, double* state, double* rows, const double* f,
                  const double* jacobian);
  void (*run)(const double* settings, double* state, double* rows, const TapeData& field);
  // All steps to the end, what f takes and its derivatives by parameters kept at given times: see sensitivities.hpp.
  // `start` holds the state, and as many derivatives of its mean as follow there.
  long (*run_to_times)(const double* settings, double* start, long size, const TapeData& field, const TapeData& slopes,
                       const CrossingsData& crossed, const double* times, long count, double* out);
  // The same with a posterior at the times, of an equation of first order: see posterior_at_times.hpp. `scheme` is that
  // of the transport, four lengths of windows follow it.
  long (*run_to_posterior)(const double* settings, double* start, long size, const TapeData& field,
                           const TapeData& slopes, const CrossingsData& crossed, const double* scheme, long scheme_size, const TapeData& value,
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
  void (*solve_abreast)(const AbreastData& given, long from, long to);
  // See band.hpp.
  long (*factorise_band)(long n, int below, int above, double* upper, double* lower, int* exchanged);
  void (*solve_band)(long n, int below, int above, const double* upper, const double* lower, const int* exchanged,
                     double* x);
  // See fronts.hpp; null: rows would have to be exchanged.
  Factors* (*factorise_fronts)(const std::shared_ptr<const FrontPlan>& plan, const double* entries);
  Machine* (*two_pole)(const double* numbers, const double* atol, const double* rtol, const double* x);
};

namespace baseline { extern const Kernels kernels; }
#if defined(PROBODE_WITH_AVX2)
namespace avx2 { extern const Kernels kernels; }
#endif
#if defined(PROBODE_WITH_AVX512)
namespace avx512 { extern const Kernels kernels; }
#endif

}  // namespace probode
