#include "client/torch/pipeline/tensor_hosts.h"

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/torch/pipeline/torch_stage.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/parallel_linear.h"
#include "client/torch/tensor/vocab_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/action.h"
#include "schedule/pipeline/generate.h"
#include "schedule/pipeline/schedule.h"
#include "tests/conformance/connected_group.h"

namespace coxswain::torch::tensor_hosts_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Mesh MeshOf(const std::string& text) { return Mesh::Parse(text).value(); }

absl::Status Check(const std::string& mesh,
                   const std::vector<std::string>& hosts) {
  return CheckTensorHosts(
      MeshOf(mesh), hosts, [](int pp) -> absl::StatusOr<TensorTraffic> {
        return TensorTraffic{/*layers=*/3, /*summed_bytes=*/1200 + pp};
      });
}

TEST(TensorHostsTest, GroupsOnOneHostEachArePassed) {
  EXPECT_OK(Check("dp=2,tp=2", {"a", "a", "b", "b"}));
  EXPECT_OK(Check("tp=2", {"a", "a"}));
  // Replicas and stages may be anywhere.
  EXPECT_OK(Check("pp=2,dp=2", {"a", "b", "c", "d"}));
}

TEST(TensorHostsTest, ARefusalNamesHostsRanksBytesAndAnotherStart) {
  const std::vector<std::string> hosts = {"a", "a", "a", "b",
                                          "b", "b", "b", "b"};
  EXPECT_THAT(
      Check("pp=2,dp=2,tp=2", hosts),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(StartsWith("tp=2 spans hosts: 1 of 4 groups, the first of "
                                "ranks 2, 3 on a, b; start a multiple of 2 "
                                "workers on each host"),
                     HasSubstr("sends 1200 bytes for each token of a "
                               "micro-batch, forward and backward: 2 x 1/2 of "
                               "the 1200 bytes that the 3 divided layers of "
                               "pp 0 sum up"),
                     HasSubstr("PipelineOptions::tp_across_hosts"))));
}

TEST(TensorHostsTest, TheBytesAreThoseOfTheFirstSuchGroupsStage) {
  const std::vector<std::string> hosts = {"a", "a", "a", "a", "a", "a",
                                          "b", "b", "b", "b", "b", "b"};
  EXPECT_OK(Check("pp=2,tp=6", hosts));
  EXPECT_THAT(Check("pp=3,tp=4", hosts),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("sends 1801 bytes for each token of a "
                                 "micro-batch, forward and backward: 2 x 3/4 "
                                 "of the 1201 bytes that the 3 divided layers "
                                 "of pp 1")));
}

// Four ranks are nowhere together.
TEST(TensorHostsTest, WhereNoHostHoldsAGroupTheMeshIsToChange) {
  EXPECT_THAT(Check("tp=4", {"a", "a", "b", "b"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("no host has more than 2 workers: start "
                                       "4 on each, or make tp at most 2"),
                             Not(HasSubstr("pp 0")))));
  EXPECT_THAT(Check("shard=2,tp=2", {"a", "b", "c", "d"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("tp=2 spans hosts: 2 of 2 groups")));
}

TEST(TensorHostsTest, ARefusalSaysWhatHalvesOfBackwardPassesRepeat) {
  EXPECT_THAT(
      CheckTensorHosts(MeshOf("tp=2"), {"a", "b"},
                       [](int) -> absl::StatusOr<TensorTraffic> {
                         return TensorTraffic{/*layers=*/3,
                                              /*summed_bytes=*/1200,
                                              /*repeated_bytes=*/400};
                       }),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("2 x 1/2 of the 1200 bytes that the 3 divided layers "
                         "sum up, 400 of them once more for the parameters, as "
                         "the backward pass comes in halves; to let that go")));
}

// A norm before two divided layers, as in a transformer's block.
struct BlockImpl : ::torch::nn::Module {
  BlockImpl(int64_t features, const TensorParallelPtr& parallel)
      : norm(register_module(
            "norm",
            ::torch::nn::LayerNorm(::torch::nn::LayerNormOptions({features})))),
        up(register_module("up", ColumnParallelLinear::Create(
                                     parallel, {features, 4 * features})
                                     .value())),
        down(register_module("down", RowParallelLinear::Create(
                                         parallel, {4 * features, features})
                                         .value())) {}
  ::torch::Tensor forward(const ::torch::Tensor& x) {
    return x + down->forward(::torch::relu(up->forward(norm->forward(x))));
  }
  ::torch::nn::LayerNorm norm;
  std::shared_ptr<ColumnParallelLinear> up;
  std::shared_ptr<RowParallelLinear> down;
};

constexpr int64_t kFeatures = 24;

// Layers that are divided by themselves, and in a block.
PipelineModel Divided() {
  PipelineModel model;
  model.seed = 1;
  model.initial_values = UsualInitialValues;
  model.layers = {
      MeshLayerOf("embedding",
                  [](const LayerContext& context) {
                    return VocabParallelEmbedding::Create(context.parallel, 11,
                                                          kFeatures);
                  }),
      MeshLayerOf("up",
                  [](const LayerContext& context) {
                    return ColumnParallelLinear::Create(context.parallel,
                                                        {kFeatures, 96});
                  }),
      MeshLayerOf(
          "down",
          [](const LayerContext& context) {
            return RowParallelLinear::Create(context.parallel, {96, kFeatures});
          }),
      MeshLayerOf("block",
                  [](const LayerContext& context)
                      -> absl::StatusOr<std::shared_ptr<BlockImpl>> {
                    return std::make_shared<BlockImpl>(kFeatures,
                                                       context.parallel);
                  }),
      LayerOf("whole", [] {
        return std::make_shared<::torch::nn::LinearImpl>(kFeatures, 4);
      })};
  return model;
}

TEST(TensorHostsTest, TrafficIsWhatTheDividedLayersOfTheStagesSumUp) {
  const PipelineModel model = Divided();
  ASSERT_OK_AND_ASSIGN(const pipeline::StageCut cut,
                       pipeline::StageCut::Parse("0,1-4", 5, 2));
  const auto traffic_of = [&](const std::string& schedule, int pp) {
    return TrafficOf(model, cut, pipeline::MakeSchedule(schedule, 2, 4).value(),
                     pp,
                     /*tp=*/4, /*sequence=*/false)
        .value();
  };
  const TensorTraffic first = traffic_of("1f1b", 0);
  EXPECT_EQ(first.layers, 1);
  EXPECT_EQ(first.summed_bytes, kFeatures * 4);
  EXPECT_EQ(first.repeated_bytes, 0);
  const TensorTraffic second = traffic_of("1f1b", 1);
  EXPECT_EQ(second.layers, 3);
  EXPECT_EQ(second.summed_bytes, 4 * kFeatures * 4);
  EXPECT_EQ(second.repeated_bytes, 0);
  EXPECT_EQ(traffic_of("zb_h1", 0).repeated_bytes, 0);
  EXPECT_EQ(traffic_of("zb_h1", 1).summed_bytes, 5 * kFeatures * 4);
  EXPECT_EQ(traffic_of("zb_h1", 1).repeated_bytes, kFeatures * 4);
}

class TensorTrafficTest
    : public testing::TestWithParam<std::tuple<std::string, bool>> {};

INSTANTIATE_TEST_SUITE_P(Schedules, TensorTrafficTest,
                         testing::Combine(testing::Values("1f1b", "zb_h1"),
                                          testing::Bool()));

constexpr int kRanks = 2;
constexpr int64_t kTokens = 3 * 8;  // 3 samples of 8 positions
constexpr int64_t kBytes = 4;       // of an element

// Returns the bytes of activations whose sums were launched; an all-gather and
// a reduce-scatter are one together.
int64_t SumsOf(const HeldCommunicator& communicator) {
  int64_t halves = 0;
  for (const auto& launch : communicator.launches()) {
    EXPECT_EQ(launch.dtype, DType::kFloat32);
    if (launch.kind == "all-reduce") {
      halves += 2 * launch.count;
    } else if (launch.kind == "all-gather") {
      halves += launch.count * kRanks;
    } else {
      EXPECT_EQ(launch.kind, "reduce-scatter");
      halves += launch.count;
    }
  }
  return halves * kBytes / 2;
}

// Runs a micro-batch of the model as one stage, by the actions of a rank.
absl::Status RunStage(const pipeline::Schedule& schedule, bool sequence,
                      HeldCommunicator* communicator) {
  const PipelineModel model = Divided();
  COXSWAIN_ASSIGN_OR_RETURN(
      const TensorParallelPtr parallel,
      TensorParallel::Create({communicator, sequence, absl::Seconds(30)}));
  std::vector<std::shared_ptr<::torch::nn::Module>> modules;
  std::vector<StageLayer> layers;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    COXSWAIN_ASSIGN_OR_RETURN(
        const auto module,
        MakeLayer(model, static_cast<int>(i),
                  {parallel, std::make_shared<DropoutPlace>()}));
    StageLayer layer;
    layer.compute = [forward = model.layers[i].forward,
                     module](const Tensors& inputs) {
      return forward(module.get(), inputs);
    };
    for (const auto& one : module->parameters()) {
      layer.parameters.push_back({one, one});
    }
    layers.push_back(std::move(layer));
  }
  TorchStage stage(std::move(layers));
  stage.SetInputs({{::torch::arange(kTokens).remainder(11).view({3, 8})}});
  stage.SetLoss(
      [](int, const Tensors& outputs) { return outputs[0].pow(2).sum(); });
  const auto& actions = schedule.of_rank()[0];
  const bool halves =
      std::any_of(actions.begin(), actions.end(), [](const auto& action) {
        return action.kind == pipeline::ActionKind::kBackwardInput;
      });
  COXSWAIN_RETURN_IF_ERROR(stage.Begin(1, halves));
  Activations passed;
  for (const pipeline::Action& action : actions) {
    switch (action.kind) {
      case pipeline::ActionKind::kForward:
        COXSWAIN_RETURN_IF_ERROR(stage.Forward(0, {}, &passed));
        break;
      case pipeline::ActionKind::kBackward:
        COXSWAIN_RETURN_IF_ERROR(stage.Backward(0, {}, &passed));
        break;
      case pipeline::ActionKind::kBackwardInput:
        COXSWAIN_RETURN_IF_ERROR(stage.BackwardInput(0, {}, &passed));
        break;
      case pipeline::ActionKind::kBackwardWeight:
        COXSWAIN_RETURN_IF_ERROR(stage.BackwardWeight(0));
        break;
      default:
        return absl::InternalError(pipeline::ToString(action));
    }
  }
  return parallel->TakeError();
}

TEST_P(TensorTrafficTest, IsWhatAMicroBatchLaunches) {
  const auto& [text, sequence] = GetParam();
  ASSERT_OK_AND_ASSIGN(const pipeline::Schedule schedule,
                       pipeline::MakeSchedule(text, 1, 1));
  ASSERT_OK_AND_ASSIGN(const pipeline::StageCut cut,
                       pipeline::StageCut::Parse("0-4", 5, 1));
  ASSERT_OK_AND_ASSIGN(
      const TensorTraffic traffic,
      TrafficOf(Divided(), cut, schedule, 0, kRanks, sequence));
  std::vector<std::unique_ptr<HeldCommunicator>> communicators;
  for (auto& one : ConnectGroup(kRanks, absl::Minutes(1), ConnectShm)) {
    communicators.push_back(std::make_unique<HeldCommunicator>(std::move(one)));
    communicators.back()->Open();
  }
  std::vector<std::thread> threads;
  for (const auto& communicator : communicators) {
    threads.emplace_back([&, sequence = sequence] {
      EXPECT_OK(RunStage(schedule, sequence, communicator.get()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& communicator : communicators) {
    EXPECT_EQ(traffic.summed_bytes * kTokens, SumsOf(*communicator));
  }
}

}  // namespace
}  // namespace coxswain::torch::tensor_hosts_test
