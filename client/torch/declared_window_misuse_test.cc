// Declared windows: what is refused at the call.

#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"

namespace coxswain::torch::declared_window_misuse_test {
namespace {

using testing::HasSubstr;
using ::torch::Tensor;

using Begins = std::vector<Accumulator::Begin>;

auto Refused(const std::string& what) {
  return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what));
}

class MisuseTest : public testing::Test {
 protected:
  void Wrap(const DistributedDataParallelOptions& options) {
    ddp_.reset();
    communicator_ = std::make_unique<LoopbackCommunicator>();
    TestRank rank;
    rank.communicator = communicator_.get();
    ddp_ = torch::Wrap(rank, model_, options);
  }
  void Declare(int count) { ASSERT_OK(ddp_->DeclareWindow(Begins(count))); }
  Tensor Loss() { return model_->Use({"a", "b"}, 2); }
  // The first error stays.
  void ExpectOver(const std::string& what) {
    EXPECT_THAT(ddp_->Synchronize(), Refused(what));
    EXPECT_THAT(ddp_->DeclareWindow(Begins(2)), Refused(what));
  }

  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<Weights> model_ =
      std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
  ::torch::optim::SGD optimizer_{model_->parameters(), 1};
  std::unique_ptr<DistributedDataParallel> ddp_;
};

TEST_F(MisuseTest, AWindowIsDeclaredOnce) {
  Wrap(Following(PlanOf(2)));
  Declare(2);
  EXPECT_THAT(ddp_->DeclareWindow(Begins(2)), Refused("was not finished"));
  ExpectOver("was not finished");
}

TEST_F(MisuseTest, AWindowIsFinishedFirst) {
  Wrap(Following(PlanOf(2)));
  Declare(2);
  Loss().backward();
  ASSERT_OK(ddp_->Synchronize());
  EXPECT_THAT(ddp_->DeclareWindow(Begins(2)), Refused("was not finished"));
}

TEST_F(MisuseTest, NoMicroBatchIsDeclaredInAWindow) {
  Wrap(Following(PlanOf(2)));
  Declare(2);
  EXPECT_FALSE(ddp_->Accumulate().exchange);
  ExpectOver("Accumulate inside a window");
}

TEST_F(MisuseTest, NoWindowIsDeclaredInAMicroBatch) {
  Wrap(Following(PlanOf(2)));
  ddp_->Accumulate();
  EXPECT_THAT(ddp_->DeclareWindow(Begins(1)),
              Refused("has not run its backward"));
}

TEST_F(MisuseTest, ACarriedWindowMayGoOnByMicroBatches) {
  schedule::Terms terms;
  terms.tail = schedule::TailPolicy::kCarry;
  Wrap(Following(PlanOf(2, terms)));
  ASSERT_OK(ddp_->DeclareWindow({{1, true}}));
  EXPECT_THAT(ddp_->Flush(), Refused("the Synchronize of a declared window"));
  EXPECT_THAT(ddp_->UpdateParameters(), Refused("a window is declared"));
  ASSERT_OK(ddp_->BeginLastPass({0, 1}));
  (Loss() / 2).backward();
  ASSERT_OK(ddp_->EndLastPass());
  ASSERT_OK(ddp_->Synchronize());
  ASSERT_OK(ddp_->BeginEpoch());
  const MicroBatch micro = ddp_->Accumulate();
  EXPECT_TRUE(micro.sync);
  ASSERT_OK(ddp_->Backward(Loss(), micro));
  EXPECT_EQ(model_->Gradient("a"), 2);
}

TEST_F(MisuseTest, PassesOfAWindowAreRunByTheCaller) {
  Wrap(Following(PlanOf(1)));
  Declare(1);
  EXPECT_THAT(ddp_->Backward(Loss()), Refused("run loss.backward()"));
}

TEST_F(MisuseTest, LastPassesNameParametersThatAreThereOnce) {
  const auto run = [&](const std::function<absl::Status()>& misuse) {
    Wrap(Following(PlanOf(1)));
    Declare(1);
    absl::Status status = misuse();
    EXPECT_EQ(ddp_->Synchronize(), status);
    return status;
  };
  const auto invalid = [](const std::string& what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  EXPECT_THAT(run([&] {
                return ddp_->BeginLastPass({0, 2});
              }),
              invalid("parameter 2 of 2"));
  EXPECT_THAT(run([&] { return ddp_->BeginLastPass({-1}); }),
              invalid("parameter -1 of 2"));
}

TEST_F(MisuseTest, ALastPassIsTheLast) {
  Wrap(Following(PlanOf(1)));
  Declare(1);
  ASSERT_OK(ddp_->BeginLastPass({0}));
  Loss().backward();
  ASSERT_OK(ddp_->EndLastPass());
  EXPECT_THAT(ddp_->BeginLastPass({0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("names \"a\" twice")));
}

TEST_F(MisuseTest, APassAfterTheLastOne) {
  Wrap(Following(PlanOf(1)));
  Declare(1);
  ASSERT_OK(ddp_->BeginLastPass({0}));
  Loss().backward();
  ASSERT_OK(ddp_->EndLastPass());
  Loss().backward();
  ExpectOver("adds to the gradient of \"a\" after its last pass");
}

TEST_F(MisuseTest, APassAfterTheAverages) {
  Wrap(Following(PlanOf(1)));
  Declare(1);
  Loss().backward();
  ASSERT_OK(ddp_->Synchronize());
  Loss().backward();
  EXPECT_THAT(ddp_->FinishStep(), Refused("after its last pass"));
}

TEST_F(MisuseTest, TwoPassesInOneLastPass) {
  Wrap(Following(PlanOf(1)));
  Declare(1);
  ASSERT_OK(ddp_->BeginLastPass({0, 1}));
  Loss().backward();
  Loss().backward();
  EXPECT_THAT(ddp_->EndLastPass(), Refused("marked ready twice"));
}

TEST_F(MisuseTest, LastPassesDoNotNest) {
  Wrap(Following(PlanOf(1)));
  Declare(1);
  ASSERT_OK(ddp_->BeginLastPass({0}));
  EXPECT_THAT(ddp_->BeginLastPass({1}), Refused("has begun and not ended"));
}

TEST_F(MisuseTest, ALastPassEndsBeforeItsWindow) {
  Wrap(Following(PlanOf(1)));
  Declare(1);
  ASSERT_OK(ddp_->BeginLastPass({0}));
  EXPECT_THAT(ddp_->Synchronize(), Refused("has begun and not ended"));
}

TEST_F(MisuseTest, NoLastPassEndsThatHasNotBegun) {
  Wrap(Following(PlanOf(1)));
  Declare(1);
  EXPECT_THAT(ddp_->EndLastPass(), Refused("without a last pass"));
}

TEST_F(MisuseTest, LastPassesAreOfDeclaredWindows) {
  Wrap(Following(PlanOf(1)));
  EXPECT_THAT(ddp_->BeginLastPass({0}), Refused("call DeclareWindow first"));
}

TEST_F(MisuseTest, ANumberOfMicroBatchesThatIsNotDue) {
  Wrap(Following(PlanOf(3)));
  EXPECT_THAT(
      ddp_->DeclareWindow(Begins(2)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("and 3 are due")));
}

TEST_F(MisuseTest, TheStepsThatAWindowEndsCanBeNoneOfIts) {
  Wrap(Following(PlanOf(1)));
  Declare(1);
  EXPECT_THAT(ddp_->StepWithoutData(), Refused("a window is declared"));
  EXPECT_THAT(ddp_->DropWindow(), Refused("in the middle of an exchange"));
  EXPECT_THAT(ddp_->FinishStep(), Refused("call Synchronize first"));
  // Nothing of that has changed anything.
  Loss().backward();
  ASSERT_OK(ddp_->Synchronize());
  EXPECT_THAT(ddp_->FailMicroBatch(absl::InternalError("no loss")),
              Refused("before Synchronize"));
  ASSERT_OK(ddp_->FinishStep());
  ASSERT_OK(ddp_->StepOptimizer(optimizer_));
  EXPECT_EQ(model_->weight("a")[0].item<double>(), -1);
}

TEST_F(MisuseTest, WhatDoesNotGoWithIt) {
  const auto declare = [&](const DistributedDataParallelOptions& options) {
    Wrap(options);
    return ddp_->DeclareWindow(Begins(1)).status();
  };
  schedule::Terms terms;
  terms.sync_each_batch = true;
  EXPECT_THAT(declare(Following(PlanOf(1, terms))),
              Refused("does not go with sync_each_batch"));
  auto options = Following(PlanOf(1));
  options.static_graph = true;
  EXPECT_THAT(declare(options), Refused("static_graph"));
  options = Following(PlanOf(1));
  options.overlapped_optimizer = [](const Tensor& parameter) {
    return std::make_unique<::torch::optim::SGD>(std::vector<Tensor>{parameter},
                                                 1);
  };
  EXPECT_THAT(declare(options), Refused("overlapped_optimizer"));
  options = Following(PlanOf(1));
  options.zero = 2;
  EXPECT_THAT(declare(options), Refused("set zero=1"));
  options.force_zero = true;
  EXPECT_OK(declare(options));
  Wrap(Following(PlanOf(1)));
  const NoSyncScope scope = ddp_->NoSync();
  EXPECT_THAT(ddp_->DeclareWindow(Begins(1)), Refused("in a NoSync scope"));
}

}  // namespace
}  // namespace coxswain::torch::declared_window_misuse_test
