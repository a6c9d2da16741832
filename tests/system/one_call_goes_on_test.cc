// coxswain::Train with `elastic`, of a program that hands over pointers: real
// processes, of which some are killed, drained and started again.

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/system/scenario.h"
#include "tests/system/test_cluster.h"

namespace coxswain::one_call_goes_on_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class OneCallTest : public testing::Test {
 protected:
  OneCallTest() { cluster_.Serve(); }

  TestCluster::Launcher Start(const std::string& node, int nproc,
                              const std::vector<std::string>& run,
                              const std::vector<std::string>& toy = {}) {
    TestCluster::Launch launch;
    launch.node = node;
    launch.nproc = nproc;
    launch.run = run;
    launch.toy = kLongToy;
    launch.toy.insert(launch.toy.end(), toy.begin(), toy.end());
    launch.program = "tests/system/toy/train_toy";
    return cluster_.Start(launch);
  }

  TestCluster cluster_;
};

TEST_F(OneCallTest, SurvivorsGoOnAndANewcomerTakesOverWhatTheyHave) {
  const auto launcher =
      Start("bow", 3, {"--min-workers", "2", "--max-restarts", "1"});
  ASSERT_TRUE(cluster_.AwaitSteps(3, 20));
  const auto before = cluster_.Training();
  cluster_.Kill(*before[1]);
  ASSERT_TRUE(cluster_.Await("three train again", [&] {
    return cluster_.Training().size() == 3 &&
           cluster_.At(before[1]->worker) != before[1];
  }));
  ASSERT_TRUE(cluster_.AwaitSteps(3, 20));
  for (const WorkerLife* life : before) {
    EXPECT_EQ(cluster_.At(life->worker) == life, life != before[1])
        << life->worker << ": the survivors are the same processes";
  }
  EXPECT_TRUE(cluster_.At(before[1]->worker)->generations.front().copied);
  cluster_.EndTraining();
  cluster_.Finish({{launcher, 0}});
  cluster_.ExpectExactAndEqual(3);
  EXPECT_THAT(cluster_.Transcript(),
              AllOf(HasSubstr(absl::StrCat("lost=\"rank 1 (", before[1]->worker,
                                           " on ")),
                    HasSubstr("was lost: killed by signal 9")));
}

// A rank 0 has no duty that another could not do; with a hook that has a state.
TEST_F(OneCallTest, Rank0IsKilledWhereAHookCompresses) {
  const auto launcher = Start("bow", 3, {"--min-workers", "2"},
                              {"--hook", "powersgd(rank=2,start_step=5)"});
  ASSERT_TRUE(cluster_.AwaitSteps(3, 20));
  cluster_.Kill(*cluster_.Training()[0]);
  ASSERT_TRUE(cluster_.AwaitSteps(2, 20));
  cluster_.EndTraining();
  cluster_.Finish({{launcher, 0}});
  const WorkerResult* first = nullptr;
  for (const auto& life : cluster_.lives()) {
    if (!life->result.has_value()) continue;
    if (first == nullptr) first = &*life->result;
    EXPECT_EQ(life->result->step, first->step);
    EXPECT_EQ(life->result->samples, first->samples);
    EXPECT_EQ(life->result->parameters, first->parameters);
  }
  EXPECT_NE(first, nullptr) << cluster_.Transcript();
}

class DeathAtAPointTest : public OneCallTest,
                          public testing::WithParamInterface<const char*> {};

// While the others wait for its gradients, or when it has the decision on the
// step, as some of the others have, and has not taken the step.
TEST_P(DeathAtAPointTest, EachSampleCountsOnce) {
  const auto launcher = Start("bow", 3, {"--min-workers", "2"},
                              {"--die", absl::StrCat("1:7:", GetParam())});
  ASSERT_TRUE(cluster_.AwaitSteps(2, 20));
  cluster_.EndTraining();
  cluster_.Finish({{launcher, 0}});
  cluster_.ExpectExactAndEqual(2);
}

INSTANTIATE_TEST_SUITE_P(Points, DeathAtAPointTest,
                         testing::Values("computing", "decided"),
                         [](const auto& point) {
                           return std::string(point.param);
                         });

TEST_F(OneCallTest, SigtermDrainsTheOneThatGetsIt) {
  const auto launcher = Start("bow", 3, {"--min-workers", "2"});
  ASSERT_TRUE(cluster_.AwaitSteps(3, 20));
  const auto before = cluster_.Training();
  kill(before[2]->pid, SIGTERM);
  ASSERT_TRUE(cluster_.Await("it has ended",
                             [&] { return before[2]->result.has_value(); }));
  ASSERT_TRUE(cluster_.AwaitSteps(2, 20));
  EXPECT_EQ(cluster_.Training()[0], before[0]);
  cluster_.EndTraining();
  cluster_.Finish({{launcher, 0}});
  cluster_.ExpectExactAndEqual(2);
  EXPECT_FALSE(before[2]->result->finished);
}

// Where none is left that has the state, a checkpoint has it.
TEST_F(OneCallTest, ThoseThatComeAfterAllGoOnFromTheNewestCheckpoint) {
  const std::vector<std::string> toy = {"--checkpoint-every", "10", "--resume",
                                        "newest"};
  const auto first = Start("bow", 2, {}, toy);
  ASSERT_TRUE(cluster_.Await("a checkpoint is complete", [&] {
    return absl::StrContains(cluster_.Transcript(), "checkpoint_complete");
  }));
  for (WorkerLife* life : cluster_.Training()) cluster_.Kill(*life);
  ASSERT_TRUE(cluster_.Await("the launcher has ended", [&] {
    return cluster_.status(first).has_value();
  }));
  const auto second = Start("stern", 2, {}, toy);
  ASSERT_TRUE(cluster_.Await("two train again", [&] {
    return cluster_.At("stern/0") != nullptr &&
           cluster_.At("stern/1") != nullptr;
  }));
  const int64_t from = cluster_.At("stern/0")->generations.front().from_step;
  EXPECT_GT(from, 0);
  EXPECT_EQ(from % 10, 0);
  cluster_.EndTraining();
  cluster_.Finish({{second, 0}});
  cluster_.ExpectExactAndEqual(2);
}

}  // namespace
}  // namespace coxswain::one_call_goes_on_test
