// One call that trains without libtorch: what it saves, and goes on from.

#include <csignal>
#include <cstdlib>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/pointer_training.h"
#include "train/train.h"

namespace coxswain::pointer_training {
namespace {

using ::testing::HasSubstr;

TEST_F(PointerTrainTest, GoesOnFromItsNewestCheckpointOnAnotherNumberOfRanks) {
  TrainOptions options = Options();
  options.terms.checkpoint_every = 4;
  options.resume = "newest";
  const auto first = Run(2, options, Until(8));
  const auto second = Run(3, options, Until(10));
  Model plain;
  int64_t next = 0;
  plain.PlainSteps(&next, 8, 2);
  for (const Ended& ended : first) {
    EXPECT_OK(ended.status);
    ExpectClose(ended.model, plain);
  }
  plain.PlainSteps(&next, 2, 3);
  for (const Ended& ended : second) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 10);
    EXPECT_EQ(ended.counter, 8 * 2 + 2 * 3);
    ExpectClose(ended.model, plain);
  }
}

TEST_F(PointerTrainTest, ARankWithoutDataSavesTheStepsOfTheOthers) {
  TrainOptions options = Options();
  options.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  options.terms.checkpoint_every = 1;
  options.resume = "newest";
  const auto trained =
      Run(2, options, [](Training& training, Model& model) -> absl::Status {
        for (int i = 0; i < (training.rank() == 0 ? 1 : 4); ++i) {
          COXSWAIN_RETURN_IF_ERROR(
              training.Step([&] { return model.Backward(i); }));
        }
        return training.EndEpoch();
      });
  for (const Ended& ended : trained) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 4);
    ExpectClose(ended.model, trained[0].model);
  }
  const auto found =
      Run(2, options, [](Training&, Model&) { return absl::OkStatus(); });
  for (const Ended& ended : found) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 4);
    ExpectClose(ended.model, trained[0].model);
  }
}

// SIGTERM changes its process for good, and so comes to one of its own.
using PointerTrainDeathTest = PointerTrainTest;

TEST_F(PointerTrainDeathTest, SigtermSavesTheStepAndStopsAllRanks) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto stop = [this] {
    TrainOptions options;
    options.resume = "newest";
    const auto stopped =
        Run(2, options, [](Training& training, Model& model) -> absl::Status {
          while (training.going()) {
            if (training.rank() == 1 && training.step() == 3) {
              std::raise(SIGTERM);
            }
            COXSWAIN_RETURN_IF_ERROR(
                training.Step([&] { return model.Backward(0); }));
          }
          EXPECT_THAT(training.decision().stop, HasSubstr("SIGTERM"));
          return absl::OkStatus();
        });
    for (const Ended& ended : stopped) EXPECT_OK(ended.status);
    EXPECT_GE(stopped[0].step, 4);
    options.stop_on_sigterm = false;
    for (const Ended& found :
         Run(2, options, [](Training&, Model&) { return absl::OkStatus(); })) {
      EXPECT_OK(found.status);
      EXPECT_EQ(found.step, stopped[0].step);
      ExpectClose(found.model, stopped[0].model);
    }
    std::_Exit(HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(stop(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace coxswain::pointer_training
