// Passes over long vectors, each of which reads and writes everything once.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace probode {
namespace PROBODE_ISA {

constexpr long kBlock = 256;  // numbers of a vector that are dealt with at a time
constexpr int kSums = 8;      // sums that go side by side: the compiler may not exchange additions

// term(i) summed over i < n.
template <typename Term>
inline double sum_of(long n, const Term& term) {
  double sums[kSums] = {};
  long i = 0;
  for (; i + kSums <= n; i += kSums)
    for (int j = 0; j < kSums; ++j) sums[j] += term(i + j);
  double rest = 0.0;
  for (; i < n; ++i) rest += term(i);
  for (int j = 0; j < kSums; ++j) rest += sums[j];
  return rest;
}

// The largest term(i), i < n; none of them is negative. What is not a number is passed over.
template <typename Term>
inline double largest_of(long n, const Term& term) {
  double found[kSums] = {};
  long i = 0;
  for (; i + kSums <= n; i += kSums)
    for (int j = 0; j < kSums; ++j) {
      const double one = term(i + j);
      found[j] = one > found[j] ? one : found[j];
    }
  for (; i < n; ++i) found[0] = std::max(found[0], term(i));
  return *std::max_element(found, found + kSums);
}

// Vectors of one length whose memory is used again: new pages cost as much as a pass over them.
class Vectors {
 public:
  explicit Vectors(long size) : size_(size) {}
  ~Vectors() {
    for (double* one : free_) ::operator delete(one, std::align_val_t(64));
  }

  static std::shared_ptr<double> take(const std::shared_ptr<Vectors>& mine) {
    double* memory = nullptr;
    {
      std::lock_guard<std::mutex> turn(mine->turn_);
      if (!mine->free_.empty()) {
        memory = mine->free_.back();
        mine->free_.pop_back();
      }
    }
    if (memory == nullptr)
      memory = static_cast<double*>(::operator new(sizeof(double) * std::max(mine->size_, 1L), std::align_val_t(64)));
    return std::shared_ptr<double>(memory, [mine](double* one) { mine->give_back(one); });
  }

 private:
  void give_back(double* one) {
    std::lock_guard<std::mutex> turn(turn_);
    free_.push_back(one);
  }

  long size_;
  std::mutex turn_;
  std::vector<double*> free_;
};

using Shared = std::shared_ptr<double>;

}  // namespace PROBODE_ISA
}  // namespace probode
