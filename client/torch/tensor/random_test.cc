// What must have the same bits on any mesh: initial values and dropout.

#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/mesh_dropout.h"
#include "client/torch/tensor/tensor_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch {
namespace {

using ::testing::HasSubstr;
using ::torch::Tensor;

TEST(InitialValuesTest, AnyNumberOfRanksBeginsWithTheSameBits) {
  const GptSizes sizes;
  const auto place = std::make_shared<const DropoutPlace>();
  for (const auto type : {::torch::kFloat32, ::torch::kFloat64}) {
    DenseGpt dense(sizes, place);
    dense.to(type);
    ASSERT_OK(InitialiseByName(dense, kSeed, {}));
    const auto expected = dense.named_parameters();
    for (const int ranks : {1, 2, 3, 4}) {
      OnTensorRanks(ranks, false, [&](const TensorRank& rank) {
        ParallelGpt model(sizes, place, rank);
        model.to(type);
        const ParameterBoxes boxes = BoxesOf(model);
        ASSERT_OK(InitialiseByName(model, kSeed, boxes));
        ASSERT_EQ(boxes.size(), 7);
        for (const auto& parameter : model.named_parameters()) {
          SCOPED_TRACE(parameter.key());
          Tensor whole = expected[parameter.key()];
          const auto box = boxes.find(parameter.key());
          if (box != boxes.end()) {
            for (size_t d = 0; d < box->second.shape.size(); ++d) {
              whole =
                  whole.slice(static_cast<int64_t>(d), box->second.box.begin[d],
                              box->second.box.end[d]);
            }
          }
          EXPECT_TRUE(parameter.value().equal(whole));
        }
        EXPECT_EQ(rank.communicator->sequence(), 0);
      });
    }
  }
}

TEST(InitialValuesTest, ValuesFollowTheRuleTheNameAndTheSeed) {
  struct Two : ::torch::nn::Module {
    Two() {
      a = register_module("a", ::torch::nn::Linear(64, 64));
      b = register_module("b", ::torch::nn::Linear(64, 64));
    }
    ::torch::nn::Linear a{nullptr}, b{nullptr};
  };
  Two module;
  ASSERT_OK(InitialiseByName(module, kSeed, {}));
  const Tensor first = module.a->weight.detach().clone();
  EXPECT_FALSE(first.equal(module.b->weight));
  EXPECT_NEAR(first.mean().item<double>(), 0, 0.01);
  EXPECT_NEAR(first.std().item<double>(), 1.0 / 8, 0.01);
  EXPECT_EQ(module.a->bias.abs().max().item<double>(), 0);
  ASSERT_OK(InitialiseByName(module, kSeed + 1, {}));
  EXPECT_FALSE(first.equal(module.a->weight));
  ASSERT_OK(InitialiseByName(
      module, kSeed, {}, [](const std::string& name, const auto&) {
        return InitialValues{name == "b.bias" ? 2.0 : 3.0, 0};
      }));
  EXPECT_EQ(module.b->bias[5].item<double>(), 2);
  EXPECT_EQ(module.b->weight[5][7].item<double>(), 3);
}

TEST(InitialValuesTest, WhatDoesNotFitIsRefusedAndNothingIsSet) {
  ::torch::nn::Linear module(4, 4);
  const Tensor before = module->weight.detach().clone();
  const auto refusal = [&module](const ParameterBoxes& boxes) {
    const absl::Status status = InitialiseByName(*module, kSeed, boxes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({{"other", {{4, 4}, {{0, 0}, {4, 4}}}}}),
              HasSubstr("\"other\", which is no parameter of the module"));
  EXPECT_THAT(refusal({{"weight", {{8, 4}, {{0, 0}, {2, 4}}}}}),
              HasSubstr("its box in the whole one has [2, 4]"));
  EXPECT_THAT(refusal({{"weight", {{8, 4}, {{6, 0}, {10, 4}}}}}),
              HasSubstr("[6, 10) in dimension 0"));
  module->to(::torch::kBFloat16);
  EXPECT_THAT(refusal({}), HasSubstr("Float and Double on the CPU"));
  module->to(::torch::kFloat32);
  EXPECT_TRUE(module->weight.equal(
      before.to(::torch::kBFloat16).to(::torch::kFloat32)));
}

// Returns what a layer makes of ones.
Tensor Drop(const std::shared_ptr<const DropoutPlace>& place,
            const std::string& name = "layer", double probability = 0.25) {
  const auto layer = MeshDropout::Create(name, probability, place, nullptr);
  EXPECT_OK(layer);
  return (*layer)->forward(::torch::ones({8, 12, 16}));
}

TEST(MeshDropoutTest, EveryPartOfThePlaceAndTheNameChangesWhatIsDropped) {
  const auto place = std::make_shared<DropoutPlace>();
  const Tensor first = Drop(place);
  // As when a forward pass is computed again.
  EXPECT_TRUE(Drop(place).equal(first));
  EXPECT_FALSE(Drop(place, "other").equal(first));
  for (int64_t* const part :
       {&place->step, &place->data_index, &place->micro_batch}) {
    ++*part;
    EXPECT_FALSE(Drop(place).equal(first));
    --*part;
  }
  ++place->seed;
  EXPECT_FALSE(Drop(place).equal(first));
}

TEST(MeshDropoutTest, DropsAsManyAsItsProbability) {
  const auto place = std::make_shared<const DropoutPlace>();
  const Tensor y = Drop(place);
  EXPECT_NEAR((y == 0).sum().item<double>() / y.numel(), 0.25, 0.05);
  EXPECT_EQ(y.max().item<float>(), static_cast<float>(1 / 0.75));
  EXPECT_TRUE(Drop(place, "layer", 0).equal(::torch::ones_like(y)));
  EXPECT_TRUE(Drop(place, "layer", 1).equal(::torch::zeros_like(y)));
  const auto layer = MeshDropout::Create("layer", 0.25, place, nullptr);
  ASSERT_OK(layer);
  (*layer)->eval();
  EXPECT_TRUE((*layer)->forward(::torch::ones({8})).equal(::torch::ones({8})));
}

TEST(MeshDropoutTest, PartsOfAnActivationDropWhatTheWholeOneDrops) {
  const auto place = std::make_shared<const DropoutPlace>();
  const Tensor x = Numbers({2, 12, 6, 5}, 3);
  const auto dense = MeshDropout::Create("layer", 0.5, place, nullptr);
  ASSERT_OK(dense);
  const Tensor expected = (*dense)->forward(x);
  for (const int ranks : {1, 2, 3}) {
    OnTensorRanks(ranks, /*sequence=*/true, [&](const TensorRank& rank) {
      const auto layer =
          MeshDropout::Create("layer", 0.5, place, rank.parallel);
      ASSERT_OK(layer);
      EXPECT_TRUE((*layer)
                      ->forward(OwnSequence(x, rank))
                      .equal(OwnSequence(expected, rank)));
      for (int64_t d = 0; d < x.dim(); ++d) {
        const EvenRange own = EvenRange::Of(x.size(d), rank.size, rank.index);
        EXPECT_TRUE((*layer)
                        ->DropPart(x.slice(d, own.begin, own.end),
                                   {d, own.begin, x.size(d)})
                        .equal(expected.slice(d, own.begin, own.end)))
            << "dimension " << d;
      }
    });
  }
}

TEST(MeshDropoutTest, GradientsPassWhereElementsPassed) {
  const auto layer = MeshDropout::Create(
      "layer", 0.5, std::make_shared<const DropoutPlace>(), nullptr);
  ASSERT_OK(layer);
  const Tensor x = ::torch::ones({100}).requires_grad_();
  const Tensor y = (*layer)->forward(x);
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(y.detach()));
}

TEST(MeshDropoutTest, WrongUseIsRefused) {
  const auto place = std::make_shared<const DropoutPlace>();
  EXPECT_THAT(
      MeshDropout::Create("layer", 1.5, place, nullptr).status().message(),
      HasSubstr("the probability 1.5, which is not from 0 to 1"));
  EXPECT_THAT(MeshDropout::Create("", 0.5, place, nullptr).status().message(),
              HasSubstr("needs a name in the whole model"));
  EXPECT_THAT(
      MeshDropout::Create("layer", 0.5, nullptr, nullptr).status().message(),
      HasSubstr("the place of its rank"));
}

}  // namespace
}  // namespace coxswain::torch
