// Compiled once per instruction set, with PROBODE_ISA naming it.
#include "kernels.hpp"

#include "band.hpp"
#include "filter.hpp"
#include "gaussian.hpp"
#include "interpolate.hpp"
#include "members.hpp"
#include "posterior_at_times.hpp"
#include "sensitivities.hpp"
#include "smoother.hpp"
#include "tape.hpp"
#include "transport.hpp"

namespace probode {
namespace PROBODE_ISA {

Machine* new_two_pole(const double* numbers, const double* atol, const double* rtol, const double* x);  // two_pole.cc
Factors* new_front_factors(const std::shared_ptr<const FrontPlan>& plan, const double* entries);
void solve_abreast(const AbreastData& given, long from, long to);  // abreast.cc

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

// Number of parameters θ that derivatives are taken by: the list of slopes has J (d, reads) and ∂f/∂θ (d, directions).
int directions_of(const Settings& s, const TapeData& slopes) {
  return static_cast<int>(slopes.code[2] / s.d - s.reads());
}

long run_at_times(const double* settings, double* start, long size, const TapeData& field, const TapeData& slopes,
                  const CrossingsData& crossed, const double* times, long count, double* out) {
  const Settings s(settings);
  const long state = State::row_offset(s) + s.row_size();
  const int directions = directions_of(s, slopes), of_start = static_cast<int>((size - state) / s.state_size());
  const Crossings crossings(crossed.given, crossed.size, crossed.start);
  const long width = s.reads() * (1 + directions);
  auto nothing = [](const State&, long) {};
  if (s.determined == 1)
    return run_to_times<1>(s, start, field, slopes, directions, start + state, of_start, crossings, times, count, out,
                           width, nothing);
  return run_to_times<2>(s, start, field, slopes, directions, start + state, of_start, crossings, times, count, out,
                         width, nothing);
}

long run_to_posterior(const double* settings, double* start, long size, const TapeData& field, const TapeData& slopes,
                      const CrossingsData& crossed, const double* scheme, long scheme_size, const TapeData& value,
                      const TapeData& jacobian, const double* times, long count, double* out) {
  const Settings s(settings);
  const long state = State::row_offset(s) + s.row_size();
  const int directions = directions_of(s, slopes), of_start = static_cast<int>((size - state) / s.state_size());
  const Crossings crossings(crossed.given, crossed.size, crossed.start);
  PosteriorAtTimes posterior{s, times, count};
  std::vector<double> row(s.kept_size());
  auto visit = [&](const State& x, long reached) {
    keep_row(s, x, row.data(), 0);
    posterior.append(row.data(), reached);
  };
  const long width = posterior.width(directions);
  const long reached = run_to_times<1>(s, start, field, slopes, directions, start + state, of_start, crossings, times,
                                       count, out, width, visit);
  double *extent = out + count * width, *covariance = extent + s.d;
  const double* lengths = scheme + scheme_size - 4;
  posterior.scales(scheme, value, jacobian, {lengths[0], lengths[1], lengths[2], lengths[3]}, directions, out, extent);
  posterior.smooth(directions, out, covariance);
  return reached;
}

void evaluate_once(const TapeData& field, int d, const double* at, double* out) {
  Tape(field, d).evaluate(at, out);
}

void transport_errors(const double* scheme, const TapeData& field, const TapeData& jacobian,
                      const double* t, const double* means, long stride, long steps, double* out) {
  const Scheme s(scheme);
  Transport(s, field, jacobian).run(t, means, stride, steps, out);
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

void solve_members(const MembersData& given, long from, long to) {
  Members members(given);
  for (long i = from; i < to; ++i) members.solve(i);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {open_chunk,       advance_step,  run_chunk,        run_at_times,
                         run_to_posterior, gaussian,      evaluate_once,    transport_errors,
                         smooth_chunk,     interpolate_all, solve_members, solve_abreast, factorise_band,
                         solve_band_of,    new_front_factors, new_two_pole};

}  // namespace PROBODE_ISA
}  // namespace probode
