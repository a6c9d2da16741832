#include "examples/gpt/model.h"

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/mesh_dropout.h"
#include "client/torch/tensor/parallel_attention.h"
#include "client/torch/tensor/parallel_linear.h"
#include "client/torch/tensor/vocab_parallel.h"

namespace coxswain::examples::gpt {
namespace {

using torch::LayerContext;
using torch::MeshDropout;
using ::torch::Tensor;

template <typename T>
using Made = absl::StatusOr<std::shared_ptr<T>>;

// Of the feed-forward part, times the features.
constexpr int64_t kWidening = 4;

::torch::nn::LayerNorm Norm(int64_t features) {
  return ::torch::nn::LayerNorm(::torch::nn::LayerNormOptions({features}));
}

// Null where nothing is dropped. `name` is the layer's in the whole model.
Made<MeshDropout> DropoutOf(const std::string& name, const LayerContext& on,
                            const ModelOptions& options) {
  if (options.dropout == 0) return std::shared_ptr<MeshDropout>();
  return MeshDropout::Create(name, options.dropout, on.place, on.parallel);
}

Tensor Drop(const std::shared_ptr<MeshDropout>& dropout, const Tensor& x) {
  return dropout == nullptr ? x : dropout->forward(x);
}

// Registers what there is.
template <typename T>
void Register(::torch::nn::Module& module, const std::string& name,
              const std::shared_ptr<T>& part) {
  if (part != nullptr) module.register_module(name, part);
}

class Embedding : public ::torch::nn::Module {
 public:
  static Made<Embedding> Create(const LayerContext& on,
                                const ModelOptions& options) {
    const auto layer = std::make_shared<Embedding>();
    layer->parallel_ = on.parallel;
    COXSWAIN_ASSIGN_OR_RETURN(layer->tokens_,
                              torch::VocabParallelEmbedding::Create(
                                  on.parallel, kVocabulary, options.features));
    COXSWAIN_ASSIGN_OR_RETURN(layer->dropout_,
                              DropoutOf("embedding.dropout", on, options));
    Register(*layer, "tokens", layer->tokens_);
    Register(*layer, "dropout", layer->dropout_);
    layer->positions_ = layer->register_parameter(
        "positions", ::torch::zeros({options.length, options.features}));
    return layer;
  }

  Tensor forward(const Tensor& tokens) {
    return Drop(dropout_, tokens_->forward(tokens) + OwnPositions());
  }

 private:
  // Those of the part of the sequence that this rank goes on with.
  Tensor OwnPositions() const {
    if (!parallel_->sequence()) return positions_;
    const int64_t own = positions_.size(0) / parallel_->size();
    return positions_.narrow(0, own * parallel_->rank(), own);
  }

  torch::TensorParallelPtr parallel_;
  std::shared_ptr<torch::VocabParallelEmbedding> tokens_;
  Tensor positions_;
  std::shared_ptr<MeshDropout> dropout_;
};

class Block : public ::torch::nn::Module {
 public:
  static Made<Block> Create(const std::string& name, const LayerContext& on,
                            const ModelOptions& options) {
    const auto block = std::make_shared<Block>();
    block->norm1_ = Norm(options.features);
    block->norm2_ = Norm(options.features);
    torch::ParallelAttentionOptions attention;
    attention.features = options.features;
    attention.heads = options.heads;
    COXSWAIN_ASSIGN_OR_RETURN(
        attention.dropout,
        DropoutOf(absl::StrCat(name, ".attention.dropout"), on, options));
    COXSWAIN_ASSIGN_OR_RETURN(
        block->attention_,
        torch::ParallelSelfAttention::Create(on.parallel, attention));
    torch::ParallelLinearOptions linear;
    linear.in_features = options.features;
    linear.out_features = kWidening * options.features;
    COXSWAIN_ASSIGN_OR_RETURN(
        block->up_, torch::ColumnParallelLinear::Create(on.parallel, linear));
    std::swap(linear.in_features, linear.out_features);
    COXSWAIN_ASSIGN_OR_RETURN(
        block->down_, torch::RowParallelLinear::Create(on.parallel, linear));
    COXSWAIN_ASSIGN_OR_RETURN(
        block->dropout1_,
        DropoutOf(absl::StrCat(name, ".dropout1"), on, options));
    COXSWAIN_ASSIGN_OR_RETURN(
        block->dropout2_,
        DropoutOf(absl::StrCat(name, ".dropout2"), on, options));
    Register(*block, "norm1", block->norm1_.ptr());
    Register(*block, "attention", block->attention_);
    Register(*block, "dropout1", block->dropout1_);
    Register(*block, "norm2", block->norm2_.ptr());
    Register(*block, "up", block->up_);
    Register(*block, "down", block->down_);
    Register(*block, "dropout2", block->dropout2_);
    return block;
  }

  Tensor forward(const Tensor& input) {
    const Tensor x =
        input + Drop(dropout1_, attention_->forward(norm1_->forward(input)));
    const Tensor inner =
        ::torch::nn::functional::gelu(up_->forward(norm2_->forward(x)));
    return x + Drop(dropout2_, down_->forward(inner));
  }

 private:
  ::torch::nn::LayerNorm norm1_{nullptr};
  ::torch::nn::LayerNorm norm2_{nullptr};
  std::shared_ptr<torch::ParallelSelfAttention> attention_;
  std::shared_ptr<torch::ColumnParallelLinear> up_;
  std::shared_ptr<torch::RowParallelLinear> down_;
  std::shared_ptr<MeshDropout> dropout1_;
  std::shared_ptr<MeshDropout> dropout2_;
};

class Head : public ::torch::nn::Module {
 public:
  static Made<Head> Create(const LayerContext& on,
                           const ModelOptions& options) {
    const auto head = std::make_shared<Head>();
    head->norm_ = Norm(options.features);
    torch::ParallelLinearOptions linear;
    linear.in_features = options.features;
    linear.out_features = kVocabulary;
    linear.bias = false;
    COXSWAIN_ASSIGN_OR_RETURN(
        head->logits_,
        torch::ColumnParallelLinear::Create(on.parallel, linear));
    Register(*head, "norm", head->norm_.ptr());
    Register(*head, "logits", head->logits_);
    return head;
  }

  Tensor forward(const Tensor& x) {
    return logits_->forward(norm_->forward(x));
  }

 private:
  ::torch::nn::LayerNorm norm_{nullptr};
  std::shared_ptr<torch::ColumnParallelLinear> logits_;
};

// Adds a layer whose module `create` makes.
template <typename T>
void Add(torch::PipelineModel& model, const std::string& name, bool float64,
         std::function<Made<T>(const LayerContext&)> create) {
  model.layers.push_back(
      torch::MeshLayerOf(name, [=](const LayerContext& on) -> Made<T> {
        COXSWAIN_ASSIGN_OR_RETURN(auto module, create(on));
        if (float64) module->to(::torch::kFloat64);
        return module;
      }));
}

// As GPT-2: the sums that blocks add to stay as large as with one block.
torch::InitialValues InitialOf(const std::string& name,
                               const std::vector<int64_t>& shape,
                               int64_t layers) {
  if (shape.size() < 2) return torch::UsualInitialValues(name, shape);
  const bool ends_branch =
      absl::EndsWith(name, "out.weight") || absl::EndsWith(name, "down.weight");
  const double branches = ends_branch ? static_cast<double>(2 * layers) : 1.0;
  return {0, 0.02 / std::sqrt(branches)};
}

}  // namespace

torch::PipelineModel MakeModel(const ModelOptions& options) {
  torch::PipelineModel model;
  const bool wide = options.float64;
  Add<Embedding>(model, "embedding", wide, [=](const LayerContext& on) {
    return Embedding::Create(on, options);
  });
  for (int64_t i = 0; i < options.layers; ++i) {
    const std::string name = absl::StrCat("block", i);
    Add<Block>(model, name, wide, [=](const LayerContext& on) {
      return Block::Create(name, on, options);
    });
  }
  Add<Head>(model, "head", wide,
            [=](const LayerContext& on) { return Head::Create(on, options); });
  model.ties = {{"embedding.tokens.weight", "head.logits.weight"}};
  model.seed = options.seed;
  model.initial_values = [layers = options.layers](
                             const std::string& name,
                             const std::vector<int64_t>& shape) {
    return InitialOf(name, shape, layers);
  };
  return model;
}

torch::MeshLoss MakeLoss() {
  return [](const LayerContext& on, const torch::Tensors& outputs,
            const torch::Tensors& targets) {
    return torch::VocabParallelCrossEntropy(outputs[0], targets[0], kVocabulary,
                                            on.parallel)
        .mean();
  };
}

}  // namespace coxswain::examples::gpt
