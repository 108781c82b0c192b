// A plan for the LU of sparse matrices of one pattern: which unknown is eliminated when, and in which small full matrices
// ("fronts"). Made once; see fronts.hpp for what is done with it. The pattern is taken to be symmetric.
#pragma once
#include <cstdint>
#include <vector>

namespace probode {

// A front is for unknowns (its pivots) that are eliminated together: a full matrix whose first rows and columns are theirs,
// the others those of the unknowns that they leave behind. What is left of it after the elimination is added to a later one.
struct FrontPlan {
  long d = 0;
  std::vector<int32_t> order;  // which unknown comes when; all below are places in it
  // Front s has the pivots first[s] to first[s + 1] - 1 and leaves behind `rows`, from begins[s] to begins[s + 1] - 1; these
  // have the rows and columns `relative` in the front that they are added to.
  std::vector<int32_t> first, rows, relative;
  std::vector<int64_t> begins;
  // The fronts that are added to it: children[child_begins[s]] .. . They come before it, in this order.
  std::vector<int64_t> child_begins;
  std::vector<int32_t> children;
  // Numbers of the entries of the matrix that it begins with, entries[entry_begins[s]] .. , and their places in it.
  std::vector<int64_t> entry_begins;
  std::vector<int32_t> entries, entry_row, entry_column;
  double operations = 0.0;         // multiplications of a factorisation
  int64_t numbers = 0, stack = 0;  // in the factors; that wait during a factorisation, at most
  int64_t largest = 0;             // rows of the largest front

  long count() const { return static_cast<long>(first.size()) - 1; }
  // From one row of a front to the next: behind each there is room for a register, and not all rows begin in the same
  // places of the cache.
  static int64_t row_length(int64_t n) { return n + 8 + (n % 8 == 0 ? 4 : 0); }
  int pivots(long s) const { return first[s + 1] - first[s]; }
  int left(long s) const { return static_cast<int>(begins[s + 1] - begins[s]); }
};

// Of a matrix in compressed columns; by nested dissection, if no order is given.
FrontPlan plan_fronts(long d, const int32_t* ends, const int32_t* rows, const int32_t* order);

}  // namespace probode
