#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"
#include "hooks/allreduce.h"
#include "tests/conformance/connected_group.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

// Of weights that are exchanged where they are, and others; two of them get
// their gradients in the same memory from libtorch.
struct WeightsOfBothKinds : ::torch::nn::Module {
  WeightsOfBothKinds() {
    first = register_module("first", ::torch::nn::Linear(200, 150));
    second = register_module("second", ::torch::nn::Linear(150, 3));
    a = register_parameter("a", ::torch::ones({150, 150}));
    b = register_parameter("b", ::torch::ones({150 * 150}));
    const ::torch::NoGradGuard no_grad;
    double value = 0;
    for (Tensor& parameter : parameters()) {
      value += 0.1;
      parameter.copy_(::torch::linspace(-value, value, parameter.numel())
                          .view(parameter.sizes()));
    }
  }
  Tensor Loss(int rank, int step) {
    const Tensor input =
        ::torch::linspace(rank, step + 1, 8 * 200).view({8, 200});
    const Tensor hidden = ::torch::tanh(first->forward(input));
    return second->forward(hidden.matmul(a + b.view({150, 150})))
        .square()
        .mean();
  }

  ::torch::nn::Linear first{nullptr};
  ::torch::nn::Linear second{nullptr};
  Tensor a;
  Tensor b;
};

// Returns the gradients and weights after each of a few steps.
std::vector<Tensor> Train(Communicator* communicator,
                          const DistributedDataParallelOptions& options,
                          bool undefine) {
  std::vector<Tensor> history;
  const auto net = std::make_shared<WeightsOfBothKinds>();
  auto created = DistributedDataParallel::Create(
      net, communicator, MakeAllReduceHook("allreduce"), options);
  EXPECT_OK(created);
  if (!created.ok()) return history;
  const auto ddp = *std::move(created);
  ::torch::optim::SGD optimizer(net->parameters(), 0.001);
  for (int step = 0; step < 3; ++step) {
    EXPECT_OK(ddp->Backward(net->Loss(communicator->rank(), step)));
    for (const Tensor& parameter : net->parameters()) {
      history.push_back(parameter.grad().clone());
    }
    optimizer.step();
    for (const Tensor& parameter : net->parameters()) {
      history.push_back(parameter.detach().clone());
    }
    optimizer.zero_grad();
    for (Tensor& parameter : net->parameters()) {
      if (undefine) parameter.mutable_grad() = Tensor();
    }
  }
  return history;
}

TEST(InPlaceTest, GradientsOutsideTheBucketsGetTheBitsOfViews) {
  const auto group = ConnectGroup(2, kSoon, ConnectTcp);
  std::vector<std::thread> threads;
  for (const auto& communicator : group) {
    threads.emplace_back([&communicator] {
      at::set_num_threads(1);
      DistributedDataParallelOptions options = SmallBuckets(/*view=*/true);
      options.reducer.buckets = {1 << 10, 100 << 10};
      const std::vector<Tensor> views =
          Train(communicator.get(), options, false);
      options.gradient_as_bucket_view = false;
      for (const bool undefine : {false, true}) {
        const std::vector<Tensor> outside =
            Train(communicator.get(), options, undefine);
        ASSERT_EQ(outside.size(), views.size());
        for (size_t i = 0; i < views.size(); ++i) {
          ASSERT_TRUE(::torch::equal(outside[i], views[i])) << i;
          ASSERT_GT(views[i].norm().item<double>(), 0) << i;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace coxswain::torch
