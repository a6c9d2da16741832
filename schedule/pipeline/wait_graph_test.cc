#include "schedule/pipeline/wait_graph.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/random_lists.h"

namespace coxswain::pipeline::wait_graph_test {
namespace {

// All pairs, as they are.
struct Pairs {
  std::vector<std::set<int>> of;

  std::set<int> Direct(int rank) const {
    std::set<int> waiters;
    for (size_t one = 0; one < of.size(); ++one) {
      if (of[one].count(rank) > 0) waiters.insert(static_cast<int>(one));
    }
    return waiters;
  }
  std::set<int> All(int rank) const {
    std::set<int> waiters;
    std::vector<int> next = {rank};
    while (!next.empty()) {
      const int one = next.back();
      next.pop_back();
      for (const int waiter : Direct(one)) {
        if (waiter != rank && waiters.insert(waiter).second) {
          next.push_back(waiter);
        }
      }
    }
    return waiters;
  }
};

absl::Duration Since(int rank) { return absl::Seconds(rank * 7 % 11); }

TEST(WaitGraphTest, CountsWhatAllPairsHave) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const int ranks = 2 + dice.Below(12);
    WaitGraph graph(ranks);
    Pairs pairs{std::vector<std::set<int>>(static_cast<size_t>(ranks))};
    std::vector<std::vector<int>> orders;
    std::vector<int> numbers;
    for (int which = 0; which < 2; ++which) {
      std::vector<int> order;
      for (int rank = 0; rank < ranks; ++rank) order.push_back(rank);
      for (size_t i = order.size(); i-- > 1;) {
        std::swap(order[i], order[static_cast<size_t>(dice.Below(i + 1))]);
      }
      order.resize(1 + static_cast<size_t>(dice.Below(order.size())));
      numbers.push_back(graph.AddOrder(order));
      orders.push_back(order);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      std::set<int>& mine = pairs.of[static_cast<size_t>(rank)];
      const int kind = dice.Below(4);
      if (kind == 0) continue;
      if (kind == 1) {
        const int other = (rank + 1 + dice.Below(ranks - 1)) % ranks;
        graph.Wait(rank, other);
        mine = {other};
        continue;
      }
      const auto which = static_cast<size_t>(kind - 2);
      const auto& order = orders[which];
      const auto end = std::find(order.begin(), order.end(), rank);
      if (end == order.begin()) continue;
      const int count =
          1 + dice.Below(static_cast<size_t>(end - order.begin()));
      graph.WaitForFirst(rank, numbers[which], count);
      mine.insert(order.begin(), order.begin() + count);
    }
    const auto direct = graph.DirectWaiters(Since);
    const auto lowest = graph.Lowest(3);
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", rank " << rank);
      const auto index = static_cast<size_t>(rank);
      const std::set<int>& mine = pairs.of[index];
      EXPECT_EQ(graph.Waits(rank), !mine.empty());
      std::vector<int> few(mine.begin(), mine.end());
      few.resize(std::min(few.size(), size_t{3}));
      EXPECT_EQ(lowest[index], few);
      absl::Duration longest;
      for (const int waiter : pairs.Direct(rank)) {
        longest = std::max(longest, Since(waiter));
      }
      EXPECT_EQ(direct[index].count,
                static_cast<int>(pairs.Direct(rank).size()));
      EXPECT_EQ(direct[index].longest, longest);
      EXPECT_EQ(graph.CountWaiters(rank),
                static_cast<int>(pairs.All(rank).size()));
    }
  }
}

}  // namespace
}  // namespace coxswain::pipeline::wait_graph_test
