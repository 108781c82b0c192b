// What Python sees: handlers for XLA's foreign function interface, and plain functions for ctypes.
#include <cstdint>
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels.hpp"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using Vector = ffi::Buffer<ffi::F64>;
using Code = ffi::Buffer<ffi::S32>;
using VectorResult = ffi::ResultBuffer<ffi::F64>;
using FlagResult = ffi::ResultBuffer<ffi::PRED>;

namespace probode {
namespace {

struct InstructionSet {
  const char* name;
  const Kernels* kernels;
  bool runs_here;
};

// The sets that were compiled, the best one first.
const InstructionSet* compiled_sets(int& count) {
#if defined(PROBODE_WITH_AVX2) || defined(PROBODE_WITH_AVX512)
  __builtin_cpu_init();  // needed where it is asked before main, when libraries are loaded
#endif
  static const InstructionSet sets[] = {
#if defined(PROBODE_WITH_AVX512)
      {"avx512", &avx512::kernels,
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma")},
#endif
#if defined(PROBODE_WITH_AVX2)
      {"avx2", &avx2::kernels, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#endif
      {"baseline", &baseline::kernels, true},
  };
  count = sizeof(sets) / sizeof(sets[0]);
  return sets;
}

// The set of this name, or (without one) the best, among those that this machine can run.
const InstructionSet* find_set(const char* name) {
  int count = 0;
  const InstructionSet* sets = compiled_sets(count);
  for (int i = 0; i < count; ++i)
    if (sets[i].runs_here && (name == nullptr || std::strcmp(name, sets[i].name) == 0))
      return &sets[i];
  return nullptr;
}

const InstructionSet* in_use = find_set(nullptr);

const Kernels& kernels() { return *in_use->kernels; }

// The state and the rows are changed where they are when XLA could alias them, copied when not.
template <typename Buffer, typename Result>
double* in_place(const Buffer& from, Result& to) {
  double* target = to->typed_data();
  if (target != from.typed_data())
    std::memcpy(target, from.typed_data(), sizeof(double) * from.element_count());
  return target;
}

ffi::Error Open(Vector settings, Vector state, VectorResult state_out, VectorResult rows_out,
                FlagResult go) {
  double* x = in_place(state, state_out);
  go->typed_data()[0] = kernels().open(settings.typed_data(), x, rows_out->typed_data());
  return ffi::Error::Success();
}

ffi::Error Advance(Vector settings, Vector state, Vector rows, Vector f, Vector jacobian,
                   VectorResult state_out, VectorResult rows_out, FlagResult go) {
  double* x = in_place(state, state_out);
  double* kept = in_place(rows, rows_out);
  go->typed_data()[0] = kernels().advance(settings.typed_data(), x, kept, f.typed_data(),
                                          jacobian.typed_data());
  return ffi::Error::Success();
}

TapeData tape(const Code& code, const Vector& numbers) {
  return {code.typed_data(), numbers.typed_data(), static_cast<long>(numbers.element_count())};
}

ffi::Error Run(Vector settings, Vector state, Code code, Vector numbers, VectorResult state_out,
               VectorResult rows_out) {
  kernels().run(settings.typed_data(), in_place(state, state_out), rows_out->typed_data(),
                tape(code, numbers));
  return ffi::Error::Success();
}

// From (t0, y0), with the start given as a list of operations as well.
ffi::Error Solve(Vector settings, Vector at, Code start_code, Vector start_numbers, Code code,
                 Vector numbers, VectorResult state_out, VectorResult rows_out) {
  const int d = static_cast<int>(at.element_count()) - 1;
  kernels().evaluate(tape(start_code, start_numbers), d, at.typed_data(), state_out->typed_data());
  kernels().run(settings.typed_data(), state_out->typed_data(), rows_out->typed_data(),
                tape(code, numbers));
  return ffi::Error::Success();
}

// To given times, with derivatives by parameters. The result: how many times were reached, and a row for each; with a
// scheme for the transport also a posterior there. How it begins, the state and its derivatives, is evaluated from
// `at`, (t0, y0, size of the state), or (without a list for it) given.
ffi::Error Times(Vector settings, Vector at, Code start_code, Vector start_numbers, Vector begun, Code code,
                 Vector numbers, Code slope_code, Vector slope_numbers, Vector crossed, Vector times, Vector scheme, Code value_code,
                 Vector value_numbers, Code jacobian_code, Vector jacobian_numbers, VectorResult out) {
  const bool listed = start_code.element_count() > 0;
  std::vector<double> start(begun.typed_data(), begun.typed_data() + begun.element_count());
  if (listed) {
    start.resize(start_code.typed_data()[2]);
    kernels().evaluate(tape(start_code, start_numbers), static_cast<int>(at.element_count()) - 2, at.typed_data(),
                       start.data());
  }
  double* rows = out->typed_data();
  const long count = static_cast<long>(times.element_count()), size = static_cast<long>(start.size());
  const long scheme_size = static_cast<long>(scheme.element_count());
  const TapeData field = tape(code, numbers), slopes = tape(slope_code, slope_numbers);
  const CrossingsData crossings{crossed.typed_data(), static_cast<long>(crossed.element_count()),
                                tape(start_code, start_numbers)};
  std::fill(rows, rows + out->element_count(), std::numeric_limits<double>::quiet_NaN());
  if (scheme_size == 0) {
    rows[0] = static_cast<double>(kernels().run_to_times(settings.typed_data(), start.data(), size, field, slopes, crossings,
                                                         times.typed_data(), count, rows + 1));
    return ffi::Error::Success();
  }
  // The vector of the solve at its end comes first.
  const long state = static_cast<long>(at.typed_data()[at.element_count() - 1]);
  rows[0] = static_cast<double>(kernels().run_to_posterior(
      settings.typed_data(), start.data(), size, field, slopes, crossings, scheme.typed_data(), scheme_size,
      tape(value_code, value_numbers), tape(jacobian_code, jacobian_numbers), times.typed_data(), count,
      rows + 1 + state));
  std::copy(start.data(), start.data() + state, rows + 1);
  return ffi::Error::Success();
}

// (log det C, C⁻¹ z), and C⁻¹ if there is room for it.
ffi::Error Gaussian(Vector covariance, Vector z, VectorResult out) {
  const long size = static_cast<long>(z.element_count());
  std::vector<double> c(covariance.typed_data(), covariance.typed_data() + covariance.element_count());
  double* found = out->typed_data();
  const bool wanted = static_cast<long>(out->element_count()) > 1 + size;
  kernels().gaussian(size, c.data(), z.typed_data(), found, found + 1, wanted ? found + 1 + size : nullptr);
  return ffi::Error::Success();
}

// A machine (its address in `machine`) with f where it was wanted: where it is wanted next, and whether it is.
ffi::Error Wanted(ffi::Buffer<ffi::S64> machine, Vector f, Vector y, VectorResult t_out, VectorResult y_out,
                  FlagResult go) {
  auto* steps = reinterpret_cast<Asking*>(machine.typed_data()[0]);
  go->typed_data()[0] = steps->advance(f.typed_data(), t_out->typed_data(), in_place(y, y_out));
  return ffi::Error::Success();
}

// A function that is evaluated once.
struct Evaluation : Asking {
  Evaluation(double t, const double* y, double* out, long d) : t(t), y(y), out(out), d(d) {}
  double t;
  const double* y;
  double* out;
  long d;
  bool asked = false;
  bool advance(const double* f, double* time, double* place) override {
    if (asked) {
      std::memcpy(out, f, sizeof(double) * d);
    } else {
      *time = t;
      std::memcpy(place, y, sizeof(double) * d);
    }
    return asked = !asked;
  }
};

}  // namespace
}  // namespace probode

XLA_FFI_DEFINE_HANDLER_SYMBOL(probode_xla_wanted, probode::Wanted,
                              ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::S64>>().Arg<Vector>().Arg<Vector>().Ret<Vector>()
                                  .Ret<Vector>().Ret<ffi::Buffer<ffi::PRED>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(probode_xla_open, probode::Open,
                              ffi::Ffi::Bind().Arg<Vector>().Arg<Vector>().Ret<Vector>().Ret<Vector>()
                                  .Ret<ffi::Buffer<ffi::PRED>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(probode_xla_advance, probode::Advance,
                              ffi::Ffi::Bind().Arg<Vector>().Arg<Vector>().Arg<Vector>().Arg<Vector>()
                                  .Arg<Vector>().Ret<Vector>().Ret<Vector>()
                                  .Ret<ffi::Buffer<ffi::PRED>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(probode_xla_run, probode::Run,
                              ffi::Ffi::Bind().Arg<Vector>().Arg<Vector>().Arg<Code>().Arg<Vector>()
                                  .Ret<Vector>().Ret<Vector>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(probode_xla_solve, probode::Solve,
                              ffi::Ffi::Bind().Arg<Vector>().Arg<Vector>().Arg<Code>().Arg<Vector>()
                                  .Arg<Code>().Arg<Vector>().Ret<Vector>().Ret<Vector>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(probode_xla_times, probode::Times,
                              ffi::Ffi::Bind().Arg<Vector>().Arg<Vector>().Arg<Code>().Arg<Vector>().Arg<Vector>()
                                  .Arg<Code>().Arg<Vector>().Arg<Code>().Arg<Vector>().Arg<Vector>().Arg<Vector>()
                                  .Arg<Vector>().Arg<Code>().Arg<Vector>().Arg<Code>().Arg<Vector>().Ret<Vector>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(probode_xla_gaussian, probode::Gaussian,
                              ffi::Ffi::Bind().Arg<Vector>().Arg<Vector>().Ret<Vector>());

extern "C" {

// Before any other call: the kernels of this instruction set. False if they cannot be run here.
int probode_use(const char* name) {
  const probode::InstructionSet* found = probode::find_set(name);
  if (found != nullptr) probode::in_use = found;
  return found != nullptr;
}

const char* probode_in_use() { return probode::in_use->name; }

int probode_open(const double* settings, double* state, double* rows) {
  return probode::kernels().open(settings, state, rows);
}

int probode_advance(const double* settings, double* state, double* rows, const double* f,
                    const double* jacobian) {
  return probode::kernels().advance(settings, state, rows, f, jacobian);
}

void probode_run(const double* settings, double* state, double* rows, const int32_t* code,
                 const double* numbers, long given) {
  probode::kernels().run(settings, state, rows, {code, numbers, given});
}

void probode_evaluate(const int32_t* code, const double* numbers, long given, int d, const double* at,
                      double* out) {
  probode::kernels().evaluate({code, numbers, given}, d, at, out);
}

// The same at `count` places: rows (t, y) of d + 1 numbers to rows of `outputs`.
void probode_evaluate_all(const int32_t* code, const double* numbers, long given, int d, long count,
                          long outputs, const double* at, double* out) {
  for (long i = 0; i < count; ++i)
    probode::kernels().evaluate({code, numbers, given}, d, at + i * (d + 1), out + i * outputs);
}

void probode_transport(const double* scheme, const int32_t* field_code, const double* field_numbers,
                       long field_given, const int32_t* jacobian_code,
                       const double* jacobian_numbers, long jacobian_given, const double* t,
                       const double* means, long stride, long steps, double* out) {
  probode::kernels().transport(scheme, {field_code, field_numbers, field_given},
                               {jacobian_code, jacobian_numbers, jacobian_given}, t, means, stride,
                               steps, out);
}

// The smoothed row `count` is given in `out`.
void probode_smooth(const double* settings, const double* rows, long count, double* out) {
  probode::kernels().smooth(settings, rows, count, out);
}

// Nodes are seven arrays (see `Nodes`), each with its own distance from one row to the next.
void probode_interpolate(const double* settings, const double* const* nodes, const long* strides, int smoothed,
                         int derivative, long count, const long* right, const double* t, long columns_size,
                         double* means, double* columns) {
  probode::kernels().interpolate(settings, nodes, strides, smoothed != 0, derivative, count, right, t,
                                 columns_size, means, columns);
}

// Members `from` to before `to`; others may be solved by other threads meanwhile.
void probode_solve_abreast(const probode::AbreastData* given, long from, long to) {
  probode::kernels().solve_abreast(*given, from, to);
}

void probode_solve_members(const probode::MembersData* given, long from, long to) {
  probode::kernels().solve_members(*given, from, to);
}

long probode_factorise_band(long n, int below, int above, double* upper, double* lower, int* exchanged) {
  return probode::kernels().factorise_band(n, below, above, upper, lower, exchanged);
}

void probode_solve_band(long n, int below, int above, const double* upper, const double* lower, const int* exchanged,
                        double* x) {
  probode::kernels().solve_band(n, below, above, upper, lower, exchanged, x);
}

// ---- factorisations by fronts, by their address

// `info`: the multiplications of a factorisation, the numbers of its factors and those that it needs besides.
void* probode_plan_fronts(long d, const int32_t* ends, const int32_t* rows, const int32_t* order, double* info) {
  auto plan = std::make_shared<const probode::FrontPlan>(probode::plan_fronts(d, ends, rows, order));
  info[0] = plan->operations, info[1] = static_cast<double>(plan->numbers);
  info[2] = static_cast<double>(plan->stack);
  return new std::shared_ptr<const probode::FrontPlan>(std::move(plan));
}

void probode_free_plan(std::shared_ptr<const probode::FrontPlan>* plan) { delete plan; }

probode::Factors* probode_factorise_fronts(const std::shared_ptr<const probode::FrontPlan>* plan,
                                           const double* entries) {
  return probode::kernels().factorise_fronts(*plan, entries);
}

void probode_solve_factors(const probode::Factors* factors, double* x, double* room) { factors->solve(x, room); }

void probode_free_factors(probode::Factors* factors) { delete factors; }

// ---- machines, by their address

probode::Machine* probode_two_pole(const double* numbers, const double* atol, const double* rtol, const double* x) {
  return probode::kernels().two_pole(numbers, atol, rtol, x);
}

probode::Asking* probode_evaluation(double t, const double* y, double* out, long d) {
  return new probode::Evaluation(t, y, out, d);
}

probode::Machine* probode_machine_copy(const probode::Machine* machine) { return machine->copy(); }

void probode_machine_free(probode::Asking* machine) { delete machine; }

int probode_machine_advance(probode::Asking* machine, const double* f, double* t, double* y) {
  return machine->advance(f, t, y);
}

void probode_machine_carry(probode::Machine* machine, const double* scheme, const double* times, long count,
                           int watched, const double* begins) {
  machine->carry(scheme, times, count, watched != 0, begins);
}

void probode_machine_weigh(probode::Machine* machine, const double* entries, const int32_t* columns,
                           const int32_t* ends) {
  machine->weigh(entries, columns, ends);
}

void probode_machine_plan(probode::Machine* machine, long attempts, long wanted, double* rows, double* scalars,
                          double save) {
  machine->plan(attempts, wanted, rows, scalars, save);
}

void probode_machine_finish(probode::Machine* machine) { machine->finish(); }

void probode_machine_band(probode::Machine* machine, int below, int above, const int32_t* order, const int32_t* ends,
                          const int32_t* rows, const double* entries, const int32_t* colours) {
  machine->band(below, above, order, ends, rows, entries, colours);
}

void probode_machine_took_jacobian(probode::Machine* machine) { machine->took_jacobian(); }

void probode_machine_sparse_factors(probode::Machine* machine, const double* lower, const int32_t* lower_rows,
                                    const int32_t* lower_ends, const double* upper, const int32_t* upper_rows,
                                    const int32_t* upper_ends, const int32_t* rows, const int32_t* columns,
                                    int inverse) {
  machine->sparse_factors(lower, lower_rows, lower_ends, upper, upper_rows, upper_ends, rows, columns, inverse != 0);
}

int probode_machine_fronts(probode::Machine* machine, const std::shared_ptr<const probode::FrontPlan>* plan,
                           const double* entries) {
  return machine->fronts(*plan, entries);
}

void probode_machine_full_factors(probode::Machine* machine, const double* both, const int32_t* exchanged) {
  machine->full_factors(both, exchanged);
}

void probode_machine_singular(probode::Machine* machine) { machine->singular(); }

void probode_machine_scalars(const probode::Machine* machine, double* out) { machine->scalars(out); }

void probode_machine_vector(const probode::Machine* machine, int which, long k, double* out) {
  machine->vector(which, k, out);
}

}
