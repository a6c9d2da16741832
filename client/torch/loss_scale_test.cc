// Loss scales: how they follow from decisions, and gradients that carry them.

#include "client/torch/loss_scale.h"

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"
#include "schedule/fake_step_gate.h"

namespace coxswain::torch::loss_scale_test {
namespace {

using testing::HasSubstr;
using ::torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// ---- the scale ----

LossScale Make(const LossScaling& scaling) {
  absl::StatusOr<LossScale> scale = LossScale::Create(scaling);
  EXPECT_OK(scale);
  return *scale;
}

LossScaling Small() {
  LossScaling scaling;
  scaling.initial = 16;
  scaling.growth_every = 3;
  scaling.least = 4;
  scaling.most = 64;
  return scaling;
}

TEST(LossScaleTest, HalvesOnASkipAndDoublesAfterCommitsInARow) {
  LossScale scale = Make(Small());
  std::vector<double> scales;
  for (const bool committed :
       {true, true, false, true, true, true, true, true, true, false, false}) {
    scale.OnStep(committed);
    scales.push_back(scale.scale());
  }
  EXPECT_THAT(scales,
              testing::ElementsAre(16, 16, 8, 8, 8, 16, 16, 16, 32, 16, 8));
}

TEST(LossScaleTest, StaysWithinItsBounds) {
  LossScale scale = Make(Small());
  for (int i = 0; i < 5; ++i) scale.OnStep(false);
  EXPECT_EQ(scale.scale(), 4);
  for (int i = 0; i < 100; ++i) scale.OnStep(true);
  EXPECT_EQ(scale.scale(), 64);
}

TEST(LossScaleTest, GoesOnFromWhatWasSaved) {
  LossScaling odd = Small();
  odd.initial = 10.1;
  LossScale before = Make(odd);
  before.OnStep(true);
  before.OnStep(true);
  LossScale after = Make(odd);
  ASSERT_OK(after.Load(before.Save()));
  for (const bool committed : {true, false, true}) {
    before.OnStep(committed);
    after.OnStep(committed);
    EXPECT_EQ(before.scale(), after.scale());
    EXPECT_EQ(before.Save(), after.Save());
  }
}

TEST(LossScaleTest, KeepsItsOwnBoundsOfAnothersScale) {
  LossScaling high = Small();
  high.initial = 1024;
  high.most = 1024;
  LossScale scale = Make(Small());
  ASSERT_OK(scale.Load(Make(high).Save()));
  EXPECT_EQ(scale.scale(), 64);
}

TEST(LossScaleTest, RefusesWhatItHasNotSaved) {
  LossScale scale = Make(Small());
  for (const std::string saved :
       {"", "8", "8 ", "x 1", "8 x", "8 -1", "0 1", "-8 1", "inf 1", "nan 1"}) {
    EXPECT_THAT(scale.Load(saved),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("\"", saved, "\" is no loss"))))
        << saved;
    EXPECT_EQ(scale.Save(), "16 0") << saved;
  }
}

TEST(LossScaleTest, RefusesWhatCannotScale) {
  using Change = std::pair<const char*, void (*)(LossScaling&)>;
  const std::vector<Change> changes = {
      {"initial is 0", [](LossScaling& s) { s.initial = 0; }},
      {"initial is nan", [](LossScaling& s) { s.initial = kNan; }},
      {"initial is 128", [](LossScaling& s) { s.initial = 128; }},
      {"growth is 0.5", [](LossScaling& s) { s.growth = 0.5; }},
      {"growth is inf", [](LossScaling& s) { s.growth = kInfinity; }},
      {"backoff is 0", [](LossScaling& s) { s.backoff = 0; }},
      {"backoff is 2", [](LossScaling& s) { s.backoff = 2; }},
      {"growth_every is 0", [](LossScaling& s) { s.growth_every = 0; }},
      {"least is 0", [](LossScaling& s) { s.least = 0; }},
      {"most is 2", [](LossScaling& s) { s.most = 2; }},
      {"most is inf", [](LossScaling& s) { s.most = kInfinity; }},
  };
  for (const auto& [what, change] : changes) {
    LossScaling scaling = Small();
    change(scaling);
    EXPECT_THAT(LossScale::Create(scaling),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  }
}

// ---- gradients that carry it ----

constexpr double kScale = 4096;

::torch::nn::Linear Model() {
  // Ranks are threads here, and share libtorch's generator.
  static Mutex generator;
  const MutexLock lock(&generator);
  ::torch::manual_seed(5);
  return ::torch::nn::Linear(6, 3);
}

Tensor Loss(::torch::nn::Linear& model, int64_t begin) {
  const Tensor number = ::torch::arange(begin, begin + 4).view({-1, 1});
  const Tensor x = ::torch::sin(number + ::torch::arange(6) * 7.1);
  return (model->forward(x) - ::torch::cos(number)).square().mean();
}

// Trains three windows of two micro-batches, the last of which is cut short;
// returns each window's averages.
std::vector<Tensor> Averages(const TestRank& rank,
                             const DistributedDataParallelOptions& options,
                             double scale) {
  auto model = Model();
  auto ddp = Wrap(rank, model.ptr(), options);
  ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);
  EXPECT_OK(ddp->SetGradientScale(scale));
  const bool weighted =
      ddp->plan().terms.weighting != schedule::Weighting::kMean;
  std::vector<Tensor> averages;
  const auto end_window = [&] {
    for (const Tensor& parameter : model->parameters()) {
      averages.push_back(parameter.grad().clone());
    }
    EXPECT_OK(ddp->StepOptimizer(optimizer));
  };
  for (int micro = 0; micro < 5; ++micro) {
    Accumulator::Begin begin;
    // Ranks of other weights.
    if (weighted) begin.weight = 3 + rank.index + micro;
    const MicroBatch now = ddp->Accumulate(begin);
    const Tensor loss = Loss(model, int64_t{10} * (2 * micro + rank.index));
    EXPECT_OK(ddp->Backward(loss * scale, now));
    if (now.sync) end_window();
  }
  const absl::StatusOr<bool> flushed = ddp->Flush();
  EXPECT_OK(flushed);
  if (flushed.ok() && *flushed) end_window();
  return averages;
}

struct ScaleCase {
  const char* name;
  schedule::Terms terms;
  bool view = false;
};

class GradientScaleTest : public testing::TestWithParam<ScaleCase> {};

schedule::Terms With(void (*change)(schedule::Terms&)) {
  schedule::Terms terms;
  change(terms);
  return terms;
}

INSTANTIATE_TEST_SUITE_P(
    Plans, GradientScaleTest,
    testing::Values(ScaleCase{"Mean", {}},
                    ScaleCase{"Views", {}, /*view=*/true},
                    ScaleCase{"Tokens", With([](schedule::Terms& terms) {
                                terms.weighting = schedule::Weighting::kTokens;
                              })},
                    ScaleCase{"EachBatch", With([](schedule::Terms& terms) {
                                terms.sync_each_batch = true;
                                terms.tail = schedule::TailPolicy::kDrop;
                              })},
                    ScaleCase{"UnevenData", With([](schedule::Terms& terms) {
                                terms.uneven_data =
                                    schedule::UnevenData::kWaitForAll;
                              })}),
    [](const auto& info) { return std::string(info.param.name); });

// A scale that is a power of two changes no bits.
TEST_P(GradientScaleTest, AveragesAreThoseWithoutAScale) {
  OnRanks(2, [&](const TestRank& rank) {
    auto options = Following(PlanOf(2, GetParam().terms));
    options.gradient_as_bucket_view = GetParam().view;
    const std::vector<Tensor> ought = Averages(rank, options, 1);
    const std::vector<Tensor> is = Averages(rank, options, kScale);
    ASSERT_EQ(is.size(), ought.size());
    ASSERT_GE(is.size(), 4u);
    for (size_t i = 0; i < is.size(); ++i) {
      EXPECT_TRUE(::torch::equal(is[i], ought[i])) << i;
      EXPECT_GT(is[i].abs().max().item<double>(), 0) << i;
    }
  });
}

// ---- when it may be set ----

using Names = std::vector<std::string>;

class SetGradientScaleTest : public testing::Test {
 protected:
  std::unique_ptr<DistributedDataParallel> Start(
      const schedule::Plan& plan = PlanOf(2)) {
    TestRank rank;
    rank.communicator = &communicator_;
    return Wrap(rank, model_, Following(plan));
  }
  absl::Status Run(DistributedDataParallel& ddp) {
    const MicroBatch micro = ddp.Accumulate();
    return ddp.Backward(model_->Use({"a"}, 8), micro);
  }

  LoopbackCommunicator communicator_;
  std::shared_ptr<Weights> model_ = std::make_shared<Weights>(Names{"a"});
};

TEST_F(SetGradientScaleTest, IsRefusedWithinAWindowAndChangesNothing) {
  auto ddp = Start();
  ASSERT_OK(ddp->SetGradientScale(4));
  ASSERT_OK(Run(*ddp));
  EXPECT_THAT(ddp->SetGradientScale(8),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("summed up gradients")));
  EXPECT_OK(ddp->SetGradientScale(4));  // as it is
  ASSERT_OK(Run(*ddp));
  EXPECT_EQ(model_->Gradient("a"), 8.0 / 4);
  EXPECT_OK(ddp->SetGradientScale(8));
}

TEST_F(SetGradientScaleTest, IsRefusedInADeclaredWindow) {
  auto ddp = Start();
  const std::vector<Accumulator::Begin> begins(2);
  ASSERT_OK(ddp->DeclareWindow(begins));
  EXPECT_THAT(ddp->SetGradientScale(8),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("a window is declared")));
}

TEST_F(SetGradientScaleTest, DividesWhatTheLastPassesOfAWindowAddUp) {
  auto ddp = Start();
  ASSERT_OK(ddp->SetGradientScale(4));
  const std::vector<Accumulator::Begin> begins(2);
  const auto micro = ddp->DeclareWindow(begins);
  ASSERT_OK(micro);
  (model_->Use({"a"}, 8) * (*micro)[0].loss_scale).backward();
  ASSERT_OK(ddp->BeginLastPass({0}));
  (model_->Use({"a"}, 8) * (*micro)[1].loss_scale).backward();
  ASSERT_OK(ddp->EndLastPass());
  ASSERT_OK(ddp->Synchronize());
  EXPECT_EQ(model_->Gradient("a"), 8.0 / 4);
}

TEST_F(SetGradientScaleTest, RefusesWhatNothingCanBeDividedBy) {
  auto ddp = Start();
  for (const double scale : {0.0, -1.0, kInfinity, kNan}) {
    EXPECT_THAT(ddp->SetGradientScale(scale),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("gradients are divided by it")));
  }
  ASSERT_OK(Run(*ddp));
  ASSERT_OK(Run(*ddp));
  EXPECT_EQ(model_->Gradient("a"), 8);
}

// ---- both, on ranks ----

// Gradients that overflow on one rank make all skip, and their scales stay
// equal; the norm by which gradients are clipped is that of the true ones.
TEST(LossScaleRanksTest, OverflowOnOneRankIsFollowedByAll) {
  schedule::Terms terms;
  terms.commit_vote = true;
  const schedule::Plan plan = PlanOf(1, terms);
  schedule::FakeSchedule schedule(2, plan);
  std::array<std::vector<double>, 2> scales;
  OnRanks(2, [&](const TestRank& rank) {
    auto options = Following(plan, schedule.gate(rank.index));
    options.skip_non_finite = true;
    options.reducer.max_norm = 1e30;
    auto model = std::make_shared<Weights>(Names{"a"});
    auto ddp = Wrap(rank, model, options);
    ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.5);
    LossScaling scaling;
    scaling.initial = 1 << 20;
    scaling.growth_every = 3;
    LossScale scale = Make(scaling);
    for (int step = 0; step < 8; ++step) {
      ASSERT_OK(ddp->SetGradientScale(scale.scale()));
      const MicroBatch micro = ddp->Accumulate();
      // On rank 1, and scaled, beyond what a float holds.
      const double x = step == 2 || step == 3 ? 1e33 * rank.index : 3;
      ASSERT_OK(ddp->Backward(model->Use({"a"}, x) * scale.scale(), micro));
      if (!ddp->skipped()) {
        EXPECT_EQ(ddp->reducer().report().gradient_norm, std::sqrt(18.0));
      }
      ASSERT_OK(ddp->StepOptimizer(optimizer));
      scale.OnStep(!ddp->skipped());
      scales[static_cast<size_t>(rank.index)].push_back(scale.scale());
    }
    EXPECT_EQ(ddp->optimizer_steps(), 6);
    EXPECT_EQ(model->weight("a")[0].item<double>(), 1 - 6 * 0.5 * 3);
  });
  const double m = 1 << 20;
  EXPECT_THAT(scales[0], testing::ElementsAre(m, m, m / 2, m / 4, m / 4, m / 4,
                                              m / 2, m / 2));
  EXPECT_EQ(scales[0], scales[1]);
}

// Passes in fp16 of parameters of any type.
struct HalfPasses : ::torch::nn::Module {
  explicit HalfPasses(::torch::ScalarType type)
      : weights(register_parameter("weights", ::torch::ones({2}, type))) {}
  // d(loss)/d(weights) = x. Notes whether a gradient of the pass overflows.
  Tensor Loss(double x, bool* overflows) {
    const Tensor half = weights.to(::torch::kHalf).mul(1);
    half.register_hook([overflows](const Tensor& gradient) {
      EXPECT_EQ(gradient.scalar_type(), ::torch::kHalf);
      *overflows = gradient.isinf().any().item<bool>();
    });
    return (half * x).to(::torch::kFloat).sum();
  }
  Tensor weights;
};

// 65504 is the largest number of 16 bits.
TEST(LossScaleRanksTest, GradientsOfHalfPassesOverflowAndTrainingGoesOn) {
  schedule::Terms terms;
  terms.commit_vote = true;
  const schedule::Plan plan = PlanOf(1, terms);
  for (const auto type : {::torch::kFloat, ::torch::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    schedule::FakeSchedule schedule(2, plan);
    std::array<std::vector<double>, 2> scales;
    std::array<std::vector<bool>, 2> overflows;
    std::array<std::vector<bool>, 2> skips;
    OnRanks(2, [&](const TestRank& rank) {
      auto options = Following(plan, schedule.gate(rank.index));
      options.skip_non_finite = true;
      auto model = std::make_shared<HalfPasses>(type);
      auto ddp = Wrap(rank, model, options);
      ::torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.125);
      LossScaling scaling;
      scaling.initial = 1 << 14;
      scaling.growth_every = 3;
      LossScale scale = Make(scaling);
      const auto at = static_cast<size_t>(rank.index);
      for (int step = 0; step < 8; ++step) {
        ASSERT_OK(ddp->SetGradientScale(scale.scale()));
        const MicroBatch micro = ddp->Accumulate();
        const double x = rank.index == 1 && step >= 2 && step <= 4 ? 8 : 1;
        bool overflow = false;
        ASSERT_OK(
            ddp->Backward(model->Loss(x, &overflow) * scale.scale(), micro));
        ASSERT_OK(ddp->StepOptimizer(optimizer));
        scale.OnStep(!ddp->skipped());
        overflows[at].push_back(overflow);
        skips[at].push_back(ddp->skipped());
        scales[at].push_back(scale.scale());
      }
      EXPECT_EQ(ddp->optimizer_steps(), 6);
      // One step had 8 and 1.
      EXPECT_EQ(model->weights[0].item<double>(), 1 - 0.125 * (5 + 4.5));
    });
    EXPECT_THAT(overflows[0], testing::Each(false));
    EXPECT_THAT(overflows[1], testing::ElementsAre(false, false, true, true,
                                                   false, false, false, false));
    EXPECT_EQ(skips[0], overflows[1]);
    EXPECT_EQ(skips[1], overflows[1]);
    const double m = 1 << 14;
    EXPECT_THAT(scales[0], testing::ElementsAre(m, m, m / 2, m / 4, m / 4,
                                                m / 4, m / 2, m / 2));
    EXPECT_EQ(scales[1], scales[0]);
  }
}

}  // namespace
}  // namespace coxswain::torch::loss_scale_test
