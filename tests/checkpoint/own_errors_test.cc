#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/replay.h"
#include "tests/checkpoint/resumed_run.h"
#include "tests/conformance/hook_world.h"

// What a checkpoint with each rank's own errors rests on: Hook::SaveOwn and
// Hook::LoadOwn. On as many ranks they give back every bit, on others the mean
// of what they have saved.

namespace coxswain::own_errors_test {
namespace {

constexpr int64_t kSavedAt = 12;
constexpr int64_t kBucketBytes = 3000;

struct Case {
  std::string name;
  std::string spec;
};

class OwnErrors : public testing::TestWithParam<Case> {
 protected:
  static HookWorld MakeWorld(DType dtype, int size) {
    const auto parameters = ResumeModel(dtype);
    return HookWorld(GetParam().spec, parameters, size,
                     BucketsOf(parameters, kBucketBytes));
  }

  static std::vector<Gradients> Run(HookWorld& world, DType dtype, int64_t from,
                                    int64_t to) {
    std::vector<Gradients> results;
    for (int64_t step = from; step < to; ++step) {
      results.push_back(world.Step(
          Replayed(ResumeModel(dtype), Signal::kShared, world.size(), step)));
    }
    return results;
  }

  // As many ranks with the states that those of `world` have saved.
  static HookWorld Restarted(HookWorld& world, DType dtype) {
    HookWorld restarted = MakeWorld(dtype, world.size());
    for (int rank = 0; rank < world.size(); ++rank) {
      EXPECT_OK(restarted.hook(rank).LoadOwn(world.SaveOwn(rank), 1));
    }
    return restarted;
  }
};

// EXPECT_EQ of values that are finite, and not zero but for rare exceptions.
TEST_P(OwnErrors, AsManyRanksGoOnBitByBit) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    for (const int size : {1, 4}) {
      HookWorld world = MakeWorld(dtype, size);
      Run(world, dtype, 0, kSavedAt);
      HookWorld restarted = Restarted(world, dtype);
      const int64_t end = kSavedAt + kStepsAfter;
      EXPECT_EQ(Run(restarted, dtype, kSavedAt, end),
                Run(world, dtype, kSavedAt, end))
          << size << " ranks, " << NameOf(dtype);
      EXPECT_EQ(SerializeHookState(restarted.Save()),
                SerializeHookState(world.Save()));
    }
  }
}

// And so does a second restart, of what was not changed since the first.
TEST_P(OwnErrors, WhatWasLoadedIsSavedAgainBitByBit) {
  HookWorld world = MakeWorld(DType::kFloat32, 4);
  Run(world, DType::kFloat32, 0, kSavedAt);
  HookWorld restarted = Restarted(world, DType::kFloat32);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(SerializeHookState(restarted.SaveOwn(rank)),
              SerializeHookState(world.SaveOwn(rank)));
  }
  EXPECT_EQ(SerializeHookState(restarted.Save()),
            SerializeHookState(world.Save()));
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, OwnErrors,
    testing::Values(
        Case{"PowerSgd", "powersgd(rank=2,start_step=2)"},
        Case{"PowerSgdPyTorch", "powersgd(rank=2,start_step=2,mode=pytorch)"},
        Case{"PowerSgdColdStart",
             "powersgd(rank=2,start_step=2,warm_start=false)"},
        Case{"BatchedPowerSgd", "batched_powersgd(rank=2,start_step=2)"},
        Case{"AcpSgd", "acp_sgd(rank=2,start_step=2)"}, Case{"Int8", "int8"},
        Case{"Fp16", "fp16"},
        Case{"Fp16OfPowerSgd", "fp16(powersgd(rank=2,start_step=2))"},
        Case{"Bf16OfBatched", "bf16(batched_powersgd(start_step=2))"},
        Case{"StatsOfAcpSgd", "stats(acp_sgd(rank=2,start_step=2))"},
        Case{"StatsOfInt8", "stats(int8(block=32))"}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// Ranks in a process of their own take over what those of the job have saved,
// and form the mean of it.
TEST(OwnErrorsTest, OnOtherNumbersOfRanksTheMeanGoesOn) {
  for (const char* spec :
       {"powersgd(rank=2,start_step=2)", "acp_sgd(rank=2,start_step=2)"}) {
    ResumedRun run;
    run.spec = spec;
    run.sizes = {4, 2, 8, 1};
    const auto reload = [spec](HookWorld& world, int64_t) {
      HookWorld again(spec, ResumeModel(DType::kFloat32), world.size());
      for (int rank = 0; rank < world.size(); ++rank) {
        EXPECT_OK(again.hook(rank).LoadOwn(world.SaveOwn(rank), 1));
      }
      return again.Save();
    };
    const Distance distance = Resume(run, reload);
    EXPECT_LE(distance.first, 1e-6) << spec;
    EXPECT_LE(distance.later, 1e-4) << spec;
    EXPECT_LE(distance.in_sum, 1e-6) << spec;
  }
}

// What the bounds of this folder are worth: a state that has lost something is
// far outside them.
TEST(ResumedRunTest, AStateThatHasLostItsErrorsOrFactorsIsFarOff) {
  for (const char* lost : {"error", "q"}) {
    ResumedRun run;
    run.spec = "powersgd(rank=2,start_step=2)";
    run.sizes = {4, 2};
    const Distance distance = Resume(run, [lost](HookWorld& world, int64_t) {
      HookState state = world.Save();
      std::vector<StateTensor> kept;
      for (StateTensor& tensor : state.tensors) {
        if (tensor.kind != lost) kept.push_back(std::move(tensor));
      }
      state.tensors = std::move(kept);
      return state;
    });
    EXPECT_GT(distance.first, 0.1) << lost;
    // Another Q sends the errors in another order.
    if (std::string(lost) == "error") {
      EXPECT_GT(distance.in_sum, 0.01);
    } else {
      EXPECT_LE(distance.in_sum, 1e-6);
    }
  }
}

// Wrappers round what travels, not what is kept.
TEST(KeptErrorTest, WrappersIn16BitsKeepTheErrorInTheHooksOwnType) {
  for (const char* wrapper : {"fp16", "bf16"}) {
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
      HookWorld world(std::string(wrapper) + "(powersgd(rank=2,start_step=2))",
                      ResumeModel(dtype), 2);
      for (int64_t step = 0; step < 6; ++step) {
        world.Step(Replayed(ResumeModel(dtype), Signal::kShared, 2, step));
      }
      int errors = 0;
      for (const StateTensor& tensor : world.Save().tensors) {
        if (tensor.kind != "error") continue;
        ++errors;
        EXPECT_EQ(tensor.dtype,
                  dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32);
        // Most values need more than the 11 bits of float16.
        int64_t long_ones = 0;
        const std::vector<double> values = ValuesOf(tensor);
        for (const double value : values) {
          int exponent = 0;
          const double bits = std::frexp(value, &exponent) * 0x1p11;
          long_ones += bits != std::trunc(bits) ? 1 : 0;
        }
        EXPECT_GT(long_ones, static_cast<int64_t>(values.size() / 2))
            << wrapper << " " << tensor.parameter;
      }
      EXPECT_GT(errors, 0);
    }
  }
}

}  // namespace
}  // namespace coxswain::own_errors_test
