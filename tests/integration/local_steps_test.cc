// What ranks do with each other while each takes steps of its own (local SGD):
// nothing. And what they keep when the model changes meanwhile.

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/communicator.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/torch/distributed_data_parallel.h"
#include "gmock/gmock.h"
#include "hooks/registry/registry.h"
#include "schedule/fake_step_gate.h"
#include "schedule/plan.h"

namespace coxswain::local_steps_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using ::torch::Tensor;
using Options = torch::DistributedDataParallelOptions;

constexpr int kRanks = 2;
constexpr absl::Duration kSoon = absl::Seconds(30);

// sum(a) x and the normalised inputs, by gradient descent with a rate of 1. The
// loss does not use b.
struct Net : ::torch::nn::Module {
  Net() {
    a = register_parameter("a", ::torch::ones({4}));
    b = register_parameter("b", ::torch::full({4}, 100.0F));
    norm = register_module("norm", ::torch::nn::BatchNorm1d(3));
  }
  Tensor Loss(double x) {
    const Tensor inputs = ::torch::arange(6, ::torch::kFloat32).view({2, 3});
    return a.sum() * x + norm->forward(inputs * x).sum();
  }
  Tensor running_mean() { return norm->running_mean.clone(); }

  Tensor a, b;
  ::torch::nn::BatchNorm1d norm{nullptr};
};

// A rank, in a thread of its own.
class Rank {
 public:
  Rank(int index, Communicator* communicator, const std::string& spec,
       Options options)
      : index_(index), communicator_(*communicator) {
    options.reducer.timeout = kSoon;
    auto hook = MakeHook(spec);
    auto averager = MakeAverager(spec);
    EXPECT_OK(hook);
    EXPECT_OK(averager);
    auto ddp = torch::DistributedDataParallel::Create(
        net_, communicator, *std::move(hook), options, *std::move(averager));
    EXPECT_OK(ddp);
    ddp_ = *std::move(ddp);
  }

  int index() const { return index_; }
  Net& net() { return *net_; }
  torch::DistributedDataParallel& ddp() { return *ddp_; }
  Communicator& communicator() { return communicator_; }

  // A step by gradients of this rank's own, and what comes after it.
  void Step() {
    ASSERT_OK(ddp_->Backward(net_->Loss(index_ + 1)));
    Apply();
  }
  void Apply() {
    if (!ddp_->skipped()) {
      const ::torch::NoGradGuard no_grad;
      for (const Tensor& parameter : net_->parameters()) {
        if (parameter.grad().defined()) {
          Tensor values = parameter;
          values.sub_(parameter.grad());
        }
      }
    }
    net_->zero_grad();
    ASSERT_OK(ddp_->AfterOptimizerStep());
  }

 private:
  const int index_;
  Communicator& communicator_;
  const std::shared_ptr<Net> net_ = std::make_shared<Net>();
  std::unique_ptr<torch::DistributedDataParallel> ddp_;
};

void OnRanks(const std::string& spec,
             const std::function<Options(int rank)>& options,
             const std::function<void(Rank&)>& body) {
  const auto world = InProcessWorld::Create(kRanks, kSoon);
  std::vector<std::thread> threads;
  for (int index = 0; index < kRanks; ++index) {
    threads.emplace_back([&, index] {
      at::set_num_threads(1);
      const auto communicator = world->MakeRank(index);
      Rank rank(index, communicator.get(), spec, options(index));
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Lets one thread wait for another.
class Signal {
 public:
  void Set() {
    MutexLock lock(&mutex_);
    set_ = true;
    changed_.NotifyAll();
  }
  void Await() {
    MutexLock lock(&mutex_);
    EXPECT_TRUE(changed_.WaitFor(
        &mutex_, kSoon,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return set_; }));
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};

// Brings the values of all ranks to each of them.
class Exchanged {
 public:
  std::vector<Tensor> Of(Rank& rank, const Tensor& own) {
    {
      MutexLock lock(&mutex_);
      values_.resize(kRanks);
      values_[static_cast<size_t>(rank.index())] = own.clone();
    }
    EXPECT_OK(rank.communicator().Barrier()->Wait(kSoon));
    std::vector<Tensor> result;
    {
      MutexLock lock(&mutex_);
      result = values_;
    }
    EXPECT_OK(rank.communicator().Barrier()->Wait(kSoon));
    return result;
  }

 private:
  Mutex mutex_;
  std::vector<Tensor> values_ ABSL_GUARDED_BY(mutex_);
};

struct Case {
  std::string spec;
  // By step, from 0.
  std::vector<bool> local;
};

class EachAveragerTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    All, EachAveragerTest,
    testing::Values(Case{"post_local_sgd(start_step=2,period=3)",
                         {false, false, false, true, true, false, true}},
                    Case{"hierarchical_sgd(levels=2x1+4xall,start_step=1)",
                         {false, true, true, true, false, true, true}},
                    Case{"fp16(diloco(inner_steps=3,start_step=1))",
                         {false, true, true, false, true, true, false}}),
    [](const testing::TestParamInfo<Case>& info) {
      const std::string& spec = info.param.spec;
      return spec[0] == 'p'   ? "PostLocalSgd"
             : spec[0] == 'h' ? "HierarchicalSgd"
                              : "Diloco";
    });

// Neither gradients nor buffers nor what find_unused_parameters asks.
TEST_P(EachAveragerTest, LocalStepsOfBatchNormStartNoCollective) {
  Exchanged exchanged;
  const auto options = [](int) {
    Options unused;
    unused.reducer.find_unused_parameters = true;
    return unused;
  };
  OnRanks(GetParam().spec, options, [&](Rank& rank) {
    for (size_t step = 0; step < GetParam().local.size(); ++step) {
      const bool local = GetParam().local[step];
      const int64_t before = rank.communicator().sequence();
      rank.Step();
      const int64_t started = rank.communicator().sequence() - before;
      if (local) {
        EXPECT_EQ(started, 0) << "step " << step;
      } else {
        EXPECT_GT(started, 0) << "step " << step;
      }
      const auto means = exchanged.Of(rank, rank.net().running_mean());
      EXPECT_EQ(::torch::equal(means[0], means[1]), !local) << "step " << step;
      const auto values = exchanged.Of(rank, rank.net().a.detach());
      EXPECT_EQ(::torch::equal(values[0], values[1]), !local)
          << "step " << step;
    }
    // One that is unused stays without a gradient, in local steps too.
    EXPECT_FALSE(rank.net().b.grad().defined());
  });
}

TEST(LocalStepsTest, AverageParametersBringsTheBuffersTogetherToo) {
  Exchanged exchanged;
  OnRanks(
      "diloco(inner_steps=100,start_step=1)", [](int) { return Options(); },
      [&](Rank& rank) {
        for (int step = 0; step < 3; ++step) rank.Step();
        auto means = exchanged.Of(rank, rank.net().running_mean());
        EXPECT_FALSE(::torch::equal(means[0], means[1]));
        ASSERT_OK(rank.ddp().AverageParameters());
        means = exchanged.Of(rank, rank.net().running_mean());
        EXPECT_TRUE(::torch::equal(means[0], means[1]));
      });
}

schedule::Plan PlanOf(const std::string& spec,
                      const schedule::Terms& terms = {}) {
  schedule::Plan plan;
  plan.version = 1;
  plan.hook = spec;
  plan.terms = terms;
  return plan;
}

Options Following(schedule::FakeSchedule& schedule, const schedule::Plan& plan,
                  int rank) {
  Options options;
  options.plan = plan;
  options.reducer.gate = schedule.gate(rank);
  return options;
}

std::vector<int64_t> StepsOf(const schedule::FakeSchedule& schedule, int rank) {
  std::vector<int64_t> steps;
  for (const schedule::Ticket& ticket : schedule.tickets(rank)) {
    steps.push_back(ticket.step);
  }
  return steps;
}

class LocalDecisionsTest
    : public testing::TestWithParam<schedule::Enforcement> {};

INSTANTIATE_TEST_SUITE_P(AuditAndStrict, LocalDecisionsTest,
                         testing::Values(schedule::Enforcement::kAudit,
                                         schedule::Enforcement::kStrict));

// Rank 1 begins its local steps when rank 0 has ended them.
TEST_P(LocalDecisionsTest, LocalStepsWaitForNoOtherRank) {
  constexpr char kSpec[] = "post_local_sgd(start_step=1,period=4)";
  schedule::Terms terms;
  terms.enforcement = GetParam();
  const schedule::Plan plan = PlanOf(kSpec, terms);
  schedule::FakeSchedule schedule(kRanks, plan);
  Signal rank_0_is_ahead;
  OnRanks(
      kSpec, [&](int rank) { return Following(schedule, plan, rank); },
      [&](Rank& rank) {
        for (int step = 0; step < 2; ++step) rank.Step();
        if (rank.index() == 1) rank_0_is_ahead.Await();
        for (int step = 2; step < 5; ++step) rank.Step();
        if (rank.index() == 0) rank_0_is_ahead.Set();
        rank.Step();
        EXPECT_THAT(StepsOf(schedule, rank.index()), ElementsAre(0, 1, 5));
        EXPECT_EQ(rank.ddp().decided(), 6);
        EXPECT_FALSE(rank.ddp().averager()->diverged());
      });
}

TEST(LocalStepsTest, AFailedLossSkipsALocalStepOnItsRankAlone) {
  constexpr char kSpec[] = "post_local_sgd(start_step=1,period=4)";
  const schedule::Plan plan = PlanOf(kSpec);
  schedule::FakeSchedule schedule(kRanks, plan);
  Exchanged exchanged;
  OnRanks(
      kSpec, [&](int rank) { return Following(schedule, plan, rank); },
      [&](Rank& rank) {
        for (int step = 0; step < 2; ++step) rank.Step();
        const Tensor before = rank.net().a.detach().clone();
        if (rank.index() == 1) {
          ASSERT_OK(
              rank.ddp().FailMicroBatch(absl::DataLossError("a bad file")));
          EXPECT_TRUE(rank.ddp().skipped());
          EXPECT_THAT(rank.ddp().decision().reason,
                      HasSubstr("rank 1, in a local step: "));
          EXPECT_THAT(rank.ddp().decision().reason, HasSubstr("a bad file"));
          rank.Apply();
        } else {
          rank.Step();
          EXPECT_FALSE(rank.ddp().skipped());
        }
        EXPECT_EQ(::torch::equal(before, rank.net().a), rank.index() == 1);
        // It counts on both, so they meet in the same step.
        EXPECT_EQ(rank.ddp().averager()->step(), 3);
        EXPECT_EQ(rank.ddp().hook().step(), 3);
        for (int step = 3; step < 6; ++step) rank.Step();
        const auto values = exchanged.Of(rank, rank.net().a.detach());
        EXPECT_TRUE(::torch::equal(values[0], values[1]));
        EXPECT_THAT(StepsOf(schedule, rank.index()), ElementsAre(0, 1, 5));
      });
}

TEST(LocalStepsTest, AVoteAgainstALocalStepIsTheRanksOwn) {
  constexpr char kSpec[] = "diloco(inner_steps=100)";
  for (const bool with_optimizer : {false, true}) {
    Options options;
    options.commit_with_optimizer = with_optimizer;
    OnRanks(
        kSpec, [&](int) { return options; },
        [](Rank& rank) {
          rank.Step();
          rank.net().Loss(1).backward();
          ASSERT_OK(rank.ddp().Synchronize());
          const Tensor before = rank.net().a.detach().clone();
          ASSERT_OK(rank.ddp().FinishStep(rank.index() == 0, "no"));
          EXPECT_EQ(rank.ddp().skipped(), rank.index() == 1);
          rank.Apply();
          EXPECT_EQ(::torch::equal(before, rank.net().a), rank.index() == 1);
          EXPECT_EQ(rank.ddp().averager()->step(), 2);
          EXPECT_EQ(rank.ddp().hook().step(), 2);
          rank.Step();
        });
  }
}

// Where the plan wants something of all ranks.
TEST(LocalStepsTest, StepsThatThePlanNamesAreDecidedByAllRanks) {
  constexpr char kSpec[] = "post_local_sgd(start_step=1,period=8)";
  schedule::Terms terms;
  terms.checkpoint_every = 4;
  terms.checksum_every = 2;
  terms.max_steps = 8;
  const schedule::Plan plan = PlanOf(kSpec, terms);
  schedule::FakeSchedule schedule(kRanks, plan);
  OnRanks(
      kSpec, [&](int rank) { return Following(schedule, plan, rank); },
      [&](Rank& rank) {
        for (int step = 0; step < 8; ++step) {
          (void)rank.ddp().Accumulate();
          rank.Step();
        }
        // The first, the one that averages, the one after it, whose
        // parameters are compared, and the fourth and the last.
        EXPECT_THAT(StepsOf(schedule, rank.index()),
                    ElementsAre(0, 1, 2, 3, 7));
        EXPECT_TRUE(schedule.tickets(rank.index())[2].checksum);
      });
}

// With a parameter frozen and another one added, as many of the same sizes are
// trained as before.
TEST(LocalStepsTest, TheOuterStateFollowsTheNamesThroughUpdateParameters) {
  OnRanks(
      "diloco(inner_steps=2,start_step=1,outer_lr=0.5)",
      [](int) { return Options(); },
      [](Rank& rank) {
        for (int step = 0; step < 2; ++step) rank.Step();
        EXPECT_TRUE(rank.ddp().averager()->diverged());
        rank.net().a.set_requires_grad(false);
        Tensor late = rank.net().register_parameter(
            "late", ::torch::full({4}, 7.0F + rank.index()));
        ASSERT_OK(rank.ddp().UpdateParameters());
        EXPECT_FALSE(rank.ddp().averager()->diverged());
        const Tensor a = rank.net().a.detach().clone();
        // No gradient reaches these, so an outer step does not move them.
        ASSERT_OK(rank.ddp().Backward(((rank.net().b + late) * 0).sum()));
        rank.Apply();
        EXPECT_FALSE(rank.ddp().averager()->diverged());
        EXPECT_TRUE(::torch::equal(rank.net().a, a));
        EXPECT_EQ(rank.net().b[1].item<double>(), 100);
        EXPECT_EQ(late[1].item<double>(), 7);
      });
}

}  // namespace
}  // namespace coxswain::local_steps_test
