#include "hooks/low_rank/powersgd.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/low_rank/low_rank_config.h"
#include "hooks/low_rank/worlds_for_test.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns a world of powersgd that has done its two plain steps.
HookWorld StartedWith(const std::string& options,
                      const std::vector<ParameterSpec>& parameters, int size) {
  return Started("powersgd(start_step=2" + options + ")", parameters, size);
}

// What a step leaves out is sent later: the sum of the results stays within a
// bounded distance of the sum of the averages, so it converges relatively.
TEST(PowerSgdTest, SumOfResultsConvergesToTheSumOfAverages) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}, DType::kFloat32),
      Parameter("b", {16}, DType::kFloat32)};
  HookWorld world = StartedWith(",rank=2", parameters, 2);
  HookWorld careless =
      StartedWith(",rank=2,error_feedback=false", parameters, 2);
  Gradients results, carelessly, averages;
  // A fixed part in all gradients, of full rank, and noise.
  const Gradients fixed = NormalGradients(parameters, 3, 0, 0);
  std::map<int64_t, double> distance;
  for (int64_t step = 1; step <= 400; ++step) {
    auto local = Local(parameters, 2, step);
    for (Gradients& one : local) AddTo(one, fixed);
    AddTo(results, world.Step(local));
    AddTo(carelessly, careless.Step(local));
    AddTo(averages, MeanOver(local));
    distance[step] = RelativeDifference(results, averages);
  }
  EXPECT_LT(distance[400], 0.05);
  EXPECT_LT(distance[400], distance[40] / 4);
  // Without feedback it does not.
  EXPECT_GT(RelativeDifference(carelessly, averages), 0.3);
}

TEST(PowerSgdTest, OnlyMatricesThatGetSmallerAreCompressed) {
  EXPECT_EQ(LowRankOf({}, 1, 2), 0);
  EXPECT_EQ(LowRankOf({100}, 1, 0), 0);
  EXPECT_EQ(LowRankOf({0, 100}, 1, 0), 0);
  EXPECT_EQ(LowRankOf({100, 0, 3}, 1, 0), 0);
  EXPECT_EQ(LowRankOf({100, 1}, 1, 1), 0);
  EXPECT_EQ(LowRankOf({8, 8}, 2, 2), 0);  // 64 < 64 is false
  EXPECT_EQ(LowRankOf({8, 9}, 2, 2), 2);  // 68 < 72
  EXPECT_EQ(LowRankOf({64, 32, 3, 3}, 4, 2), 4);
  EXPECT_EQ(LowRankOf({3, 50}, 8, 0), 3);  // no more than rows
}

// P of all matrices and all raw tensors of a bucket travel together, then all
// Q; a bucket without matrices has no second collective.
TEST(PowerSgdTest, ABucketTakesTwoAllReducesWhateverIsInIt) {
  const auto parameters = ThreeBucketsOfParameters();
  for (const char* spec : {"powersgd(rank=2,start_step=2)",
                           "powersgd(rank=2,start_step=2,mode=pytorch)",
                           "fp16(powersgd(rank=2,start_step=2))"}) {
    const int64_t width = spec[0] == 'f' ? 2 : 8;
    HookWorld world = Started(spec, parameters, 3, ThreeBuckets());
    for (int64_t step = 2; step < 5; ++step) {
      const Traffic traffic = TrafficOfStep(world, Local(parameters, 3, step));
      EXPECT_EQ(traffic.collectives, 2 + 2 + 1);
      const int64_t p = 7 + 2 * 16 + 1 + 2 * 16 + 2 * 20 + 2 * 12 + 33;
      const int64_t q = 2 * 24 + 2 * 24 + 2 * 20 + 2 * 18;
      EXPECT_EQ(traffic.payload_bytes, (p + q) * width);
    }
  }
}

TEST(PowerSgdTest, RawTensorsAreExactAndLeaveNoError) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}), Parameter("b", {7}), Parameter("s", {})};
  HookWorld world = StartedWith("", parameters, 3);
  for (int64_t step = 0; step < 5; ++step) {
    const auto local = Local(parameters, 3, step);
    Gradients result = world.Step(local);
    Gradients mean = MeanOver(local);
    result.erase(result.begin());
    mean.erase(mean.begin());
    EXPECT_LE(RelativeDifference(result, mean), 1e-15);
  }
  for (const StateTensor& tensor : world.Save().tensors) {
    EXPECT_EQ(tensor.parameter, "w");
  }
}

// A step of zeros, or of a lower rank than the factors, leaves zero columns
// in Q. They must not stay zero for ever.
TEST(PowerSgdTest, RecoversFromZeroAndFromLowRankGradients) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {12, 12})};
  for (const double low_rank : {0.0, 1.0}) {
    HookWorld world = StartedWith(",rank=2", parameters, 2);
    const Gradients ones = {std::vector<double>(144, low_rank)};
    world.Step({ones, ones});
    world.Step({ones, ones});
    // A gradient of rank 2 is within reach of two columns.
    Gradients two = ones;
    for (size_t i = 0; i < 144; ++i) {
      two[0][i] = 1 + static_cast<double>(i / 12) * static_cast<double>(i % 12);
    }
    Gradients sum;
    for (int step = 1; step <= 30; ++step) {
      sum.clear();
      AddTo(sum, world.Step({two, two}));
    }
    EXPECT_LE(RelativeDifference(sum, two), 1e-6);
  }
}

TEST(PowerSgdTest, SeedAndNameDecideTheFirstFactor) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16})};
  const std::vector<ParameterSpec> renamed = {Parameter("v", {16, 16})};
  const auto local = Local(parameters, 2, 0);
  const Gradients result = StartedWith("", parameters, 2).Step(local);
  EXPECT_EQ(StartedWith(",seed=0", parameters, 2).Step(local), result);
  EXPECT_NE(StartedWith(",seed=1", parameters, 2).Step(local), result);
  EXPECT_NE(StartedWith("", renamed, 2).Step(local), result);
}

TEST(PowerSgdTest, WithoutWarmStartEveryStepDrawsAnew) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16})};
  HookWorld world =
      StartedWith(",warm_start=false,error_feedback=false", parameters, 2);
  const auto local = Local(parameters, 2, 0);
  EXPECT_NE(world.Step(local), world.Step(local));
  EXPECT_TRUE(world.Save().tensors.empty());
}

// The sum overflows float16 on its way although every gradient is finite.
TEST(PowerSgdTest, OverflowOnTheWayEntersNoState) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}, DType::kFloat32)};
  HookWorld world("fp16(powersgd(start_step=2))", parameters, 2);
  for (int64_t step = 0; step < 4; ++step)
    world.Step(Local(parameters, 2, step));
  const std::string before = SerializeHookState(world.Save());
  auto local = Local(parameters, 2, 5);
  AddTo(local[0], local[0], 1e6);
  const Gradients result = world.Exchange(local);
  for (const double value : result[0]) EXPECT_TRUE(std::isnan(value));
  world.Rollback();
  EXPECT_EQ(SerializeHookState(world.Save()), before);
}

// The infinity is in a raw tensor, the state is that of a matrix in the same
// bucket, and an earlier try of the step had already staged something.
TEST(PowerSgdTest, CommittingAPoisonedStepKeepsTheState) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16}),
                                                 Parameter("b", {7})};
  HookWorld world = StartedWith("", parameters, 2);
  world.Step(Local(parameters, 2, 0));
  HookState before = world.Save();
  auto local = Local(parameters, 2, 1);
  world.Exchange(local);
  world.Rollback();
  local[1][1][3] = std::numeric_limits<double>::infinity();
  const Gradients result = world.Step(local);
  for (const double value : result[0]) EXPECT_TRUE(std::isnan(value));
  ++before.step;  // it was a step all the same
  EXPECT_EQ(SerializeHookState(world.Save()), SerializeHookState(before));
}

TEST(PowerSgdTest, NarrowWrapperHalvesThePayloadAndKeepsTheError) {
  const auto parameters = OddParameters(DType::kFloat32);
  HookWorld wide("powersgd(start_step=2)", parameters, 2);
  HookWorld narrow("bf16(powersgd(start_step=2))", parameters, 2);
  for (int64_t step = 0; step < 4; ++step) {
    wide.Step(Local(parameters, 2, step));
    narrow.Step(Local(parameters, 2, step));
  }
  EXPECT_EQ(narrow.payload_bytes() * 2, wide.payload_bytes());
  for (const StateTensor& tensor : narrow.Save().tensors) {
    EXPECT_EQ(tensor.dtype, DType::kFloat32);
  }
  // The state is the inner hook's: the wrapper may come and go.
  EXPECT_OK(wide.Load(narrow.Save()));
  EXPECT_OK(narrow.Load(wide.Save()));
}

// The residuals differ, their means do not.
TEST(PowerSgdTest, ModesAgreeInTheirResults) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {12, 16}), Parameter("b", {7}), Parameter("v", {16, 9})};
  for (const char* more : {"", ",rank=2", ",rank=4"}) {
    const std::string options = std::string(",min_compression_rate=1") + more;
    HookWorld local_mode = StartedWith(options, parameters, 3);
    HookWorld pytorch = StartedWith(options + ",mode=pytorch", parameters, 3);
    for (int64_t step = 0; step < 30; ++step) {
      const auto local = Local(parameters, 3, step);
      EXPECT_LE(RelativeDifference(pytorch.Step(local), local_mode.Step(local)),
                1e-10)
          << options << ", step " << step;
    }
  }
}

TEST(PowerSgdTest, PyTorchKeepsAnErrorOfRawTensorsWhoseMeanIsZero) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16}),
                                                 Parameter("b", {7})};
  HookWorld world = StartedWith(",mode=pytorch", parameters, 2);
  world.Step(Local(parameters, 2, 0));
  const HookState state = world.Save();
  int raw = 0;
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.parameter != "b") continue;
    ++raw;
    for (const double value : ValuesOf(tensor)) EXPECT_NEAR(value, 0, 1e-14);
  }
  EXPECT_EQ(raw, 1);
  // On one rank only, such an error is visible.
  HookState other = state;
  for (StateTensor& tensor : other.tensors) {
    if (tensor.parameter != "b") continue;
    const std::vector<double> ones(7, 1.0);
    tensor.data.assign(reinterpret_cast<const char*>(ones.data()), 7 * 8);
  }
  ASSERT_OK(world.Load(other));
  const auto local = Local(parameters, 2, 1);
  Gradients expected = MeanOver(local);
  for (double& value : expected[1]) value += 1;
  EXPECT_LE(RelativeDifference({world.Step(local)[1]}, {expected[1]}), 1e-14);
}

// Tests put a Q of their own in, and see what becomes of it.
TEST(PowerSgdTest, LoadedQIsUsedOnceWithoutWarmStart) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16})};
  const std::string options = ",warm_start=false,error_feedback=false";
  HookWorld drawn = StartedWith(options, parameters, 2);
  HookWorld loaded = StartedWith(options, parameters, 2);
  std::vector<double> q(16, 0.0);
  q[3] = 1;
  HookState state = loaded.Save();
  EXPECT_TRUE(state.tensors.empty());
  state.tensors.push_back({"q",
                           "w",
                           {1, 16},
                           DType::kFloat64,
                           std::string(reinterpret_cast<const char*>(q.data()),
                                       16 * sizeof(double))});
  ASSERT_OK(loaded.Load(state));
  const auto local = Local(parameters, 2, 0);
  // X Q is column 3; the result is its projection of the whole.
  const Gradients mean = MeanOver(local);
  Gradients expected = {std::vector<double>(256, 0.0)};
  double norm = 0;
  for (size_t i = 0; i < 16; ++i) {
    norm += mean[0][i * 16 + 3] * mean[0][i * 16 + 3];
  }
  for (size_t j = 0; j < 16; ++j) {
    double along = 0;
    for (size_t i = 0; i < 16; ++i) {
      along += mean[0][i * 16 + 3] * mean[0][i * 16 + j];
    }
    for (size_t i = 0; i < 16; ++i) {
      expected[0][i * 16 + j] = mean[0][i * 16 + 3] * along / norm;
    }
  }
  EXPECT_LE(RelativeDifference(loaded.Exchange(local), expected), 1e-12);
  loaded.Rollback();
  EXPECT_LE(RelativeDifference(loaded.Step(local), expected), 1e-12);
  drawn.Step(local);
  for (int64_t step = 1; step < 4; ++step) {
    const auto next = Local(parameters, 2, step);
    EXPECT_EQ(loaded.Step(next), drawn.Step(next));
  }
}

// Until it starts, the steps are plain, whatever stands ready.
TEST(PowerSgdTest, AStateThatWaitsForItsStartFreezesNoLayout) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16})};
  HookWorld world = StartedWith("", parameters, 2);
  EXPECT_TRUE(world.hook(0).needs_frozen_layout());
  world.Step(Local(parameters, 2, 2));
  HookWorld later("powersgd(start_step=4)", parameters, 2);
  ASSERT_OK(later.Load(world.Save()));
  for (int rank = 0; rank < 2; ++rank) {  // one of them has the error
    EXPECT_FALSE(later.hook(rank).needs_frozen_layout());
  }
  later.Step(Local(parameters, 2, 3));
  EXPECT_TRUE(later.hook(0).needs_frozen_layout());
}

TEST(PowerSgdTest, SavingChangesNothing) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}, DType::kFloat32),
      Parameter("v", {20, 30}, DType::kFloat32)};
  HookWorld saving = StartedWith(",rank=2", parameters, 3);
  HookWorld silent = StartedWith(",rank=2", parameters, 3);
  for (int64_t step = 0; step < 4; ++step) {
    const auto local = Local(parameters, 3, step);
    EXPECT_EQ(saving.Step(local), silent.Step(local));
    EXPECT_EQ(SerializeHookState(saving.Save()),
              SerializeHookState(saving.Save()));
  }
}

TEST(PowerSgdTest, OptionsOfSpeedChangeNoResult) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16})};
  HookWorld plain = StartedWith("", parameters, 2);
  HookWorld other =
      StartedWith(",batch_same_shape=true,stats_every=7", parameters, 2);
  for (int64_t step = 0; step < 3; ++step) {
    const auto local = Local(parameters, 2, step);
    EXPECT_EQ(plain.Step(local), other.Step(local));
  }
  EXPECT_OK(plain.Load(other.Save()));
}

// Instead of Q, 4 bytes a rank: who has it.
TEST(PowerSgdTest, PoisonedStepSendsAReportInPlaceOfQ) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}, DType::kFloat32)};
  HookWorld world = StartedWith("", parameters, 3);
  auto local = Local(parameters, 3, 0);
  local[2][0][100] = std::nan("");
  const int64_t before = world.payload_bytes();
  world.Exchange(local);
  EXPECT_EQ(world.payload_bytes() - before, 16 * 4 + 3 * 4);
  for (int rank = 0; rank < 3; ++rank) {
    const auto found = world.hook(rank).non_finite();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].rank, 2);
    EXPECT_EQ(found[0].parameter, "w");
  }
  world.Rollback();
  EXPECT_EQ(world.hook(0).non_finite().size(), 1u);  // until the next step
  world.Step(Local(parameters, 3, 0));
  EXPECT_TRUE(world.hook(0).non_finite().empty());
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(PowerSgdTest, LogsWhatWasSavedAndOneWarningPerPoisonedStep) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}), Parameter("b", {7}), Parameter("v", {16, 16})};
  testing::internal::CaptureStderr();
  HookWorld world = StartedWith(",stats_every=2", parameters, 2);
  for (int64_t step = 0; step < 5; ++step) world.Step(Local(parameters, 2, 0));
  const std::string savings = testing::internal::GetCapturedStderr();
  EXPECT_EQ(Count(savings, "compressed_steps="), 2u) << savings;
  EXPECT_THAT(savings, HasSubstr("compressed_steps=4 elements=2076 "
                                 "elements_sent=284 ratio=7.3"));
  testing::internal::CaptureStderr();
  auto local = Local(parameters, 2, 0);
  local[1][0][0] = local[0][2][5] = std::nan("");
  world.Exchange(local);
  world.Rollback();
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_EQ(Count(warning, "gradients_not_finite"), 1u) << warning;
  EXPECT_THAT(warning, AllOf(HasSubstr("step=7"), HasSubstr("rank 0: v"),
                             HasSubstr("rank 1: w")));
}

TEST(PowerSgdTest, EveryMatrixIsInTheShardOfOneRank) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("a", {16, 16}), Parameter("b", {16, 16}),
      Parameter("c", {16, 16}), Parameter("d", {16, 32})};
  HookWorld world = StartedWith("", parameters, 4);
  world.Step(Local(parameters, 4, 0));
  int errors = 0;
  for (const StateTensor& tensor : world.Save().tensors) {
    errors += tensor.kind == "error" ? 1 : 0;
  }
  EXPECT_EQ(errors, 4);  // merging has refused duplicates
}

TEST(PowerSgdTest, StateOfOtherOptionsOrParametersIsRefusedWithTheDifference) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16}),
                                                 Parameter("b", {16})};
  HookWorld world = StartedWith("", parameters, 2);
  world.Step(Local(parameters, 2, 0));
  const HookState state = world.Save();
  const auto refusal = [&](const std::string& spec,
                           const std::vector<ParameterSpec>& other) {
    return HookWorld(spec, other, 2).Load(state);
  };
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  EXPECT_OK(refusal("powersgd(start_step=77)", parameters));
  EXPECT_THAT(refusal("powersgd(rank=2)", parameters),
              StatusIs(kCode, HasSubstr("option rank: saved 1, here 2")));
  EXPECT_THAT(refusal("allreduce", parameters),
              StatusIs(kCode, HasSubstr("powersgd(start_step=2)")));
  EXPECT_THAT(
      refusal("powersgd", {Parameter("w", {16, 17}), Parameter("c", {16})}),
      StatusIs(kCode, AllOf(HasSubstr("parameter w: saved float64[16,16], here "
                                      "float64[16,17]"),
                            HasSubstr("b (float64[16]) only in the state"),
                            HasSubstr("c (float64[16]) not in the state"))));
}

TEST(PowerSgdTest, DamagedStateIsRefusedAndTheHookGoesOnAsBefore) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16})};
  HookWorld world = StartedWith("", parameters, 2);
  HookWorld untouched = StartedWith("", parameters, 2);
  world.Step(Local(parameters, 2, 0));
  untouched.Step(Local(parameters, 2, 0));
  const HookState good = world.Save();
  std::vector<HookState> bad(6, good);
  bad[0].options.clear();
  bad[1].tensors[0].parameter = "x";
  bad[2].tensors[0].data.pop_back();
  bad[3].tensors[0].kind = "r";
  bad[4].tensors.push_back(good.tensors[0]);
  bad[5].tensors.back().data.assign(good.tensors.back().data.size(), '\xff');
  for (const HookState& state : bad) {
    EXPECT_THAT(
        world.Load(state),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("fit")));
  }
  EXPECT_EQ(world.Step(Local(parameters, 2, 1)),
            untouched.Step(Local(parameters, 2, 1)));
}

TEST(PowerSgdTest, ModelsThatMakeNoSenseAreRefused) {
  ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook("powersgd"));
  const std::vector<ParameterSpec> twins = {Parameter("w", {2}),
                                            Parameter("w", {3})};
  EXPECT_THAT(hook->Configure(twins, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w'")));
  EXPECT_THAT(hook->Configure({}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0")));
}

TEST(PowerSgdTest, BucketsThatDoNotFitTheParametersAreRefused) {
  const auto world = InProcessWorld::Create(1);
  const auto communicator = world->MakeRank(0);
  ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook("powersgd"));
  ASSERT_OK(hook->Configure({Parameter("w", {2, 3})}, 1));
  std::vector<double> values(6);
  Bucket bucket;
  bucket.data = Span{values.data(), 6, DType::kFloat64, Device()};
  bucket.gradients = {{0, 0, 6}};
  EXPECT_OK(hook->Prepare(bucket, *communicator));
  const auto refusal = [&](GradientSlot slot, DType dtype) {
    bucket.data.dtype = dtype;
    bucket.gradients = {slot};
    return hook->Prepare(bucket, *communicator).status();
  };
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refusal({1, 0, 6}, DType::kFloat64),
              StatusIs(kCode, HasSubstr("parameter 1")));
  EXPECT_THAT(refusal({0, 0, 5}, DType::kFloat64),
              StatusIs(kCode, HasSubstr("5 x float64")));
  EXPECT_THAT(refusal({0, 0, 6}, DType::kFloat32),
              StatusIs(kCode, HasSubstr("float32")));
  EXPECT_THAT(refusal({0, 0, 6}, DType::kInt32),
              StatusIs(kCode, HasSubstr("int32")));
}

}  // namespace
}  // namespace coxswain
