// Compiled once per instruction set, with PROBODE_ISA naming it.
#include "kernels.hpp"

#include "filter.hpp"
#include "interpolate.hpp"
#include "smoother.hpp"
#include "tape.hpp"
#include "transport.hpp"

namespace probode {
namespace PROBODE_ISA {

namespace {

bool open_chunk(const double* settings, double* state, double* rows) {
  return open(Settings(settings), state, rows);
}

// The step for the order of the equation.
auto advance_of(const Settings& s) { return s.determined == 1 ? advance<1> : advance<2>; }

bool advance_step(const double* settings, double* state, double* rows, const double* f,
                  const double* jacobian) {
  const Settings s(settings);
  return advance_of(s)(s, state, rows, f, jacobian);
}

// All steps of a chunk, the vector field given as a list of operations.
void run_chunk(const double* settings, double* state, double* rows, const TapeData& field) {
  const Settings s(settings);
  Tape tape(field, static_cast<int>(s.reads()));
  std::vector<double> out(tape.outputs());
  const auto advance = advance_of(s);
  bool go = open(s, state, rows);
  while (go) {
    tape.evaluate(state, out.data());
    go = advance(s, state, rows, out.data(), out.data() + s.d);
  }
}

void evaluate_once(const TapeData& field, int d, const double* at, double* out) {
  Tape(field, d).evaluate(at, out);
}

void transport_errors(const double* scheme, const TapeData& field, const TapeData& jacobian,
                      const double* t, const double* means, long stride, long steps, double* out) {
  const Scheme s(scheme);
  Tape values(field, s.d), derivatives(jacobian, s.d);
  Transport(s, values, derivatives).run(t, means, stride, steps, out);
}

void smooth_chunk(const double* settings, const double* rows, long count, double* out) {
  smooth(Settings(settings), rows, count, out);
}

// One derivative at many times, each in the step that ends at the node `right`.
void interpolate_all(const double* settings, const double* const* nodes, const long* strides, bool smoothed,
                     int derivative, long count, const long* right, const double* t, long columns_size,
                     double* means, double* columns) {
  const Settings s(settings);
  const Nodes all(nodes, strides, smoothed);
  Interpolation interpolation(s, all, derivative);
  for (long i = 0; i < count; ++i)
    interpolation.evaluate(right[i], t[i], means + i * s.d, columns + i * columns_size);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {open_chunk,       advance_step, run_chunk,      evaluate_once,
                         transport_errors, smooth_chunk, interpolate_all};

}  // namespace PROBODE_ISA
}  // namespace probode
