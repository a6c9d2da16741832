// One call that trains without libtorch: what it computes, by the job's plan.

#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/integration/pointer_training.h"
#include "train/train.h"

namespace coxswain::pointer_training {
namespace {

TEST_F(PointerTrainTest, AveragesAsOneProcessWouldCompute) {
  for (const int ranks : {2, 3}) {
    TrainOptions options = Options();
    options.accumulation_steps = 3;
    for (const Ended& ended : Run(ranks, options, Until(5))) {
      EXPECT_OK(ended.status);
      EXPECT_EQ(ended.step, 5);
      ExpectClose(ended.model, Plain(5, ranks * 3));
    }
  }
}

TEST_F(PointerTrainTest, AnOperatorThatRaisesTheAccumulationChangesNoScale) {
  plan_overrides_["accumulation"] = "4";
  for (const Ended& ended : Run(2, Options(), Until(5))) {
    EXPECT_OK(ended.status);
    ExpectClose(ended.model, Plain(5, 2 * 4));
  }
}

TEST_F(PointerTrainTest, AShortWindowIsTakenAtTheEndOfTheEpoch) {
  TrainOptions options = Options();
  options.accumulation_steps = 4;
  Model plain = Plain(1, 2 * 4);
  plain.PlainStep({8, 9});
  for (const Ended& ended :
       Run(2, options, [](Training&training, Model&model) -> absl::Status {
         for (int64_t i = 0; i < 5; ++i) {
           COXSWAIN_RETURN_IF_ERROR(training.Step(
               [&] { return model.Backward(2 * i + training.rank()); }));
           EXPECT_EQ(training.stepped(), i == 3);
         }
         return training.EndEpoch();
       })) {
    EXPECT_OK(ended.status);
    EXPECT_EQ(ended.step, 2);
    ExpectClose(ended.model, plain);
  }
}

TEST_F(PointerTrainTest, TheFirstRankWithoutDataEndsTheEpochOfAll) {
  TrainOptions options = Options();
  options.terms.uneven_data = schedule::UnevenData::kEndAtFirst;
  const auto ended =
      Run(2, options, [](Training& training, Model& model) -> absl::Status {
        for (int epoch = 0; epoch < 2; ++epoch) {
          const int batches = training.rank() == 0 ? 2 : 4;
          for (int i = 0; i < batches && !training.epoch_ended(); ++i) {
            COXSWAIN_RETURN_IF_ERROR(
                training.Step([&] { return model.Backward(i); }));
            EXPECT_EQ(training.taken(), i < 2);
          }
          COXSWAIN_RETURN_IF_ERROR(training.EndEpoch());
        }
        return absl::OkStatus();
      });
  for (const Ended& one : ended) {
    EXPECT_OK(one.status);
    // The window that was given up counts on both.
    EXPECT_EQ(one.step, 6);
    ExpectClose(one.model, ended[0].model);
  }
}

TEST_F(PointerTrainTest, AllRanksEndWithOneModelWhereAHookLetsThemGoApart) {
  TrainOptions options = Options();
  options.hook = "post_local_sgd(start_step=2,period=4)";
  const auto ended = Run(2, options, Until(9));
  for (const Ended& one : ended) {
    EXPECT_OK(one.status);
    ExpectClose(one.model, ended[0].model);
  }
}

}  // namespace
}  // namespace coxswain::pointer_training
