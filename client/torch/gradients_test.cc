// Where gradients are, that each kind of parameter gets its average, and steps
// whose passes do not give each parameter one gradient.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/test_ranks.h"

namespace coxswain::torch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using ::torch::Tensor;

using Names = std::vector<std::string>;

// ---- where gradients are ----

// One parameter of each kind.
struct Kinds : ::torch::nn::Module {
  Kinds() {
    const auto f32 = ::torch::kFloat32;
    Add("matrix", ::torch::ones({3, 5}, f32));
    Add("double", ::torch::ones({7}, ::torch::kFloat64));
    Add("half", ::torch::ones({6}, ::torch::kFloat16));
    Add("bfloat16", ::torch::ones({2, 3}, ::torch::kBFloat16));
    Add("transposed", ::torch::ones({4, 3}, f32).t());
    Add("channels_last", ::torch::ones({2, 3, 4, 2}, f32)
                             .contiguous(::torch::MemoryFormat::ChannelsLast));
    Add("with_gaps", ::torch::ones({4, 6}, f32).narrow(1, 0, 3));
    Add("scalar", ::torch::ones({}, f32));
    Add("empty", ::torch::ones({0}, f32));
    Add("empty_matrix", ::torch::ones({3, 0}, ::torch::kFloat64));
    Add("frozen", ::torch::ones({5}, f32), /*requires_grad=*/false);
    auto again = std::make_shared<::torch::nn::Module>();
    again->register_parameter("shared", parameters_.front());
    register_module("again", again);
  }

  void Add(const std::string& name, const Tensor& value,
           bool requires_grad = true) {
    // An alias keeps the strides, and is a leaf.
    parameters_.push_back(
        register_parameter(name, value.detach(), requires_grad));
  }

  // What each parameter's gradient is, for a factor of 1.
  static Tensor Weight(const Tensor& parameter) {
    return (::torch::arange(parameter.numel()).remainder(7) + 1)
        .to(::torch::kFloat64)
        .view(parameter.sizes());
  }

  // The shared parameter is in it twice.
  Tensor Loss(double factor) {
    Tensor loss = ::torch::zeros({}, ::torch::kFloat64);
    for (const Tensor& parameter : parameters_) {
      loss = loss + (parameter.to(::torch::kFloat64) * Weight(parameter)).sum();
    }
    const Tensor& shared = parameters_.front();
    return factor * (loss + (shared * Weight(shared)).sum());
  }

  std::vector<Tensor> parameters_;
};

void ExpectGradients(const Kinds& model, double factor) {
  for (const Tensor& parameter : model.parameters_) {
    const Tensor gradient = parameter.grad();
    if (!parameter.requires_grad()) {
      EXPECT_FALSE(gradient.defined());
      continue;
    }
    ASSERT_TRUE(gradient.defined());
    EXPECT_EQ(gradient.scalar_type(), parameter.scalar_type());
    const bool shared = parameter.is_same(model.parameters_.front());
    const Tensor expected =
        Kinds::Weight(parameter) * factor * (shared ? 2 : 1);
    EXPECT_TRUE(::torch::equal(gradient.to(::torch::kFloat64), expected))
        << gradient << "\ninstead of\n"
        << expected;
  }
}

bool InBucket(const DistributedDataParallel& ddp, int parameter,
              const Tensor& gradient) {
  return gradient.data_ptr() == ddp.reducer().GradientView(parameter).data;
}

// (view, ranks, undefine gradients between steps)
class KindsTest : public testing::TestWithParam<std::tuple<bool, int, bool>> {};

INSTANTIATE_TEST_SUITE_P(All, KindsTest,
                         testing::Combine(testing::Bool(),
                                          testing::Values(1, 2, 3),
                                          testing::Bool()));

TEST_P(KindsTest, EachGetsTheAverageOfTheSums) {
  const auto [view, ranks, undefine] = GetParam();
  OnRanks(ranks, [view = view, undefine = undefine](const TestRank& rank) {
    auto model = std::make_shared<Kinds>();
    DistributedDataParallelOptions options = SmallBuckets(view);
    options.accumulation_steps = 2;
    auto ddp = Wrap(rank, model, options);
    // 1 for matrix and 9 more, of four types.
    ASSERT_EQ(ddp->reducer().parameters().size(), 10u);
    EXPECT_GT(ddp->reducer().buckets().size(), 4u);
    for (int step = 1; step <= 3; ++step) {
      for (int micro = 0; micro < 2; ++micro) {
        ddp->Accumulate();
        ASSERT_OK(ddp->Backward(model->Loss(step * (rank.index + 1 + micro))));
        if (micro == 0) ExpectGradients(*model, step * (rank.index + 1));
      }
      // The mean over ranks of (r + 1) + (r + 2).
      ExpectGradients(*model, step * (rank.size + 2));
      for (Tensor& parameter : model->parameters_) {
        Tensor& gradient = parameter.mutable_grad();
        if (undefine) gradient = Tensor();
        if (gradient.defined()) gradient.zero_();
      }
    }
    EXPECT_EQ(ddp->hook().step(), 3);
  });
}

TEST(GradientsTest, WithoutViewsGradientsHaveTheStridesOfTheirParameters) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Kinds>();
    auto ddp = Wrap(rank, model, SmallBuckets(false));
    const Tensor last = model->named_parameters()["channels_last"];
    // No rank has a gradient of it: it is made from the average.
    ASSERT_OK(ddp->Backward(model->named_parameters()["scalar"] * 2));
    EXPECT_EQ(last.grad().strides(), last.strides());
    model->zero_grad();
    ASSERT_OK(ddp->Backward(model->Loss(1)));
    EXPECT_EQ(last.grad().strides(), last.strides());
    ExpectGradients(*model, 1);
  });
}

TEST(GradientsTest, WithoutViewsTheAverageIsWrittenWhereTheGradientWas) {
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
  auto ddp = Wrap(rank, model, SmallBuckets(false));
  const void* computed = nullptr;
  {
    const auto no_sync = ddp->NoSync();
    ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 3)));
    computed = model->weight("a").grad().data_ptr();
  }
  ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 4)));
  EXPECT_EQ(model->weight("a").grad().data_ptr(), computed);
  EXPECT_EQ(model->Gradient("a"), 7);
}

TEST(GradientsTest, ViewsAreAdoptedInPassesThatDoNotExchange) {
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
  auto ddp = Wrap(rank, model, SmallBuckets(true));
  const auto no_sync = ddp->NoSync();
  for (int pass = 1; pass <= 2; ++pass) {
    ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 3)));
    EXPECT_TRUE(InBucket(*ddp, 0, model->weight("a").grad()));
    EXPECT_EQ(model->Gradient("a"), 3 * pass);
  }
}

class BothModesTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(CopyAndView, BothModesTest, testing::Bool());

TEST_P(BothModesTest, GradientsSurviveTheRebuild) {
  OnRanks(2, [](const TestRank& rank) {
    auto model =
        std::make_shared<Weights>(std::vector<std::string>{"a", "b", "c"});
    auto ddp = Wrap(rank, model, SmallBuckets(GetParam()));
    const int64_t version = ddp->reducer().layout_version();
    // The gradients become ready in the order of registration.
    for (const char* name : {"a", "b", "c"}) {
      model->Use({name}, 1 + rank.index).backward();
    }
    ASSERT_OK(ddp->Synchronize());
    {
      // Summed up before the rebuild, exchanged after it.
      const auto no_sync = ddp->NoSync();
      model->Use({"a"}, 10).backward();
    }
    ASSERT_OK(ddp->FinishStep());
    ASSERT_NE(ddp->reducer().layout_version(), version);
    EXPECT_EQ(model->Gradient("a"), 11.5);
    EXPECT_EQ(model->Gradient("b"), 1.5);
    for (int i = 0; i < 3; ++i) {
      const Tensor gradient =
          model->parameters()[static_cast<size_t>(i)].grad();
      EXPECT_EQ(InBucket(*ddp, i, gradient), GetParam());
    }
    ASSERT_OK(ddp->Backward(model->Use({"b"}, 2)));
    EXPECT_EQ(model->Gradient("a"), 11.5);
    EXPECT_EQ(model->Gradient("b"), 3.5);
    EXPECT_EQ(model->Gradient("c"), 1.5);
  });
}

TEST_P(BothModesTest, GradientsSurviveAChangeOfTheBuckets) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
    auto ddp = Wrap(rank, model, SmallBuckets(GetParam()));
    EXPECT_EQ(ddp->reducer().buckets().size(), 2u);
    {
      const auto no_sync = ddp->NoSync();
      ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 2 + 2 * rank.index)));
    }
    ASSERT_OK(ddp->ChangeBuckets({1000, 1000}));
    EXPECT_EQ(ddp->reducer().buckets().size(), 1u);
    ASSERT_OK(ddp->Backward(model->Use({"a"}, 10)));
    EXPECT_EQ(model->Gradient("a"), 13);
    EXPECT_EQ(model->Gradient("b"), 3);
    EXPECT_EQ(InBucket(*ddp, 0, model->weight("a").grad()), GetParam());
  });
}

TEST(GradientsTest, AViewKeepsItsMemory) {
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
  auto ddp = Wrap(rank, model, SmallBuckets(true));
  ASSERT_OK(ddp->Backward(model->Use({"a", "b"}, 3)));
  const std::weak_ptr<BufferOwner> memory = ddp->reducer().Place(0).memory;
  Tensor kept = model->weight("a").grad();
  // Neither a new layout nor the end of the wrapper takes it away.
  ASSERT_OK(ddp->ChangeBuckets({1000, 1000}));
  EXPECT_FALSE(memory.expired());
  EXPECT_EQ(kept.sum().item<double>(), 6);
  ddp.reset();
  EXPECT_FALSE(memory.expired());
  EXPECT_EQ(kept.sum().item<double>(), 6);
  kept = Tensor();
  EXPECT_TRUE(memory.expired());
  EXPECT_EQ(model->Gradient("a"), 3);
}

TEST_P(BothModesTest, TwoPassesThatReachAParameterInOneStepAreAnError) {
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
  auto ddp = Wrap(rank, model, SmallBuckets(GetParam()));
  model->Use({"a"}, 1).backward();
  model->Use({"a"}, 1).backward();
  EXPECT_THAT(ddp->Synchronize(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("\"a\" was marked ready twice")));
}

TEST_P(BothModesTest, AParameterMayBeUsedTwiceInAGraph) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
    auto ddp = Wrap(rank, model, SmallBuckets(GetParam()));
    const Tensor a = model->weight("a");
    ASSERT_OK(ddp->Backward((a * 2 + a * a * (rank.index + 1)).sum()));
    EXPECT_EQ(model->Gradient("a"), 5);
  });
}

TEST_P(BothModesTest, TheDecisionBelongsToTheBackwardPass) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
    DistributedDataParallelOptions options = SmallBuckets(GetParam());
    options.forward_in_scope = false;
    auto ddp = Wrap(rank, model, options);
    Tensor inside;
    const Tensor outside = model->Use({"a"}, 10 + 2 * rank.index);
    {
      const auto no_sync = ddp->NoSync();
      inside = model->Use({"a"}, 100 + 20 * rank.index);
      ASSERT_OK(ddp->Backward(outside));
    }
    EXPECT_EQ(model->Gradient("a"), 10 + 2 * rank.index);
    EXPECT_EQ(ddp->hook().step(), 0);
    ASSERT_OK(ddp->Backward(inside));
    EXPECT_EQ(model->Gradient("a"), 121);
    EXPECT_EQ(ddp->hook().step(), 1);
  });
}

TEST_P(BothModesTest, SeveralForwardsMayComeBeforeABackward) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(std::vector<std::string>{"a", "b"});
    DistributedDataParallelOptions options = SmallBuckets(GetParam());
    options.accumulation_steps = 2;
    options.forward_in_scope = false;
    auto ddp = Wrap(rank, model, options);
    for (int step = 1; step <= 2; ++step) {
      const Tensor first = model->Use({"a"}, 1 + rank.index);
      const Tensor second = model->Use({"a", "b"}, 10 + 2 * rank.index);
      EXPECT_FALSE(ddp->Accumulate().sync);
      ASSERT_OK(ddp->Backward(first));
      EXPECT_TRUE(ddp->Accumulate().sync);
      ASSERT_OK(ddp->Backward(second));
      EXPECT_EQ(model->Gradient("a"), 12.5);
      EXPECT_EQ(model->Gradient("b"), 11);
      EXPECT_EQ(ddp->hook().step(), step);
      model->zero_grad();
    }
  });
}

// Averages of a step with this bound, in double precision, and their norm.
struct Averages {
  Averages(const TestRank& rank, bool view, double max_norm) {
    auto model = std::make_shared<Kinds>();
    DistributedDataParallelOptions options = SmallBuckets(view);
    options.reducer.max_norm = max_norm;
    options.reducer.statistics = true;
    auto ddp = Wrap(rank, model, options);
    // Some gradients are not there at all, and are averages all the same.
    EXPECT_OK(ddp->Backward(rank.index == 0
                                ? model->Loss(2)
                                : model->named_parameters()["matrix"].sum()));
    norm = ddp->reducer().report().gradient_norm;
    for (const Tensor& parameter : model->parameters_) {
      if (!parameter.requires_grad()) continue;
      bits.push_back(parameter.element_size() == 2 ? 16 : 64);
      values.push_back(::torch::zeros(parameter.sizes(), ::torch::kFloat64));
      values.back().mutable_grad() = parameter.grad().to(::torch::kFloat64);
    }
  }
  double norm = 0;
  std::vector<int> bits;
  std::vector<Tensor> values;
};

TEST_P(BothModesTest, ClipsAsLibtorchDoes) {
  OnRanks(2, [](const TestRank& rank) {
    const Averages clipped(rank, GetParam(), 5);
    const Averages whole(rank, GetParam(), 0);
    const double norm = ::torch::nn::utils::clip_grad_norm_(whole.values, 5);
    EXPECT_GT(norm, 10);
    EXPECT_NEAR(clipped.norm, norm, 1e-6 * norm);
    EXPECT_EQ(clipped.norm, whole.norm);
    for (size_t i = 0; i < whole.values.size(); ++i) {
      const double tolerance = whole.bits[i] == 16 ? 4e-3 : 1e-6;
      EXPECT_TRUE(::torch::allclose(clipped.values[i].grad(),
                                    whole.values[i].grad(), tolerance))
          << clipped.values[i].grad() << whole.values[i].grad();
    }
  });
}

TEST(GradientsTest, RanksThatDifferAreRefusedWithADiff) {
  OnRanks(2, [](const TestRank& rank) {
    const std::vector<std::string> names = {"a", "b"};
    DistributedDataParallelOptions options = SmallBuckets(false);
    options.accumulation_steps = 1 + rank.index;
    EXPECT_THAT(DistributedDataParallel::Create(
                    std::make_shared<Weights>(names), rank.communicator,
                    std::make_unique<AverageHook>(), options),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("accumulation_steps 2")));
  });
}

TEST(DescribeParametersTest, StridesAreGivenWhereTheyAreNotRowMajor) {
  ASSERT_OK_AND_ASSIGN(const auto specs, DescribeParameters(Kinds()));
  for (const ParameterSpec& spec : specs) {
    std::vector<int64_t> expected;
    if (spec.name == "transposed") expected = {1, 3};
    if (spec.name == "channels_last") expected = {24, 1, 6, 3};
    if (spec.name == "with_gaps") expected = {6, 1};
    EXPECT_EQ(spec.strides, expected) << spec.name;
  }
}

// libtorch hands both parameters the same memory here, and takes it for
// granted that it is not written to.
struct Sharing : ::torch::nn::Module {
  Sharing() {
    a = register_parameter("a", ::torch::ones({2, 3}));
    b = register_parameter("b", ::torch::ones({6}));
    c = register_parameter("c", ::torch::ones({}));
    d = register_parameter("d", ::torch::ones({1}));
  }
  Tensor Loss(double x) {
    return ((a + b.view({2, 3})) * x).sum() + (c.sum() + d.sum()) * x;
  }
  Tensor a, b, c, d;
};

TEST_P(BothModesTest, GradientsThatShareMemoryAreAveragedApart) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Sharing>();
    auto ddp = Wrap(rank, model, SmallBuckets(GetParam()));
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK(ddp->Backward(model->Loss(rank.index == 0 ? 1 : 4)));
      for (const Tensor& parameter : model->parameters()) {
        EXPECT_TRUE(::torch::all(parameter.grad() == 2.5).item<bool>())
            << parameter.grad();
      }
      for (Tensor& parameter : model->parameters()) {
        parameter.mutable_grad() = Tensor();
      }
    }
    // Sums of two passes, which plain libtorch gets wrong.
    {
      const auto scope = ddp->NoSync();
      ASSERT_OK(ddp->Backward(model->Loss(1)));
    }
    ASSERT_OK(ddp->Backward(model->Loss(rank.index == 0 ? 1 : 4)));
    for (const Tensor& parameter : model->parameters()) {
      EXPECT_TRUE(::torch::all(parameter.grad() == 3.5).item<bool>())
          << parameter.grad();
    }
  });
}

// ---- parameters without a use, static graphs ----

// (view, whether the caller runs the backward pass)
class StepsTest : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  static bool view() { return std::get<0>(GetParam()); }
  static absl::Status Backward(DistributedDataParallel& ddp,
                               const Tensor& loss) {
    if (!std::get<1>(GetParam())) return ddp.Backward(loss);
    loss.backward();
    absl::Status status = ddp.Synchronize();
    return status.ok() ? ddp.FinishStep() : status;
  }
  static DistributedDataParallelOptions FindUnused() {
    DistributedDataParallelOptions options = SmallBuckets(view());
    options.reducer.find_unused_parameters = true;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(All, StepsTest,
                         testing::Combine(testing::Bool(), testing::Bool()));

// ---- unused parameters ----

TEST_P(StepsTest, WhatNoRankUsesStaysAsItIs) {
  OnRanks(2, [](const TestRank& rank) {
    auto model =
        std::make_shared<Weights>(Names{"all", "one", "none", "kept", "apart"});
    auto ddp = Wrap(rank, model, FindUnused());
    model->weight("kept").mutable_grad() =
        ::torch::full({2}, 7.0F + rank.index);
    if (rank.index == 0) {
      model->weight("apart").mutable_grad() = ::torch::full({2}, 5.0F);
    }
    for (int step = 0; step < 3; ++step) {
      const Names used = rank.index == 0 ? Names{"all"} : Names{"all", "one"};
      ASSERT_OK(Backward(*ddp, model->Use(used, 2 + 2 * rank.index)));
      EXPECT_EQ(model->Gradient("all"), 3);
      EXPECT_EQ(model->Gradient("one"), 2);
      EXPECT_TRUE(std::isnan(model->Gradient("none")));
      EXPECT_EQ(model->Gradient("kept"), 7 + rank.index);
      if (rank.index == 0) {
        EXPECT_EQ(model->Gradient("apart"), 5);
      } else {
        EXPECT_TRUE(std::isnan(model->Gradient("apart")));
      }
      model->weight("all").mutable_grad() = Tensor();
      model->weight("one").mutable_grad() = Tensor();
    }
    // In use after all: what stood there counts.
    ASSERT_OK(Backward(*ddp, model->Use({"none", "kept"}, 1)));
    EXPECT_EQ(model->Gradient("none"), 1);
    EXPECT_EQ(model->Gradient("kept"), 8.5);
  });
}

TEST_P(StepsTest, AUseInAnEarlierPassOfTheWindowCounts) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b", "c"});
    DistributedDataParallelOptions options = FindUnused();
    options.accumulation_steps = 2;
    auto ddp = Wrap(rank, model, options);
    for (int step = 0; step < 2; ++step) {
      ddp->Accumulate();
      model->Use(rank.index == 0 ? Names{"a", "b"} : Names{"a"}, 4).backward();
      ddp->Accumulate();
      ASSERT_OK(Backward(*ddp, model->Use({"a"}, 1)));
      EXPECT_EQ(model->Gradient("a"), 5);
      EXPECT_EQ(model->Gradient("b"), 2);
      EXPECT_TRUE(std::isnan(model->Gradient("c")));
      for (const Tensor& parameter : model->parameters()) {
        parameter.mutable_grad() = Tensor();
      }
    }
    // The marks ended with the exchange.
    ddp->Accumulate();
    model->Use({"a"}, 1).backward();
    ddp->Accumulate();
    ASSERT_OK(Backward(*ddp, model->Use({"a"}, 1)));
    EXPECT_TRUE(std::isnan(model->Gradient("b")));
  });
}

TEST_P(StepsTest, WithoutTheOptionUnusedParametersHaveZeros) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b"});
    auto ddp = Wrap(rank, model, SmallBuckets(view()));
    ASSERT_OK(Backward(*ddp, model->Use({"a"}, 1)));
    EXPECT_EQ(model->Gradient("b"), 0);
  });
}

// A communicator that lets all through and is asked what has been launched.
struct Watched {
  Watched() : held(std::make_unique<LoopbackCommunicator>()) {
    held.Open();
    rank.communicator = &held;
  }
  HeldCommunicator held;
  TestRank rank;
};

// Launches that come before the gradient of `tensor` is computed.
void ExpectLaunchBefore(const Tensor& tensor, HeldCommunicator* held,
                        bool* seen) {
  const size_t before = held->launches().size();
  tensor.register_hook([held, before, seen](const Tensor&) {
    *seen = held->AwaitLaunches(before + 1, kSoon);
  });
}

TEST(FindUnusedTest, BucketsOfUnreachedParametersLeaveAtOnce) {
  Watched watched;
  auto model = std::make_shared<Weights>(Names{"used", "idle"});
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.reducer.find_unused_parameters = true;
  auto ddp = Wrap(watched.rank, model, options);
  bool seen = false;
  ExpectLaunchBefore(model->weight("used"), &watched.held, &seen);
  ASSERT_OK(ddp->Backward(model->Use({"used"}, 1)));
  EXPECT_TRUE(seen);
}

// ---- static graph ----

// Multiplies by the model's weight "again", computing it again in the backward
// pass, with a backward pass inside, as checkpointing does.
struct Recomputed : ::torch::autograd::Function<Recomputed> {
  static Tensor forward(::torch::autograd::AutogradContext* context,
                        const Tensor& x, Weights* model) {
    context->saved_data["x"] = x;
    context->saved_data["model"] = reinterpret_cast<int64_t>(model);
    return x * model->weight("again");
  }
  static ::torch::autograd::tensor_list backward(
      ::torch::autograd::AutogradContext* context,
      const ::torch::autograd::tensor_list& gradients) {
    const ::torch::AutoGradMode enable(true);
    auto* const model =
        reinterpret_cast<Weights*>(context->saved_data["model"].toInt());
    const Tensor x =
        context->saved_data["x"].toTensor().detach().requires_grad_();
    (x * model->weight("again")).backward(gradients[0]);
    return {x.grad(), Tensor()};
  }
};

// All weights are 1: the gradients are x for "first", x times for "again".
Tensor Recompute(Weights& model, double x, int times) {
  Tensor value = model.weight("first") * x;
  for (int i = 0; i < times; ++i) value = Recomputed::apply(value, &model);
  return value.sum();
}

TEST_P(StepsTest, ABackwardPassInsideOneIsNotTheEnd) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"first", "again"});
    auto ddp = Wrap(rank, model, SmallBuckets(view()));
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      ASSERT_OK(Backward(*ddp, Recompute(*model, 1 + rank.index, 1)));
      EXPECT_EQ(model->Gradient("first"), 1.5);
      EXPECT_EQ(model->Gradient("again"), 1.5);
    }
  });
}

TEST_P(StepsTest, SeveralGradientsInAPassNeedAStaticGraph) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"first", "again", "idle"});
    DistributedDataParallelOptions options = SmallBuckets(view());
    options.static_graph = true;
    options.accumulation_steps = 2;
    auto ddp = Wrap(rank, model, options);
    for (int step = 0; step < 4; ++step) {
      model->zero_grad();
      ddp->Accumulate();
      // A pass that does not exchange may be another one.
      ASSERT_OK(ddp->Backward(model->Use({"again"}, 10)));
      ddp->Accumulate();
      ASSERT_OK(Backward(*ddp, Recompute(*model, 1 + rank.index, 3)));
      EXPECT_EQ(model->Gradient("first"), 1.5);
      EXPECT_EQ(model->Gradient("again"), 14.5);
      EXPECT_EQ(model->Gradient("idle"), 0);
    }
  });
  LoopbackCommunicator communicator;
  TestRank rank;
  rank.communicator = &communicator;
  auto model = std::make_shared<Weights>(Names{"first", "again"});
  auto ddp = Wrap(rank, model, SmallBuckets(view()));
  EXPECT_THAT(Backward(*ddp, Recompute(*model, 1, 2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("\"again\" was marked ready twice")));
}

TEST_P(StepsTest, AStaticGraphThatChangesIsAnErrorForAllRanks) {
  for (const int times : {1, 3}) {
    OnRanks(2, [times](const TestRank& rank) {
      auto model = std::make_shared<Weights>(Names{"first", "again"});
      DistributedDataParallelOptions options = SmallBuckets(view());
      options.static_graph = true;
      auto ddp = Wrap(rank, model, options);
      ASSERT_OK(Backward(*ddp, Recompute(*model, 1, 2)));
      model->zero_grad();
      const absl::Status status =
          Backward(*ddp, Recompute(*model, 1, rank.index == 0 ? 2 : times));
      if (rank.index == 0) {
        EXPECT_THAT(status, Not(IsOk()));
      } else {
        EXPECT_THAT(status,
                    StatusIs(absl::StatusCode::kFailedPrecondition,
                             AllOf(HasSubstr("\"again\" got"),
                                   HasSubstr("and 2 in the first one"))));
      }
    });
  }
}

TEST(StaticGraphTest, GradientsLeaveEarlyFromTheSecondPassOn) {
  Watched watched;
  auto model = std::make_shared<Weights>(Names{"first", "again", "idle"});
  DistributedDataParallelOptions options = SmallBuckets(true);
  options.static_graph = true;
  options.reducer.rebuild = false;
  options.reducer.buckets = {1, 1};
  auto ddp = Wrap(watched.rank, model, options);
  // In one bucket each, so that two leave before the first layer's gradient:
  // that of "idle" before the pass, that of "again" after its second gradient.
  for (const size_t early : {0, 2}) {
    const size_t before = watched.held.launches().size();
    size_t seen = 0;
    const unsigned hook =
        model->weight("first").register_hook([&](const Tensor&) {
          if (early > 0) {
            EXPECT_TRUE(watched.held.AwaitLaunches(before + early, kSoon));
          }
          seen = watched.held.launches().size() - before;
        });
    ASSERT_OK(ddp->Backward(Recompute(*model, 1, 2)));
    model->weight("first").remove_hook(hook);
    EXPECT_EQ(seen, early);
  }
}

TEST_P(StepsTest, AStaticGraphWithUnusedParameters) {
  OnRanks(2, [](const TestRank& rank) {
    auto model = std::make_shared<Weights>(Names{"a", "b", "c"});
    DistributedDataParallelOptions options = FindUnused();
    options.static_graph = true;
    auto ddp = Wrap(rank, model, options);
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK(Backward(
          *ddp, model->Use(rank.index == 0 ? Names{"a", "b"} : Names{"a"}, 4)));
      EXPECT_EQ(model->Gradient("a"), 4);
      EXPECT_EQ(model->Gradient("b"), 2);
      EXPECT_TRUE(std::isnan(model->Gradient("c")));
      for (const Tensor& parameter : model->parameters()) {
        parameter.mutable_grad() = Tensor();
      }
    }
  });
}

}  // namespace
}  // namespace coxswain::torch
