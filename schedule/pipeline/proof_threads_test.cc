// The proof agrees with what happens among threads that pass messages.
#include <algorithm>
#include <deque>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/proof.h"
#include "schedule/pipeline/random_lists.h"

namespace coxswain::pipeline {
namespace {

// A thread for each rank, with queues of `capacity` messages between them.
class Threads {
 public:
  Threads(const Schedule& schedule, int capacity)
      : schedule_(schedule),
        capacity_(capacity),
        channels_(2 * schedule.stages() + 2),
        waits_(schedule.ranks()),
        unfinished_(schedule.ranks()) {}

  // Returns whether all threads come to the end of their lists.
  bool Run() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      threads.emplace_back([this, rank] { RunRank(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    return !stopped_;
  }

 private:
  struct Channel {
    std::deque<int> messages;
    std::set<int> received;
  };

  void RunRank(int rank) {
    MutexLock lock(&mutex_);
    for (const Action& action : schedule_.of_rank()[rank]) {
      if (!IsTransfer(action.kind)) continue;
      Channel& channel = channels_[ChannelOf(action)];
      const auto is_received = [&] {
        return channel.received.count(action.micro_batch) > 0;
      };
      if (IsWaitForSend(action.kind)) {
        if (!Await(rank, is_received)) return;
      } else if (IsReceive(action.kind)) {
        if (!Await(rank, [&] { return !channel.messages.empty(); })) return;
        EXPECT_EQ(channel.messages.front(), action.micro_batch);
        channel.messages.pop_front();
        channel.received.insert(action.micro_batch);
      } else {
        const size_t room = std::max(1, capacity_);
        if (!Await(rank, [&] { return channel.messages.size() < room; })) {
          return;
        }
        channel.messages.push_back(action.micro_batch);
        changed_.NotifyAll();
        if (capacity_ == 0 && !Await(rank, is_received)) return;
      }
      changed_.NotifyAll();
    }
    --unfinished_;
    StopIfAllWait();
  }

  // Returns false where all threads wait for each other.
  bool Await(int rank, const std::function<bool()>& condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    waits_[rank] = condition;
    StopIfAllWait();
    EXPECT_TRUE(changed_.WaitFor(&mutex_, absl::Minutes(2),
                                 [&] { return stopped_ || condition(); }));
    waits_[rank] = nullptr;
    return !stopped_;
  }

  // The threads that are not at their end wait, and none for what is there.
  void StopIfAllWait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int waiting = 0;
    for (const std::function<bool()>& condition : waits_) {
      if (condition != nullptr && !condition()) ++waiting;
    }
    if (waiting < unfinished_ || unfinished_ == 0) return;
    stopped_ = true;
    changed_.NotifyAll();
  }

  const Schedule& schedule_;
  const int capacity_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Channel> channels_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<bool()>> waits_ ABSL_GUARDED_BY(mutex_);
  int unfinished_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ = false;  // read without the lock once all threads are joined
};

TEST(ProofThreadsTest, ThreadsWithBoundedQueuesDoTheSame) {
  constexpr int kSchedules = 300;
  int ends = 0;
  int stops = 0;
  for (int i = 0; ends + stops < kSchedules; ++i) {
    Dice dice(1000000 + i);
    const Lists lists = RandomLists(dice);
    const auto schedule = Schedule::Create(lists);
    const int capacity = dice.Below(3);
    if (!schedule.ok() || !schedule->has_transfers()) continue;
    const absl::Status verdict = Prove(*schedule, capacity);
    if (absl::StrContains(verdict.message(), "in the order")) continue;
    ASSERT_EQ(Threads(*schedule, capacity).Run(), verdict.ok())
        << verdict << "\nnumber " << i << ", capacity " << capacity << "\n"
        << TextOf(lists);
    ++(verdict.ok() ? ends : stops);
  }
  EXPECT_GT(ends, kSchedules / 10);
  EXPECT_GT(stops, kSchedules / 10);
}

}  // namespace
}  // namespace coxswain::pipeline
