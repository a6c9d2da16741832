#include "tests/integration/synchronisation_reference.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/torch/distributed_data_parallel.h"

namespace coxswain {
namespace {

using ::torch::Tensor;

// Of float32 sums in another order.
constexpr double kRounding = 1e-5;
// More than that apart is apart.
constexpr double kApart = 1e-2;

bool LosesNothing(const AnyHook& hook) {
  return hook.spec == "allreduce" || absl::StartsWith(hook.spec, "stats(allre");
}

// Returns how far the hook's result may be from the mean, but for what it
// keeps.
double Tolerance(const AnyHook& hook) {
  if (absl::StrContains(hook.spec, "bf16")) return 1e-2;
  if (absl::StrContains(hook.spec, "fp16")) return 2e-3;
  return kRounding;
}

Gradients Values(const TinyNet& net) {
  Gradients values;
  for (const Tensor& parameter : net.parameters()) {
    const Tensor& gradient = parameter.grad();
    std::vector<double> one(static_cast<size_t>(parameter.numel()), 0.0);
    for (size_t i = 0; i < one.size() && gradient.defined(); ++i) {
      one[i] = double{gradient.data_ptr<float>()[i]};
    }
    values.push_back(std::move(one));
  }
  return values;
}

void SetGradients(TinyNet& net, const Gradients& values) {
  Tensors parameters = net.parameters();
  for (size_t i = 0; i < values.size(); ++i) {
    Tensor gradient = ::torch::zeros_like(parameters[i]);
    for (size_t k = 0; k < values[i].size(); ++k) {
      gradient.data_ptr<float>()[k] = static_cast<float>(values[i][k]);
    }
    parameters[i].mutable_grad() = gradient;
  }
}

void Rescale(TinyNet& net, double factor) {
  for (Tensor& parameter : net.parameters()) {
    if (factor != 1) parameter.mutable_grad().mul_(factor);
  }
}

}  // namespace

std::vector<PlannedPass> Windows(const std::vector<int>& lengths,
                                 int first_batch) {
  std::vector<PlannedPass> plan;
  for (const int length : lengths) {
    for (int micro = 0; micro < length; ++micro) {
      PlannedPass pass;
      pass.batches = {first_batch++};
      pass.divisor = length;
      pass.exchange = pass.step = micro + 1 == length;
      plan.push_back(pass);
    }
  }
  return plan;
}

Reference::Twin::Twin(const Tensors& start)
    : net(std::make_shared<TinyNet>(0)),
      optimizer(std::make_unique<Optimizer>(*net)) {
  SetParameters(*net, start);
}

Reference::Reference(const Setting& setting, const Tensors& start)
    : setting_(setting), alone_(start) {
  for (int rank = 0; rank < setting.size; ++rank) {
    data_.push_back(Deal(rank, setting.size, /*epochs=*/3));
    twins_.emplace_back(start);
  }
  auto parameters = torch::DescribeParameters(*alone_.net);
  EXPECT_OK(parameters);
  parameters_ = *std::move(parameters);
  world_ =
      std::make_unique<HookWorld>(setting.hook.spec, parameters_, setting.size);
}

void Reference::Check(const std::vector<PlannedPass>& plan,
                      const std::vector<std::unique_ptr<TestRank>>& ranks) {
  for (const auto& rank : ranks) {
    ASSERT_EQ(rank->passes().size(), plan.size());
  }
  for (size_t i = 0; i < plan.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("pass ", i));
    std::vector<const Pass*> passes;
    for (const auto& rank : ranks) passes.push_back(&rank->passes()[i]);
    for (const Pass* pass : passes) {
      ASSERT_EQ(pass->exchanged, plan[i].exchange);
      ASSERT_EQ(pass->stepped, plan[i].step);
    }
    Backward(plan[i]);
    if (plan[i].exchange) Exchange(plan[i], passes[0]->buckets);
    CheckGradients(plan[i], passes);
    if (plan[i].step) Step(passes);
    if (plan[i].drop) {
      ClearGradients(*alone_.net, false);
      for (Twin& twin : twins_) ClearGradients(*twin.net, false);
    }
    if (testing::Test::HasFailure()) return;
  }
  CheckErrorFeedback();
  // The scalar is registered first and ready first: without a second layout
  // the test would not show that local sums survive one.
  EXPECT_TRUE(layouts_ == 2 || !LosesNothing(setting_.hook));
}

void Reference::Backward(const PlannedPass& planned) {
  if (planned.batches.empty()) return;
  Tensor whole;
  std::vector<Tensor> own(twins_.size());
  for (const int batch : planned.batches) {
    Samples all;
    for (size_t rank = 0; rank < twins_.size(); ++rank) {
      const Samples& samples = data_[rank].at(static_cast<size_t>(batch));
      all.insert(all.end(), samples.begin(), samples.end());
      const Tensor loss = MeanLoss(*twins_[rank].net, samples);
      own[rank] = own[rank].defined() ? own[rank] + loss : loss;
    }
    const Tensor loss = MeanLoss(*alone_.net, all);
    whole = whole.defined() ? whole + loss : loss;
  }
  for (const Tensor& loss : own) (loss / planned.divisor).backward();
  (whole / planned.divisor).backward();
}

void Reference::Exchange(const PlannedPass& planned,
                         const HookWorld::Buckets& buckets) {
  Rescale(*alone_.net, planned.rescale);
  std::vector<Gradients> sums;
  for (Twin& twin : twins_) {
    Rescale(*twin.net, planned.rescale);
    sums.push_back(Values(*twin.net));
  }
  if (buckets != buckets_) {
    world_->Rebucket(buckets);
    buckets_ = buckets;
    ++layouts_;
  }
  const bool started = world_->hook(0).step() >= setting_.hook.start_step;
  const std::vector<Gradients> results = world_->ExchangeApart(sums);
  planned.commit ? world_->Commit() : world_->Rollback();
  for (size_t rank = 0; rank < twins_.size(); ++rank) {
    SetGradients(*twins_[rank].net, results[rank]);
  }
  CheckResults(sums, results, started);
}

void Reference::CheckResults(const std::vector<Gradients>& sums,
                             const std::vector<Gradients>& results,
                             bool started) {
  const Gradients mean = MeanOver(sums);
  AddTo(given_, mean);
  AddTo(got_, results[0]);
  if (setting_.hook.ranks_differ && started) return;
  for (const Gradients& result : results) EXPECT_EQ(result, results[0]);
  if (setting_.hook.error_feedback && started) return;
  EXPECT_LT(RelativeDifference(results[0], mean), Tolerance(setting_.hook));
}

void Reference::CheckErrorFeedback() {
  if (!setting_.hook.error_feedback) return;
  const Gradients kept = MeanError(world_->Save(), parameters_, setting_.size);
  // Otherwise the test is too short for it.
  EXPECT_GT(world_->hook(0).step(), setting_.hook.start_step + 1);
  AddTo(got_, kept);
  EXPECT_LT(RelativeDifference(got_, given_), Tolerance(setting_.hook));
}

void Reference::CheckGradients(const PlannedPass& planned,
                               const std::vector<const Pass*>& passes) {
  const Tensors whole = CopyOfGradients(*alone_.net);
  for (size_t rank = 0; rank < passes.size(); ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const Tensors& gradients = passes[rank]->gradients;
    EXPECT_TRUE(SameBits(gradients, CopyOfGradients(*twins_[rank].net)));
    EXPECT_EQ(passes[rank]->hook_step, world_->hook(0).step());
    if (!planned.exchange) {
      EXPECT_EQ(passes[rank]->bytes, 0);
    }
    if (!LosesNothing(setting_.hook)) continue;
    const double distance = Distance(gradients, whole);
    if (planned.exchange || passes.size() == 1) {
      EXPECT_LT(distance, kRounding);
    } else {
      EXPECT_GT(distance, kApart);
    }
  }
  if (!planned.exchange) CheckApart(passes);
}

void Reference::CheckApart(const std::vector<const Pass*>& passes) {
  for (size_t a = 0; a < passes.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      EXPECT_GT(Distance(passes[a]->gradients, passes[b]->gradients), kApart)
          << "ranks " << b << " and " << a;
    }
  }
}

void Reference::Step(const std::vector<const Pass*>& passes) {
  std::vector<Twin*> all = {&alone_};
  for (Twin& twin : twins_) all.push_back(&twin);
  for (Twin* twin : all) {
    twin->optimizer->sgd.step();
    twin->optimizer->schedule.step();
    ClearGradients(*twin->net, /*undefine=*/steps_ % 2 == 1);
  }
  ++steps_;
  for (size_t rank = 0; rank < passes.size(); ++rank) {
    const Tensors expected = CopyOfParameters(*twins_[rank].net);
    EXPECT_TRUE(SameBits(passes[rank]->trained, expected)) << "rank " << rank;
    EXPECT_EQ(passes[rank]->rate, alone_.optimizer->rate());
    if (!LosesNothing(setting_.hook)) continue;
    EXPECT_LT(Distance(expected, CopyOfParameters(*alone_.net)), kRounding);
  }
  CheckAverager(passes);
}

// What averagers compute has tests of its own; here, that they are in step.
void Reference::CheckAverager(const std::vector<const Pass*>& passes) {
  bool same = true;
  for (size_t rank = 0; rank < passes.size(); ++rank) {
    SetParameters(*twins_[rank].net, passes[rank]->averaged);
    EXPECT_EQ(passes[rank]->diverged, passes[0]->diverged);
    same = same && SameBits(passes[rank]->averaged, passes[0]->averaged);
  }
  // Nothing reunites the ranks after noop.
  if (setting_.hook.spec == "noop") return;
  if (!passes[0]->diverged) {
    EXPECT_TRUE(same);
  }
  // Groups of two are all there is of fewer ranks.
  if (passes[0]->diverged && passes.size() == 4) {
    EXPECT_FALSE(same);
  }
}

}  // namespace coxswain
