#include "schedule/pipeline/wait_graph.h"

#include <algorithm>

namespace coxswain::pipeline {

WaitGraph::WaitGraph(int ranks) : waits_(At(ranks), kNone) {}

int WaitGraph::AddOrder(const std::vector<int>& order) {
  const int number = NodeOf(links_.size());
  for (const int rank : order) {
    links_.push_back({rank, NodeOf(links_.size()) == number});
  }
  return number;
}

std::vector<std::vector<int>> WaitGraph::Lowest(size_t most) const {
  std::vector<std::vector<int>> lowest(waits_.size());
  std::vector<std::vector<int>> waiters(links_.size());
  for (size_t rank = 0; rank < waits_.size(); ++rank) {
    const int node = waits_[rank];
    if (node == kNone) continue;
    if (At(node) < waits_.size()) {
      lowest[rank].push_back(node);
    } else {
      waiters[At(node) - waits_.size()].push_back(static_cast<int>(rank));
    }
  }
  std::vector<int> known;
  for (size_t link = 0; link < links_.size(); ++link) {
    if (links_[link].first) known.clear();
    const int rank = links_[link].rank;
    known.insert(std::upper_bound(known.begin(), known.end(), rank), rank);
    if (known.size() > most) known.pop_back();
    for (const int waiter : waiters[link]) lowest[At(waiter)] = known;
  }
  return lowest;
}

std::vector<WaitGraph::Waiters> WaitGraph::DirectWaiters(
    const std::function<absl::Duration(int rank)>& since) const {
  std::vector<Waiters> nodes(waits_.size() + links_.size());
  const auto add = [](const Waiters& more, Waiters* to) {
    to->count += more.count;
    to->longest = std::max(to->longest, more.longest);
  };
  for (size_t rank = 0; rank < waits_.size(); ++rank) {
    if (waits_[rank] == kNone) continue;
    add({1, since(static_cast<int>(rank))}, &nodes[At(waits_[rank])]);
  }
  for (size_t link = links_.size(); link-- > 0;) {
    const Waiters of_link = nodes[At(NodeOf(link))];
    add(of_link, &nodes[At(links_[link].rank)]);
    if (!links_[link].first) add(of_link, &nodes[At(NodeOf(link)) - 1]);
  }
  nodes.resize(waits_.size());
  return nodes;
}

void WaitGraph::Turn() {
  waited_by_.resize(waits_.size() + links_.size());
  seen_.resize(waited_by_.size());
  for (size_t rank = 0; rank < waits_.size(); ++rank) {
    if (waits_[rank] == kNone) continue;
    waited_by_[At(waits_[rank])].push_back(static_cast<int>(rank));
  }
  for (size_t link = 0; link < links_.size(); ++link) {
    const int node = NodeOf(link);
    waited_by_[At(links_[link].rank)].push_back(node);
    if (!links_[link].first) waited_by_[At(node - 1)].push_back(node);
  }
}

int WaitGraph::CountWaiters(int rank) {
  if (waited_by_.empty()) Turn();
  ++counts_;
  std::vector<int> reached = {rank};
  seen_[At(rank)] = counts_;
  int ranks = 0;
  for (size_t i = 0; i < reached.size(); ++i) {
    for (const int waiter : waited_by_[At(reached[i])]) {
      if (seen_[At(waiter)] == counts_) continue;
      seen_[At(waiter)] = counts_;
      reached.push_back(waiter);
      if (At(waiter) < waits_.size()) ++ranks;
    }
  }
  return ranks;
}

}  // namespace coxswain::pipeline
