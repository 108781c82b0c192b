// In which order unknowns are eliminated: nested dissection. A set of unknowns (a separator) without which the others fall
// into two halves goes last, the halves come before it and are ordered in the same way. In the plane the factors then have
// some n log n numbers, in space n^(4/3).
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace probode {

// Who is next to whom, without the diagonal.
struct Graph {
  std::vector<int64_t> ends;
  std::vector<int32_t> neighbours;
};

class Dissection {
 public:
  explicit Dissection(const Graph& graph) : graph_(graph), part_(graph.ends.size() - 1, 0), level_(part_.size()) {}

  // Which unknown comes when.
  std::vector<int32_t> order() {
    const int32_t n = static_cast<int32_t>(part_.size());
    std::vector<int32_t> all(n);
    for (int32_t i = 0; i < n; ++i) all[i] = i;
    order_.reserve(n);
    // Depth first without recursion: a part is either to be divided or, if it is a separator, to be written down.
    std::vector<Part> waiting;
    waiting.push_back({std::move(all), false});
    while (!waiting.empty()) {
      Part next = std::move(waiting.back());
      waiting.pop_back();
      if (next.is_separator || next.unknowns.size() <= kFew) write(next);
      else divide(std::move(next.unknowns), waiting);
    }
    return std::move(order_);
  }

 private:
  static constexpr size_t kFew = 24;        // unknowns that are not divided any more
  static constexpr double kBalance = 0.25;  // the smaller half has at least this part of the unknowns
  static constexpr int kSweeps = 4;         // searches for an unknown at the border

  struct Part {
    std::vector<int32_t> unknowns;
    bool is_separator;
  };

  // Those with the fewest neighbours in the part first.
  void write(const Part& part) {
    if (part.is_separator) {
      order_.insert(order_.end(), part.unknowns.begin(), part.unknowns.end());
      return;
    }
    eliminate_fewest(part.unknowns);
  }

  // Minimum degree for a few unknowns, whose neighbours in the part are the bits of a number.
  void eliminate_fewest(const std::vector<int32_t>& unknowns) {
    const size_t n = unknowns.size();
    const int32_t mine = ++parts_;
    for (size_t i = 0; i < n; ++i) part_[unknowns[i]] = mine, level_[unknowns[i]] = static_cast<int32_t>(i);
    uint64_t next[kFew] = {}, left = (1ull << n) - 1;
    for (size_t i = 0; i < n; ++i)
      for (int64_t p = graph_.ends[unknowns[i]]; p < graph_.ends[unknowns[i] + 1]; ++p) {
        const int32_t other = graph_.neighbours[p];
        if (part_[other] == mine) next[i] |= 1ull << level_[other];
      }
    for (size_t k = 0; k < n; ++k) {
      size_t best = n;
      int fewest = 0;
      for (size_t i = 0; i < n; ++i) {
        if (!(left >> i & 1)) continue;
        const int degree = __builtin_popcountll(next[i] & left & ~(1ull << i));
        if (best == n || degree < fewest) best = i, fewest = degree;
      }
      left &= ~(1ull << best);
      order_.push_back(unknowns[best]);
      for (size_t i = 0; i < n; ++i)
        if (next[best] >> i & 1) next[i] |= next[best];
    }
  }

  // Levels of distance from `root` within a part: where each begins in `queue_`, which has the part as far as it was reached.
  void search(int32_t root, int32_t mine) {
    const int32_t reached = ++parts_;
    queue_.assign(1, root);
    levels_.assign(1, 0);
    part_[root] = reached;
    size_t done = 0;
    while (done < queue_.size()) {
      const size_t end = queue_.size();
      for (; done < end; ++done) {
        const int32_t from = queue_[done];
        level_[from] = static_cast<int32_t>(levels_.size()) - 1;
        for (int64_t p = graph_.ends[from]; p < graph_.ends[from + 1]; ++p) {
          const int32_t to = graph_.neighbours[p];
          if (part_[to] != mine) continue;
          part_[to] = reached;
          queue_.push_back(to);
        }
      }
      levels_.push_back(end);
    }
  }

  void divide(std::vector<int32_t> unknowns, std::vector<Part>& waiting) {
    const int32_t whole = ++parts_;
    for (int32_t i : unknowns) part_[i] = whole;
    search(unknowns[0], whole);
    if (queue_.size() < unknowns.size()) {  // they are apart already
      waiting.push_back({queue_, false});
      for (int32_t i : unknowns) {
        if (part_[i] != whole) continue;
        search(i, whole);
        waiting.push_back({queue_, false});
      }
      return;
    }
    for (int sweep = 0; sweep < kSweeps; ++sweep) {  // from an unknown that is as far away as any
      const size_t before = levels_.size();
      search(farthest(), parts_);
      if (levels_.size() <= before && sweep > 0) break;
    }
    const int chosen = narrowest(unknowns.size());
    if (chosen < 0) return in_one_piece(std::move(unknowns));
    Part low{{}, false}, high{{}, false}, between{{}, true};
    for (int32_t i : queue_) {
      if (level_[i] > chosen) high.unknowns.push_back(i);
      else if (level_[i] < chosen || !touches(i, chosen + 1)) low.unknowns.push_back(i);
      else between.unknowns.push_back(i);
    }
    waiting.push_back(std::move(between));
    waiting.push_back(std::move(high));
    waiting.push_back(std::move(low));
  }

  // One of the last level with the fewest neighbours.
  int32_t farthest() const {
    const size_t begin = levels_[levels_.size() - 2];
    int32_t best = queue_[begin];
    for (size_t i = begin; i < queue_.size(); ++i)
      if (degree(queue_[i]) < degree(best)) best = queue_[i];
    return best;
  }

  int64_t degree(int32_t i) const { return graph_.ends[i + 1] - graph_.ends[i]; }

  bool touches(int32_t i, int32_t level) const {
    const int32_t mine = part_[i];
    for (int64_t p = graph_.ends[i]; p < graph_.ends[i + 1]; ++p) {
      const int32_t other = graph_.neighbours[p];
      if (part_[other] == mine && level_[other] == level) return true;
    }
    return false;
  }

  // The level with the fewest unknowns, for halves that are about as large; -1: none leaves two halves.
  int narrowest(size_t n) const {
    int best = -1;
    double cost = 0.0;
    for (size_t k = 1; k + 2 < levels_.size(); ++k) {
      const double before = static_cast<double>(levels_[k]), own = static_cast<double>(levels_[k + 1] - levels_[k]);
      const double smaller = std::min(before, n - before - own) / n;
      if (smaller <= 0.0) continue;
      const double uneven = std::max(1.0, kBalance / smaller), this_cost = own * uneven * uneven;
      if (best < 0 || this_cost < cost) best = static_cast<int>(k), cost = this_cost;
    }
    return best;
  }

  // Everybody is next to nearly everybody.
  void in_one_piece(std::vector<int32_t> unknowns) {
    std::stable_sort(unknowns.begin(), unknowns.end(), [&](int32_t a, int32_t b) { return degree(a) < degree(b); });
    order_.insert(order_.end(), unknowns.begin(), unknowns.end());
  }

  const Graph& graph_;
  std::vector<int32_t> part_, level_, queue_, order_;
  std::vector<size_t> levels_;
  int32_t parts_ = 0;
};

}  // namespace probode
