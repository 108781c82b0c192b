// Members of one problem side by side, a lane of a vector for each. Compiled once per instruction set, with PROBODE_ISA
// naming it.
#include <algorithm>
#include <new>
#include <vector>

#include "kernels.hpp"

#include "tape.hpp"

#include "abreast/solve.hpp"

namespace probode {
namespace PROBODE_ISA {
namespace {

// Memory for rows of numbers, which begins with a cache line.
class Lines {
 public:
  ~Lines() { release(); }
  double* room(size_t count) {
    if (count > size_) {
      double* more = static_cast<double*>(::operator new(sizeof(double) * count, kLine));
      if (size_) std::memcpy(more, memory_, sizeof(double) * size_);
      release();
      memory_ = more, size_ = count;
    }
    return memory_;
  }
  size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kLine{64};
  void release() {
    if (memory_) ::operator delete(memory_, kLine);
  }
  double* memory_ = nullptr;
  size_t size_ = 0;
};

// The vector field of the members, with the numbers of each in its lane.
class ListedField {
 public:
  ListedField(const AbreastData& given, int d)
      : g_(given), d_(d), start_(given.start, d), value_(given.value, d),
        slopes_(given.slopes.code ? given.slopes : given.value, d), at_(d + 1), out_(slopes_.outputs()) {}

  void take(int lane, const double* numbers) {
    for (long k = 0; k < g_.own; ++k) {
      const long place = g_.places[k];
      start_.take(place, lane, numbers[k]);
      if (place >= g_.of_field) continue;
      value_.take(place, lane, numbers[k]);
      slopes_.take(place, lane, numbers[k]);
    }
  }
  void start(const Number* at, Number* out) { start_.evaluate(at, kAbreast, out); }
  void value(Number t, const Number* y, Number* f) { value_.evaluate(from(t, y), kAbreast, f); }
  void slopes(Number t, const Number* y, Number* f, Number* jacobian) {
    Number* out = out_.numbers();
    slopes_.evaluate(from(t, y), kAbreast, out);
    std::copy(out, out + d_, f);
    std::copy(out + d_, out + slopes_.outputs(), jacobian);
  }

 private:
  // Vectors in memory of their own.
  class Vectors {
   public:
    explicit Vectors(int count) { lines_.room(static_cast<size_t>(count) * kAbreast); }
    Number* numbers() { return reinterpret_cast<Number*>(lines_.room(0)); }

   private:
    Lines lines_;
  };

  const Number* from(Number t, const Number* y) {
    Number* at = at_.numbers();
    at[0] = t;
    std::copy(y, y + d_, at + 1);
    return at;
  }

  const AbreastData& g_;
  int d_;
  WideTape<Number> start_, value_, slopes_;
  Vectors at_, out_;
};

struct GrowingRows {
  Lines& memory;
  Store store;
  long most;  // rows

  bool make_room(long row) {
    if (row >= most) return false;
    const size_t each = static_cast<size_t>(store.width) * kAbreast, rows = static_cast<size_t>(row) + 1;
    if (rows * each > memory.size()) memory.room(each * std::min<size_t>(most, std::max<size_t>(2 * rows, 256)));
    store.first = memory.room(0);
    return true;
  }
};

Tables tables_of(const AbreastData& g, int n, int s, int k, int pairs) {
  Tables t{};
  t.transition = g.prior;
  t.noise = t.transition + n * n;
  t.weights = t.noise + n * n;
  if (!g.scheme) return t;
  t.nodes = g.scheme;
  t.values = t.nodes + s;
  t.slopes = t.values + s * (2 * k + 1);
  t.matrix = t.slopes + s * (2 * k + 1);
  t.ends = t.matrix + s * s;
  t.inverse = t.ends + s;
  t.shift_re = t.inverse + s * s;
  t.shift_im = t.shift_re + pairs;
  t.column_re = t.shift_im + pairs;
  t.column_im = t.column_re + s * pairs;
  t.row_re = t.column_im + s * pairs;
  t.row_im = t.row_re + pairs * s;
  return t;
}

template <class S>
void solve_with(const S& sizes, const AbreastData& g, long from, long to) {
  thread_local Lines row_memory, noted_memory;
  const Options& control = *reinterpret_cast<const Options*>(g.control);
  const Tables tables = tables_of(g, sizes.n, sizes.stages, sizes.contact, sizes.pairs);
  ListedField field(g, sizes.d);
  const int width = Kept<S>{sizes}.width(), noted = noted_width(sizes);
  const Store around{noted_memory.room(static_cast<size_t>(noted) * kAbreast * g.given.times), kAbreast, noted};
  for (long i = from; i < to; i += kAbreast) {
    GrowingRows rows{row_memory, {nullptr, kAbreast, width}, g.most_bytes / (8L * kAbreast * width)};
    const int lanes = static_cast<int>(std::min<long>(kAbreast, to - i));
    Solve<S, ListedField, GrowingRows>{sizes, tables, control, g.given, field, rows, around, i, lanes}.run();
  }
}

template <int n, int width>
void solve_as(const AbreastData& g, long from, long to) {
  const int32_t* x = g.sizes;
  SizesOf<n, width> s{};
  if constexpr (n == 0) s.n = x[0], s.width = x[1];
  s.d = x[2], s.blocks = x[3], s.follows = x[4];
  s.fixed = x[5], s.multivariate = x[6], s.damped = x[7], s.twice = x[8], s.integral = x[9];
  s.smoothed = x[10], s.only_end = x[11], s.calibrated = x[12], s.covariance = x[13];
  s.carried = x[14], s.stages = x[15], s.contact = x[16], s.rounds = x[17], s.middle = x[18], s.pairs = x[19];
  solve_with(s, g, from, to);
}

}  // namespace

// The members `from` to `to`.
void solve_abreast(const AbreastData& g, long from, long to) {
  if (g.sizes[0] == 4 && g.sizes[1] == 1) return solve_as<4, 1>(g, from, to);
  if (g.sizes[0] == 6 && g.sizes[1] == 1) return solve_as<6, 1>(g, from, to);
  solve_as<0, 0>(g, from, to);
}

}  // namespace PROBODE_ISA
}  // namespace probode
