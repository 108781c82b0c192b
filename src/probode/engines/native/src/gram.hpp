// Products and decompositions of matrices that are too large for one reflection after the other: tiles of
// a few rows whose sums stay in registers, so that a number loaded is used several times.
//
// Matrices are row-major, with rows of whole lanes; rows and columns up to the next multiple of kTile
// exist and may be written.
#pragma once

#include <type_traits>

#include "qr.hpp"

namespace probode {
namespace PROBODE_ISA {

constexpr int kTile = 4;   // rows of a tile
constexpr int kStrip = 3;  // lanes of a tile

inline int whole_tiles(int size) { return (size + kTile - 1) / kTile * kTile; }

// sum_i += sign Σ_r a_ri b_r over `depth` rows r of b, for kTile numbers i; a_ri is found at
// a[r * a_stride + i * a_step].
template <int lanes, int sign>
inline void add_products(const double* a, int a_stride, int a_step, const double* b, int b_stride,
                         int depth, Lane (&sum)[kTile][lanes]) {
  for (int r = 0; r < depth; ++r, a += a_stride, b += b_stride) {
    Lane row[lanes];
    for (int c = 0; c < lanes; ++c) row[c] = load(b + kLane * c);
    for (int i = 0; i < kTile; ++i)
      for (int c = 0; c < lanes; ++c) {
        if (sign > 0) sum[i][c] += a[static_cast<long>(i) * a_step] * row[c];
        else sum[i][c] -= a[static_cast<long>(i) * a_step] * row[c];
      }
  }
}

// Calls `visit(column, lanes)` for the strips that make up the columns from `begin` to `end`; `lanes` is
// an integral constant.
template <typename Visit>
inline void for_strips(int begin, int end, Visit&& visit) {
  int c = begin;
  for (; c + kLane * (kStrip - 1) < end; c += kLane * kStrip) visit(c, std::integral_constant<int, 3>());
  if (c + kLane < end) visit(c, std::integral_constant<int, 2>());
  else if (c < end) visit(c, std::integral_constant<int, 1>());
}

// out = AᵀB, tile by tile: of the tile that begins with row `a` of the result the columns from `begin(a)` to
// `columns`, as sums over `depth(a)` rows of A and B.
template <typename Begin, typename Depth>
inline void product(const double* a, int a_stride, const double* b, int b_stride, int rows, int columns,
                    double* out, int out_stride, Begin&& begin, Depth&& depth) {
  for (int row = 0; row < rows; row += kTile) {
    const int count = depth(row);
    for_strips(begin(row), columns, [&](int column, auto width) {
      constexpr int lanes = decltype(width)::value;
      Lane sum[kTile][lanes] = {};
      add_products<lanes, 1>(a + row, a_stride, 1, b + column, b_stride, count, sum);
      for (int i = 0; i < kTile; ++i)
        for (int c = 0; c < lanes; ++c)
          store(out + static_cast<long>(row + i) * out_stride + column + kLane * c, sum[i][c]);
    });
  }
}

// out = RᵀR, from the diagonal of tiles on to the right. Row `r` of the `rows` in `factor` is zero before
// column `first[r]`, and these are increasing.
inline void gram(const double* factor, int stride, int rows, const int* first, int size, double* out,
                 int out_stride) {
  int depth = 0;
  product(factor, stride, factor, stride, size, size, out, out_stride, [](int row) { return row; },
          [&](int row) {
            while (depth < rows && first[depth] < row + kTile) ++depth;
            return depth;
          });
}

// A tile turned: each lane is made from two, which compilers know as one instruction.
inline void turn_tile(const double* from, long stride, double* to, long out_stride) {
  static_assert(kTile == 4 && kLane == 4, "a tile is four lanes");
  const Lane a = load(from), b = load(from + stride), c = load(from + 2 * stride), d = load(from + 3 * stride);
  const Lane ab_even = {a[0], b[0], a[2], b[2]}, ab_odd = {a[1], b[1], a[3], b[3]};
  const Lane cd_even = {c[0], d[0], c[2], d[2]}, cd_odd = {c[1], d[1], c[3], d[3]};
  store(to, Lane{ab_even[0], ab_even[1], cd_even[0], cd_even[1]});
  store(to + out_stride, Lane{ab_odd[0], ab_odd[1], cd_odd[0], cd_odd[1]});
  store(to + 2 * out_stride, Lane{ab_even[2], ab_even[3], cd_even[2], cd_even[3]});
  store(to + 3 * out_stride, Lane{ab_odd[2], ab_odd[3], cd_odd[2], cd_odd[3]});
}

// out = inᵀ, tile by tile, for `rows` by `columns` numbers of `in`.
inline void transpose(const double* in, int stride, int rows, int columns, double* out, int out_stride) {
  for (int a = 0; a < rows; a += kTile)
    for (int b = 0; b < columns; b += kTile)
      turn_tile(in + static_cast<long>(a) * stride + b, stride, out + static_cast<long>(b) * out_stride + a,
                out_stride);
}

// Copy what is right of the diagonal of tiles to its left (and within the tiles).
inline void mirror(double* matrix, int stride, int size) {
  for (int a = 0; a < size; a += kTile) {
    double* tile = matrix + static_cast<long>(a) * stride + a;
    for (int i = 0; i < kTile; ++i)
      for (int j = 0; j < i; ++j) tile[i * stride + j] = tile[j * stride + i];
    if (a + kTile < size)
      transpose(tile + kTile, stride, kTile, size - a - kTile,
                tile + static_cast<long>(kTile) * stride, stride);
  }
}

// A tile of an upper triangle U, and what its pivots divide by; zero for rows that only fill the tile.
struct Pivots {
  double u[kTile][kTile], inverse[kTile];
};

// U⁻ᵀ times the rows of a tile that begins with row `a`, in place and for the columns from `begin` to `end`;
// the rows of `b` above have been dealt with.
inline void solve_tile(const double* u, int u_stride, int a, const Pivots& pivots, double* b, int b_stride,
                       int begin, int end) {
  double* rows = b + static_cast<long>(a) * b_stride;
  for_strips(begin, end, [&](int column, auto width) {
    constexpr int lanes = decltype(width)::value;
    Lane sum[kTile][lanes];
    for (int i = 0; i < kTile; ++i)
      for (int c = 0; c < lanes; ++c) sum[i][c] = load(rows + i * b_stride + column + kLane * c);
    add_products<lanes, -1>(u + a, u_stride, 1, b + column, b_stride, a, sum);
    for (int i = 0; i < kTile; ++i)
      for (int c = 0; c < lanes; ++c) {
        for (int e = 0; e < i; ++e) sum[i][c] -= pivots.u[e][i] * sum[e][c];
        sum[i][c] *= pivots.inverse[i];
        store(rows + i * b_stride + column + kLane * c, sum[i][c]);
      }
  });
}

// Right factor of a covariance in place, S = UᵀU, row by row: U is found right of the diagonal, what is
// left of it is not touched. `ends(row)` is how many columns the rows of a tile have (the matrix itself,
// and whatever should be multiplied by U⁻ᵀ).
//
// `trusted(row, square)` is the square of a pivot to go on with; false as soon as that is not above zero.
template <typename Ends, typename Trusted>
inline bool cholesky(double* s, int stride, int size, Ends&& ends, Trusted&& trusted) {
  for (int a = 0; a < size; a += kTile) {
    double* rows = s + static_cast<long>(a) * stride;
    Lane diagonal[kTile][1];
    for (int i = 0; i < kTile; ++i) diagonal[i][0] = load(rows + i * stride + a);
    add_products<1, -1>(s + a, stride, 1, s + a, stride, a, diagonal);
    Pivots pivots;
    auto& u = pivots.u;
    for (int i = 0; i < kTile; ++i) store(u[i], diagonal[i][0]);
    for (int i = 0; i < kTile; ++i) {
      if (a + i >= size) {  // a row that only fills the tile
        pivots.inverse[i] = 0.0;
        for (int j = 0; j < kTile; ++j) u[i][j] = 0.0;
        continue;
      }
      const double square = trusted(a + i, u[i][i]);
      if (!(square > 0.0)) return false;
      u[i][i] = std::sqrt(square);
      pivots.inverse[i] = 1.0 / u[i][i];
      for (int j = i + 1; j < kTile; ++j) u[i][j] *= pivots.inverse[i];
      for (int e = i + 1; e < kTile; ++e)
        for (int j = e; j < kTile; ++j) u[e][j] -= u[i][e] * u[i][j];
    }
    for (int i = 0; i < kTile; ++i)
      for (int j = i; j < kTile; ++j) rows[i * stride + a + j] = u[i][j];
    solve_tile(s, stride, a, pivots, s, stride, a + kTile, ends(a));
  }
  return true;
}

// B = U⁻ᵀ B for an upper triangle U without zeros on its diagonal, from the first row to the last.
inline void solve_transposed(const double* u, int u_stride, int size, double* b, int b_stride, int columns) {
  for (int a = 0; a < size; a += kTile) {
    Pivots pivots = {};
    for (int i = 0; i < kTile && a + i < size; ++i) {
      const double* row = u + static_cast<long>(a + i) * u_stride + a;
      for (int j = i; j < kTile; ++j) pivots.u[i][j] = row[j];
      pivots.inverse[i] = 1.0 / row[i];
    }
    solve_tile(u, u_stride, a, pivots, b, b_stride, 0, columns);
  }
}

// out_i = Σ_{e >= from} a_ie b_e for kTile rows i of `a`, in the columns from `begin` to `end`. In place if
// `out` is the rows of `b` that belong to the tile, and a_ie is zero for the earlier ones.
inline void multiply_rows(const double* a, int a_stride, int from, int size, const double* b, int b_stride,
                          int begin, int end, double* out, int out_stride) {
  for_strips(begin, end, [&](int column, auto width) {
    constexpr int lanes = decltype(width)::value;
    Lane sum[kTile][lanes] = {};
    add_products<lanes, 1>(a + from, 1, a_stride, b + static_cast<long>(from) * b_stride + column, b_stride,
                           size - from, sum);
    for (int i = 0; i < kTile; ++i)
      for (int c = 0; c < lanes; ++c)
        store(out + static_cast<long>(i) * out_stride + column + kLane * c, sum[i][c]);
  });
}

// out = U⁻¹ B, from the last row to the first: pivot * row + Σ_e U_re out_e = B_r. U and B are found in the
// same rows; a zero pivot gives a zero row. Whole tiles of `out` are written, and rows of U and B read.
inline void solve_rows(const double* u, const double* b, int stride, int size, double* out,
                       int out_stride) {
  for (int a = whole_tiles(size) - kTile; a >= 0; a -= kTile) {
    const double* rows = u + static_cast<long>(a) * stride;
    const int count = size - a < kTile ? size - a : kTile, after = a + count;
    double inverse[kTile];
    for (int i = 0; i < kTile; ++i) {
      const double pivot = i < count ? rows[static_cast<long>(i) * stride + a + i] : 0.0;
      inverse[i] = inverse_pivot(pivot);
    }
    for_strips(0, size, [&](int column, auto width) {
      constexpr int lanes = decltype(width)::value;
      Lane sum[kTile][lanes];
      for (int i = 0; i < kTile; ++i)
        for (int c = 0; c < lanes; ++c)
          sum[i][c] = load(b + static_cast<long>(a + i) * stride + column + kLane * c);
      add_products<lanes, -1>(rows + after, 1, stride, out + static_cast<long>(after) * out_stride + column,
                              out_stride, size - after, sum);
      for (int i = kTile - 1; i >= 0; --i)
        for (int c = 0; c < lanes; ++c) {
          for (int e = i + 1; e < kTile; ++e)
            if (e < count) sum[i][c] -= rows[static_cast<long>(i) * stride + a + e] * sum[e][c];
          sum[i][c] = i < count ? inverse[i] * sum[i][c] : Lane{};
          store(out + static_cast<long>(a + i) * out_stride + column + kLane * c, sum[i][c]);
        }
    });
  }
}

}  // namespace PROBODE_ISA
}  // namespace probode
