// A program for a card: the threads of a warp solve a member each, then the next ones that wait. It is included after what belongs to one
// problem: `SizesHere`, `Tables`, and the lists of operations as functions (see engines/abreast/source.py).
#pragma once

#include "solve.hpp"

namespace probode {
namespace PROBODE_ISA {

struct CardField {
  const double *for_start, *for_value, *for_slopes;
  double own[kOwn + 1];

  __forceinline__ void take(int, const double* numbers) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) own[k] = numbers[k];
  }
  __forceinline__ void start(const Number* at, Number* out) { start_of(at[0], at + 1, for_start, own, out); }
  __forceinline__ void value(Number t, const Number* y, Number* f) { value_of(t, y, for_value, own, f); }
  __forceinline__ void slopes(Number t, const Number* y, Number* f, Number* jacobian) {
    constexpr int d = SizesHere::d, count = SizesHere::follows == kFollowsAll ? d * d : d;
    Number out[d + count];
    slopes_of(t, y, for_slopes, own, out);
#pragma unroll
    for (int a = 0; a < d; ++a) f[a] = out[a];
#pragma unroll
    for (int a = 0; a < count; ++a) jacobian[a] = out[d + a];
  }
};

struct CardRows {
  Store store;
  long most;
  __forceinline__ bool make_room(long row) const { return row < most; }
};

}  // namespace PROBODE_ISA
}  // namespace probode

using namespace probode;
using namespace probode::card;

// Rows of the steps and of the save points lie beside each other for the threads of a warp: `rows` has room for
// `most_rows` of every thread. Members are solved up to the place `count` of their order; `turn`: up to where they have
// been begun.
//
// Two blocks of a multiprocessor: as many registers as there are. Left to itself the compiler at times takes 32, and keeps
// all else in memory.
extern "C" __global__ void __launch_bounds__(128, 2)
solve_members(Given given, Options options, const double* for_start, const double* for_value, const double* for_slopes,
              double* rows, long most_rows, double* noted, long count, unsigned long long* turn) {
  constexpr int kWarp = 32;
  const long thread = blockIdx.x * static_cast<long>(blockDim.x) + threadIdx.x;
  const long warp = thread / kWarp, lane = thread % kWarp;
  const int width = Kept<SizesHere>{}.width(), noted_numbers = noted_width(SizesHere{});
  CardRows kept{{rows + warp * most_rows * width * kWarp + lane, kWarp, width}, most_rows};
  const Store around{noted + warp * given.times * noted_numbers * kWarp + lane, kWarp, noted_numbers};
  CardField field{for_start, for_value, for_slopes, {}};
  while (true) {
    unsigned long long first = 0;
    if (lane == 0) first = atomicAdd(turn, static_cast<unsigned long long>(kWarp));
    first = __shfl_sync(0xffffffffu, first, 0);
    if (static_cast<long>(first) >= count) return;
    // Those of a warp do everything together, those who have no member, too.
    const long own = static_cast<long>(first) + lane, known = own < count ? own : count - 1;
    const int lanes = own < count ? 1 : 0;
    Solve<SizesHere, CardField, CardRows>{SizesHere{}, Tables{}, options, given, field, kept, around, known, lanes}.run();
    __syncwarp();
  }
}
