#include "client/torch/test_ranks.h"

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>
#include <thread>
#include <utility>

#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

class Average : public Exchange {
 public:
  Average(const Bucket& bucket, Communicator* communicator, int world_size)
      : bucket_(bucket), communicator_(communicator), world_size_(world_size) {}

  absl::StatusOr<WorkPtr> Advance() override {
    if (!std::exchange(started_, true)) {
      return communicator_->AllReduce(bucket_.data);
    }
    const ::torch::NoGradGuard no_grad;
    ::torch::from_blob(bucket_.data.data, {bucket_.data.count},
                       FromDType(bucket_.data.dtype))
        .div_(world_size_);
    return WorkPtr();
  }

 private:
  const Bucket bucket_;
  Communicator* const communicator_;
  const int world_size_;
  bool started_ = false;
};

}  // namespace

absl::Status AverageHook::Configure(const std::vector<ParameterSpec>&,
                                    int world_size) {
  world_size_ = world_size;
  ++configured_;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Exchange>> AverageHook::Prepare(
    const Bucket& bucket, Communicator& communicator) {
  if (whole_) {
    const ::torch::NoGradGuard no_grad;
    Tensor data = ::torch::from_blob(bucket.data.data, {bucket.data.count},
                                     FromDType(bucket.data.dtype));
    errors_.resize(
        std::max(errors_.size(), static_cast<size_t>(bucket.index) + 1));
    Tensor& error = errors_[static_cast<size_t>(bucket.index)];
    if (error.defined()) data.add_(error);
    error = data - data.floor();
    data.floor_();
  }
  return std::make_unique<Average>(bucket, &communicator, world_size_);
}

absl::Status AverageHook::Commit() {
  ++step_;
  return absl::OkStatus();
}

absl::StatusOr<HookState> AverageHook::SaveState(Communicator&) {
  HookState state;
  state.spec = spec();
  state.step = step_;
  return state;
}

absl::Status AverageHook::LoadState(const HookState& state, int, int) {
  if (state.spec != spec()) {
    return absl::FailedPreconditionError("the state is that of " + state.spec);
  }
  step_ = state.step;
  return absl::OkStatus();
}

void OnRanks(int size, const std::function<void(const TestRank&)>& body) {
  const auto world = InProcessWorld::Create(size, kSoon);
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i) communicators.push_back(world->MakeRank(i));
  for (int i = 0; i < size; ++i) {
    TestRank rank;
    rank.index = i;
    rank.size = size;
    rank.communicator = communicators[static_cast<size_t>(i)].get();
    threads.emplace_back([&body, rank] {
      at::set_num_threads(1);
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

DistributedDataParallelOptions SmallBuckets(bool view) {
  DistributedDataParallelOptions options;
  options.gradient_as_bucket_view = view;
  options.reducer.timeout = kSoon;
  options.reducer.buckets = {1, 16};
  return options;
}

schedule::Plan PlanOf(int accumulation_steps, const schedule::Terms& terms) {
  schedule::Plan plan;
  plan.version = 1;
  plan.accumulation_steps = accumulation_steps;
  plan.hook = "average";
  plan.terms = terms;
  return plan;
}

DistributedDataParallelOptions Following(const schedule::Plan& plan,
                                         schedule::StepGate* gate) {
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.plan = plan;
  options.reducer.gate = gate;
  options.make_hook =
      [](const schedule::Plan& next) -> absl::StatusOr<std::unique_ptr<Hook>> {
    return std::make_unique<AverageHook>(/*whole=*/next.hook == "whole");
  };
  return options;
}

std::unique_ptr<DistributedDataParallel> Wrap(
    const TestRank& rank, std::shared_ptr<::torch::nn::Module> module,
    const DistributedDataParallelOptions& options) {
  auto ddp =
      DistributedDataParallel::Create(std::move(module), rank.communicator,
                                      std::make_unique<AverageHook>(), options);
  EXPECT_OK(ddp);
  return std::move(ddp).value();
}

Weights::Weights(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    register_parameter(name, ::torch::ones({2}));
  }
}

Tensor Weights::weight(const std::string& name) {
  return named_parameters()[name];
}

Tensor Weights::Use(const std::vector<std::string>& names, double x) {
  Tensor sum = ::torch::zeros({2});
  for (const std::string& name : names) sum = sum + weight(name);
  return (sum * x).sum();
}

double Weights::Gradient(const std::string& name) {
  const Tensor gradient = weight(name).grad();
  return gradient.defined() ? gradient[1].item<double>()
                            : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace coxswain::torch
