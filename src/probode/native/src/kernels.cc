// Compiled once per instruction set, with PROBODE_ISA naming it.
#include "kernels.hpp"

#include "filter.hpp"
#include "smoother.hpp"
#include "tape.hpp"

namespace probode {
namespace PROBODE_ISA {

namespace {

bool open_chunk(const double* settings, double* state, double* rows) {
  return open(Settings(settings), state, rows);
}

bool advance_step(const double* settings, double* state, double* rows, const double* f,
                  const double* jacobian) {
  return advance(Settings(settings), state, rows, f, jacobian);
}

// All steps of a chunk, the vector field given as a list of operations.
void run_chunk(const double* settings, double* state, double* rows, const int32_t* code,
               const double* numbers, long given) {
  const Settings s(settings);
  Tape tape(code, numbers, given, s.d);
  std::vector<double> out(tape.outputs());
  bool go = open(s, state, rows);
  while (go) {
    tape.evaluate(state, out.data());
    go = advance(s, state, rows, out.data(), out.data() + s.d);
  }
}

void evaluate_once(const int32_t* code, const double* numbers, long given, int d, const double* at,
                   double* out) {
  Tape(code, numbers, given, d).evaluate(at, out);
}

void smooth_chunk(const double* settings, const double* rows, long count, double* out) {
  smooth(Settings(settings), rows, count, out);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {open_chunk, advance_step, run_chunk, evaluate_once, smooth_chunk};

}  // namespace PROBODE_ISA
}  // namespace probode
