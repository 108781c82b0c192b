// A plan for the LU of sparse matrices of one pattern: which unknown is eliminated when, and in which small full matrices
// ("fronts"). Made once; see fronts.hpp for what is done with it. The pattern is taken to be symmetric.
#pragma once
#include <cstdint>
#include <vector>

namespace probode {

// Unknowns that are eliminated together, since the same others are left behind: a front has the rows and columns of these
// pivots first, then those of the others.
struct FrontPlan {
  long d = 0;
  std::vector<int32_t> order;         // which unknown comes when
  std::vector<int32_t> first;         // front s has the pivots first[s] .. first[s + 1] - 1,
  std::vector<int64_t> begins;        // and leaves behind rows[begins[s]] .. rows[begins[s + 1] - 1];
  std::vector<int32_t> rows;          // what is left of its matrix is added
  std::vector<int32_t> relative;      // to these rows and columns
  std::vector<int64_t> child_begins;  // of the front that it goes to: after those that go to it,
  std::vector<int32_t> children;      // which are children[child_begins[s]] .. , and come in this order
  std::vector<int64_t> entry_begins;  // Front s begins with the entries entry_begins[s] .. of the matrix,
  std::vector<int32_t> entries;       // of these numbers,
  std::vector<int32_t> entry_row, entry_column;  // at these places of the front.
  double operations = 0.0;            // multiplications of a factorisation
  int64_t numbers = 0;                // in the factors
  int64_t stack = 0, largest = 0;     // numbers that wait during a factorisation, at most; rows of the largest front

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
