#include "tests/bench/worker/tensor_pair.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/parallel_linear.h"
#include "tests/bench/worker/median.h"

namespace coxswain::bench {
namespace {

using ::torch::Tensor;

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr uint64_t kSeed = 17;
constexpr double kTolerance = 1e-5;  // of float32 sums in another order

absl::Status ExpectNear(const std::string& what, const Tensor& actual,
                        const Tensor& expected) {
  const double error = (actual - expected).abs().max().item<double>();
  const double largest = expected.abs().max().item<double>();
  if (error <= kTolerance * largest) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": divided layers differ from undivided ones by ",
                   error, ", of numbers up to ", largest));
}

}  // namespace

struct TensorPair::Layers : ::torch::nn::Module {
  virtual Tensor Forward(const Tensor& x) = 0;
};

struct TensorPair::Divided : Layers {
  Divided(std::shared_ptr<torch::ColumnParallelLinear> column,
          std::shared_ptr<torch::RowParallelLinear> row)
      : first(register_module("first", std::move(column))),
        second(register_module("second", std::move(row))) {}
  Tensor Forward(const Tensor& x) override {
    return second->forward(first->forward(x));
  }
  const std::shared_ptr<torch::ColumnParallelLinear> first;
  const std::shared_ptr<torch::RowParallelLinear> second;
};

struct TensorPair::Ordinary : Layers {
  Ordinary(int64_t width, int64_t inner)
      : first(register_module("first", ::torch::nn::Linear(width, inner))),
        second(register_module("second", ::torch::nn::Linear(inner, width))) {}
  Tensor Forward(const Tensor& x) override { return second(first(x)); }
  ::torch::nn::Linear first, second;
};

absl::StatusOr<std::unique_ptr<TensorPair>> TensorPair::Create(
    Communicator* communicator, const TensorPairSizes& sizes) {
  auto pair = std::unique_ptr<TensorPair>(new TensorPair);
  pair->sizes_ = sizes;
  pair->communicator_ = communicator;
  torch::TensorParallelOptions options;
  options.communicator = communicator;
  options.timeout = kTimeout;
  COXSWAIN_ASSIGN_OR_RETURN(pair->parallel_,
                            torch::TensorParallel::Create(options));
  torch::ParallelLinearOptions linear;
  linear.in_features = sizes.width;
  linear.out_features = sizes.inner;
  COXSWAIN_ASSIGN_OR_RETURN(auto column, torch::ColumnParallelLinear::Create(
                                             pair->parallel_, linear));
  std::swap(linear.in_features, linear.out_features);
  COXSWAIN_ASSIGN_OR_RETURN(
      auto row, torch::RowParallelLinear::Create(pair->parallel_, linear));
  pair->pair_ = std::make_shared<Divided>(std::move(column), std::move(row));
  COXSWAIN_RETURN_IF_ERROR(torch::InitialiseByName(
      *pair->pair_, kSeed, torch::BoxesOf(*pair->pair_)));
  pair->local_ = std::make_shared<Ordinary>(sizes.width,
                                            sizes.inner / communicator->size());
  ::torch::manual_seed(kSeed);  // the same on all ranks
  pair->input_ =
      ::torch::randn({sizes.rows, sizes.width}).set_requires_grad(true);
  pair->gradient_ = ::torch::randn({sizes.rows, sizes.width});
  COXSWAIN_RETURN_IF_ERROR(pair->Check());
  return pair;
}

absl::Status TensorPair::Check() {
  Ordinary whole(sizes_.width, sizes_.inner);
  COXSWAIN_RETURN_IF_ERROR(torch::InitialiseByName(whole, kSeed, {}));
  const Tensor input = input_.detach().clone().set_requires_grad(true);
  const Tensor expected = whole.Forward(input);
  expected.backward(gradient_);
  const Tensor result = pair_->Forward(input_);
  result.backward(gradient_);
  COXSWAIN_RETURN_IF_ERROR(parallel_->TakeError());
  COXSWAIN_RETURN_IF_ERROR(ExpectNear("results", result, expected));
  COXSWAIN_RETURN_IF_ERROR(
      ExpectNear("gradients of inputs", input_.grad(), input.grad()));
  return ExpectNear(
      "gradients of weights", pair_->first->named_parameters()["weight"].grad(),
      whole.first->weight.grad().slice(0, pair_->first->outputs().begin,
                                       pair_->first->outputs().end));
}

absl::StatusOr<double> TensorPair::Time(Layers& layers, int64_t count) {
  return Median(count, [&]() -> absl::Status {
    layers.zero_grad(/*set_to_none=*/true);
    input_.mutable_grad().reset();
    layers.Forward(input_).backward(gradient_);
    return parallel_->TakeError();
  });
}

absl::StatusOr<TensorPairTimes> TensorPair::Times(int64_t count) {
  COXSWAIN_RETURN_IF_ERROR(communicator_->Barrier()->Wait(kTimeout));
  TensorPairTimes times;
  COXSWAIN_ASSIGN_OR_RETURN(times.pair, Time(*pair_, count));
  COXSWAIN_ASSIGN_OR_RETURN(times.local, Time(*local_, count));
  return times;
}

}  // namespace coxswain::bench
