// A vector field as a list of operations on numbers, written by `tape.py`.
//
// Places: t, y | inputs, constants | results, those of a group in whole lanes.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "operations.hpp"

namespace probode {
namespace PROBODE_ISA {

// How a group reads an operand: places in a row, one place, or places that are listed.
enum Reading : int32_t { kConsecutive, kSame, kListed };

struct Operand {
  int32_t how;
  const double* from;
  const int32_t* listed;

  double one(int i) const { return how == kListed ? from[listed[i]] : from[how == kSame ? 0 : i]; }

  Lane lane(int i) const {
    if (how == kConsecutive) return load(from + i);
    if (how == kSame) return Lane{} + *from;
    const int32_t* at = listed + i;
    return Lane{from[at[0]], from[at[1]], from[at[2]], from[at[3]]};
  }
};

class Tape {
 public:
  Tape(const TapeData& field, int d)
      : first_(d + 1), groups_(field.code[1]), outputs_(field.code[2]), code_(field.code + 4) {
    places_ = room(memory_, first_ + field.given + field.code[3] + kLane);
    std::memcpy(places_ + first_, field.numbers, sizeof(double) * field.given);
  }

  int outputs() const { return outputs_; }

  // `at`: (t, y).
  void evaluate(const double* at, double* out) {
    double* x = places_;
    std::memcpy(x, at, sizeof(double) * first_);
    const int32_t* code = code_;
    for (int i = 0;; ++i) {
      code = one_by_one(code, x);
      if (i == groups_) break;
      code = group(code, x);
    }
    for (int i = 0; i < outputs_; ++i) out[i] = x[code[i]];
  }

 private:
  // (count, place of the first result), and `count` times (operation, place, place, place).
  static const int32_t* one_by_one(const int32_t* code, double* x) {
    const int32_t* row = code + 2;
    double* result = x + code[1];
    for (int i = 0; i < code[0]; ++i, row += 4)
      result[i] = operate(row[0], x[row[1]], x[row[2]], x[row[3]]);
    return row;
  }

  // (operation, count, place of the first result), how and from where its three operands are read, and
  // the places that are listed, in whole lanes.
  static const int32_t* group(const int32_t* code, double* x) {
    Operand operands[3];
    const int32_t *how = code + 3, *listed = how + 6;
    for (auto& operand : operands) {
      operand = {how[0], x + how[1], listed};
      if (how[0] == kListed) listed += (code[1] + kLane - 1) / kLane * kLane;
      how += 2;
    }
    const int32_t operation = code[0], count = code[1];
    double* out = x + code[2];
    if (operation < kExp)
      loop_of(operation, std::make_integer_sequence<int32_t, kExp>())(operands, count, out);
    else
      for (int i = 0; i < count; ++i)
        out[i] = function(operation, operands[0].one(i), operands[1].one(i));
    return listed;
  }

  using Loop = void (*)(const Operand*, int, double*);

  template <int32_t... operations>
  static Loop loop_of(int32_t operation, std::integer_sequence<int32_t, operations...>) {
    static constexpr Loop loops[] = {loop<operations>...};
    return loops[operation];
  }

  // In whole lanes: no other result has a place there.
  template <int32_t operation>
  static void loop(const Operand* operands, int count, double* out) {
    const Operand a = operands[0], b = operands[1], c = operands[2];
    for (int i = 0; i < count; i += kLane)
      store(out + i, arithmetic(operation, a.lane(i), b.lane(i), c.lane(i)));
  }

  int first_, groups_, outputs_;
  const int32_t* code_;
  std::vector<double> memory_;
  double* places_;
};

// The same list at as many places at once as a vector has numbers.
template <typename Vector>
class WideTape {
 public:
  WideTape(const TapeData& field, int d)
      : first_(d + 1), groups_(field.code[1]), outputs_(field.code[2]), code_(field.code + 4) {
    places_ = room(memory_, kWidth * (first_ + field.given + field.code[3] + kLane));
    for (long i = 0; i < field.given; ++i) put(static_cast<int32_t>(first_ + i), Vector{} + field.numbers[i]);
  }

  // Another number, of one place alone.
  void take(long which, int lane, double number) { places_[kWidth * (first_ + which) + lane] = number; }

  int outputs() const { return outputs_; }

  // `at`: (t, y), of which the first `count` places are asked for (functions are called for these only).
  void evaluate(const Vector* at, int count, Vector* out) {
    std::memcpy(places_, at, sizeof(Vector) * first_);
    const int32_t* code = code_;
    for (int i = 0;; ++i) {
      code = one_by_one(code, count);
      if (i == groups_) break;
      code = group(code, count);
    }
    for (int i = 0; i < outputs_; ++i) out[i] = get(code[i]);
  }

 private:
  static constexpr int kWidth = sizeof(Vector) / sizeof(double);

  Vector get(int32_t place) const {
    Vector x;
    std::memcpy(&x, places_ + static_cast<long>(kWidth) * place, sizeof(Vector));
    return x;
  }
  void put(int32_t place, Vector x) { std::memcpy(places_ + static_cast<long>(kWidth) * place, &x, sizeof(Vector)); }

  static Vector operate_wide(int32_t operation, Vector a, Vector b, Vector c, int count) {
    if (operation < kExp) return arithmetic(operation, a, b, c);
    Vector out = {};
    for (int i = 0; i < count; ++i) out[i] = function(operation, a[i], b[i]);
    return out;
  }

  const int32_t* one_by_one(const int32_t* code, int count) {
    const int32_t* row = code + 2;
    for (int i = 0; i < code[0]; ++i, row += 4)
      put(code[1] + i, operate_wide(row[0], get(row[1]), get(row[2]), get(row[3]), count));
    return row;
  }

  const int32_t* group(const int32_t* code, int count) {
    const int32_t *how = code + 3, *listed = how + 6, *lists[3];
    const int32_t members = code[1];
    for (int k = 0; k < 3; ++k) {
      lists[k] = listed;
      if (how[2 * k] == kListed) listed += (members + kLane - 1) / kLane * kLane;
    }
    auto place = [&](int k, int i) {
      const int32_t from = how[2 * k + 1];
      return how[2 * k] == kListed ? from + lists[k][i] : how[2 * k] == kSame ? from : from + i;
    };
    for (int32_t i = 0; i < members; ++i)
      put(code[2] + i, operate_wide(code[0], get(place(0, i)), get(place(1, i)), get(place(2, i)), count));
    return listed;
  }

  int first_, groups_, outputs_;
  const int32_t* code_;
  std::vector<double> memory_;
  double* places_;
};

}  // namespace PROBODE_ISA
}  // namespace probode
