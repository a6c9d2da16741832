// Steps whose passes do not give each parameter one gradient: parameters
// without a use, static graphs.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/gated/gated_communicator.h"
#include "client/comm/loopback/loopback_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"

namespace coxswain::torch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using ::torch::Tensor;

using Names = std::vector<std::string>;

// (view, whether the caller runs the backward pass)
class StepsTest : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  static bool view() { return std::get<0>(GetParam()); }
  static absl::Status Backward(DistributedDataParallel& ddp,
                               const Tensor& loss) {
    if (!std::get<1>(GetParam())) return ddp.Backward(loss);
    loss.backward();
    absl::Status status = ddp.Synchronize();
    return status.ok() ? ddp.FinishStep() : status;
  }
  static DistributedDataParallelOptions FindUnused() {
    DistributedDataParallelOptions options = SmallBuckets(view());
    options.reducer.find_unused_parameters = true;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(All, StepsTest,
                         testing::Combine(testing::Bool(), testing::Bool()));

// ---- unused parameters ----

TEST_P(StepsTest, WhatNoRankUsesStaysAsItIs) {
  OnRanks(2, [](const TestRank& rank) {
    auto model =
        std::make_shared<Weights>(Names{"all", "one", "none", "kept", "apart"});
    auto ddp = Wrap(rank, model, FindUnused());
    model->weight("kept").mutable_grad() =
        ::torch::full({2}, 7.0F + rank.index);
    if (rank.index == 0) {
      model->weight("apart").mutable_grad() = ::torch::full({2}, 5.0F);
    }
    for (int step = 0; step < 3; ++step) {
      const Names used = rank.index == 0 ? Names{"all"} : Names{"all", "one"};
      ASSERT_OK(Backward(*ddp, model->Use(used, 2 + 2 * rank.index)));
      EXPECT_EQ(model->Gradient("all"), 3);
      EXPECT_EQ(model->Gradient("one"), 2);
      EXPECT_TRUE(std::isnan(model->Gradient("none")));
      EXPECT_EQ(model->Gradient("kept"), 7 + rank.index);
      if (rank.index == 0) {
        EXPECT_EQ(model->Gradient("apart"), 5);
      } else {
        EXPECT_TRUE(std::isnan(model->Gradient("apart")));
      }
      model->weight("all").mutable_grad() = Tensor();
      model->weight("one").mutable_grad() = Tensor();
    }
    // In use after all: what stood there counts.
    ASSERT_OK(Backward(*ddp, model->Use({"none", "kept"}, 1)));
    EXPECT_EQ(model->Gradient("none"), 1);
    EXPECT_EQ(model->Gradient("kept"), 8.5);
  });
}

TEST_P(StepsTest, AUseInAnEarlierPassOfTheWindowCounts) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b", "c"});
    DistributedDataParallelOptions options = FindUnused();
    options.accumulation_steps = 2;
    auto ddp = Wrap(rank, model, options);
    for (int step = 0; step < 2; ++step) {
      ddp->Accumulate();
      model->Use(rank.index == 0 ? Names{"a", "b"} : Names{"a"}, 4).backward();
      ddp->Accumulate();
      ASSERT_OK(Backward(*ddp, model->Use({"a"}, 1)));
      EXPECT_EQ(model->Gradient("a"), 5);
      EXPECT_EQ(model->Gradient("b"), 2);
      EXPECT_TRUE(std::isnan(model->Gradient("c")));
      for (const Tensor& parameter : model->parameters()) {
        parameter.mutable_grad() = Tensor();
      }
    }
    // The marks ended with the exchange.
    ddp->Accumulate();
    model->Use({"a"}, 1).backward();
    ddp->Accumulate();
    ASSERT_OK(Backward(*ddp, model->Use({"a"}, 1)));
    EXPECT_TRUE(std::isnan(model->Gradient("b")));
  });
}

TEST_P(StepsTest, WithoutTheOptionUnusedParametersHaveZeros) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b"});
    auto ddp = Wrap(rank, model, SmallBuckets(view()));
    ASSERT_OK(Backward(*ddp, model->Use({"a"}, 1)));
    EXPECT_EQ(model->Gradient("b"), 0);
  });
}

// A communicator that lets all through and is asked what has been launched.
struct Watched {
  Watched() : gated(std::make_unique<LoopbackCommunicator>()) {
    gated.Open();
    rank.communicator = &gated;
  }
  GatedCommunicator gated;
  TestRank rank;
};

// Launches that come before the gradient of `tensor` is computed.
void ExpectLaunchBefore(const Tensor& tensor, GatedCommunicator* gated,
                        bool* seen) {
  const size_t before = gated->launches().size();
  tensor.register_hook([gated, before, seen](const Tensor&) {
    *seen = gated->AwaitLaunches(before + 1, kSoon);
  });
}

TEST(FindUnusedTest, BucketsOfUnreachedParametersLeaveAtOnce) {
  Watched watched;
  auto model = std::make_shared<Weights>(Names{"used", "idle"});
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.reducer.find_unused_parameters = true;
  auto ddp = Wrap(watched.rank, model, options);
  bool seen = false;
  ExpectLaunchBefore(model->weight("used"), &watched.gated, &seen);
  ASSERT_OK(ddp->Backward(model->Use({"used"}, 1)));
  EXPECT_TRUE(seen);
}

// ---- static graph ----

// Multiplies by the model's weight "again", computing it again in the backward
// pass, with a backward pass inside, as checkpointing does.
struct Recomputed : ::torch::autograd::Function<Recomputed> {
  static Tensor forward(::torch::autograd::AutogradContext* context,
                        const Tensor& x, Weights* model) {
    context->saved_data["x"] = x;
    context->saved_data["model"] = reinterpret_cast<int64_t>(model);
    return x * model->weight("again");
  }
  static ::torch::autograd::tensor_list backward(
      ::torch::autograd::AutogradContext* context,
      const ::torch::autograd::tensor_list& gradients) {
    const ::torch::AutoGradMode enable(true);
    auto* const model =
        reinterpret_cast<Weights*>(context->saved_data["model"].toInt());
    const Tensor x =
        context->saved_data["x"].toTensor().detach().requires_grad_();
    (x * model->weight("again")).backward(gradients[0]);
    return {x.grad(), Tensor()};
  }
};

// All weights are 1: the gradients are x for "first", x times for "again".
Tensor Recompute(Weights& model, double x, int times) {
  Tensor value = model.weight("first") * x;
  for (int i = 0; i < times; ++i) value = Recomputed::apply(value, &model);
  return value.sum();
}

TEST_P(StepsTest, ABackwardPassInsideOneIsNotTheEnd) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"first", "again"});
    auto ddp = Wrap(rank, model, SmallBuckets(view()));
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      ASSERT_OK(Backward(*ddp, Recompute(*model, 1 + rank.index, 1)));
      EXPECT_EQ(model->Gradient("first"), 1.5);
      EXPECT_EQ(model->Gradient("again"), 1.5);
    }
  });
}

TEST_P(StepsTest, SeveralGradientsInAPassNeedAStaticGraph) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"first", "again", "idle"});
    DistributedDataParallelOptions options = SmallBuckets(view());
    options.static_graph = true;
    options.accumulation_steps = 2;
    auto ddp = Wrap(rank, model, options);
    for (int step = 0; step < 4; ++step) {
      model->zero_grad();
      ddp->Accumulate();
      // A pass that does not exchange may be another one.
      ASSERT_OK(ddp->Backward(model->Use({"again"}, 10)));
      ddp->Accumulate();
      ASSERT_OK(Backward(*ddp, Recompute(*model, 1 + rank.index, 3)));
      EXPECT_EQ(model->Gradient("first"), 1.5);
      EXPECT_EQ(model->Gradient("again"), 14.5);
      EXPECT_EQ(model->Gradient("idle"), 0);
    }
  });
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  auto model = std::make_shared<Weights>(Names{"first", "again"});
  auto ddp = Wrap(rank, model, SmallBuckets(view()));
  EXPECT_THAT(Backward(*ddp, Recompute(*model, 1, 2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("\"again\" was marked ready twice")));
}

TEST_P(StepsTest, AStaticGraphThatChangesIsAnErrorForAllRanks) {
  for (const int times : {1, 3}) {
    OnRanks(2, [times](const TestRank& rank) {
      auto model = std::make_shared<Weights>(Names{"first", "again"});
      DistributedDataParallelOptions options = SmallBuckets(view());
      options.static_graph = true;
      auto ddp = Wrap(rank, model, options);
      ASSERT_OK(Backward(*ddp, Recompute(*model, 1, 2)));
      model->zero_grad();
      const absl::Status status =
          Backward(*ddp, Recompute(*model, 1, rank.index == 0 ? 2 : times));
      if (rank.index == 0) {
        EXPECT_THAT(status, Not(IsOk()));
      } else {
        EXPECT_THAT(status,
                    StatusIs(absl::StatusCode::kFailedPrecondition,
                             AllOf(HasSubstr("\"again\" got"),
                                   HasSubstr("and 2 in the first one"))));
      }
    });
  }
}

TEST(StaticGraphTest, GradientsLeaveEarlyFromTheSecondPassOn) {
  Watched watched;
  auto model = std::make_shared<Weights>(Names{"first", "again", "idle"});
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.static_graph = true;
  options.reducer.rebuild = false;
  options.reducer.buckets = {1, 1};
  auto ddp = Wrap(watched.rank, model, options);
  // In one bucket each, so that two leave before the first layer's gradient:
  // that of "idle" before the pass, that of "again" after its second gradient.
  for (const size_t early : {0, 2}) {
    const size_t before = watched.gated.launches().size();
    size_t seen = 0;
    const unsigned hook =
        model->weight("first").register_hook([&](const Tensor&) {
          if (early > 0) {
            EXPECT_TRUE(watched.gated.AwaitLaunches(before + early, kSoon));
          }
          seen = watched.gated.launches().size() - before;
        });
    ASSERT_OK(ddp->Backward(Recompute(*model, 1, 2)));
    model->weight("first").remove_hook(hook);
    EXPECT_EQ(seen, early);
  }
}

TEST_P(StepsTest, AStaticGraphWithUnusedParameters) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b", "c"});
    DistributedDataParallelOptions options = FindUnused();
    options.static_graph = true;
    auto ddp = Wrap(rank, model, options);
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK(Backward(
          *ddp, model->Use(rank.index == 0 ? Names{"a", "b"} : Names{"a"}, 4)));
      EXPECT_EQ(model->Gradient("a"), 4);
      EXPECT_EQ(model->Gradient("b"), 2);
      EXPECT_TRUE(std::isnan(model->Gradient("c")));
      for (const Tensor& parameter : model->parameters()) {
        parameter.mutable_grad() = Tensor();
      }
    }
  });
}

}  // namespace
}  // namespace coxswain::torch
