#ifndef COXSWAIN_SCHEDULE_PIPELINE_WAIT_GRAPH_H_
#define COXSWAIN_SCHEDULE_PIPELINE_WAIT_GRAPH_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/time/time.h"

namespace coxswain::pipeline {

// Which rank waits for which. Each waits for none, for one, or for the first of
// ranks in an order; so that what thousands of ranks wait for, of thousands of
// others, takes a size and a time in proportion to their number.
class WaitGraph {
 public:
  // Of those who wait for a rank without one between.
  struct Waiters {
    int count = 0;
    absl::Duration longest;
  };

  explicit WaitGraph(int ranks);

  void Wait(int rank, int other) { waits_[At(rank)] = other; }
  void WaitForNone(int rank) { waits_[At(rank)] = kNone; }
  // Returns the number of an order, for WaitForFirst. A rank has a place in two
  // orders at most.
  int AddOrder(const std::vector<int>& order);
  // `count` is 1 or more, and `rank` is none of these.
  void WaitForFirst(int rank, int order, int count) {
    waits_[At(rank)] = order + count - 1;
  }

  bool Waits(int rank) const { return waits_[At(rank)] != kNone; }
  // Returns the ranks that each waits for, ascending, of many the lowest.
  std::vector<std::vector<int>> Lowest(size_t most) const;

  // Once all is known.
  std::vector<Waiters> DirectWaiters(
      const std::function<absl::Duration(int rank)>& since) const;
  // Returns how many wait for a rank, or for one that does.
  int CountWaiters(int rank);

 private:
  static constexpr int kNone = -1;
  // Beside the ranks, nodes of the graph: who waits for a link waits for its
  // rank, and for the link before it in its order.
  struct Link {
    int rank = 0;
    bool first = false;
  };

  static size_t At(int node) { return static_cast<size_t>(node); }
  const Link& LinkOf(int node) const {
    return links_[At(node) - waits_.size()];
  }
  int NodeOf(size_t link) const {
    return static_cast<int>(waits_.size() + link);
  }
  void Turn();

  std::vector<int> waits_;  // by rank: a node
  std::vector<Link> links_;
  // By node: those that wait for it.
  std::vector<std::vector<int>> waited_by_;
  std::vector<int> seen_;  // by node: in which count
  int counts_ = 0;
};

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_WAIT_GRAPH_H_
