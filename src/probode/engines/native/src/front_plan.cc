// Compiled once: nothing here depends on the instruction set.
#include "front_plan.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dissection.hpp"

namespace probode {
namespace {

// Two unknowns are neighbours if the matrix has either entry.
Graph symmetric(long d, const int32_t* ends, const int32_t* rows) {
  Graph graph;
  std::vector<int64_t> counts(d + 1, 0);
  for (long j = 0; j < d; ++j)
    for (int32_t p = ends[j]; p < ends[j + 1]; ++p)
      if (rows[p] != j) ++counts[j + 1], ++counts[rows[p] + 1];
  std::partial_sum(counts.begin(), counts.end(), counts.begin());
  std::vector<int32_t> all(counts[d]);
  std::vector<int64_t> next(counts.begin(), counts.end() - 1);
  for (long j = 0; j < d; ++j)
    for (int32_t p = ends[j]; p < ends[j + 1]; ++p)
      if (rows[p] != j) all[next[j]++] = rows[p], all[next[rows[p]]++] = static_cast<int32_t>(j);
  graph.ends.assign(1, 0);
  for (long j = 0; j < d; ++j) {
    auto begin = all.begin() + counts[j], end = all.begin() + counts[j + 1];
    std::sort(begin, end);
    graph.neighbours.insert(graph.neighbours.end(), begin, std::unique(begin, end));
    graph.ends.push_back(static_cast<int64_t>(graph.neighbours.size()));
  }
  return graph;
}

// Who is eliminated next of those that an unknown leaves behind.
std::vector<int32_t> tree(const Graph& graph, const std::vector<int32_t>& order) {
  const int32_t d = static_cast<int32_t>(order.size());
  std::vector<int32_t> place(d), parent(d, -1), highest(d, -1);
  for (int32_t k = 0; k < d; ++k) place[order[k]] = k;
  for (int32_t k = 0; k < d; ++k)
    for (int64_t p = graph.ends[order[k]]; p < graph.ends[order[k] + 1]; ++p) {
      int32_t i = place[graph.neighbours[p]];
      while (i < k && i >= 0) {  // up to the top of what is known of its branch
        const int32_t next = highest[i];
        highest[i] = k;
        if (next < 0) parent[i] = k;
        if (next == k) break;
        i = next;
      }
    }
  return parent;
}

// Children before their parents, each branch in one piece. Parents have larger numbers.
std::vector<int32_t> by_branches(const std::vector<int32_t>& parent) {
  const int32_t n = static_cast<int32_t>(parent.size());
  std::vector<int32_t> below(n, 1), begin(n + 1, 0), place(n), order(n);
  for (int32_t i = 0; i < n; ++i)
    if (parent[i] >= 0) below[parent[i]] += below[i];
  int32_t roots = 0;
  for (int32_t i = 0; i < n; ++i)
    if (parent[i] < 0) begin[i] = roots, roots += below[i];
  std::vector<int32_t> used(n, 0);  // of a branch, by those below it that are dealt with; the unknown itself ends it
  for (int32_t i = n - 1; i >= 0; --i) {
    const int32_t up = parent[i];
    if (up >= 0) begin[i] = begin[up] + used[up], used[up] += below[i];
    place[i] = begin[i] + below[i] - 1;
  }
  for (int32_t i = 0; i < n; ++i) order[place[i]] = i;
  return order;
}

// Whether a front is worth joining with the one that it is added to, though that brings zeros into the factors: small
// fronts take longer than their arithmetic.
bool joins(double pivots, double zeros, double numbers) {
  if (pivots <= 8) return true;
  if (pivots <= 24) return zeros < 0.5 * numbers;
  if (pivots <= 64) return zeros < 0.15 * numbers;
  return zeros < 0.05 * numbers;
}

struct Supernode {
  int32_t parent = -1;
  std::vector<int32_t> pivots, left;
  double zeros = 0.0;
};

double numbers_of(double p, double u) { return p * (p + 2 * u); }

}  // namespace

FrontPlan plan_fronts(long d, const int32_t* ends, const int32_t* rows, const int32_t* given) {
  const Graph graph = symmetric(d, ends, rows);
  std::vector<int32_t> order = given ? std::vector<int32_t>(given, given + d) : Dissection(graph).order();
  std::vector<int32_t> parent = tree(graph, order);
  {  // branches in one piece
    const std::vector<int32_t> moved = by_branches(parent);
    std::vector<int32_t> place(d), new_order(d), new_parent(d);
    for (long k = 0; k < d; ++k) place[moved[k]] = static_cast<int32_t>(k);
    for (long k = 0; k < d; ++k) {
      new_order[k] = order[moved[k]];
      new_parent[k] = parent[moved[k]] < 0 ? -1 : place[parent[moved[k]]];
    }
    order.swap(new_order), parent.swap(new_parent);
  }
  std::vector<int32_t> place(d);
  for (long k = 0; k < d; ++k) place[order[k]] = static_cast<int32_t>(k);

  // What each unknown leaves behind: its own neighbours and those that its children have left. Where it is just what its
  // only child has left, without itself, both are eliminated together.
  std::vector<Supernode> nodes;
  std::vector<std::vector<int32_t>> children(d);
  std::vector<int32_t> node_of(d), mark(d, -1);
  for (long k = 0; k < d; ++k)
    if (parent[k] >= 0) children[parent[k]].push_back(static_cast<int32_t>(k));
  for (int32_t k = 0; k < d; ++k) {
    std::vector<int32_t> mine;
    mark[k] = k;
    auto add = [&](int32_t i) {
      if (i > k && mark[i] != k) mark[i] = k, mine.push_back(i);
    };
    for (int64_t p = graph.ends[order[k]]; p < graph.ends[order[k] + 1]; ++p) add(place[graph.neighbours[p]]);
    for (int32_t child : children[k])
      for (int32_t i : nodes[node_of[child]].left) add(i);
    std::sort(mine.begin(), mine.end());
    const bool one = children[k].size() == 1;
    if (one && nodes[node_of[children[k][0]]].left.size() == mine.size() + 1) {
      node_of[k] = node_of[children[k][0]];
    } else {
      node_of[k] = static_cast<int32_t>(nodes.size());
      nodes.emplace_back();
      for (int32_t child : children[k]) nodes[node_of[child]].parent = node_of[k];
    }
    nodes[node_of[k]].pivots.push_back(k);
    nodes[node_of[k]].left = std::move(mine);
  }

  // Fronts are joined with those that they are added to, the last ones first.
  std::vector<int32_t> into(nodes.size());
  std::iota(into.begin(), into.end(), 0);
  for (size_t s = nodes.size(); s-- > 0;) {
    if (nodes[s].parent < 0) continue;
    nodes[s].parent = into[nodes[s].parent];
    Supernode &up = nodes[nodes[s].parent], &own = nodes[s];
    const double p = own.pivots.size(), u = own.left.size(), up_p = up.pivots.size(), up_u = up.left.size();
    const double both = numbers_of(p + up_p, up_u);
    const double zeros = both - numbers_of(p, u) - numbers_of(up_p, up_u) + own.zeros + up.zeros;
    if (!joins(p + up_p, zeros, both)) continue;
    up.pivots.insert(up.pivots.end(), own.pivots.begin(), own.pivots.end());
    up.zeros = zeros;
    into[s] = nodes[s].parent;
    own.pivots.clear();
  }

  FrontPlan plan;
  plan.d = d;
  std::vector<int32_t> number(nodes.size(), -1), front_of(d), kept, up;
  plan.first.assign(1, 0), plan.begins.assign(1, 0);
  std::vector<int32_t> final_place(d);
  for (size_t s = 0; s < nodes.size(); ++s) {
    Supernode& own = nodes[s];
    if (own.pivots.empty()) continue;
    number[s] = static_cast<int32_t>(kept.size());
    std::sort(own.pivots.begin(), own.pivots.end());
    for (int32_t k : own.pivots) {
      final_place[k] = static_cast<int32_t>(plan.order.size());
      front_of[plan.order.size()] = number[s];
      plan.order.push_back(order[k]);
    }
    plan.first.push_back(static_cast<int32_t>(plan.order.size()));
    kept.push_back(static_cast<int32_t>(s));
  }
  for (int32_t s : kept) {
    Supernode& own = nodes[s];
    up.push_back(own.parent < 0 ? -1 : number[own.parent]);
    for (int32_t& k : own.left) k = final_place[k];
    std::sort(own.left.begin(), own.left.end());
    plan.rows.insert(plan.rows.end(), own.left.begin(), own.left.end());
    plan.begins.push_back(static_cast<int64_t>(plan.rows.size()));
    const double p = own.pivots.size(), u = own.left.size();
    plan.numbers += static_cast<int64_t>(numbers_of(p, u));
    plan.operations += p * (p * p / 3.0 + p * u + u * u);
  }

  // Where rows are in a front, and entries.
  const long fronts = plan.count();
  plan.relative.resize(plan.rows.size());
  plan.child_begins.assign(fronts + 1, 0);
  for (int32_t one : up)
    if (one >= 0) ++plan.child_begins[one + 1];
  std::partial_sum(plan.child_begins.begin(), plan.child_begins.end(), plan.child_begins.begin());
  plan.children.resize(plan.child_begins[fronts]);
  std::vector<int64_t> next(plan.child_begins);
  for (long f = 0; f < fronts; ++f)
    if (up[f] >= 0) plan.children[next[up[f]]++] = static_cast<int32_t>(f);
  for (long j = 0; j < d; ++j) place[plan.order[j]] = static_cast<int32_t>(j);
  std::vector<int64_t> counts(fronts + 1, 0);
  auto front_of_entry = [&](int32_t i, int32_t j) { return front_of[std::min(i, j)]; };
  for (long j = 0; j < d; ++j)
    for (int32_t p = ends[j]; p < ends[j + 1]; ++p) ++counts[front_of_entry(place[rows[p]], place[j]) + 1];
  std::partial_sum(counts.begin(), counts.end(), counts.begin());
  plan.entry_begins = counts;
  plan.entries.resize(counts[fronts]), plan.entry_row.resize(counts[fronts]), plan.entry_column.resize(counts[fronts]);
  for (long j = 0; j < d; ++j)
    for (int32_t p = ends[j]; p < ends[j + 1]; ++p) {
      const int32_t i = place[rows[p]], k = place[j];
      const int64_t at = counts[front_of_entry(i, k)]++;
      plan.entries[at] = p, plan.entry_row[at] = i, plan.entry_column[at] = k;
    }
  int64_t top = 0;
  for (long f = 0; f < fronts; ++f) {
    const int64_t u = plan.left(f), n = plan.pivots(f) + u;
    plan.largest = std::max(plan.largest, n);
    plan.stack = std::max(plan.stack, top + n * FrontPlan::row_length(n));
    for (int64_t c = plan.child_begins[f]; c < plan.child_begins[f + 1]; ++c) {
      const int64_t gone = plan.left(plan.children[c]);
      top -= gone * gone;
    }
    top += u * u;
  }
  std::vector<int32_t> local(d, 0);
  for (long f = 0; f < fronts; ++f) {
    const int p = plan.pivots(f);
    for (int k = 0; k < p; ++k) local[plan.first[f] + k] = k;
    for (int64_t k = plan.begins[f]; k < plan.begins[f + 1]; ++k)
      local[plan.rows[k]] = p + static_cast<int32_t>(k - plan.begins[f]);
    for (int64_t k = plan.entry_begins[f]; k < plan.entry_begins[f + 1]; ++k) {
      plan.entry_row[k] = local[plan.entry_row[k]];
      plan.entry_column[k] = local[plan.entry_column[k]];
    }
    for (int64_t c = plan.child_begins[f]; c < plan.child_begins[f + 1]; ++c)
      for (int64_t k = plan.begins[plan.children[c]]; k < plan.begins[plan.children[c] + 1]; ++k)
        plan.relative[k] = local[plan.rows[k]];
  }
  return plan;
}

}  // namespace probode
