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

// The same order and tree, in which branches are in one piece.
void gather_branches(std::vector<int32_t>& order, std::vector<int32_t>& parent) {
  const std::vector<int32_t> moved = by_branches(parent);
  const size_t d = order.size();
  std::vector<int32_t> place(d), new_order(d), new_parent(d);
  for (size_t k = 0; k < d; ++k) place[moved[k]] = static_cast<int32_t>(k);
  for (size_t k = 0; k < d; ++k) {
    new_order[k] = order[moved[k]];
    new_parent[k] = parent[moved[k]] < 0 ? -1 : place[parent[moved[k]]];
  }
  order.swap(new_order), parent.swap(new_parent);
}

std::vector<int32_t> inverse(const std::vector<int32_t>& order) {
  std::vector<int32_t> place(order.size());
  for (size_t k = 0; k < order.size(); ++k) place[order[k]] = static_cast<int32_t>(k);
  return place;
}

// Unknowns, by their places in the order, that are eliminated together, and those that they leave behind.
struct Group {
  int32_t parent = -1;
  std::vector<int32_t> pivots, left;
  double zeros = 0.0;  // among its numbers
};

// What an unknown leaves behind: its own neighbours and those that its children have left. Where it is just what its only
// child has left, without itself, both are eliminated together.
std::vector<Group> groups_of(const Graph& graph, const std::vector<int32_t>& order, const std::vector<int32_t>& parent) {
  const int32_t d = static_cast<int32_t>(order.size());
  const std::vector<int32_t> place = inverse(order);
  std::vector<Group> groups;
  std::vector<std::vector<int32_t>> children(d);
  std::vector<int32_t> group_of(d), mark(d, -1);
  for (int32_t k = 0; k < d; ++k)
    if (parent[k] >= 0) children[parent[k]].push_back(k);
  for (int32_t k = 0; k < d; ++k) {
    std::vector<int32_t> left;
    auto add = [&](int32_t i) {
      if (i > k && mark[i] != k) mark[i] = k, left.push_back(i);
    };
    for (int64_t p = graph.ends[order[k]]; p < graph.ends[order[k] + 1]; ++p) add(place[graph.neighbours[p]]);
    for (int32_t child : children[k])
      for (int32_t i : groups[group_of[child]].left) add(i);
    if (children[k].size() == 1 && groups[group_of[children[k][0]]].left.size() == left.size() + 1) {
      group_of[k] = group_of[children[k][0]];
    } else {
      group_of[k] = static_cast<int32_t>(groups.size());
      groups.emplace_back();
      for (int32_t child : children[k]) groups[group_of[child]].parent = group_of[k];
    }
    groups[group_of[k]].pivots.push_back(k);
    groups[group_of[k]].left = std::move(left);
  }
  return groups;
}

double numbers_of(double pivots, double left) { return pivots * (pivots + 2 * left); }

// Whether a front is worth joining with the one that it is added to, though that brings zeros into the factors: small
// fronts take longer than their arithmetic.
bool joins(double pivots, double zeros, double numbers) {
  const double most = pivots <= 8 ? 0.8 : pivots <= 24 ? 0.5 : pivots <= 64 ? 0.15 : 0.05;
  return zeros < most * numbers;
}

// The last ones first; those that have gone into others have no pivots any more.
void join(std::vector<Group>& groups) {
  std::vector<int32_t> into(groups.size());
  std::iota(into.begin(), into.end(), 0);
  for (size_t s = groups.size(); s-- > 0;) {
    Group& own = groups[s];
    if (own.parent < 0) continue;
    own.parent = into[own.parent];
    Group& up = groups[own.parent];
    const double p = own.pivots.size(), u = own.left.size(), up_p = up.pivots.size(), up_u = up.left.size();
    const double both = numbers_of(p + up_p, up_u);
    const double zeros = both - numbers_of(p, u) - numbers_of(up_p, up_u) + own.zeros + up.zeros;
    if (!joins(p + up_p, zeros, both)) continue;
    up.pivots.insert(up.pivots.end(), own.pivots.begin(), own.pivots.end());
    up.zeros = zeros;
    into[s] = own.parent;
    own.pivots.clear();
  }
}

// From the numbers of things that each goes to (-1: to nothing) to lists of what goes to each.
void list_by(const std::vector<int32_t>& to, long count, std::vector<int64_t>& begins, std::vector<int32_t>& list) {
  begins.assign(count + 1, 0);
  for (int32_t one : to)
    if (one >= 0) ++begins[one + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  list.resize(begins[count]);
  std::vector<int64_t> next(begins);
  for (size_t i = 0; i < to.size(); ++i)
    if (to[i] >= 0) list[next[to[i]]++] = static_cast<int32_t>(i);
}

// Pivots and what is left of each front, in the numbers of the final order; the fronts that each is added to.
void number_fronts(std::vector<Group>& groups, const std::vector<int32_t>& order, FrontPlan& plan) {
  std::vector<int32_t> number(groups.size(), -1), place(order.size()), up;
  plan.first.assign(1, 0), plan.begins.assign(1, 0);
  for (size_t s = 0; s < groups.size(); ++s) {
    Group& own = groups[s];
    if (own.pivots.empty()) continue;
    number[s] = static_cast<int32_t>(plan.count());
    std::sort(own.pivots.begin(), own.pivots.end());
    for (int32_t k : own.pivots) {
      place[k] = static_cast<int32_t>(plan.order.size());
      plan.order.push_back(order[k]);
    }
    plan.first.push_back(static_cast<int32_t>(plan.order.size()));
  }
  for (Group& own : groups) {
    if (own.pivots.empty()) continue;
    up.push_back(own.parent < 0 ? -1 : number[own.parent]);
    for (int32_t& k : own.left) k = place[k];
    std::sort(own.left.begin(), own.left.end());
    plan.rows.insert(plan.rows.end(), own.left.begin(), own.left.end());
    plan.begins.push_back(static_cast<int64_t>(plan.rows.size()));
  }
  list_by(up, plan.count(), plan.child_begins, plan.children);
}

// Which front each entry belongs to, that of the pivot that comes first, and the places there.
void place_entries(const int32_t* ends, const int32_t* rows, FrontPlan& plan) {
  const std::vector<int32_t> place = inverse(plan.order);
  std::vector<int32_t> front_of(plan.d), local(plan.d, 0), to, row, column;
  for (long f = 0; f < plan.count(); ++f)
    std::fill(front_of.begin() + plan.first[f], front_of.begin() + plan.first[f + 1], static_cast<int32_t>(f));
  for (long j = 0; j < plan.d; ++j)
    for (int32_t p = ends[j]; p < ends[j + 1]; ++p) {
      row.push_back(place[rows[p]]), column.push_back(place[j]);
      to.push_back(front_of[std::min(row.back(), column.back())]);
    }
  list_by(to, plan.count(), plan.entry_begins, plan.entries);
  plan.entry_row.resize(to.size()), plan.entry_column.resize(to.size()), plan.relative.resize(plan.rows.size());
  for (long f = 0; f < plan.count(); ++f) {
    const int p = plan.pivots(f);
    for (int k = 0; k < p; ++k) local[plan.first[f] + k] = k;
    for (int64_t k = plan.begins[f]; k < plan.begins[f + 1]; ++k)
      local[plan.rows[k]] = p + static_cast<int32_t>(k - plan.begins[f]);
    for (int64_t k = plan.entry_begins[f]; k < plan.entry_begins[f + 1]; ++k) {
      plan.entry_row[k] = local[row[plan.entries[k]]];
      plan.entry_column[k] = local[column[plan.entries[k]]];
    }
    for (int64_t c = plan.child_begins[f]; c < plan.child_begins[f + 1]; ++c)
      for (int64_t k = plan.begins[plan.children[c]]; k < plan.begins[plan.children[c] + 1]; ++k)
        plan.relative[k] = local[plan.rows[k]];
  }
}

void count(FrontPlan& plan) {
  int64_t waiting = 0;
  for (long f = 0; f < plan.count(); ++f) {
    const int64_t p = plan.pivots(f), u = plan.left(f), n = p + u;
    plan.numbers += p * (p + 2 * u);
    plan.operations += p * (p * p / 3.0 + 1.0 * p * u + 1.0 * u * u);
    plan.largest = std::max(plan.largest, n);
    plan.stack = std::max(plan.stack, waiting + n * FrontPlan::row_length(n));
    for (int64_t c = plan.child_begins[f]; c < plan.child_begins[f + 1]; ++c) {
      const int64_t taken = plan.left(plan.children[c]);
      waiting -= taken * taken;
    }
    waiting += u * u;
  }
}

}  // namespace

FrontPlan plan_fronts(long d, const int32_t* ends, const int32_t* rows, const int32_t* given) {
  const Graph graph = symmetric(d, ends, rows);
  std::vector<int32_t> order = given ? std::vector<int32_t>(given, given + d) : Dissection(graph).order();
  std::vector<int32_t> parent = tree(graph, order);
  gather_branches(order, parent);
  std::vector<Group> groups = groups_of(graph, order, parent);
  join(groups);
  FrontPlan plan;
  plan.d = d;
  number_fronts(groups, order, plan);
  place_entries(ends, rows, plan);
  count(plan);
  return plan;
}

}  // namespace probode
