// Windows that are declared as a whole, whose passes the test runs itself, in
// parts and in orders of its own: always compared with Accumulate and Backward,
// or with one process.

#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"
#include "schedule/fake_step_gate.h"

namespace coxswain::torch::declared_window_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using ::torch::Tensor;

using Begins = std::vector<Accumulator::Begin>;

// A model of two stages, both on one rank.
struct Model : ::torch::nn::Module {
  explicit Model(::torch::ScalarType type) {
    // Ranks are threads here, and share libtorch's generator.
    static Mutex generator;
    const MutexLock lock(&generator);
    ::torch::manual_seed(5);
    first = register_module("first", ::torch::nn::Linear(6, 5));
    second = register_module("second", ::torch::nn::Linear(5, 3));
    to(type);
  }
  std::vector<double> values() const {
    const ::torch::NoGradGuard no_grad;
    const Tensor all = ::torch::nn::utils::parameters_to_vector(parameters())
                           .to(::torch::kFloat64);
    return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
  }

  ::torch::nn::Linear first = nullptr;
  ::torch::nn::Linear second = nullptr;
};

// The rows [begin, end) of endless data, as the mean of their losses.
struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
};

Tensor Numbers(const Rows& rows, ::torch::ScalarType type) {
  return ::torch::arange(rows.begin, rows.end, type).view({-1, 1});
}

Tensor InputsOf(const Rows& rows, ::torch::ScalarType type) {
  return ::torch::sin(Numbers(rows, type) + ::torch::arange(6, type) * 7.1);
}

Tensor LossOf(const Tensor& outputs, const Rows& rows) {
  const Tensor targets = ::torch::cos(Numbers(rows, outputs.scalar_type()));
  return (outputs - targets).square().sum() /
         static_cast<double>(rows.end - rows.begin);
}

Tensor WholeLoss(Model& model, const Rows& rows) {
  const auto type = model.first->weight.scalar_type();
  return LossOf(model.second->forward(
                    ::torch::tanh(model.first->forward(InputsOf(rows, type)))),
                rows);
}

// One micro-batch on its way through both stages.
class Passes {
 public:
  Passes(Model& model, const Rows& rows, double scale) {
    const auto type = model.first->weight.scalar_type();
    hidden_ = ::torch::tanh(model.first->forward(InputsOf(rows, type)));
    input_ = hidden_.detach().requires_grad_();
    loss_ = LossOf(model.second->forward(input_), rows) * scale;
  }
  void BackwardOfSecond() { loss_.backward(); }
  void BackwardOfFirst() { hidden_.backward(input_.grad()); }

 private:
  Tensor hidden_;
  Tensor input_;
  Tensor loss_;
};

std::vector<int> NumbersOf(const DistributedDataParallel& ddp,
                           const std::string& prefix) {
  std::vector<int> numbers;
  const auto& parameters = ddp.reducer().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (absl::StartsWith(parameters[i].name, prefix)) {
      numbers.push_back(static_cast<int>(i));
    }
  }
  return numbers;
}

// Declares a window, and runs the backward passes of its micro-batches in this
// order, those of the second stage one ahead of the first.
absl::StatusOr<MicroBatch> RunWindow(DistributedDataParallel& ddp, Model& model,
                                     const std::vector<Rows>& rows,
                                     const Begins& begins,
                                     const std::vector<int>& order) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<MicroBatch> micro,
                            ddp.DeclareWindow(begins));
  std::vector<Passes> passes;
  for (size_t i = 0; i < rows.size(); ++i) {
    passes.emplace_back(model, rows[i], micro[i].loss_scale);
  }
  const size_t last = order.size();
  for (size_t i = 0; i <= last; ++i) {
    if (i + 1 == last) {
      COXSWAIN_RETURN_IF_ERROR(ddp.BeginLastPass(NumbersOf(ddp, "second")));
    }
    if (i < last) passes[order[i]].BackwardOfSecond();
    if (i + 1 == last) COXSWAIN_RETURN_IF_ERROR(ddp.EndLastPass());
    if (i == last) {
      COXSWAIN_RETURN_IF_ERROR(ddp.BeginLastPass(NumbersOf(ddp, "first")));
    }
    if (i > 0) passes[order[i - 1]].BackwardOfFirst();
    if (i == last) COXSWAIN_RETURN_IF_ERROR(ddp.EndLastPass());
  }
  COXSWAIN_RETURN_IF_ERROR(ddp.Synchronize());
  if (micro.back().sync) COXSWAIN_RETURN_IF_ERROR(ddp.FinishStep());
  return micro.back();
}

// The same micro-batches one after the other. Returns the last one.
absl::StatusOr<MicroBatch> RunLoop(DistributedDataParallel& ddp, Model& model,
                                   const std::vector<Rows>& rows,
                                   const Begins& begins) {
  MicroBatch micro;
  for (size_t i = 0; i < rows.size(); ++i) {
    micro = ddp.Accumulate(begins[i]);
    COXSWAIN_RETURN_IF_ERROR(
        ddp.Backward(WholeLoss(model, rows[i]) * micro.loss_scale));
  }
  return micro;
}

// Rows of a rank's micro-batch, of different lengths.
Rows RowsOf(int rank, int number) {
  const int64_t begin = 1000 * rank + 20 * number;
  return {begin, begin + 3 + (number * 7 + rank * 5) % 11};
}

std::vector<int> Ascending(size_t count) {
  std::vector<int> order;
  for (size_t i = 0; i < count; ++i) order.push_back(static_cast<int>(i));
  return order;
}

// ---- equal to the loop ----

class EqualTest : public testing::TestWithParam<bool> {
 protected:
  static DistributedDataParallelOptions Options(const schedule::Plan& plan) {
    DistributedDataParallelOptions options = Following(plan);
    options.gradient_as_bucket_view = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(CopyAndView, EqualTest, testing::Bool());

TEST_P(EqualTest, TheSameOrderGivesTheSameBits) {
  OnRanks(2, [](const TestRank& rank) {
    auto declared = std::make_shared<Model>(::torch::kFloat32);
    auto looped = std::make_shared<Model>(::torch::kFloat32);
    auto ddp = Wrap(rank, declared, Options(PlanOf(4)));
    auto other = Wrap(rank, looped, Options(PlanOf(4)));
    ::torch::optim::Adam optimizer(declared->parameters(), 0.05);
    ::torch::optim::Adam reference(looped->parameters(), 0.05);
    const std::vector<double> before = declared->values();
    for (int step = 0; step < 6; ++step) {
      std::vector<Rows> rows;
      for (int i = 0; i < 4; ++i) {
        rows.push_back(RowsOf(rank.index, 4 * step + i));
      }
      ASSERT_OK(RunWindow(*ddp, *declared, rows, Begins(4), Ascending(4)));
      ASSERT_OK(ddp->StepOptimizer(optimizer));
      ASSERT_OK(RunLoop(*other, *looped, rows, Begins(4)));
      ASSERT_OK(other->StepOptimizer(reference));
      ASSERT_EQ(declared->values(), looped->values()) << "step " << step;
    }
    EXPECT_NE(declared->values(), before);
    EXPECT_EQ(ddp->hook().step(), 6);
  });
}

TEST_P(EqualTest, AnotherOrderGivesTheSameSums) {
  OnRanks(2, [](const TestRank& rank) {
    auto declared = std::make_shared<Model>(::torch::kFloat64);
    auto looped = std::make_shared<Model>(::torch::kFloat64);
    auto ddp = Wrap(rank, declared, Options(PlanOf(4)));
    auto other = Wrap(rank, looped, Options(PlanOf(4)));
    for (const std::vector<int>& order :
         {std::vector<int>{3, 2, 1, 0}, {2, 0, 3, 1}}) {
      std::vector<Rows> rows;
      for (int i = 0; i < 4; ++i) rows.push_back(RowsOf(rank.index, i));
      ASSERT_OK(RunWindow(*ddp, *declared, rows, Begins(4), order));
      ASSERT_OK(RunLoop(*other, *looped, rows, Begins(4)));
      for (size_t i = 0; i < declared->parameters().size(); ++i) {
        const Tensor is = declared->parameters()[i].grad();
        const Tensor ought = looped->parameters()[i].grad();
        EXPECT_LT((is - ought).norm().item<double>(),
                  1e-12 * ought.norm().item<double>());
      }
      declared->zero_grad();
      looped->zero_grad();
    }
  });
}

// With zero=1 a rank has the averages of its slices.
std::vector<double> SlicesOf(const DistributedDataParallel& ddp) {
  std::vector<double> values;
  for (const Bucket& bucket : ddp.reducer().buckets()) {
    const Span own = ddp.reducer().OwnSlice(bucket);
    const auto* data = static_cast<const float*>(own.data);
    values.insert(values.end(), data, data + own.count);
  }
  return values;
}

TEST(DeclaredWindowTest, SlicesHaveTheSameBits) {
  OnRanks(2, [](const TestRank& rank) {
    DistributedDataParallelOptions options = Following(PlanOf(3));
    options.zero = 1;
    auto declared = std::make_shared<Model>(::torch::kFloat32);
    auto looped = std::make_shared<Model>(::torch::kFloat32);
    auto ddp = Wrap(rank, declared, options);
    auto other = Wrap(rank, looped, options);
    for (int step = 0; step < 3; ++step) {
      std::vector<Rows> rows;
      for (int i = 0; i < 3; ++i) {
        rows.push_back(RowsOf(rank.index, 3 * step + i));
      }
      ASSERT_OK(RunWindow(*ddp, *declared, rows, Begins(3), Ascending(3)));
      ASSERT_OK(RunLoop(*other, *looped, rows, Begins(3)));
      ASSERT_OK(ddp->StepBy([&] {
        EXPECT_EQ(SlicesOf(*ddp), SlicesOf(*other));
        return absl::OkStatus();
      }));
      ASSERT_OK(other->StepBy([] { return absl::OkStatus(); }));
    }
  });
}

// ---- weights, and the end of the data ----

TEST(DeclaredWindowTest, UnevenWeightsAreOneBigBatch) {
  OnRanks(2, [](const TestRank& rank) {
    schedule::Terms terms;
    terms.weighting = schedule::Weighting::kTokens;
    auto model = std::make_shared<Model>(::torch::kFloat64);
    auto alone = std::make_shared<Model>(::torch::kFloat64);
    auto ddp = Wrap(rank, model, Following(PlanOf(3, terms)));
    for (int window = 0; window < 2; ++window) {
      std::vector<Rows> own;
      Begins begins;
      Tensor sum = ::torch::zeros({}, ::torch::kFloat64);
      double total = 0;
      for (int r = 0; r < 2; ++r) {
        for (int i = 0; i < 3; ++i) {
          const Rows rows = RowsOf(r, 3 * window + i);
          const auto tokens = static_cast<double>(rows.end - rows.begin);
          sum = sum + WholeLoss(*alone, rows) * tokens;
          total += tokens;
          if (r != rank.index) continue;
          own.push_back(rows);
          begins.push_back({tokens, false});
        }
      }
      (sum / total).backward();
      ASSERT_OK(RunWindow(*ddp, *model, own, begins, {2, 0, 1}));
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        const Tensor is = model->parameters()[i].grad();
        const Tensor ought = alone->parameters()[i].grad();
        EXPECT_LT((is - ought).norm().item<double>(),
                  1e-12 * ought.norm().item<double>());
      }
      model->zero_grad();
      alone->zero_grad();
    }
  });
}

// Two epochs of 6 micro-batches in windows of 4.
TEST(DeclaredWindowTest, EveryTailIsThatOfTheLoop) {
  using schedule::TailPolicy;
  for (const TailPolicy tail :
       {TailPolicy::kFlush, TailPolicy::kCarry, TailPolicy::kDrop}) {
    schedule::Terms terms;
    terms.tail = tail;
    const schedule::Plan plan = PlanOf(4, terms);
    schedule::FakeSchedule schedule(2, plan);
    OnRanks(2, [&](const TestRank& rank) {
      auto declared = std::make_shared<Model>(::torch::kFloat32);
      auto looped = std::make_shared<Model>(::torch::kFloat32);
      auto ddp =
          Wrap(rank, declared, Following(plan, schedule.gate(rank.index)));
      auto other = Wrap(rank, looped, Following(plan));
      ::torch::optim::SGD optimizer(declared->parameters(), 0.1);
      ::torch::optim::SGD reference(looped->parameters(), 0.1);
      for (int epoch = 0; epoch < 2; ++epoch) {
        ASSERT_OK(ddp->BeginEpoch());
        ASSERT_OK(other->BeginEpoch());
        for (int next = 0; next < 6;) {
          const int due =
              std::min(ddp->accumulator().micro_batches_due(), 6 - next);
          std::vector<Rows> rows;
          Begins begins(due);
          for (int i = 0; i < due; ++i) {
            rows.push_back(RowsOf(rank.index, 6 * epoch + next));
            begins[i].end_of_data = ++next == 6;
          }
          ASSERT_OK_AND_ASSIGN(
              const MicroBatch last,
              RunWindow(*ddp, *declared, rows, begins, Ascending(due)));
          ASSERT_OK_AND_ASSIGN(const MicroBatch same,
                               RunLoop(*other, *looped, rows, begins));
          ASSERT_EQ(last.sync, same.sync);
          if (!last.sync) continue;
          ASSERT_OK(ddp->StepOptimizer(optimizer));
          ASSERT_OK(other->StepOptimizer(reference));
          ASSERT_EQ(declared->values(), looped->values());
        }
        ASSERT_OK(ddp->Flush());
        ASSERT_OK(other->Flush());
      }
    });
    std::vector<int> announced;
    for (const schedule::Ticket& ticket : schedule.tickets(0)) {
      announced.push_back(ticket.micro_batches);
    }
    if (tail == TailPolicy::kFlush) {
      EXPECT_THAT(announced, ElementsAre(4, 2, 4, 2));
    } else if (tail == TailPolicy::kCarry) {
      EXPECT_THAT(announced, ElementsAre(4, 4, 4));
    } else {
      EXPECT_THAT(announced, ElementsAre(4, 4));
    }
  }
}

// ---- gradients leave early ----

// Notes the parameters of each bucket whose exchange begins.
class WatchedHook : public AverageHook {
 public:
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    {
      MutexLock lock(&mutex_);
      for (const GradientSlot& slot : bucket.gradients) {
        begun_.insert(slot.parameter);
      }
      changed_.NotifyAll();
    }
    return AverageHook::Prepare(bucket, communicator);
  }
  // Returns whether the exchange of all of them has begun, soon.
  bool AwaitBegun(const std::vector<int>& parameters) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kSoon,
                            [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                              for (const int parameter : parameters) {
                                if (begun_.count(parameter) == 0) return false;
                              }
                              return true;
                            });
  }
  std::set<int> begun() const {
    MutexLock lock(&mutex_);
    return begun_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::set<int> begun_ ABSL_GUARDED_BY(mutex_);
};

struct Watched {
  std::unique_ptr<DistributedDataParallel> ddp;
  WatchedHook* hook = nullptr;
};

Watched Watch(const TestRank& rank, std::shared_ptr<::torch::nn::Module> module,
              const DistributedDataParallelOptions& options) {
  auto hook = std::make_unique<WatchedHook>();
  Watched watched;
  watched.hook = hook.get();
  auto ddp = DistributedDataParallel::Create(
      std::move(module), rank.communicator, std::move(hook), options);
  EXPECT_OK(ddp);
  watched.ddp = *std::move(ddp);
  return watched;
}

TEST(DeclaredWindowTest, EachStageLeavesInItsLastPass) {
  const schedule::Plan plan = PlanOf(2);
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    auto model = std::make_shared<Model>(::torch::kFloat32);
    const auto [ddp, hook] =
        Watch(rank, model, Following(plan, schedule.gate(rank.index)));
    ddp->SetPipelineHash(77);
    ASSERT_OK_AND_ASSIGN(const std::vector<MicroBatch> micro,
                         ddp->DeclareWindow(Begins(2)));
    // Before the first pass.
    const auto tickets = schedule.tickets(rank.index);
    ASSERT_EQ(tickets.size(), 1u);
    EXPECT_EQ(tickets[0].micro_batches, 2);
    EXPECT_EQ(tickets[0].pipeline, 77u);

    std::vector<Passes> passes;
    for (int i = 0; i < 2; ++i) {
      passes.emplace_back(*model, RowsOf(rank.index, i), micro[i].loss_scale);
    }
    passes[0].BackwardOfSecond();
    passes[0].BackwardOfFirst();
    ASSERT_OK(ddp->BeginLastPass(NumbersOf(*ddp, "second")));
    EXPECT_THAT(hook->begun(), ElementsAre());
    passes[1].BackwardOfSecond();
    // While the pass is still the last one.
    ASSERT_TRUE(hook->AwaitBegun(NumbersOf(*ddp, "second")));
    ASSERT_OK(ddp->EndLastPass());
    for (const int number : NumbersOf(*ddp, "first")) {
      EXPECT_EQ(hook->begun().count(number), 0u);
    }
    ASSERT_OK(ddp->BeginLastPass(NumbersOf(*ddp, "first")));
    passes[1].BackwardOfFirst();
    ASSERT_OK(ddp->EndLastPass());
    ASSERT_OK(ddp->Synchronize());
    ASSERT_OK(ddp->FinishStep());
  });
}

// "t1" and "t2" are copies of one parameter, whose gradients are summed up
// after the passes of both stages.
class TiedTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(CopyAndView, TiedTest, testing::Bool());

TEST_P(TiedTest, LateOnesDelayNoOthers) {
  OnRanks(2, [](const TestRank& rank) {
    // Reversed, the late ones would be the first.
    auto model = std::make_shared<Weights>(
        std::vector<std::string>{"a", "b", "t1", "t2"});
    DistributedDataParallelOptions options = Following(PlanOf(2));
    options.gradient_as_bucket_view = GetParam();
    options.reducer.buckets.late_parameters = {"t1", "t2"};
    const auto [ddp, hook] = Watch(rank, model, options);
    for (int step = 0; step < 2; ++step) {
      ASSERT_OK_AND_ASSIGN(const std::vector<MicroBatch> micro,
                           ddp->DeclareWindow(Begins(2)));
      const double scale = micro[0].loss_scale;
      const double x = 4 * (rank.index + 1);
      (model->Use({"b", "t2"}, x) * scale).backward();
      (model->Use({"a", "t1"}, x) * scale).backward();
      ASSERT_OK(ddp->BeginLastPass({1}));
      (model->Use({"b", "t2"}, 3 * x) * scale).backward();
      ASSERT_OK(ddp->EndLastPass());
      ASSERT_OK(ddp->BeginLastPass({0}));
      (model->Use({"a", "t1"}, x) * scale).backward();
      ASSERT_OK(ddp->EndLastPass());
      ASSERT_TRUE(hook->AwaitBegun({0, 1}));
      if (step == 0) {
        EXPECT_THAT(hook->begun(), ElementsAre(0, 1));
      }
      Tensor one = model->weight("t1").grad();
      Tensor other = model->weight("t2").grad();
      {
        const ::torch::NoGradGuard no_grad;
        one.add_(other);
        other.copy_(one);
      }
      ASSERT_OK(ddp->BeginLastPass({2, 3}));
      ASSERT_OK(ddp->EndLastPass());
      ASSERT_TRUE(hook->AwaitBegun({2, 3}));
      ASSERT_OK(ddp->Synchronize());
      ASSERT_OK(ddp->FinishStep());
      EXPECT_EQ(model->Gradient("a"), 6);
      EXPECT_EQ(model->Gradient("b"), 12);
      EXPECT_EQ(model->Gradient("t1"), 18);
      EXPECT_EQ(model->Gradient("t2"), 18);
      model->zero_grad();
    }
  });
}

TEST_P(TiedTest, WhatNoPassReachesIsAsInOtherSteps) {
  OnRanks(2, [](const TestRank& rank) {
    auto model =
        std::make_shared<Weights>(std::vector<std::string>{"a", "b", "c"});
    DistributedDataParallelOptions options = Following(PlanOf(2));
    options.gradient_as_bucket_view = GetParam();
    options.reducer.find_unused_parameters = true;
    auto ddp = Wrap(rank, model, options);
    ASSERT_OK_AND_ASSIGN(const std::vector<MicroBatch> micro,
                         ddp->DeclareWindow(Begins(2)));
    // Of "b" rank 0 has the first pass alone; of "c" no rank has any.
    const std::vector<std::string> used =
        rank.index == 0 ? std::vector<std::string>{"a", "b"}
                        : std::vector<std::string>{"a"};
    (model->Use(used, 4) * micro[0].loss_scale).backward();
    ASSERT_OK(ddp->BeginLastPass({0, 1, 2}));
    (model->Use({"a"}, 8) * micro[1].loss_scale).backward();
    ASSERT_OK(ddp->EndLastPass());
    ASSERT_OK(ddp->Synchronize());
    ASSERT_OK(ddp->FinishStep());
    EXPECT_EQ(model->Gradient("a"), 6);
    EXPECT_EQ(model->Gradient("b"), 1);
    EXPECT_TRUE(std::isnan(model->Gradient("c")));
  });
}

// As the second half of a backward pass adds them.
TEST_P(TiedTest, WhatIsAddedWithoutAutogradIsUsed) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
    DistributedDataParallelOptions options = Following(PlanOf(1));
    options.gradient_as_bucket_view = GetParam();
    options.reducer.find_unused_parameters = true;
    auto ddp = Wrap(rank, model, options);
    ASSERT_OK(ddp->DeclareWindow(Begins(1)));
    ASSERT_OK(ddp->BeginLastPass({0, 1}));
    const Tensor parameter = model->weight("a");
    parameter.mutable_grad() = ::torch::full_like(parameter, 2 + rank.index);
    ASSERT_OK(ddp->EndLastPass());
    ASSERT_OK(ddp->Synchronize());
    ASSERT_OK(ddp->FinishStep());
    EXPECT_EQ(model->Gradient("a"), 2.5);
    EXPECT_TRUE(std::isnan(model->Gradient("b")));
  });
}

// A parameter that is in no last pass.
TEST(DeclaredWindowTest, SynchronizeTakesTheRest) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
    auto ddp = Wrap(rank, model, Following(PlanOf(1)));
    ASSERT_OK(ddp->DeclareWindow(Begins(1)));
    model->Use({"a", "b"}, 2 + rank.index).backward();
    ASSERT_OK(ddp->BeginLastPass({0}));
    model->Use({"a"}, 1).backward();
    ASSERT_OK(ddp->EndLastPass());
    ASSERT_OK(ddp->Synchronize());
    ASSERT_OK(ddp->FinishStep());
    EXPECT_EQ(model->Gradient("a"), 3.5);
    EXPECT_EQ(model->Gradient("b"), 2.5);
  });
}

// ---- windows that fail ----

schedule::Plan Voting(
    int steps, schedule::TailPolicy tail = schedule::TailPolicy::kFlush) {
  schedule::Terms terms;
  terms.commit_vote = true;
  terms.tail = tail;
  return PlanOf(steps, terms);
}

// Rank 1 fails before, in and after a last pass.
TEST(DeclaredWindowTest, AWindowThatFailsIsSkippedByAll) {
  const schedule::Plan plan = Voting(2);
  schedule::FakeSchedule schedule(2, plan);
  OnRanks(2, [&](const TestRank& rank) {
    auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
    auto ddp = Wrap(rank, model, Following(plan, schedule.gate(rank.index)));
    ::torch::optim::SGD optimizer(model->parameters(), 1);
    for (int step = 0; step < 4; ++step) {
      const auto fails = [&](int here) {
        return rank.index == 1 && step == here;
      };
      ASSERT_OK(ddp->DeclareWindow(Begins(2)));
      model->Use({"a", "b"}, 1).backward();
      bool failed = fails(0);
      if (!failed) {
        ASSERT_OK(ddp->BeginLastPass({0}));
        model->Use({"a"}, 1).backward();
        failed = fails(1);
      }
      if (!failed) {
        ASSERT_OK(ddp->EndLastPass());
        failed = fails(2);
      }
      if (failed) {
        ASSERT_OK(ddp->FailMicroBatch(absl::InternalError("no loss")));
      } else {
        ASSERT_OK(ddp->Synchronize());
        ASSERT_OK(ddp->FinishStep());
      }
      EXPECT_EQ(ddp->skipped(), step < 3);
      if (step < 3) {
        EXPECT_THAT(ddp->decision().reason, HasSubstr("rank 1: no loss"));
        EXPECT_EQ(model->Gradient("a"), 0);
      }
      ASSERT_OK_AND_ASSIGN(const bool taken, ddp->StepOptimizer(optimizer));
      EXPECT_EQ(taken, step == 3);
    }
    EXPECT_EQ(model->weight("a")[0].item<double>(), 1 - 2);
    EXPECT_EQ(model->weight("b")[0].item<double>(), 1 - 1);
    EXPECT_EQ(ddp->hook().step(), 1);
  });
}

TEST(DeclaredWindowTest, AFailureBeforeTheWindowEndsGoesWithItsTicket) {
  schedule::Terms terms;
  terms.tail = schedule::TailPolicy::kCarry;
  const schedule::Plan plan = PlanOf(2, terms);
  schedule::FakeSchedule schedule(1, plan);
  OnRanks(1, [&](const TestRank& rank) {
    auto model = std::make_shared<Weights>(std::vector<std::string>{"a"});
    auto ddp = Wrap(rank, model, Following(plan, schedule.gate(0)));
    ASSERT_OK(ddp->DeclareWindow({{1, true}}));
    EXPECT_TRUE(schedule.tickets(0).empty());
    ASSERT_OK(ddp->FailMicroBatch(absl::InternalError("no loss")));
    ASSERT_OK(ddp->BeginEpoch());
    ASSERT_OK(ddp->DeclareWindow({{1, false}}));
    ASSERT_EQ(schedule.tickets(0).size(), 1u);
    EXPECT_EQ(schedule.tickets(0)[0].skip, "no loss");
    model->Use({"a"}, 1).backward();
    ASSERT_OK(ddp->Synchronize());
    ASSERT_OK(ddp->FinishStep());
    EXPECT_TRUE(ddp->skipped());
  });
}

TEST(DeclaredWindowTest, WithoutVotesAFailureEndsTheJob) {
  const schedule::Plan plan = PlanOf(1);
  schedule::FakeSchedule schedule(1, plan);
  OnRanks(1, [&](const TestRank& rank) {
    auto model = std::make_shared<Weights>(std::vector<std::string>{"a"});
    auto ddp = Wrap(rank, model, Following(plan, schedule.gate(0)));
    ASSERT_OK(ddp->DeclareWindow(Begins(1)));
    EXPECT_THAT(ddp->FailMicroBatch(absl::InternalError("no loss")),
                StatusIs(absl::StatusCode::kInternal,
                         HasSubstr("commit_vote=true): no loss")));
    EXPECT_FALSE(ddp->Synchronize().ok());
  });
}

}  // namespace
}  // namespace coxswain::torch::declared_window_test
