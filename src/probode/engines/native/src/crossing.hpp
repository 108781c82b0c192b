// Steps across switches of the vector field; `filter/crossing.py` has the formulas.
#pragma once

#include <limits>

#include "filter.hpp"
#include "tape.hpp"

namespace probode {
namespace PROBODE_ISA {

// Steps across switches, in the order of integration, and the start on the other side as a list of operations. One
// place among the numbers of that list holds the latest time at which the next steps may end.
//
//   given   that place, then all times before, all times after, all shares; or nothing
struct Crossings {
  const double *before, *after, *share;
  long count, end;
  TapeData start;

  Crossings(const double* given, long size, const TapeData& start)
      : before(given + 1), after(before + (size - 1) / 3), share(after + (size - 1) / 3),
        count(size > 0 ? (size - 1) / 3 : 0), end(size > 0 ? static_cast<long>(given[0]) : 0), start(start) {}

  // Index of the step across that begins at a time; negative if there is none.
  long at(double t) const {
    for (long k = 0; k < count; ++k)
      if (before[k] == t) return k;
    return -1;
  }

  // The vector of a solve that begins at (t, y), and the numbers after it.
  void begin(const double* at, long reads, double until, std::vector<double>& out) const {
    std::vector<double> numbers(start.numbers, start.numbers + start.given);
    numbers[end] = until;
    out.resize(start.code[2]);
    Tape({start.code, numbers.data(), start.given}, static_cast<int>(reads)).evaluate(at, out.data());
  }
};

// Compute the factor after a step across, in the step's coordinates `coords`, from (R, owing) stacked on the factor of
// the start. On return `values` has the columns of y before the step, in plain units.
template <int order>
void factor_across(const Settings& s, const Row& left, const Row& right, double h, const double* coords,
                   const double* jacobian, int block, double* out, std::vector<double>& values) {
  const int n = s.n, w = s.width(), size = s.block_size(), length = row_length(size);
  double at_left[kMaxDerivatives], change[kMaxDerivatives];
  coordinates(s, *left.h, at_left);
  powers(*right.h / h, n, change);
  const double* before = left.factor + static_cast<long>(block) * size * size;
  const double* anew = right.factor + static_cast<long>(block) * size * size;
  const double* j = jacobian_of_block<order>(s, jacobian, block);
  std::vector<double> memory, columns(static_cast<size_t>(size) * size), x(2 * size);
  double* stack = room(memory, static_cast<size_t>(2 * size) * length);
  std::fill(stack, stack + static_cast<long>(2 * size) * length, 0.0);
  values.assign(static_cast<size_t>(size) * w, 0.0);
  for (int r = 0; r < size; ++r) {
    double* column = columns.data() + static_cast<long>(r) * size;
    for (int i = 0; i < n; ++i)
      for (int a = 0; a < w; ++a) {
        double& entry = column[i * w + a];
        if (i < order) {
          entry = before[static_cast<long>(r) * size + i * w + a] * at_left[i];
          continue;
        }
        entry = 0.0;
        for (int b = 0; j && b < order * w; ++b) entry += j[static_cast<long>(a) * order * w + b] * column[(i - order) * w + b];
      }
    std::copy(column, column + w, values.data() + static_cast<long>(r) * w);
    for (int i = 0; i < n; ++i)
      for (int a = 0; a < w; ++a) {
        const double owed = column[i * w + a] / coords[i];
        stack[static_cast<long>(r) * length + i * w + a] = std::isfinite(owed) ? owed : 0.0;
        stack[static_cast<long>(size + r) * length + i * w + a] =
            anew[static_cast<long>(r) * size + i * w + a] * change[i];
      }
  }
  for (int c = 0; c < size; ++c) reflect(stack, length, c, 2 * size, c, size, x.data());
  for (int r = 0; r < size; ++r)
    for (int c = 0; c < size; ++c)
      out[static_cast<long>(r) * size + c] = c < r ? 0.0 : stack[static_cast<long>(r) * length + c];
}

// Take the step across number `k`; return whether there is a start on the other side. `field` is evaluated there, and
// `begun` receives the results of the list of operations of the start.
template <int order>
bool cross(const Settings& s, State& x, Tape& field, const Crossings& crossings, long k, std::vector<double>& begun) {
  const int d = s.d, n = s.n, w = s.width();
  const long reads = s.reads();
  const double t = crossings.after[k], share = crossings.share[k], h = t - *x.row.t;
  const double* mean = x.row.mean;
  std::vector<double> at(reads + 1), value(field.outputs()), predicted(s.state_size());
  at[0] = t;
  std::copy(mean, mean + reads, at.begin() + 1);
  field.evaluate(at.data(), value.data());
  for (long i = 0; i < reads; ++i) {
    const double beyond = i < reads - d ? mean[d + i] : value[i - (reads - d)];
    at[1 + i] = mean[i] + h * ((1.0 - share) * mean[d + i] + share * beyond);
  }
  crossings.begin(at.data(), reads, next_stop(s, t), begun);
  const State right(s, begun.data());
  *x.attempted += 1.0;
  if (*right.status != s.running && *right.status != s.success) {
    *x.status = s.not_finite;
    return false;
  }
  double coords[kMaxDerivatives];
  coordinates(s, h, coords);
  predict_mean(s, mean, d, coords, predicted.data());
  std::vector<double> jump(d, 0.0), std(d, 0.0), values, factor(s.factor_size());
  const int size = s.block_size();
  for (int block = 0; block < s.blocks(); ++block) {
    factor_across<order>(s, x.row, right.row, h, coords, value.data() + d, block,
                         factor.data() + static_cast<long>(block) * size * size, values);
    for (int a = 0; a < w; ++a) {
      double sum = 0.0;
      for (int r = 0; r < size; ++r) sum = root_of_squares(sum, values[static_cast<long>(r) * w + a]);
      std[block * w + a] = sum / std::fabs(coords[0]);
    }
  }
  if (s.structure == kIsotropic) std::fill(std.begin() + 1, std.end(), std[0]);
  for (int i = order; i < n; ++i)
    for (int a = 0; a < d; ++a)
      jump[a] = larger(jump[a], 3.0 * std::fabs((right.row.mean[i * d + a] - predicted[i * d + a]) / coords[i]));
  const double unnoticed = 1e-4, resolved = 1e-12;
  if (s.multivariate && !s.fixed) {
    for (int a = 0; a < d; ++a) x.row.scale[a] = larger(jump[a], unnoticed * std[a]);
  } else {
    double most = 0.0, least = std::numeric_limits<double>::infinity(), largest = 0.0;
    for (int a = 0; a < d; ++a) {
      largest = larger(largest, jump[a]);
      most = larger(most, std[a]);
      if (std[a] > 0.0) least = std::min(least, std[a]);
    }
    *x.row.scale = larger(largest, larger(std::isfinite(least) ? unnoticed * least : 0.0, resolved * most));
  }
  *x.row.t = t;
  *x.row.h = h;
  std::copy(right.row.mean, right.row.mean + s.state_size(), x.row.mean);
  std::copy(factor.begin(), factor.end(), x.row.factor);
  *x.step = *right.step;
  *x.error = *right.error;
  *x.control_accepted = *right.control_accepted;
  *x.rejected = *right.rejected;
  *x.status = *right.status;
  *x.accepted += 1.0;
  *x.count += 1.0;
  return true;
}

}  // namespace PROBODE_ISA
}  // namespace probode
