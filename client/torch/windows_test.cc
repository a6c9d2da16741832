// What becomes of declared micro-batches that do not run as declared.

#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"

namespace coxswain::torch {
namespace {

using testing::HasSubstr;

using Names = std::vector<std::string>;

class WindowsTest : public testing::TestWithParam<bool> {
 protected:
  static DistributedDataParallelOptions Accumulating(int steps) {
    DistributedDataParallelOptions options = SmallBuckets(GetParam());
    options.accumulation_steps = steps;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(CopyAndView, WindowsTest, testing::Bool());

TEST_P(WindowsTest, ADeclaredMicroBatchExchangesOnce) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Accumulating(1));
    ASSERT_TRUE(ddp->Accumulate().sync);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 2)));
    EXPECT_THAT(ddp->Backward(model->Use({"a"}, 2)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("call Accumulate before each forward")));
    EXPECT_EQ(model->Gradient("a"), 2);
    // The refusal comes before the pass, and stays.
    EXPECT_FALSE(ddp->Accumulate().sync);
    EXPECT_THAT(ddp->Backward(model->Use({"a"}, 2)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("call Accumulate before each forward")));
  });
}

TEST_P(WindowsTest, APassWithinNoSyncIsOfTheMicroBatchThatExchanges) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Accumulating(1));
    ASSERT_TRUE(ddp->Accumulate().sync);
    {
      const auto scope = ddp->NoSync();
      ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    }
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 1)));
    EXPECT_EQ(ddp->hook().step(), 1);
  });
}

TEST_P(WindowsTest, APassThatTheCallerRunsIsRefusedToo) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Accumulating(1));
    ddp->Accumulate();
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 2)));
    model->Use({"a"}, 2).backward();
    EXPECT_THAT(ddp->Synchronize(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("call Accumulate before each forward")));
  });
}

TEST_P(WindowsTest, AWindowThatIsLeftEarlyCanBeDropped) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, Accumulating(2));
    ASSERT_FALSE(ddp->Accumulate().sync);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 5)));
    ASSERT_TRUE(ddp->Accumulate().sync);
    // The loop is left before this one's backward.
    EXPECT_THAT(ddp->Flush(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("DropWindow")));
    ASSERT_OK(ddp->DropWindow());
    EXPECT_EQ(model->Gradient("a"), 0);
    EXPECT_EQ(ddp->hook().step(), 0);
    for (const bool sync : {false, true}) {
      ASSERT_EQ(ddp->Accumulate().sync, sync);
      ASSERT_OK(ddp->Backward(model->Use({"a"}, rank.index + 1) / 2));
    }
    EXPECT_EQ(model->Gradient("a"), 1.5);
  });
}

}  // namespace
}  // namespace coxswain::torch
