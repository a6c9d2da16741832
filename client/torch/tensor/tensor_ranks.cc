#include "client/torch/tensor/tensor_ranks.h"

#include <ATen/Parallel.h>
#include <torch/nn/functional.h>

#include <cmath>
#include <limits>
#include <thread>
#include <utility>

#include "base/philox.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/torch/tensor/initial_values.h"
#include "gtest/gtest.h"

namespace coxswain::torch {
namespace {

namespace F = ::torch::nn::functional;
using ::torch::Tensor;

constexpr absl::Duration kSoon = absl::Seconds(30);

::torch::nn::LayerNorm Norm(int64_t features) {
  return ::torch::nn::LayerNorm(::torch::nn::LayerNormOptions({features}));
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  EXPECT_OK(value.status());
  return *std::move(value);
}

}  // namespace

void OnTensorRanks(int size, bool sequence,
                   const std::function<void(const TensorRank&)>& body) {
  const auto world = InProcessWorld::Create(size, kSoon);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int i = 0; i < size; ++i) group.push_back(world->MakeRank(i));
  OnTensorRanks(std::move(group), sequence, body);
}

void OnTensorRanks(std::vector<std::unique_ptr<Communicator>> group,
                   bool sequence,
                   const std::function<void(const TensorRank&)>& body) {
  const int size = static_cast<int>(group.size());
  std::vector<std::unique_ptr<HeldCommunicator>> communicators;
  std::vector<std::thread> threads;
  for (auto& one : group) {
    communicators.push_back(std::make_unique<HeldCommunicator>(std::move(one)));
    communicators.back()->Open();
  }
  for (int i = 0; i < size; ++i) {
    TensorRank rank;
    rank.index = i;
    rank.size = size;
    rank.communicator = communicators[static_cast<size_t>(i)].get();
    TensorParallelOptions options;
    options.communicator = rank.communicator;
    options.sequence = sequence;
    options.timeout = kSoon;
    rank.parallel = Must(TensorParallel::Create(options));
    threads.emplace_back([&body, rank] {
      at::set_num_threads(1);
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int64_t CountOf(const TensorRank& rank, const std::string& kind) {
  int64_t count = 0;
  for (const auto& launch : rank.communicator->launches()) {
    if (launch.kind == kind) ++count;
  }
  return count;
}

Tensor Numbers(at::IntArrayRef sizes, uint64_t salt) {
  DrawPlace place;
  place.seed = salt;
  const PlaceRandom random(place);
  Tensor numbers = ::torch::empty(sizes, ::torch::kFloat64);
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    numbers.data_ptr<double>()[i] = random.Normal(static_cast<uint64_t>(i));
  }
  return numbers;
}

Tensor OwnSequence(const Tensor& whole, const TensorRank& rank) {
  if (!rank.parallel->sequence()) return whole;
  return whole.chunk(rank.size, /*dim=*/-2)[static_cast<size_t>(rank.index)];
}

void Prepare(::torch::nn::Module& module) {
  module.to(::torch::kFloat64);
  EXPECT_OK(InitialiseByName(module, kSeed, BoxesOf(module)));
}

void ExpectNear(const Tensor& actual, const Tensor& expected) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_LE((actual - expected).abs().max().item<double>(), kTolerance);
}

void ExpectGradientsOf(const ::torch::nn::Module& dense,
                       const ::torch::nn::Module& module) {
  const ParameterBoxes boxes = BoxesOf(module);
  const auto expected = dense.named_parameters();
  ASSERT_EQ(module.named_parameters().size(), expected.size());
  for (const auto& parameter : module.named_parameters()) {
    SCOPED_TRACE(parameter.key());
    Tensor gradient = expected[parameter.key()].grad();
    const auto box = boxes.find(parameter.key());
    if (box != boxes.end()) {
      for (size_t d = 0; d < box->second.shape.size(); ++d) {
        gradient =
            gradient.slice(static_cast<int64_t>(d), box->second.box.begin[d],
                           box->second.box.end[d]);
      }
    }
    ExpectNear(parameter.value().grad(), gradient);
  }
}

DenseAttention::DenseAttention(int64_t features, int64_t heads,
                               std::shared_ptr<MeshDropout> dropout)
    : heads_(heads), dropout_(std::move(dropout)) {
  qkv_ = register_module("qkv", ::torch::nn::Linear(features, 3 * features));
  out_ = register_module("out", ::torch::nn::Linear(features, features));
  if (dropout_ != nullptr) register_module("dropout", dropout_);
}

Tensor DenseAttention::forward(const Tensor& input) {
  const int64_t length = input.size(1);
  const int64_t width = input.size(2) / heads_;
  const Tensor qkv = qkv_->forward(input);
  std::vector<Tensor> probabilities, values;
  const Tensor later = ::torch::ones({length, length}, ::torch::kBool).triu(1);
  for (int64_t head = 0; head < heads_; ++head) {
    const auto part = [&](int64_t which) {
      return qkv.narrow(2, (3 * head + which) * width, width);
    };
    const Tensor scores = ::torch::bmm(part(0), part(1).transpose(1, 2)) /
                          std::sqrt(static_cast<double>(width));
    probabilities.push_back(
        scores.masked_fill(later, -std::numeric_limits<double>::infinity())
            .softmax(-1));
    values.push_back(part(2));
  }
  Tensor all = ::torch::stack(probabilities, 1);
  if (dropout_ != nullptr) all = dropout_->forward(all);
  std::vector<Tensor> outputs;
  for (int64_t head = 0; head < heads_; ++head) {
    outputs.push_back(
        ::torch::bmm(all.select(1, head), values[static_cast<size_t>(head)]));
  }
  return out_->forward(::torch::cat(outputs, 2));
}

DenseBlock::DenseBlock(const GptSizes& sizes,
                       const std::shared_ptr<const DropoutPlace>& place) {
  norm1_ = register_module("norm1", Norm(sizes.features));
  norm2_ = register_module("norm2", Norm(sizes.features));
  attention_ = register_module(
      "attention",
      std::make_shared<DenseAttention>(
          sizes.features, sizes.heads,
          Must(MeshDropout::Create("attention.dropout", sizes.dropout, place,
                                   nullptr))));
  up_ = register_module("up", ::torch::nn::Linear(sizes.features, sizes.inner));
  down_ =
      register_module("down", ::torch::nn::Linear(sizes.inner, sizes.features));
  dropout_ = register_module(
      "dropout",
      Must(MeshDropout::Create("dropout", sizes.dropout, place, nullptr)));
}

Tensor DenseBlock::forward(Tensor x) {
  x = x + attention_->forward(norm1_->forward(x));
  const Tensor inner = F::gelu(up_->forward(norm2_->forward(x)));
  return x + dropout_->forward(down_->forward(inner));
}

ParallelBlock::ParallelBlock(const GptSizes& sizes,
                             const std::shared_ptr<const DropoutPlace>& place,
                             const TensorParallelPtr& parallel) {
  norm1_ = register_module("norm1", Norm(sizes.features));
  norm2_ = register_module("norm2", Norm(sizes.features));
  ParallelAttentionOptions attention;
  attention.features = sizes.features;
  attention.heads = sizes.heads;
  attention.dropout = Must(
      MeshDropout::Create("attention.dropout", sizes.dropout, place, parallel));
  attention_ = register_module(
      "attention", Must(ParallelSelfAttention::Create(parallel, attention)));
  ParallelLinearOptions linear;
  linear.in_features = sizes.features;
  linear.out_features = sizes.inner;
  up_ = register_module("up",
                        Must(ColumnParallelLinear::Create(parallel, linear)));
  std::swap(linear.in_features, linear.out_features);
  down_ = register_module("down",
                          Must(RowParallelLinear::Create(parallel, linear)));
  dropout_ = register_module(
      "dropout",
      Must(MeshDropout::Create("dropout", sizes.dropout, place, parallel)));
}

Tensor ParallelBlock::forward(Tensor x) {
  x = x + attention_->forward(norm1_->forward(x));
  const Tensor inner = F::gelu(up_->forward(norm2_->forward(x)));
  return x + dropout_->forward(down_->forward(inner));
}

DenseGpt::DenseGpt(const GptSizes& sizes,
                   const std::shared_ptr<const DropoutPlace>& place) {
  embedding_ = register_module(
      "embedding", ::torch::nn::Embedding(sizes.vocabulary, sizes.features));
  positions_ = register_parameter(
      "positions", ::torch::zeros({sizes.length, sizes.features}));
  block_ = register_module("block", std::make_shared<DenseBlock>(sizes, place));
  norm_ = register_module("norm", Norm(sizes.features));
}

Tensor DenseGpt::forward(const Tensor& tokens, const Tensor& targets) {
  const Tensor x =
      norm_->forward(block_->forward(embedding_->forward(tokens) + positions_));
  return F::cross_entropy(
      F::linear(x, embedding_->weight).flatten(0, 1), targets.flatten(),
      F::CrossEntropyFuncOptions().reduction(::torch::kNone));
}

ParallelGpt::ParallelGpt(const GptSizes& sizes,
                         const std::shared_ptr<const DropoutPlace>& place,
                         const TensorRank& rank)
    : sizes_(sizes), rank_(rank) {
  embedding_ = register_module(
      "embedding", Must(VocabParallelEmbedding::Create(
                       rank.parallel, sizes.vocabulary, sizes.features)));
  positions_ = register_parameter(
      "positions", ::torch::zeros({sizes.length, sizes.features}));
  block_ = register_module(
      "block", std::make_shared<ParallelBlock>(sizes, place, rank.parallel));
  norm_ = register_module("norm", Norm(sizes.features));
}

Tensor ParallelGpt::forward(const Tensor& tokens, const Tensor& targets) {
  const Tensor x = norm_->forward(block_->forward(
      embedding_->forward(tokens) + OwnSequence(positions_, rank_)));
  return VocabParallelCrossEntropy(
             F::linear(CopyToParallel(x, rank_.parallel), embedding_->weight()),
             targets, sizes_.vocabulary, rank_.parallel)
      .flatten();
}

std::vector<Tensor> ParallelGpt::Replicated() {
  const ParameterBoxes boxes = BoxesOf(*this);
  std::vector<Tensor> replicated;
  for (const auto& parameter : named_parameters()) {
    if (boxes.count(parameter.key()) == 0) {
      replicated.push_back(parameter.value());
    }
  }
  return replicated;
}

}  // namespace coxswain::torch
