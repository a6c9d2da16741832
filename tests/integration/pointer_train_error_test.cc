// One call that trains without libtorch: what it refuses, and how it fails.

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/pointer_training.h"
#include "tests/support/in_threads.h"
#include "train/train.h"

namespace coxswain::pointer_training {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST_F(PointerTrainTest, AnErrorNamesWhoAndWhyOnAllRanks) {
  const auto ended =
      Run(2, Options(), [](Training& training, Model& model) -> absl::Status {
        while (true) {
          COXSWAIN_RETURN_IF_ERROR(
              training.Step([&]() -> absl::StatusOr<double> {
                if (training.rank() == 1 && training.step() == 3) {
                  return absl::DataLossError("the disk is gone");
                }
                return model.Backward(training.step());
              }));
        }
      });
  const auto its_own =
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the disk is gone"));
  const auto of_the_peer =
      StatusIs(absl::StatusCode::kAborted,
               AllOf(HasSubstr("rank 1"), HasSubstr("the disk is gone")));
  for (const Ended& one : ended) {
    EXPECT_THAT(one.status, AnyOf(its_own, of_the_peer));
  }
  EXPECT_NE(ended[0].status.code(), ended[1].status.code());
}

TEST_F(PointerTrainTest, WhatAProgramThrowsIsAnErrorToo) {
  const auto throws = [](const std::string& where) {
    return StatusIs(absl::StatusCode::kInternal,
                    AllOf(HasSubstr(where), HasSubstr("oops")));
  };
  EXPECT_THAT(Run(1, Options(),
                  [](Training&, Model&) -> absl::Status {
                    throw std::runtime_error("oops");
                  })[0]
                  .status,
              throws("the body of Train threw"));
  EXPECT_THAT(Run(1, Options(),
                  [](Training& training, Model&) {
                    return training.Step([]() -> absl::StatusOr<double> {
                      throw std::runtime_error("oops");
                    });
                  })[0]
                  .status,
              throws("the function of gradients threw"));
}

TEST_F(PointerTrainTest, WhatMakesNoSenseIsRefusedBeforeItJoins) {
  Model model;
  TrainOptions options = Options();
  options.session = SessionOf(0, 2);
  // Joining would wait for a coordinator that is not there.
  coordinator_.reset();
  const auto refused = [&](const TrainOptions& wrong,
                           const std::vector<TrainedParameter>& parameters,
                           const TrainedOptimizer& optimizer,
                           const std::string& why) {
    EXPECT_THAT(Train(wrong, parameters, optimizer,
                      [](Training&) { return absl::OkStatus(); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  TrainOptions hook = options;
  hook.hook = "powersdg(rank=4)";
  refused(hook, model.parameters(), model.optimizer(), "powersdg");
  hook.hook = "powersgd(rank=many)";
  refused(hook, model.parameters(), model.optimizer(), "rank");
  TrainOptions taken = options;
  taken.settings["max_norm"] = "1";
  refused(taken, model.parameters(), model.optimizer(), "\"max_norm\"");
  TrainOptions norm = options;
  norm.max_norm = -1;
  refused(norm, model.parameters(), model.optimizer(), "max_norm");
  refused(options, {}, model.optimizer(), "no parameters");
  refused(options, model.parameters(), {}, "no step");
  TrainedOptimizer half = model.optimizer();
  half.load = nullptr;
  refused(options, model.parameters(), half, "save without load");
}

TEST_F(PointerTrainTest, SettingsThatDifferAreAnErrorOnAllRanks) {
  std::vector<absl::Status> statuses(2);
  InThreads(2, [&](int slot) {
    Model model;
    TrainOptions options = Options();
    options.session = SessionOf(slot, 2);
    options.settings["learning_rate"] = slot == 0 ? "0.1" : "0.2";
    statuses[static_cast<size_t>(slot)] =
        Train(options, model.parameters(), model.optimizer(),
              [](Training&) { return absl::OkStatus(); });
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("learning_rate")));
  }
}

}  // namespace
}  // namespace coxswain::pointer_training
