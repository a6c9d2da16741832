// Trains a small network with local steps, two ranks in one process, and
// compares with the same written by hand in libtorch.

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/torch/distributed_data_parallel.h"
#include "gmock/gmock.h"
#include "hooks/registry/registry.h"

namespace coxswain::local_sgd_training_test {
namespace {

namespace nn = ::torch::nn;
using ::torch::Tensor;
using Weights = std::vector<Tensor>;

constexpr int kRanks = 2;
constexpr int kBatch = 16;
constexpr int kStart = 3;
constexpr int kPeriod = 4;
constexpr int kSteps = 18;  // ends in the middle of a period
constexpr double kLearningRate = 0.01;

struct Net : nn::Module {
  Net() {
    // Ranks are threads here, and share libtorch's generator.
    static Mutex generator;
    const MutexLock lock(&generator);
    ::torch::manual_seed(7);
    hidden = register_module("hidden", nn::Linear(20, 16));
    out = register_module("out", nn::Linear(16, 4));
    // A parameter that is not contiguous.
    ::torch::NoGradGuard no_grad;
    hidden->weight.set_data(hidden->weight.t().contiguous().t());
  }
  nn::Linear hidden{nullptr}, out{nullptr};
};

void Step(Net& net, ::torch::optim::SGD& optimizer, int step, int rank,
          const std::function<void(const Tensor&)>& backward) {
  const int begin = (step * kRanks + rank) * kBatch;
  const Tensor number =
      ::torch::arange(begin, begin + kBatch, ::torch::kFloat32).view({-1, 1});
  const Tensor x = ::torch::sin(
      number * 12.9898 + ::torch::arange(20, ::torch::kFloat32) * 78.233);
  const Tensor labels = number.view(-1).to(::torch::kInt64).remainder(4);
  const Tensor y = net.out->forward(::torch::relu(net.hidden->forward(x)));
  backward(nn::functional::cross_entropy(y, labels));
  optimizer.step();
  optimizer.zero_grad();
}

Weights Copy(const Net& net) {
  Weights copy;
  for (const Tensor& parameter : net.parameters()) {
    copy.push_back(parameter.detach().clone());
  }
  return copy;
}

bool Equal(const Weights& a, const Weights& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!::torch::equal(a[i], b[i])) return false;
  }
  return true;
}

// Returns what each rank holds after each step, and after AverageParameters at
// last.
std::vector<std::vector<Weights>> Train(const std::string& spec) {
  const auto world = InProcessWorld::Create(kRanks);
  std::vector<std::vector<Weights>> history(kRanks);
  std::vector<std::shared_ptr<Net>> nets;
  for (int rank = 0; rank < kRanks; ++rank) {
    nets.push_back(std::make_shared<Net>());
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto communicator = world->MakeRank(rank);
      Net& net = *nets[rank];
      ASSERT_OK_AND_ASSIGN(auto hook, MakeHook(spec));
      ASSERT_OK_AND_ASSIGN(auto averager, MakeAverager(spec));
      ASSERT_OK_AND_ASSIGN(const auto ddp,
                           torch::DistributedDataParallel::Create(
                               nets[rank], communicator.get(), std::move(hook),
                               {}, std::move(averager)));
      ::torch::optim::SGD optimizer(net.parameters(), kLearningRate);
      for (int step = 0; step < kSteps; ++step) {
        Step(net, optimizer, step, rank,
             [&](const Tensor& loss) { ASSERT_OK(ddp->Backward(loss)); });
        ASSERT_OK(ddp->AfterOptimizerStep());
        history[rank].push_back(Copy(net));
      }
      EXPECT_EQ(ddp->averager()->step(), kSteps);
      EXPECT_TRUE(ddp->averager()->diverged());
      ASSERT_OK(ddp->AverageParameters());
      EXPECT_FALSE(ddp->averager()->diverged());
      history[rank].push_back(Copy(net));
    });
  }
  for (auto& thread : threads) thread.join();
  return history;
}

// Lets the networks take the mean of what `get` gives of each.
void Average(std::vector<Net>& nets,
             const std::function<Tensor(Tensor&)>& get) {
  ::torch::NoGradGuard no_grad;
  for (size_t i = 0; i < nets[0].parameters().size(); ++i) {
    Tensor mean = ::torch::zeros_like(nets[0].parameters()[i]);
    for (Net& net : nets) {
      Tensor parameter = net.parameters()[i];
      mean += get(parameter) / kRanks;
    }
    for (Net& net : nets) {
      Tensor parameter = net.parameters()[i];
      get(parameter).copy_(mean);
    }
  }
}

// Local SGD by hand: `outer(step)` brings the ranks together.
Weights TrainByHand(
    const std::function<bool(int step)>& averages,
    const std::function<void(std::vector<Net>& nets)>& average) {
  std::vector<Net> nets(kRanks);
  std::vector<std::unique_ptr<::torch::optim::SGD>> optimizers;
  for (Net& net : nets) {
    optimizers.push_back(
        std::make_unique<::torch::optim::SGD>(net.parameters(), kLearningRate));
  }
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      Step(nets[rank], *optimizers[rank], step, rank,
           [](const Tensor& loss) { loss.backward(); });
    }
    // Plain SGD: the mean of parameters is a step along the mean gradient.
    if (step < kStart) {
      Average(nets, [](Tensor& parameter) { return parameter; });
    } else if (averages(step)) {
      average(nets);
    }
  }
  average(nets);
  return Copy(nets[0]);
}

void ExpectClose(const Weights& actual, const Weights& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT((actual[i] - expected[i]).norm().item<double>(),
              1e-5 * expected[i].norm().item<double>())
        << "parameter " << i;
  }
}

// Checks in which steps the ranks agree, and what they hold at last.
void ExpectHistory(const std::vector<std::vector<Weights>>& history,
                   const std::function<bool(int step)>& averages,
                   const Weights& last) {
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(history[rank].size(), static_cast<size_t>(kSteps) + 1);
  }
  for (int step = 0; step <= kSteps; ++step) {
    EXPECT_EQ(Equal(history[0][step], history[1][step]),
              step < kStart || step == kSteps || averages(step))
        << step;
  }
  ExpectClose(history[0].back(), last);
}

TEST(LocalSgdTrainingTest, PostLocalSgdAveragesEveryPeriod) {
  at::set_num_threads(1);
  const auto averages = [](int step) { return (step - kStart) % kPeriod == 0; };
  const Weights last = TrainByHand(averages, [](std::vector<Net>& nets) {
    Average(nets, [](Tensor& parameter) { return parameter; });
  });
  ExpectHistory(Train("post_local_sgd(start_step=3,period=4)"), averages, last);
}

TEST(LocalSgdTrainingTest, DilocoIsSgdOnTheOuterGradient) {
  at::set_num_threads(1);
  const auto averages = [](int step) {
    return (step + 1 - kStart) % kPeriod == 0;
  };
  // The outer optimizer is libtorch's own, made when local steps begin.
  Net outer;
  std::unique_ptr<::torch::optim::SGD> optimizer;
  const auto outer_step = [&](std::vector<Net>& nets) {
    for (size_t i = 0; i < outer.parameters().size(); ++i) {
      ::torch::NoGradGuard no_grad;
      Tensor gradient = ::torch::zeros_like(outer.parameters()[i]);
      for (Net& net : nets) {
        gradient += (outer.parameters()[i] - net.parameters()[i]) / kRanks;
      }
      outer.parameters()[i].mutable_grad() = gradient;
    }
    optimizer->step();
    ::torch::NoGradGuard no_grad;
    for (Net& net : nets) {
      for (size_t i = 0; i < outer.parameters().size(); ++i) {
        net.parameters()[i].copy_(outer.parameters()[i]);
      }
    }
  };
  const auto history = Train("diloco(inner_steps=4,start_step=3,outer_lr=0.6)");
  {
    ::torch::NoGradGuard no_grad;
    for (size_t i = 0; i < outer.parameters().size(); ++i) {
      outer.parameters()[i].copy_(history[0][kStart - 1][i]);
    }
    optimizer = std::make_unique<::torch::optim::SGD>(
        outer.parameters(),
        ::torch::optim::SGDOptions(0.6).momentum(0.9).nesterov(true));
  }
  ExpectHistory(history, averages, TrainByHand(averages, outer_step));
}

TEST(LocalSgdTrainingTest, AHookThatNeedsItsAveragerIsRefusedWithoutIt) {
  const auto communicator = InProcessWorld::Create(1)->MakeRank(0);
  for (const char* spec : {"diloco", "stats(fp16(post_local_sgd))"}) {
    ASSERT_OK_AND_ASSIGN(auto hook, MakeHook(spec));
    EXPECT_THAT(
        torch::DistributedDataParallel::Create(
            std::make_shared<Net>(), communicator.get(), std::move(hook))
            .status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 testing::HasSubstr("needs its averager")));
  }
}

// As when only the hook's state is taken from a checkpoint: it would exchange
// no gradients any more, and the averager not yet parameters.
TEST(LocalSgdTrainingTest, AHookAndAnAveragerInDifferentStepsAreAnError) {
  const auto communicator = InProcessWorld::Create(1)->MakeRank(0);
  const auto net = std::make_shared<Net>();
  ASSERT_OK_AND_ASSIGN(auto hook, MakeHook("post_local_sgd(start_step=9)"));
  ASSERT_OK_AND_ASSIGN(auto averager,
                       MakeAverager("post_local_sgd(start_step=9)"));
  ASSERT_OK_AND_ASSIGN(
      const auto ddp,
      torch::DistributedDataParallel::Create(
          net, communicator.get(), std::move(hook), {}, std::move(averager)));
  HookState state;
  state.spec = "post_local_sgd(start_step=9)";
  state.step = 12;
  ASSERT_OK(ddp->hook().LoadState(state, 0, 1));
  ::torch::optim::SGD optimizer(net->parameters(), kLearningRate);
  Step(*net, optimizer, 0, 0, [&](const Tensor& loss) {
    EXPECT_THAT(ddp->Backward(loss),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         testing::HasSubstr("12 steps and its averager 0")));
  });
}

TEST(LocalSgdTrainingTest, AnAveragerThatMissesAStepIsAnError) {
  const auto communicator = InProcessWorld::Create(1)->MakeRank(0);
  const auto net = std::make_shared<Net>();
  ASSERT_OK_AND_ASSIGN(auto hook, MakeHook("diloco"));
  ASSERT_OK_AND_ASSIGN(auto averager, MakeAverager("diloco"));
  ASSERT_OK_AND_ASSIGN(
      const auto ddp,
      torch::DistributedDataParallel::Create(
          net, communicator.get(), std::move(hook), {}, std::move(averager)));
  ::torch::optim::SGD optimizer(net->parameters(), kLearningRate);
  Step(*net, optimizer, 0, 0,
       [&](const Tensor& loss) { ASSERT_OK(ddp->Backward(loss)); });
  Step(*net, optimizer, 1, 0, [&](const Tensor& loss) {
    EXPECT_THAT(ddp->Backward(loss),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         testing::HasSubstr("AfterOptimizerStep")));
  });
}

}  // namespace
}  // namespace coxswain::local_sgd_training_test
