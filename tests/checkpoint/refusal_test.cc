#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/checkpoint/replay.h"
#include "tests/conformance/hook_world.h"

// A checkpoint of another model or hook is refused with what differs, and the
// hook that refuses it goes on as if it had not been asked.

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr DType kType = DType::kFloat32;

std::vector<Gradients> Run(HookWorld& world,
                           const std::vector<ParameterSpec>& parameters,
                           int64_t from, int64_t to) {
  std::vector<Gradients> results;
  for (int64_t step = from; step < to; ++step) {
    results.push_back(
        world.Step(Replayed(parameters, Signal::kShared, world.size(), step)));
  }
  return results;
}

HookState StateOf(const std::string& spec,
                  const std::vector<ParameterSpec>& parameters) {
  HookWorld world(spec, parameters, 4);
  Run(world, parameters, 0, 5);
  return world.Save();
}

// Offers the state to a running job of this model, and expects an error with
// all of these texts.
void ExpectRefusal(const HookState& state, const std::string& spec,
                   const std::vector<ParameterSpec>& parameters,
                   const testing::Matcher<std::string>& message) {
  HookWorld asked(spec, parameters, 2);
  HookWorld untouched(spec, parameters, 2);
  EXPECT_EQ(Run(asked, parameters, 0, 4), Run(untouched, parameters, 0, 4));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(asked.hook(rank).LoadState(state, rank, 2),
                StatusIs(absl::StatusCode::kFailedPrecondition, message));
  }
  EXPECT_EQ(asked.hook(0).step(), 4);
  EXPECT_EQ(Run(asked, parameters, 4, 8), Run(untouched, parameters, 4, 8));
}

class Refusal : public testing::TestWithParam<std::string> {
 protected:
  void ExpectRefusalOf(
      const std::function<void(std::vector<ParameterSpec>&)>& change,
      const testing::Matcher<std::string>& message) {
    std::vector<ParameterSpec> saved = ResumeModel(kType);
    change(saved);
    ExpectRefusal(StateOf(GetParam(), saved), GetParam(), ResumeModel(kType),
                  message);
  }
};

TEST_P(Refusal, ARenamedParameterIsNamedAsItWasAndAsItIs) {
  ExpectRefusalOf(
      [](std::vector<ParameterSpec>& saved) { saved[3].name = "old.weight"; },
      AllOf(
          HasSubstr("2 differences"),
          HasSubstr("parameter old.weight (float32[16,40]) only in the state"),
          HasSubstr("parameter wide.weight (float32[16,40]) not in the state"),
          Not(HasSubstr("tall.weight"))));
}

TEST_P(Refusal, AMissingParameterIsNamed) {
  ExpectRefusalOf(
      [](std::vector<ParameterSpec>& saved) { saved.erase(saved.begin() + 8); },
      AllOf(HasSubstr("1 difference:"),
            HasSubstr("parameter head.weight (float32[10,24]) not in")));
}

TEST_P(Refusal, AParameterOfAnotherShapeIsShownWithBoth) {
  ExpectRefusalOf(
      [](std::vector<ParameterSpec>& saved) {
        saved[4].shape = {20, 32};
      },
      HasSubstr("parameter tall.weight: saved float32[20,32], here "
                "float32[40,16]"));
}

TEST_P(Refusal, AParameterOfAnotherTypeIsShownWithBoth) {
  ExpectRefusalOf(
      [](std::vector<ParameterSpec>& saved) {
        // They share a bucket, which has one type.
        saved[0].dtype = saved[1].dtype = DType::kFloat64;
      },
      AllOf(HasSubstr("parameter conv.bias: saved float64[12], here "
                      "float32[12]"),
            HasSubstr("parameter conv.weight: saved float64[12,4,3,3], here "
                      "float32[12,4,3,3]")));
}

TEST_P(Refusal, OfManyDifferencesTheFirstAreShownAndTheOthersCounted) {
  ExpectRefusalOf(
      [](std::vector<ParameterSpec>& saved) {
        for (ParameterSpec& parameter : saved) parameter.name += ".old";
      },
      AllOf(HasSubstr("20 differences"), HasSubstr("; and 12 more. ")));
}

TEST_P(Refusal, TheErrorHasTheAdvice) {
  ExpectRefusalOf(
      [](std::vector<ParameterSpec>& saved) { saved[3].name = "old.weight"; },
      HasSubstr("Resume with the model and the options that saved it, or begin "
                "without its state"));
}

INSTANTIATE_TEST_SUITE_P(Hooks, Refusal,
                         testing::Values("powersgd(rank=2,start_step=2)",
                                         "batched_powersgd(start_step=2)",
                                         "acp_sgd(rank=2,start_step=2)", "int8",
                                         "fp16(powersgd(start_step=2))",
                                         "stats(int8)"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name;
                           for (const char c : info.param) {
                             if (absl::ascii_isalnum(
                                     static_cast<unsigned char>(c)))
                               name += c;
                           }
                           return name;
                         });

TEST(RefusalTest, AnotherRankOfTheFactorsIsShown) {
  const auto model = ResumeModel(kType);
  ExpectRefusal(StateOf("powersgd(rank=2,start_step=2)", model),
                "powersgd(rank=4,start_step=2,min_compression_rate=1)", model,
                AllOf(HasSubstr("2 differences"),
                      HasSubstr("option rank: saved 2, here 4"),
                      HasSubstr("option min_compression_rate: saved 2, "
                                "here 1")));
}

TEST(RefusalTest, AnotherSeedOrModeIsShown) {
  const auto model = ResumeModel(kType);
  const HookState state = StateOf("powersgd(rank=2,start_step=2)", model);
  ExpectRefusal(state, "powersgd(rank=2,start_step=2,seed=7)", model,
                HasSubstr("option seed: saved 0, here 7"));
  ExpectRefusal(state, "powersgd(rank=2,start_step=2,mode=pytorch)", model,
                HasSubstr("option mode: saved local, here pytorch"));
}

TEST(RefusalTest, AnotherHookIsNamed) {
  const auto model = ResumeModel(kType);
  const std::vector<std::string> specs = {
      "powersgd(start_step=2)", "batched_powersgd(start_step=2)",
      "acp_sgd(start_step=2)", "int8", "fp16"};
  for (const std::string& saved : specs) {
    const HookState state = StateOf(saved, model);
    for (const std::string& here : specs) {
      if (saved == here) continue;
      ExpectRefusal(state, here, model,
                    AllOf(HasSubstr(*CanonicalSpec(saved)),
                          HasSubstr(*CanonicalSpec(here)),
                          HasSubstr("use the hook that saved it")));
    }
  }
}

}  // namespace
}  // namespace coxswain
