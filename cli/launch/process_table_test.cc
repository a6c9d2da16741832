#include "cli/launch/process_table.h"

#include <csignal>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

LaunchGraces Graces() { return {absl::Seconds(5), absl::Seconds(10)}; }

// Returns the policy of an elastic job with so many restarts of each slot.
RestartPolicy Elastic(int restarts) {
  RestartPolicy policy;
  policy.elastic = true;
  policy.most = restarts;
  policy.pause = absl::Milliseconds(100);
  policy.longest_pause = absl::Milliseconds(300);
  policy.calm = absl::Seconds(10);
  return policy;
}

WorkerExit Exit(int slot, int code, int signal = 0) {
  return {slot, 100 + slot, code, signal};
}

TEST(ProcessTableTest, SuccessOfAllIsSuccess) {
  ProcessTable table(2, Graces());
  table.Exited(kStart, Exit(1, 0));
  EXPECT_FALSE(table.AllEnded());
  EXPECT_EQ(table.Decide(kStart + absl::Hours(1)).signal, 0);
  EXPECT_EQ(table.Decide(kStart).next, absl::InfiniteFuture());
  table.Exited(kStart, Exit(0, 0));
  EXPECT_TRUE(table.AllEnded());
  EXPECT_EQ(table.ExitStatus(), 0);
  EXPECT_FALSE(table.first_failure().has_value());
}

TEST(ProcessTableTest, TheFirstFailureDecidesTheExitStatus) {
  ProcessTable table(3, Graces());
  table.Exited(kStart, Exit(0, 0));
  table.Exited(kStart, Exit(2, 0, SIGKILL));
  table.Exited(kStart, Exit(1, 7));
  EXPECT_EQ(table.ExitStatus(), 128 + SIGKILL);
  EXPECT_EQ(table.first_failure()->slot, 2);
  EXPECT_EQ(table.first_failure()->ToString(),
            "was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(Exit(1, 7).ToString(), "exited with code 7");
}

TEST(ProcessTableTest, SurvivorsOfAFailureGetTheirGraceThenTermThenKill) {
  ProcessTable table(2, Graces());
  table.Exited(kStart, Exit(0, 1));
  LaunchDecision decision = table.Decide(kStart + absl::Seconds(4));
  EXPECT_EQ(decision.signal, 0);
  EXPECT_EQ(decision.next, kStart + absl::Seconds(5));

  decision = table.Decide(kStart + absl::Seconds(5));
  EXPECT_EQ(decision.signal, SIGTERM);
  EXPECT_THAT(decision.reason, HasSubstr("5s after another worker failed"));
  EXPECT_EQ(decision.next, kStart + absl::Seconds(15));
  EXPECT_EQ(table.Decide(kStart + absl::Seconds(14)).signal, 0);

  decision = table.Decide(kStart + absl::Seconds(15));
  EXPECT_EQ(decision.signal, SIGKILL);
  EXPECT_EQ(decision.next, absl::InfiniteFuture());
  EXPECT_EQ(table.Decide(kStart + absl::Hours(1)).signal, 0);
}

TEST(ProcessTableTest, SurvivorsThatEndInTimeAreLeftAlone) {
  ProcessTable table(2, Graces());
  table.Exited(kStart, Exit(0, 1));
  table.Exited(kStart + absl::Seconds(1), Exit(1, 1));
  EXPECT_EQ(table.Decide(kStart + absl::Hours(1)).signal, 0);
}

TEST(ProcessTableTest, AStopThatIsNotFollowedEndsInKill) {
  ProcessTable table(1, Graces());
  table.StopRequested(kStart, SIGTERM);
  EXPECT_EQ(table.Decide(kStart).signal, 0);
  EXPECT_EQ(table.Decide(kStart).next, kStart + absl::Seconds(10));
  // Asking again does not extend the grace.
  table.StopRequested(kStart + absl::Seconds(9), SIGTERM);
  EXPECT_EQ(table.Decide(kStart + absl::Seconds(10)).signal, SIGKILL);
}

TEST(ProcessTableTest, TheSecondInterruptKillsAtOnce) {
  ProcessTable table(1, Graces());
  table.StopRequested(kStart, SIGINT);
  EXPECT_EQ(table.Decide(kStart).signal, 0);
  table.StopRequested(kStart + absl::Seconds(1), SIGINT);
  const LaunchDecision decision = table.Decide(kStart + absl::Seconds(1));
  EXPECT_EQ(decision.signal, SIGKILL);
  EXPECT_EQ(decision.reason, "interrupted twice");
}

TEST(ProcessTableTest, InAnElasticJobTheOthersAreLeftAlone) {
  ProcessTable table(3, Graces(), Elastic(0));
  table.Exited(kStart, Exit(1, 0, SIGKILL));
  const LaunchDecision decision = table.Decide(kStart + absl::Hours(1));
  EXPECT_EQ(decision.signal, 0);
  EXPECT_THAT(decision.start, IsEmpty());
  EXPECT_EQ(decision.next, absl::InfiniteFuture());
  table.Exited(kStart + absl::Hours(1), Exit(0, 0));
  table.Exited(kStart + absl::Hours(1), Exit(2, 0));
  EXPECT_TRUE(table.AllEnded());
  EXPECT_EQ(table.ExitStatus(), 0) << "the job went on without it";
  EXPECT_THAT(table.Failed(), ElementsAre(1));
}

TEST(ProcessTableTest, AnElasticJobThatNoWorkerFinishesHasTheFirstFailure) {
  ProcessTable table(3, Graces(), Elastic(0));
  table.Exited(kStart, Exit(1, 3));
  table.Exited(kStart, Exit(0, 0));
  EXPECT_EQ(table.ExitStatus(), 0);
  table.Exited(kStart, Exit(2, 4));  // no worker succeeded after this one
  EXPECT_TRUE(table.AllEnded());
  EXPECT_EQ(table.ExitStatus(), 3);
}

TEST(ProcessTableTest,
     AFailedWorkerIsStartedAgainAtOnceAndThenAfterGrowingPauses) {
  ProcessTable table(2, Graces(), Elastic(5));
  absl::Time now = kStart;
  for (const int pause : {0, 100, 200, 300, 300}) {
    table.Exited(now, Exit(1, 1));
    EXPECT_FALSE(table.running(1));
    const absl::Time due = now + absl::Milliseconds(pause);
    EXPECT_EQ(table.restart_at(1), due);
    if (pause > 0) {
      EXPECT_EQ(table.Decide(now).next, due);
      EXPECT_THAT(table.Decide(due - absl::Nanoseconds(1)).start, IsEmpty());
    }
    EXPECT_THAT(table.Decide(due).start, ElementsAre(1));
    EXPECT_THAT(table.Decide(due).start, IsEmpty()) << "decided twice";
    EXPECT_TRUE(table.running(1));
    now = due + absl::Seconds(1);
  }
  table.Exited(now, Exit(1, 1));
  EXPECT_EQ(table.restart_at(1), absl::InfiniteFuture());
  EXPECT_EQ(table.restarts(1), 5);
  EXPECT_THAT(table.Failed(), ElementsAre(1));
  EXPECT_FALSE(table.AllEnded());
}

TEST(ProcessTableTest, ALongLifeBeginsThePausesAnew) {
  ProcessTable table(2, Graces(), Elastic(9));
  absl::Time now = kStart;
  for (const absl::Duration life :
       {absl::Seconds(1), absl::Seconds(10), absl::Seconds(1)}) {
    table.Exited(now, Exit(0, 1));
    const bool calm = now == kStart || life == absl::Seconds(1);
    EXPECT_EQ(table.restart_at(0) - now, absl::Milliseconds(calm ? 0 : 100));
    now = table.restart_at(0);
    EXPECT_THAT(table.Decide(now).start, ElementsAre(0));
    now += life;
  }
}

TEST(ProcessTableTest, NothingIsStartedAgainOnceAStopWasAskedFor) {
  ProcessTable table(3, Graces(), Elastic(9));
  table.Exited(kStart, Exit(1, 1));
  table.StopRequested(kStart, SIGTERM);
  EXPECT_EQ(table.restart_at(1), absl::InfiniteFuture());
  table.Exited(kStart, Exit(0, 2));
  EXPECT_EQ(table.restart_at(0), absl::InfiniteFuture());
  EXPECT_THAT(table.Decide(kStart + absl::Seconds(9)).start, IsEmpty());
  EXPECT_EQ(table.Decide(kStart + absl::Seconds(10)).signal, SIGKILL);
  table.Exited(kStart + absl::Seconds(10), Exit(2, 0, SIGKILL));
  EXPECT_EQ(table.ExitStatus(), 1);
}

TEST(ProcessTableTest, TheSuccessOfOthersStopsNoRestart) {
  // Slot 0 may have been drained: the job goes on.
  for (const bool success_first : {true, false}) {
    ProcessTable table(2, Graces(), Elastic(9));
    if (success_first) table.Exited(kStart, Exit(0, 0));
    table.Exited(kStart, Exit(1, 1));
    if (!success_first) table.Exited(kStart, Exit(0, 0));
    EXPECT_FALSE(table.AllEnded());
    const absl::Time due = table.restart_at(1);
    EXPECT_THAT(table.Decide(due).start, ElementsAre(1));
    // The coordinator has answered that the job is finished.
    table.Exited(due, Exit(1, 0));
    EXPECT_TRUE(table.AllEnded());
    EXPECT_EQ(table.ExitStatus(), 0);
    EXPECT_THAT(table.Failed(), IsEmpty());
  }
}

TEST(ProcessTableTest, RestartsAloneMakeAJobElastic) {
  RestartPolicy once = Elastic(1);
  once.elastic = false;
  ProcessTable table(2, Graces(), once);
  table.Exited(kStart, Exit(1, 1));
  EXPECT_THAT(table.Decide(kStart + absl::Seconds(1)).start, ElementsAre(1));
  table.Exited(kStart + absl::Seconds(2), Exit(1, 1));
  EXPECT_EQ(table.Decide(kStart + absl::Hours(1)).signal, 0);
}

// Random scenarios, checked against what must hold in all of them.
class RandomTable {
 public:
  explicit RandomTable(uint64_t seed)
      : random_(seed, 1),
        workers_(1 + Pick(4)),
        policy_(Elastic(static_cast<int>(Pick(4)))),
        elastic_(Pick(2) == 0 || policy_.most > 0),
        starts_(workers_, 0),
        last_(workers_, Exit(0, 0)) {
    policy_.elastic = elastic_;
    table_.emplace(static_cast<int>(workers_), Graces(), policy_);
  }

  void Run() {
    for (int i = 0; i < 200 && !table_->AllEnded(); ++i) {
      Happen();
      Look();
      if (testing::Test::HasFailure()) return;
    }
    while (!table_->AllEnded()) Finish();
    EXPECT_EQ(table_->ExitStatus(), ExpectedStatus());
  }

 private:
  uint64_t Pick(uint64_t below) { return random_.Bits(draws_++) % below; }

  void Happen() {
    now_ += absl::Milliseconds(Pick(3) == 0 ? Pick(20000) : Pick(150));
    const int slot = static_cast<int>(Pick(workers_));
    if (Pick(40) == 0) {
      stopped_ = true;
      table_->StopRequested(now_, Pick(2) == 0 ? SIGTERM : SIGINT);
    } else if (Pick(3) == 0 && table_->running(slot)) {
      End(Exit(slot, Pick(4) == 0 ? 0 : 1 + static_cast<int>(Pick(9))));
    }
  }

  void End(const WorkerExit& exit) {
    table_->Exited(now_, exit);
    last_[exit.slot] = exit;
    went_on_ = exit.ok();
    if (!exit.ok() && !elastic_) failed_ = true;
  }

  void Look() {
    const LaunchDecision decision = table_->Decide(now_);
    if (decision.signal != 0) {
      EXPECT_TRUE(stopped_ || failed_) << "a signal for no reason";
      if (elastic_) {
        EXPECT_EQ(decision.signal, SIGKILL);
      }
    }
    for (const int slot : decision.start) {
      EXPECT_FALSE(last_[slot].ok()) << "it had succeeded";
      EXPECT_FALSE(stopped_ || failed_);
      EXPECT_LE(++starts_[slot], policy_.most);
      EXPECT_EQ(table_->restarts(slot), starts_[slot]);
      EXPECT_TRUE(table_->running(slot));
    }
    EXPECT_GT(decision.next, now_) << "would be decided for ever";
    for (size_t slot = 0; slot < workers_; ++slot) {
      const absl::Time at = table_->restart_at(slot);
      EXPECT_LE(decision.next, at);
    }
  }

  void Finish() {
    now_ += absl::Seconds(6);
    Look();
    for (int slot = 0; slot < static_cast<int>(workers_); ++slot) {
      if (table_->running(slot)) End(Exit(slot, Pick(2) == 0 ? 0 : 9));
    }
  }

  int ExpectedStatus() const {
    if (elastic_ && went_on_) return 0;
    for (const WorkerExit& exit : last_) {
      if (!exit.ok()) return table_->first_failure()->Status();
    }
    return 0;
  }

  const CounterRandom random_;
  uint64_t draws_ = 0;
  const size_t workers_;
  RestartPolicy policy_;
  const bool elastic_;
  std::optional<ProcessTable> table_;
  absl::Time now_ = kStart;
  bool stopped_ = false;
  bool failed_ = false;  // and that ends the others
  bool went_on_ = false;
  std::vector<int> starts_;
  std::vector<WorkerExit> last_;
};

TEST(ProcessTableTest, RandomScenarios) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomTable(seed).Run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace coxswain
