// LU of a narrow band without row exchanges, begun at both ends: two chains of operations, of which each would wait for
// its own last result, go side by side. They meet in a small block in the middle.
#pragma once
#include <cmath>
#include <vector>

namespace probode {
namespace PROBODE_ISA {

constexpr double kLargestFactor = 10.0;  // of a row that is subtracted: larger ones want rows exchanged

// B diagonals below and above. Rows 0 .. m-1 are eliminated downwards, the last n - B - m of them upwards (their numbers
// and columns are counted from the end: the same operations), rows m .. m+B-1 are the block in the middle.
template <int B>
class PlainBand {
 public:
  static constexpr int W = 2 * B + 1;

  // Of the identity times `one` + `c` times a band, whose row i has the columns i-B .. i+B. False: rows would have to be
  // exchanged, or it is singular.
  bool factorise(long n, const double* band, double c, double one) {
    n_ = n, m_ = (n - B) / 2;
    if (m_ < B) return false;
    const long other = n - B - m_;
    down_.resize((m_ + B) * W), up_.resize((other + B) * W);
    double both[B][B] = {};
    auto entry = [&](long k, bool diagonal) { return c * band[k] + (diagonal ? one : 0.0); };
    auto forward = [&](long i, int j) { return entry(i * W + j, j == B); };
    auto backward = [&](long i, int j) { return entry((n - 1 - i) * W + (W - 1 - j), j == B); };
    if (!eliminate(m_, forward, down_.data(), both, false)) return false;
    if (!eliminate(other, backward, up_.data(), both, true)) return false;
    for (int r = 0; r < B; ++r)
      for (int k = 0; k < B; ++k) both[r][k] += entry((m_ + r) * W + B + k - r, k == r);
    return invert(both);
  }

  void solve(double* x) const {
    const long other = n_ - B - m_;  // at least m
    double *low = x, *high = x + n_ - 1;
    const double *down = down_.data(), *up = up_.data();
    double a[B] = {}, b[B] = {};  // the last values of both chains
    for (long k = 0; k < m_; ++k) {
      low[k] = less(low[k], down + k * W, a);
      high[-k] = less(high[-k], up + k * W, b);
    }
    for (long k = m_; k < other; ++k) high[-k] = less(high[-k], up + k * W, b);
    meet(x);
    for (int r = 0; r < B; ++r) a[r] = low[m_ + r], b[r] = low[m_ + B - 1 - r];
    for (long k = other - 1; k >= m_; --k) high[-k] = resolved(high[-k], up + k * W + B, b);
    for (long k = m_ - 1; k >= 0; --k) {
      low[k] = resolved(low[k], down + k * W + B, a);
      high[-k] = resolved(high[-k], up + k * W + B, b);
    }
  }

 private:
  // What the rows before have of it is subtracted, the latest (which is waited for) last.
  static double less(double value, const double* factors, double* last) {
    for (int j = 0; j < B; ++j) value -= factors[j] * last[B - 1 - j];
    return pushed(value, last);
  }

  static double resolved(double value, const double* row, double* next) {
    value *= row[0];
    for (int c = B; c > 0; --c) value -= row[c] * next[c - 1];
    return pushed(value, next);
  }

  static double pushed(double value, double* last) {
    for (int j = B - 1; j > 0; --j) last[j] = last[j - 1];
    return last[0] = value;
  }

  void meet(double* x) const {
    const long other = n_ - B - m_;
    double right[B];
    for (int r = 0; r < B; ++r) {
      const double *down = down_.data() + (m_ + r) * W, *up = up_.data() + (other + B - 1 - r) * W;
      right[r] = x[m_ + r];
      for (int j = 0; j < B - r; ++j) right[r] -= down[j] * x[m_ + r - B + j];
      for (int j = 0; j < r + 1; ++j) right[r] -= up[j] * x[n_ - 1 - (other - 1 - r + j)];
    }
    for (int r = 0; r < B; ++r) {
      double sum = 0.0;
      for (int c = 0; c < B; ++c) sum += middle_[r][c] * right[c];
      x[m_ + r] = sum;
    }
  }

  // A row: B factors of the rows before (the farthest first), 1/pivot, and the B entries after it, divided by it.
  template <typename Entry>
  static bool eliminate(long m, const Entry& entry, double* rows, double (*both)[B], bool reversed) {
    for (long i = 0; i < m + B; ++i) {
      double row[W], *out = rows + i * W;
      for (int j = 0; j < W; ++j) row[j] = entry(i, j);
      for (int j = 0; j < B; ++j) {
        const long k = i - B + j;  // the column that goes
        out[j] = 0.0;
        if (k < 0 || k >= m) continue;
        const double factor = row[j] * rows[k * W + B];
        if (!(std::fabs(factor) <= kLargestFactor)) return false;
        out[j] = factor;
        for (int c = 1; c <= B; ++c) row[j + c] -= row[j] * rows[k * W + B + c];  // which is divided
      }
      if (i < m) {
        if (!(std::fabs(row[B]) > 0.0) || !std::isfinite(row[B])) return false;
        const double inverse = 1.0 / row[B];
        out[B] = inverse;
        for (int c = 1; c <= B; ++c) out[B + c] = row[B + c] * inverse;
      } else {
        const int r = static_cast<int>(i - m);
        for (int c = 0; c < B; ++c) {  // what has changed in the middle
          const int j = B + c - r;
          const double change = row[j] - entry(i, j);
          both[reversed ? B - 1 - r : r][reversed ? B - 1 - c : c] += change;
        }
        out[B] = 1.0;
        for (int c = 1; c <= B; ++c) out[B + c] = 0.0;
      }
    }
    return true;
  }

  bool invert(double (*a)[B]) {
    double both[B][2 * B] = {};
    for (int r = 0; r < B; ++r) {
      for (int c = 0; c < B; ++c) both[r][c] = a[r][c];
      both[r][B + r] = 1.0;
    }
    for (int k = 0; k < B; ++k) {
      int best = k;
      for (int r = k + 1; r < B; ++r)
        if (std::fabs(both[r][k]) > std::fabs(both[best][k])) best = r;
      for (int c = 0; c < 2 * B; ++c) std::swap(both[k][c], both[best][c]);
      if (!(std::fabs(both[k][k]) > 0.0) || !std::isfinite(both[k][k])) return false;
      const double inverse = 1.0 / both[k][k];
      for (int c = 0; c < 2 * B; ++c) both[k][c] *= inverse;
      for (int r = 0; r < B; ++r) {
        if (r == k) continue;
        const double factor = both[r][k];
        for (int c = 0; c < 2 * B; ++c) both[r][c] -= factor * both[k][c];
      }
    }
    for (int r = 0; r < B; ++r)
      for (int c = 0; c < B; ++c) middle_[r][c] = both[r][B + c];
    return true;
  }

  long n_ = 0, m_ = 0;
  std::vector<double> down_, up_;
  double middle_[B][B];
};

}  // namespace PROBODE_ISA
}  // namespace probode
