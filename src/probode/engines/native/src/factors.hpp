// What solves with a matrix M - c J that was factorised: in a band, sparse, or full.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "band.hpp"
#include "fronts.hpp"
#include "kernels.hpp"
#include "passes.hpp"
#include "plain_band.hpp"

namespace probode {
namespace PROBODE_ISA {

// Of a matrix whose rows and columns are taken in another order, if there is one.
struct OrderedFactors : Factors {
  std::vector<int32_t> order;

  bool wants_room() const override { return !order.empty(); }

  void solve(double* x, double* room) const override {
    if (order.empty()) return solve_in_order(x);
    const long d = static_cast<long>(order.size());
    for (long i = 0; i < d; ++i) room[i] = x[order[i]];
    solve_in_order(room);
    for (long i = 0; i < d; ++i) x[order[i]] = room[i];
  }

 protected:
  virtual void solve_in_order(double* x) const = 0;
};

// In a band, rows exchanged where that is needed.
struct BandFactors : OrderedFactors {
  long d;
  int below, above;
  std::vector<double> upper, lower;
  std::vector<int> exchanged;
  bool in_place = false;  // whether no row was exchanged

  // The result: whether there is a pivot in every row.
  bool factorise() {
    lower.resize(d * std::max(below, 1));
    exchanged.resize(d);
    if (factorise_band(d, below, above, upper.data(), lower.data(), exchanged.data()) != 0) return false;
    in_place = std::all_of(exchanged.begin(), exchanged.end(), [](int k) { return k == 0; });
    if (in_place) std::vector<int>().swap(exchanged);
    return true;
  }

 protected:
  void solve_in_order(double* x) const override {
    if (in_place)
      solve_plain_band(d, below, above, upper.data(), lower.data(), x);
    else
      solve_band_of(d, below, above, upper.data(), lower.data(), exchanged.data(), x);
  }
};

// In a narrow band, from both ends.
template <int B>
struct PlainBandFactors : OrderedFactors {
  PlainBand<B> band;

 protected:
  void solve_in_order(double* x) const override { band.solve(x); }
};

// Of the identity times `one` + `c` times a band of these widths, its rows one after the other, by what suits it; none, if
// that is singular.
template <int B = 1>
std::shared_ptr<OrderedFactors> factorised_band(long d, int below, int above, const std::vector<double>& band, double c,
                                                double one) {
  if constexpr (B <= 4) {
    if (below != B || above != B) return factorised_band<B + 1>(d, below, above, band, c, one);
    auto plain = std::make_shared<PlainBandFactors<B>>();
    if (plain->band.factorise(d, band.data(), c, one)) return plain;
  }
  auto made = std::make_shared<BandFactors>();
  made->d = d, made->below = below, made->above = above, made->upper.resize(band.size());
  const long w = below + above + 1;
  for (size_t i = 0; i < band.size(); ++i) made->upper[i] = c * band[i];
  for (long i = 0; i < d; ++i) made->upper[i * w + below] += one;
  if (!made->factorise()) return nullptr;
  return made;
}

// Sparse, by small full matrices. Memory of earlier factors is used again.
struct FrontFactors : Factors {
  std::shared_ptr<const FrontPlan> plan;
  Shared numbers;

  FrontFactors(const std::shared_ptr<const FrontPlan>& given, const std::shared_ptr<Vectors>& memory)
      : plan(given), numbers(Vectors::take(memory)) {}

  // False: rows would have to be exchanged, or it is singular.
  bool factorise(const double* entries) { return factorise_fronts(*plan, entries, numbers.get()); }

  void solve(double* x, double* room) const override { solve_fronts(*plan, numbers.get(), x, room); }
};

// P A Q = L U with both factors in compressed columns: the entry of the diagonal is the first of L (and one) and the last
// of U. `rows` and `columns` say where a row and a column of A have gone.
struct SparseFactors : Factors {
  long d;
  std::vector<double> lower, upper;
  std::vector<int32_t> lower_rows, lower_ends, upper_rows, upper_ends, rows, columns;

  // Diagonals to their places.
  void arrange() {
    for (long k = 0; k < d; ++k) {
      for (int32_t p = lower_ends[k]; p < lower_ends[k + 1]; ++p)
        if (lower_rows[p] == k) exchange(lower, lower_rows, p, lower_ends[k]);
      for (int32_t p = upper_ends[k]; p < upper_ends[k + 1]; ++p)
        if (upper_rows[p] == k) exchange(upper, upper_rows, p, upper_ends[k + 1] - 1);
    }
  }

  static void exchange(std::vector<double>& entries, std::vector<int32_t>& places, int32_t p, int32_t q) {
    std::swap(entries[p], entries[q]);
    std::swap(places[p], places[q]);
  }

  void solve(double* x, double* room) const override {
    for (long i = 0; i < d; ++i) room[rows[i]] = x[i];
    for (long k = 0; k < d; ++k) {
      const double value = room[k];
      if (value == 0.0) continue;
      for (int32_t p = lower_ends[k] + 1; p < lower_ends[k + 1]; ++p) room[lower_rows[p]] -= lower[p] * value;
    }
    for (long k = d - 1; k >= 0; --k) {
      const int32_t last = upper_ends[k + 1] - 1;
      const double value = room[k] /= upper[last];
      if (value == 0.0) continue;
      for (int32_t p = upper_ends[k]; p < last; ++p) room[upper_rows[p]] -= upper[p] * value;
    }
    for (long i = 0; i < d; ++i) x[i] = room[columns[i]];
  }
};

// LAPACK's: L below the diagonal, U above, column by column; the rows that were exchanged.
struct FullFactors : Factors {
  long d;
  std::vector<double> both;
  std::vector<int32_t> exchanged;

  void solve(double* x, double*) const override {
    for (long k = 0; k < d; ++k) std::swap(x[k], x[exchanged[k]]);
    for (long k = 0; k < d; ++k) {
      const double value = x[k], *column = both.data() + k * d;
      for (long i = k + 1; i < d; ++i) x[i] -= column[i] * value;
    }
    for (long k = d - 1; k >= 0; --k) {
      const double* column = both.data() + k * d;
      const double value = x[k] /= column[k];
      for (long i = 0; i < k; ++i) x[i] -= column[i] * value;
    }
  }
};

// A sparse matrix by rows, to be multiplied with.
struct Rows {
  std::vector<double> entries;
  std::vector<int32_t> columns, ends;

  void multiply(long d, const double* x, double* out) const {
    for (long i = 0; i < d; ++i) {
      double sum = 0.0;
      for (int32_t p = ends[i]; p < ends[i + 1]; ++p) sum += entries[p] * x[columns[p]];
      out[i] = sum;
    }
  }
};

}  // namespace PROBODE_ISA
}  // namespace probode
