#include <csignal>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "tests/system/test_cluster.h"

namespace coxswain {
namespace {

// A worker is suspended for less than its lease: all wait for it, and none is
// lost.
TEST(SlowRankTest, ItIsWaitedFor) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher =
      cluster.Start({"bow", 3, {"--min-workers", "2"}, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  const auto before = cluster.Training();
  ASSERT_EQ(kill(before[1]->pid, SIGSTOP), 0);
  ASSERT_TRUE(
      cluster.AwaitDescribed("it was silent for a while", [](const auto& job) {
        return job.members_size() == 3 && job.members(1).silent_ms() > 4000;
      }));
  ASSERT_EQ(kill(before[1]->pid, SIGCONT), 0);
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  EXPECT_EQ(cluster.Training(), before);
  for (const WorkerLife* life : before) {
    EXPECT_EQ(life->generations.size(), 1u);
  }
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(3);
}

// A worker is suspended past its lease; the others go on without it. When it
// continues, its messages are refused: it finds out that it was lost, and joins
// again as a newcomer, or ends with an error.
TEST(StoppedWorkerTest, TheZombieIsFencedAndComesBackAsANewcomer) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher = cluster.Start(
      {"bow", 3, {"--min-workers", "2", "--max-restarts", "1"}, kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  const auto before = cluster.Training();
  ASSERT_EQ(kill(before[1]->pid, SIGSTOP), 0);
  ASSERT_TRUE(cluster.Await("the others go on", [&] {
    return before[0]->world() == 2 && before[2]->world() == 2;
  }));
  const int64_t without = before[0]->generation();
  ASSERT_EQ(before[2]->generation(), without);
  const int64_t step = before[0]->step;
  ASSERT_TRUE(cluster.Await("they have got on",
                            [&] { return before[0]->step > step + 20; }));
  const int64_t zombie_step = before[1]->step;
  ASSERT_EQ(kill(before[1]->pid, SIGCONT), 0);
  ASSERT_TRUE(cluster.Await("it is back", [&] {
    const WorkerLife* back = cluster.At(before[1]->worker);
    return back->generation() > without && back->world() == 3;
  }));
  const WorkerLife* back = cluster.At(before[1]->worker);
  EXPECT_TRUE(back->generations.back().copied) << "what it had is too old";
  EXPECT_GT(back->generations.back().from_step, zombie_step);
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(3);
}

// The same in a job with a stall timeout: it is lost by that, and not by its
// lease. The timeout is longer than a busy machine keeps a thread waiting. What
// is killed later, while it is suspended, is no member any more.
TEST(StalledWorkerTest, ItIsEvictedAndNamedAndTheOthersGoOn) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher = cluster.Start({"bow",
                                       3,
                                       {"--min-workers", "2", "--max-restarts",
                                        "1", "--plan", "stall_timeout=3s"},
                                       kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  const auto before = cluster.Training();
  ASSERT_EQ(kill(before[1]->pid, SIGSTOP), 0);
  ASSERT_TRUE(cluster.Await("the others go on", [&] {
    return before[0]->world() == 2 && before[2]->world() == 2;
  }));
  EXPECT_THAT(
      cluster.Transcript(),
      testing::AllOf(testing::HasSubstr("rank 1 (bow/1"),
                     testing::HasSubstr("while all others wait and nothing "
                                        "moves (stall_timeout=3s)")));
  ASSERT_TRUE(cluster.AwaitSteps(2, 20));
  cluster.Kill(*before[1]);
  ASSERT_TRUE(cluster.Await("another one has its place", [&] {
    const WorkerLife* next = cluster.At(before[1]->worker);
    return next->pid != before[1]->pid && next->world() == 3;
  }));
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(3);
}

// Of a generation that another loss has ended, the one that is suspended is not
// waited for in the join round.
TEST(StalledWorkerTest, TheNextGenerationDoesNotWaitForIt) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher = cluster.Start({"bow",
                                       4,
                                       {"--min-workers", "2", "--max-restarts",
                                        "1", "--plan", "stall_timeout=3s"},
                                       kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(4, 20));
  const auto before = cluster.Training();
  ASSERT_EQ(kill(before[1]->pid, SIGSTOP), 0);
  cluster.Kill(*before[3]);
  const int64_t first = before[1]->generation();
  ASSERT_TRUE(cluster.Await("the others go on", [&] {
    return before[0]->generation() > first && before[2]->generation() > first;
  }));
  EXPECT_THAT(cluster.Transcript(),
              testing::AllOf(testing::HasSubstr("survivor_lost"),
                             testing::HasSubstr("(stall_timeout=3s)")));
  ASSERT_EQ(kill(before[1]->pid, SIGCONT), 0);
  ASSERT_TRUE(cluster.Await("all are back", [&] {
    return before[1]->world() == 4 && before[0]->world() == 4;
  }));
  EXPECT_TRUE(before[1]->generations.back().copied) << "what it had is too old";
  ASSERT_TRUE(cluster.AwaitSteps(4, 20));
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(4);
}

// One that continues after that is fenced, rank 0 too.
TEST(StalledWorkerTest, OneThatContinuesIsFencedAndComesBackAsANewcomer) {
  TestCluster cluster;
  cluster.Serve();
  const auto launcher =
      cluster.Start({"bow",
                     3,
                     {"--min-workers", "2", "--plan", "stall_timeout=3s"},
                     kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  const auto before = cluster.Training();
  ASSERT_EQ(kill(before[0]->pid, SIGSTOP), 0);
  ASSERT_TRUE(cluster.Await("the others go on", [&] {
    return before[1]->world() == 2 && before[2]->world() == 2;
  }));
  ASSERT_TRUE(cluster.AwaitSteps(2, 20));
  const int64_t without = before[1]->generation();
  ASSERT_EQ(kill(before[0]->pid, SIGCONT), 0);
  ASSERT_TRUE(cluster.Await("it is back", [&] {
    return before[0]->generation() > without && before[0]->world() == 3;
  }));
  EXPECT_TRUE(before[0]->generations.back().copied) << "what it had is too old";
  ASSERT_TRUE(cluster.AwaitSteps(3, 20));
  cluster.EndTraining();
  cluster.Finish({{launcher, 0}});
  cluster.ExpectExactAndEqual(3);
}

// The whole job was started again: workers of the start before are refused, and
// a later start ends what runs of an earlier one.
TEST(StaleAttemptTest, AnEarlierOneIsRefusedAndALaterOneTakesOver) {
  TestCluster cluster;
  cluster.Serve();
  const auto run = [](const char* attempt) {
    return std::vector<std::string>{"--attempt", attempt};
  };
  const auto current = cluster.Start({"a", 2, run("2"), kLongToy});
  ASSERT_TRUE(cluster.AwaitSteps(2, 20));
  const auto stale = cluster.Start({"b", 1, run("1"), kLongToy});
  ASSERT_TRUE(cluster.Await("it is refused",
                            [&] { return cluster.status(stale).has_value(); }));
  EXPECT_EQ(cluster.status(stale), 1);
  EXPECT_THAT(cluster.Transcript(), testing::HasSubstr("attempt"));
  ASSERT_TRUE(cluster.AwaitSteps(2, 20)) << "the job was disturbed";

  const auto later = cluster.Start({"c", 2, run("3"), kLongToy});
  ASSERT_TRUE(cluster.Await("the earlier one ends", [&] {
    return cluster.status(current).has_value();
  }));
  EXPECT_EQ(cluster.status(current), 1);
  ASSERT_TRUE(cluster.Await("the later one trains", [&] {
    const auto training = cluster.Training();
    return training.size() == 2 && training[0]->worker == "c/0";
  }));
  ASSERT_TRUE(cluster.AwaitSteps(2, 5));
  cluster.EndTraining();
  cluster.Finish({{current, 1}, {stale, 1}, {later, 0}});
  EXPECT_TRUE(cluster.At("c/0")->result.has_value() &&
              cluster.At("c/0")->result->exact);
}

}  // namespace
}  // namespace coxswain
