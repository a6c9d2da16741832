#include "client/torch/pipeline/pipeline_model.h"

#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/pipeline/pipeline_options.h"
#include "client/torch/pipeline/rank_layers.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/parallel_linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::torch::Tensor;

PipelineLayer Linear(const std::string& name, int64_t in, int64_t out) {
  return LayerOf(name, [in, out] {
    return std::make_shared<::torch::nn::LinearImpl>(in, out);
  });
}

PipelineModel FourLayers() {
  PipelineModel model;
  model.layers = {Linear("in", 3, 5), Linear("a", 5, 5), Linear("b", 5, 5),
                  Linear("out", 5, 3)};
  model.seed = 7;
  return model;
}

pipeline::StageCut Cut(const std::string& text, int stages) {
  return pipeline::StageCut::Parse(text, 4, stages).value();
}

std::vector<std::string> Names(const ::torch::nn::Module& module) {
  std::vector<std::string> names;
  const auto described = DescribeParameters(module);
  EXPECT_OK(described);
  for (const ParameterSpec& one : *described) names.push_back(one.name);
  return names;
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(PipelineModelTest, IsDescribedLayerByLayer) {
  PipelineModel model = FourLayers();
  int alive = 0;
  int most = 0;
  for (PipelineLayer& layer : model.layers) {
    layer.make = [make = layer.make, &alive, &most] {
      auto module = make();
      most = std::max(most, ++alive);
      return std::shared_ptr<::torch::nn::Module>(
          module.get(), [module, &alive](::torch::nn::Module*) { --alive; });
    };
  }
  model.layers.insert(
      model.layers.begin() + 1,
      {"tanh", nullptr, [](::torch::nn::Module*, const Tensors& x) -> Tensors {
         return {x[0].tanh()};
       }});
  const auto described = Describe(model);
  ASSERT_OK(described);
  EXPECT_EQ(most, 1);
  std::vector<std::string> names;
  for (const ParameterSpec& one : described->parameters) {
    names.push_back(one.name);
  }
  EXPECT_THAT(names,
              ElementsAre("in.weight", "in.bias", "a.weight", "a.bias",
                          "b.weight", "b.bias", "out.weight", "out.bias"));
  EXPECT_THAT(described->parameters[0].shape, ElementsAre(5, 3));
  EXPECT_THAT(described->elements, ElementsAre(20, 0, 30, 30, 18));
}

TEST(PipelineModelTest, DescribingLeavesTheGeneratorAsItWas) {
  ::torch::manual_seed(3);
  const Tensor expected = ::torch::rand({4});
  ::torch::manual_seed(3);
  ASSERT_OK(Describe(FourLayers()));
  ASSERT_OK(MakeLayer(FourLayers(), 2));
  EXPECT_TRUE(::torch::equal(::torch::rand({4}), expected));
}

TEST(PipelineModelTest, InitialValuesDoNotDependOnTheCut) {
  const PipelineModel model = FourLayers();
  const auto whole = RankLayers::Make(model, Cut("0-3", 1), {0});
  ASSERT_OK(whole);
  const auto expected = (*whole)->module()->named_parameters();
  for (const std::string text : {"0-1,2-3", "0-2,3"}) {
    for (const int stage : {1, 0}) {
      const auto part = RankLayers::Make(model, Cut(text, 2), {stage});
      ASSERT_OK(part);
      for (const auto& item : (*part)->module()->named_parameters()) {
        EXPECT_TRUE(::torch::equal(item.value(), expected[item.key()]))
            << item.key();
      }
    }
  }
  EXPECT_FALSE(::torch::equal(expected["a.weight"], expected["b.weight"]));
}

TEST(PipelineModelTest, WhatIsNoModelIsNamed) {
  const auto expect = [](PipelineModel model, const std::string& why) {
    EXPECT_THAT(Describe(model), StatusIs(kInvalid, HasSubstr(why)));
  };
  expect({}, "a model without layers");
  PipelineModel model = FourLayers();
  model.layers[1].name = "a.b";
  expect(model, "the name \"a.b\"");
  model = FourLayers();
  model.layers[1].name = "in";
  expect(model, "two layers have the name \"in\"");
  model = FourLayers();
  model.layers[1].make = [] { return nullptr; };
  expect(model, "layer \"a\" made no module");
  model = FourLayers();
  model.ties = {{"in.weight", "c.weight"}};
  expect(model, "no layer has a trainable parameter \"c.weight\"");
  model.ties = {{"in.weight", "a.weight"}};
  expect(model, "one is float32 [5, 3], the other float32 [5, 5]");
  model.ties = {{"a.weight", "b.weight"}, {"b.bias", "a.bias"}};
  EXPECT_OK(Describe(model));
  model.ties = {{"a.weight", "b.weight"}, {"in.weight", "b.weight"}};
  expect(model, "\"b.weight\" is tied twice");
  model = FourLayers();
  model.layers[2].make = []() -> std::shared_ptr<::torch::nn::Module> {
    throw std::runtime_error("no memory");
  };
  EXPECT_THAT(Describe(model),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("layer \"b\": making it: no memory")));
}

// ---- ties within a rank ----

TEST(RankLayersTest, ATieOfTwoOwnLayersIsOneTensor) {
  PipelineModel model = FourLayers();
  model.ties = {{"a.weight", "b.weight"}};
  const auto layers = RankLayers::Make(model, Cut("0-1,2-3", 2), {0, 1});
  ASSERT_OK(layers);
  EXPECT_THAT(Names(*(*layers)->module()),
              ElementsAre("in.weight", "in.bias", "a.weight", "a.bias",
                          "b.bias", "out.weight", "out.bias"));
  EXPECT_TRUE((*layers)->shared().empty());
  EXPECT_THAT((*layers)->late(), ElementsAre("a.weight"));
  EXPECT_EQ((*layers)->TrainedAlone(0).size(), 3u);
  EXPECT_EQ((*layers)->TrainedAlone(1).size(), 3u);

  const auto whole = RankLayers::Make(model, Cut("0-3", 1), {0});
  ASSERT_OK(whole);
  EXPECT_TRUE((*whole)->late().empty());
  EXPECT_EQ((*whole)->TrainedAlone(0).size(), 7u);

  // Both uses add to the gradient of one, and see its value, wherever it moves.
  const auto named = (*layers)->module()->named_parameters();
  Tensor tied = named["a.weight"];
  tied.set_data(::torch::eye(5) * 2);
  ASSERT_OK((*layers)->FollowMoves());
  Tensors x = {::torch::ones({1, 5})};
  x = (*layers)->LayersOf(0)[1].compute(x);
  x = (*layers)->LayersOf(1)[0].compute(x);
  x[0].sum().backward();
  const Tensor bias = named["a.bias"].detach();
  const Tensor first = (::torch::ones({5}) * 2 + bias).repeat({5, 1});
  EXPECT_TRUE(::torch::allclose(tied.grad(), first + 2 * ::torch::ones({5, 5})))
      << tied.grad();
}

TEST(RankLayersTest, ATieWithAnotherRankIsShared) {
  PipelineModel model = FourLayers();
  model.ties = {{"a.weight", "b.weight"}};
  const auto layers = RankLayers::Make(model, Cut("0-1,2-3", 2), {1});
  ASSERT_OK(layers);
  ASSERT_EQ((*layers)->shared().size(), 1u);
  const RankLayers::Shared& shared = (*layers)->shared()[0];
  EXPECT_EQ(shared.name, "b.weight");
  EXPECT_EQ(shared.other_layer, 1);
  EXPECT_FALSE(shared.is_first);
  EXPECT_EQ((*layers)->TrainedAlone(1).size(), 3u);
}

// ---- layers that tp divides ----

PipelineLayer Column(const std::string& name, int64_t in, int64_t out) {
  return MeshLayerOf(name, [in, out](const LayerContext& context) {
    ParallelLinearOptions options;
    options.in_features = in;
    options.out_features = out;
    return ColumnParallelLinear::Create(context.parallel, options);
  });
}

PipelineLayer Row(const std::string& name, int64_t in, int64_t out) {
  return MeshLayerOf(name, [in, out](const LayerContext& context) {
    ParallelLinearOptions options;
    options.in_features = in;
    options.out_features = out;
    return RowParallelLinear::Create(context.parallel, options);
  });
}

PipelineModel DividedLayers() {
  PipelineModel model;
  model.layers = {Linear("in", 3, 5), Column("up", 5, 9), Row("down", 9, 5),
                  Linear("out", 5, 3)};
  model.seed = 7;
  model.initial_values = UsualInitialValues;
  return model;
}

TEST(DividedModelTest, IsDescribedAsTheWholeModel) {
  for (const int tp : {1, 2, 3}) {
    const auto described = Describe(DividedLayers(), tp);
    ASSERT_OK(described);
    const ParameterSpec& up = described->parameters[2];
    EXPECT_EQ(up.name, "up.weight");
    EXPECT_THAT(up.shape, ElementsAre(9, 5));
    EXPECT_THAT(described->parameters[4].shape, ElementsAre(5, 9));
    EXPECT_THAT(described->elements, ElementsAre(20, 54, 50, 18));
    std::vector<std::string> divided;
    for (const auto& [name, box] : described->boxes) divided.push_back(name);
    if (tp == 1) {
      EXPECT_THAT(divided, ElementsAre());
      continue;
    }
    EXPECT_THAT(divided, ElementsAre("down.weight", "up.bias", "up.weight"));
    EXPECT_THAT(described->boxes.at("up.weight").box.end,
                ElementsAre((9 + tp - 1) / tp, 5));
  }
}

TEST(DividedModelTest, BeginsWithTheBitsOfTheWholeModel) {
  const PipelineModel model = DividedLayers();
  const auto whole = RankLayers::Make(model, Cut("0-3", 1), {0});
  ASSERT_OK(whole);
  EXPECT_TRUE((*whole)->boxes().empty());
  EXPECT_TRUE((*whole)->replicated().empty());
  const auto expected = (*whole)->module()->named_parameters();
  const auto part =
      RankLayers::Make(model, Cut("0-1,2-3", 2), {0, 1}, ContextOfOne(2));
  ASSERT_OK(part);
  for (const auto& item : (*part)->module()->named_parameters()) {
    Tensor value = expected[item.key()];
    const auto box = (*part)->boxes().find(item.key());
    if (box != (*part)->boxes().end()) {
      for (size_t d = 0; d < box->second.shape.size(); ++d) {
        value = value.slice(static_cast<int64_t>(d), box->second.box.begin[d],
                            box->second.box.end[d]);
      }
    }
    EXPECT_TRUE(item.value().equal(value)) << item.key();
  }
  EXPECT_GT(expected["up.weight"].abs().max().item<double>(), 0);
}

TEST(DividedModelTest, WhatIsWholeOnEachRankIsKnown) {
  const auto replicated = [](const RankLayers& layers) {
    std::vector<std::string> names;
    for (const RankLayers::Replicated& one : layers.replicated()) {
      names.push_back(one.name);
    }
    return names;
  };
  for (const bool sequence : {false, true}) {
    const auto layers = RankLayers::Make(DividedLayers(), Cut("0-1,2-3", 2),
                                         {0}, ContextOfOne(2, sequence));
    ASSERT_OK(layers);
    EXPECT_THAT(replicated(**layers), ElementsAre("in.weight", "in.bias"));
    // With the sequence divided other ranks have parts of their gradients.
    EXPECT_EQ((*layers)->late().count("in.weight"), sequence ? 1u : 0u);
    EXPECT_EQ((*layers)->late().count("up.weight"), 0u);
    EXPECT_EQ((*layers)->TrainedAlone(0).size(), sequence ? 2u : 4u);
  }
}

TEST(DividedModelTest, WhatItLacksIsNamed) {
  const auto expect = [](const PipelineModel& model, int tp,
                         const std::string& why) {
    EXPECT_THAT(Describe(model, tp), StatusIs(kInvalid, HasSubstr(why)));
  };
  PipelineModel model = DividedLayers();
  model.initial_values = nullptr;
  // One rank trains the same values as several.
  for (const int tp : {1, 2}) {
    expect(model, tp, "layer \"up\" is made for a mesh");
    EXPECT_THAT(MakeLayer(model, 1, ContextOfOne(tp)),
                StatusIs(kInvalid, HasSubstr("set the model's initial_v")));
  }
  model = DividedLayers();
  model.seed.reset();
  expect(model, 1, "are made of the model's seed");
  model = FourLayers();
  EXPECT_OK(Describe(model, 2));
  model.seed.reset();
  EXPECT_OK(Describe(model, 1));
  expect(model, 2, "without a seed on a mesh with tp=2");
  model = DividedLayers();
  model.layers[0].make_on_mesh = model.layers[1].make_on_mesh;
  expect(model, 2, "has `make` and `make_on_mesh`");
  model = DividedLayers();
  model.layers[1] = Column("up", 5, 1);
  expect(model, 2, "layer \"up\": ");
  model = DividedLayers();
  model.layers[1].make_on_mesh = [](const LayerContext&) { return nullptr; };
  expect(model, 2, "layer \"up\" made no module");
  // Rows of one, columns of the other.
  model = DividedLayers();
  model.layers[1] = Column("up", 9, 5);
  model.ties = {{"up.weight", "down.weight"}};
  EXPECT_OK(Describe(model, 1));
  expect(model, 2, "ranks along tp have another part of the one");
}

TEST(DividedModelTest, ACollectiveOfADescriptionIsAnError) {
  const LayerContext context = ContextOfOne(2);
  const auto module = MakeLayer(DividedLayers(), 2, context);
  ASSERT_OK(module);
  (void)DividedLayers().layers[2].forward(module->get(),
                                          {::torch::ones({1, 5})});
  EXPECT_THAT(context.parallel->TakeError(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("made for a description only")));
}

// ---- jobs ----

PipelineOptions TwoStages() {
  PipelineOptions options;
  options.mesh = "pp=2,dp=*";
  options.ddp.accumulation_steps = 4;
  return options;
}

TEST(DescribePipelineJobTest, IsOfTheWholeModelOnAllRanks) {
  const auto manifest = DescribeJob(FourLayers(), TwoStages());
  ASSERT_OK(manifest);
  EXPECT_EQ(manifest->parameters.size(), 8u);
  EXPECT_EQ(manifest->mesh, "pp=2,dp=*");
  EXPECT_EQ(manifest->accumulation_steps, 4);
  EXPECT_EQ(manifest->terms.pipeline, "1f1b");
  EXPECT_EQ(manifest->settings.at("stages"), "0-1,2-3");
  EXPECT_EQ(manifest->settings.at("pipeline_hash").size(), 16u);
  EXPECT_EQ(manifest->settings.count("ties"), 0u);

  PipelineModel tied = FourLayers();
  tied.ties = {{"a.weight", "b.weight"}, {"b.bias", "a.bias"}};
  const auto with_ties = DescribeJob(tied, TwoStages());
  ASSERT_OK(with_ties);
  EXPECT_EQ(with_ties->settings.at("ties"), "a.weight=b.weight,b.bias=a.bias");

  PipelineOptions other = TwoStages();
  other.ddp.terms.pipeline = "interleaved";
  other.stages = "parameters";
  const auto interleaved = DescribeJob(FourLayers(), other);
  ASSERT_OK(interleaved);
  EXPECT_EQ(interleaved->terms.pipeline, "interleaved(chunks=2)");
  EXPECT_EQ(interleaved->settings.at("stages"), "0,1,2,3");
  EXPECT_NE(interleaved->settings.at("pipeline_hash"),
            manifest->settings.at("pipeline_hash"));
}

TEST(DescribePipelineJobTest, WhatDoesNotFitIsRefused) {
  const auto expect = [](const PipelineOptions& options,
                         const std::string& why) {
    EXPECT_THAT(DescribeJob(FourLayers(), options),
                StatusIs(kInvalid, HasSubstr(why)));
  };
  PipelineOptions options = TwoStages();
  options.mesh = "pp=8";
  expect(options, "4 layers does not make 8 stages");
  options.mesh = "pp=*";
  expect(options, "leaves the size of pp open");
  options = TwoStages();
  options.ddp.terms.pipeline = "2f2b";
  expect(options, "2f2b");
  options = TwoStages();
  options.stages = "0-4,5";
  expect(options, "ends with layer 4");
  options = TwoStages();
  options.ddp.zero = 2;
  expect(options, "zero=2 with a pipeline");
  options = TwoStages();
  options.ddp.reducer.max_norm = 1;
  expect(options, "max_norm with pp=2");
  options.ddp.terms.commit_vote = true;
  EXPECT_OK(DescribeJob(FourLayers(), options));
  options.ddp.reducer.max_norm = 0;
  options.ddp.skip_non_finite = true;
  options.ddp.terms.commit_vote = false;
  expect(options, "skip_non_finite with pp=2");
  options = TwoStages();
  options.ddp.reducer.find_unused_parameters = true;
  expect(options, "find_unused_parameters with a pipeline");
}

TEST(DescribePipelineJobTest, HasWhatTpDivides) {
  PipelineOptions options = TwoStages();
  const auto tensor = [&](const PipelineModel& model) {
    const auto manifest = DescribeJob(model, options);
    EXPECT_OK(manifest);
    EXPECT_EQ(manifest->parameters[2].count(), 45);
    const auto found = manifest->settings.find("tensor");
    return found == manifest->settings.end() ? "" : found->second;
  };
  EXPECT_EQ(tensor(DividedLayers()), "");
  options.mesh = "pp=2,dp=*,tp=2";
  const std::string divided = tensor(DividedLayers());
  EXPECT_THAT(divided, HasSubstr("3 parameters, "));
  options.sequence = true;
  EXPECT_THAT(tensor(DividedLayers()), HasSubstr("and the sequence, "));
  options.sequence = false;
  PipelineModel other = DividedLayers();
  other.layers[1] = Row("up", 5, 9);
  other.layers[2] = Column("down", 9, 5);
  EXPECT_NE(tensor(other), divided);

  const auto expect = [&](const std::string& why) {
    EXPECT_THAT(DescribeJob(DividedLayers(), options),
                StatusIs(kInvalid, HasSubstr(why)));
  };
  options.mesh = "dp=2,tp=*";
  expect("leaves the size of tp open");
  options.mesh = "dp=*,tp=2";
  options.ddp.reducer.max_norm = 1;
  expect("max_norm with tp=2");
  options.ddp.terms.commit_vote = true;
  EXPECT_OK(DescribeJob(DividedLayers(), options));
}

TEST(DescribePipelineJobTest, EachRankHasParameters) {
  PipelineModel model = FourLayers();
  for (const size_t layer : {2, 3}) {
    model.layers[layer].make = nullptr;
  }
  EXPECT_THAT(DescribeJob(model, TwoStages()),
              StatusIs(kInvalid, HasSubstr("rank 1 along pp has no trainable "
                                           "parameters with the stages "
                                           "0-1,2-3")));
  PipelineOptions options = TwoStages();
  options.stages = "0,1-3";
  EXPECT_OK(DescribeJob(model, options));
}

}  // namespace
}  // namespace coxswain::torch
