// Compiled once per instruction set, with PROBODE_ISA naming it.
#include "kernels.hpp"

#include "filter.hpp"
#include "smoother.hpp"

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

void smooth_chunk(const double* settings, const double* rows, long count, double* out) {
  smooth(Settings(settings), rows, count, out);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {open_chunk, advance_step, smooth_chunk};

}  // namespace PROBODE_ISA
}  // namespace probode
