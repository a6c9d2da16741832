#include "examples/gpt/model.h"

#include <cmath>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/pipeline/pipeline_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::examples::gpt {
namespace {

using ::torch::Tensor;

ModelOptions Small() {
  ModelOptions options;
  options.layers = 2;
  options.features = 16;
  options.heads = 2;
  options.length = 8;
  options.float64 = true;
  return options;
}

// One rank's model: its layers, one after the other.
class Gpt {
 public:
  explicit Gpt(const ModelOptions& options)
      : model_(MakeModel(options)), on_(torch::ContextOfOne()) {
    for (size_t i = 0; i < model_.layers.size(); ++i) {
      auto module = torch::MakeLayer(model_, static_cast<int>(i), on_);
      EXPECT_OK(module.status());
      modules_.push_back(*module);
    }
  }

  torch::Tensors Forward(const Tensor& tokens, bool training = false) const {
    torch::Tensors x = {tokens};
    for (size_t i = 0; i < modules_.size(); ++i) {
      modules_[i]->train(training);
      x = model_.layers[i].forward(modules_[i].get(), x);
    }
    return x;
  }

  const torch::LayerContext& on() const { return on_; }

 private:
  const torch::PipelineModel model_;
  const torch::LayerContext on_;
  std::vector<std::shared_ptr<::torch::nn::Module>> modules_;
};

Tensor SomeTokens() {
  return (::torch::arange(24, ::torch::kInt64) * 37 % kVocabulary).view({3, 8});
}

TEST(GptModelTest, BeginsWithTheLossOfAGuess) {
  const Gpt gpt(Small());
  const Tensor loss =
      MakeLoss()(gpt.on(), gpt.Forward(SomeTokens()), {SomeTokens()});
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_EQ(loss.scalar_type(), ::torch::kFloat64);
  EXPECT_NEAR(loss.item<double>(), std::log(kVocabulary), 0.05);
}

TEST(GptModelTest, SeesNothingOfWhatFollows) {
  const Gpt gpt(Small());
  const Tensor tokens = SomeTokens();
  const Tensor before = gpt.Forward(tokens)[0];
  tokens.select(1, 5).fill_(7);
  const Tensor after = gpt.Forward(tokens)[0];
  EXPECT_TRUE(before.narrow(1, 0, 5).equal(after.narrow(1, 0, 5)));
  EXPECT_FALSE(before.narrow(1, 5, 1).equal(after.narrow(1, 5, 1)));
}

TEST(GptModelTest, DropsWhereItTrains) {
  const Gpt gpt(Small());
  const Tensor whole = gpt.Forward(SomeTokens())[0];
  EXPECT_FALSE(gpt.Forward(SomeTokens(), /*training=*/true)[0].equal(whole));
  ModelOptions options = Small();
  options.dropout = 0;
  EXPECT_TRUE(Gpt(options).Forward(SomeTokens(), true)[0].equal(whole));
}

TEST(GptModelTest, HasTheParametersOfTheWholeModelOnAnyMesh) {
  ASSERT_OK_AND_ASSIGN(const auto whole, Describe(MakeModel(Small())));
  ASSERT_OK_AND_ASSIGN(const auto divided,
                       Describe(MakeModel(Small()), /*tp=*/2));
  EXPECT_EQ(whole.elements, divided.elements);
  EXPECT_TRUE(whole.boxes.empty());
  EXPECT_EQ(divided.boxes.count("embedding.tokens.weight"), 1u);
  EXPECT_EQ(divided.boxes.count("head.logits.weight"), 1u);
  EXPECT_EQ(divided.boxes.count("embedding.positions"), 0u);
}

}  // namespace
}  // namespace coxswain::examples::gpt
