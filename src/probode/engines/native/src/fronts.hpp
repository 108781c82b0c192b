// LU of a sparse matrix by small full ones, the multifrontal method: a front is put together from entries of the matrix and
// from what earlier fronts have left, its pivots are eliminated, and what is left goes to a later front. Nearly all of the
// arithmetic is products of full matrices. No rows are exchanged: where a multiplier would be larger than a hundred, there
// is no result (SuperLU, which exchanges rows there, is asked instead).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common.hpp"
#include "front_plan.hpp"

namespace probode {
namespace PROBODE_ISA {

// As many numbers as a register has.
#if defined(__AVX512F__)
constexpr int kWide = 8, kTall = 8;
#else
constexpr int kWide = 4, kTall = 4;
#endif
typedef double Wide __attribute__((vector_size(8 * kWide), aligned(8), may_alias));

inline Wide& wide(double* x) { return *reinterpret_cast<Wide*>(x); }
inline const Wide& wide(const double* x) { return *reinterpret_cast<const Wide*>(x); }

constexpr int kPivots = 16;                 // that are eliminated at a time
constexpr double kLargestMultiplier = 100;  // of a row that is subtracted
constexpr long kKept = 1L << 21;            // numbers that a thread keeps from one factorisation to the next

// C -= A B for `tall` rows and 2 kWide columns, or kWide.
template <int tall, int lanes>
inline void subtract_tile(const double* a, long a_length, const double* b, long b_length, int depth, double* c,
                          long c_length) {
  Wide sum[tall][lanes];
  for (int i = 0; i < tall; ++i)
    for (int j = 0; j < lanes; ++j) sum[i][j] = wide(c + i * c_length + j * kWide);
  for (int k = 0; k < depth; ++k)
    for (int i = 0; i < tall; ++i)
      for (int j = 0; j < lanes; ++j) sum[i][j] -= a[i * a_length + k] * wide(b + k * b_length + j * kWide);
  for (int i = 0; i < tall; ++i)
    for (int j = 0; j < lanes; ++j) wide(c + i * c_length + j * kWide) = sum[i][j];
}

// Up to kWide - 1 numbers behind each row of C and B are read and written.
inline void subtract_product(const double* a, long a_length, const double* b, long b_length, int depth, double* c,
                             long c_length, int rows, int columns) {
  int j = 0;
  auto strip = [&](auto lanes) {
    constexpr int l = decltype(lanes)::value;
    int i = 0;
    for (; i + kTall <= rows; i += kTall)
      subtract_tile<kTall, l>(a + i * a_length, a_length, b + j, b_length, depth, c + i * c_length + j, c_length);
    for (; i < rows; ++i)
      subtract_tile<1, l>(a + i * a_length, a_length, b + j, b_length, depth, c + i * c_length + j, c_length);
  };
  for (; j + kWide < columns; j += 2 * kWide) strip(std::integral_constant<int, 2>());
  if (j < columns) strip(std::integral_constant<int, 1>());
}

// The first `p` rows and columns of a front of n are eliminated: L (ones on its diagonal) and U take their place, the inverse
// of the diagonal of U its own. False: a multiplier is too large, or something is not finite.
inline bool eliminate(double* front, long length, int p, int n) {
  double largest = 0.0;
  for (int begin = 0; begin < p; begin += kPivots) {
    const int count = std::min(kPivots, p - begin), end = begin + count;
    double* block = front + begin * length + begin;
    for (int i = 0; i < count; ++i) {
      double* row = block + i * length;
      for (int k = 0; k < i; ++k) {
        const double factor = row[k] * block[k * length + k];
        largest = larger(largest, std::fabs(factor));
        row[k] = factor;
        for (int j = k + 1; j < n - begin; ++j) row[j] -= factor * block[k * length + j];
      }
      if (!(std::fabs(row[i]) > 0.0)) return false;
      row[i] = 1.0 / row[i];
    }
    // U⁻¹ of the block, row by row from below, so that rows of L are products with it.
    double inverse[kPivots][kPivots] = {};
    for (int i = count - 1; i >= 0; --i) {
      inverse[i][i] = block[i * length + i];
      for (int j = i + 1; j < count; ++j) {
        double sum = 0.0;
        for (int k = i + 1; k <= j; ++k) sum += block[i * length + k] * inverse[k][j];
        inverse[i][j] = -sum * inverse[i][i];
      }
    }
    for (int i = end; i < n; ++i) {
      double *row = front + i * length + begin, out[kPivots] = {};
      for (int k = 0; k < count; ++k)
        for (int j = 0; j < kPivots; ++j) out[j] += row[k] * inverse[k][j];
      for (int j = 0; j < count; ++j) row[j] = out[j], largest = larger(largest, std::fabs(out[j]));
    }
    subtract_product(front + end * length + begin, length, front + begin * length + end, length, count,
                     front + end * length + end, length, n - end, n - end);
  }
  return largest <= kLargestMultiplier;  // which is false of NaN, too
}

inline double dot(const double* a, const double* b, int n) {
  Wide sum[2] = {};
  int i = 0;
  for (; i + 2 * kWide <= n; i += 2 * kWide)
    sum[0] += wide(a + i) * wide(b + i), sum[1] += wide(a + i + kWide) * wide(b + i + kWide);
  double rest = 0.0;
  for (; i < n; ++i) rest += a[i] * b[i];
  sum[0] += sum[1];
  for (int j = 0; j < kWide; ++j) rest += sum[0][j];
  return rest;
}

// What a front has left, to the one that it goes to. Rows that follow each other there are added in one go.
inline void add_front(const FrontPlan& plan, const double* left, int32_t child, double* front, long length) {
  const int u = plan.left(child);
  const int32_t* to = plan.relative.data() + plan.begins[child];
  for (int begin = 0, end; begin < u; begin = end) {
    for (end = begin + 1; end < u && to[end] == to[end - 1] + 1; ++end) {}
    for (int i = 0; i < u; ++i) {
      double* out = front + to[i] * length + to[begin];
      const double* from = left + static_cast<long>(i) * u + begin;
      for (int j = 0; j < end - begin; ++j) out[j] += from[j];
    }
  }
}

// Of the matrix with these entries. Of each front the rows of its pivots (p, p + u), then the columns below them, one after
// the other (p, u). False: see `eliminate`.
inline bool factorise_fronts(const FrontPlan& plan, const double* entries, double* out) {
  // What fronts have left lies one upon the other; the next front is put together above it, and what it leaves goes to
  // the place of what it has taken.
  std::vector<double> own;
  thread_local std::vector<double> kept;  // new pages take as long as a small factorisation
  std::vector<double>& stack = plan.stack <= kKept ? kept : own;
  if (static_cast<long>(stack.size()) < plan.stack) stack.resize(plan.stack);
  std::vector<size_t> waiting;  // where what was left begins
  size_t top = 0;
  for (long f = 0; f < plan.count(); ++f) {
    const int p = plan.pivots(f), u = plan.left(f), n = p + u;
    const long length = FrontPlan::row_length(n);
    double* front = stack.data() + top;
    std::memset(front, 0, sizeof(double) * n * length);
    for (int64_t k = plan.entry_begins[f]; k < plan.entry_begins[f + 1]; ++k)
      front[plan.entry_row[k] * length + plan.entry_column[k]] += entries[plan.entries[k]];
    size_t bottom = top;
    for (int64_t k = plan.child_begins[f + 1]; k-- > plan.child_begins[f];) {
      bottom = waiting.back(), waiting.pop_back();
      add_front(plan, stack.data() + bottom, plan.children[k], front, length);
    }
    if (!eliminate(front, length, p, n)) return false;
    for (int i = 0; i < p; ++i, out += n) std::memcpy(out, front + i * length, sizeof(double) * n);
    for (int i = p; i < n; ++i)
      for (int k = 0; k < p; ++k) out[static_cast<long>(k) * u + i - p] = front[i * length + k];
    out += static_cast<long>(p) * u;
    top = bottom;
    if (u == 0) continue;
    for (int i = p; i < n; ++i, top += u)
      std::memmove(stack.data() + top, front + i * length + p, sizeof(double) * u);
    waiting.push_back(bottom);
  }
  return true;
}

// In place; `room` has as many numbers as x.
inline void solve_fronts(const FrontPlan& plan, const double* factor, double* x, double* room) {
  thread_local std::vector<double> some;
  if (static_cast<long>(some.size()) < plan.largest) some.resize(plan.largest);
  for (long i = 0; i < plan.d; ++i) room[i] = x[plan.order[i]];
  for (long f = 0; f < plan.count(); ++f) {  // L
    const int p = plan.pivots(f), u = plan.left(f), n = p + u;
    double *own = room + plan.first[f], *sum = some.data();
    for (int i = 1; i < p; ++i) own[i] -= dot(factor + static_cast<long>(i) * n, own, i);
    factor += static_cast<long>(p) * n;
    std::fill(sum, sum + u, 0.0);
    int k = 0;
    for (; k + 4 <= p; k += 4, factor += 4L * u)
      for (int i = 0; i < u; ++i)
        sum[i] += (factor[i] * own[k] + factor[u + i] * own[k + 1]) +
                  (factor[2L * u + i] * own[k + 2] + factor[3L * u + i] * own[k + 3]);
    for (; k < p; ++k, factor += u)
      for (int i = 0; i < u; ++i) sum[i] += factor[i] * own[k];
    const int32_t* rows = plan.rows.data() + plan.begins[f];
    for (int i = 0; i < u; ++i) room[rows[i]] -= sum[i];
  }
  for (long f = plan.count(); f-- > 0;) {  // U
    const int p = plan.pivots(f), u = plan.left(f), n = p + u;
    factor -= static_cast<long>(p) * (n + u);
    double *own = room + plan.first[f], *all = some.data();
    const int32_t* rows = plan.rows.data() + plan.begins[f];
    for (int i = 0; i < u; ++i) all[p + i] = room[rows[i]];
    for (int i = p - 1; i >= 0; --i) {
      const double* row = factor + static_cast<long>(i) * n;
      all[i] = own[i] = (own[i] - dot(row + i + 1, all + i + 1, n - i - 1)) * row[i];
    }
  }
  for (long i = 0; i < plan.d; ++i) x[plan.order[i]] = room[i];
}

}  // namespace PROBODE_ISA
}  // namespace probode
