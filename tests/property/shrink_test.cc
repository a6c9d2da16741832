// Shrinking, with faults that are known: a property of the case alone, and a
// hook that is wrong.

#include "tests/property/shrink.h"

#include <memory>
#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "client/comm/communicator.h"
#include "gtest/gtest.h"
#include "hooks/plain_hook.h"
#include "hooks/registry/registry.h"
#include "tests/property/case.h"
#include "tests/property/oracle.h"
#include "tests/property/run_case.h"

namespace coxswain::property {
namespace {

TEST(RandomCaseTest, IsAFunctionOfItsSeed) {
  EXPECT_EQ(ToText(RandomCase(5)), ToText(RandomCase(5)));
  EXPECT_NE(ToText(RandomCase(5)), ToText(RandomCase(6)));
}

TEST(SmallerTest, IsValidAndEndsSomewhere) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Case one = RandomCase(seed);
    for (const Case& smaller : Smaller(one)) {
      EXPECT_TRUE(IsValid(smaller));
      EXPECT_LE(SizeOfCase(smaller), SizeOfCase(one));
      EXPECT_NE(ToText(smaller), ToText(one));
    }
    const Case end = Shrink(
        one, [](const Case&) { return true; }, 10'000);
    EXPECT_TRUE(Smaller(end).empty()) << ToText(end);
  }
}

bool AccumulatesIntoAMatrix(const Case& one) {
  bool matrix = false;
  for (const ParameterCase& parameter : one.parameters) {
    matrix = matrix || parameter.shape.size() >= 2;
  }
  return matrix && one.view && one.world >= 2 &&
         one.steps[0].uses[0].size() >= 2;
}

TEST(ShrinkTest, KeepsWhatTheFaultNeedsAndNothingElse) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Case one = RandomCase(seed);
    if (!AccumulatesIntoAMatrix(one)) continue;
    ++found;
    const Case end = Shrink(one, AccumulatesIntoAMatrix, 10'000);
    EXPECT_TRUE(AccumulatesIntoAMatrix(end));
    EXPECT_EQ(end.world, 2);
    EXPECT_EQ(end.steps.size(), 1u);
    EXPECT_EQ(end.terms.size(), 0u);
    EXPECT_EQ(end.hook, "allreduce");
    EXPECT_TRUE(end.view);
    EXPECT_FALSE(end.find_unused || end.rebuild || end.statistics);
    EXPECT_LE(end.parameters.size(), 2u) << ToText(end);
  }
  EXPECT_GT(found, 3);
}

TEST(ShrinkTest, StopsAfterItsRuns) {
  int runs = 0;
  Shrink(
      RandomCase(3), [&runs](const Case&) { return ++runs > 0; }, 7);
  EXPECT_EQ(runs, 7);
}

// Averages, but loses a tenth of the third element of each bucket.
class FaultyHook : public PlainHook {
 public:
  using PlainHook::PlainHook;

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& ranks) override {
    const Span data = bucket.data;
    return MakeExchange([data, &ranks](int call) {
      if (call == 0) return ranks.AllReduce(data);
      Finish(data, ranks.size());
      return WorkPtr();
    });
  }

 private:
  static void Finish(const Span& data, int ranks) {
    for (int64_t i = 0; i < data.count; ++i) {
      const double factor = (i == 2 && ranks > 1 ? 0.9 : 1.0) / ranks;
      if (data.dtype == DType::kFloat64) {
        static_cast<double*>(data.data)[i] *= factor;
      } else {
        static_cast<float*>(data.data)[i] *= static_cast<float>(factor);
      }
    }
  }
};

void RegisterFaulty() {
  HookRow row;
  row.description.name = "faulty";
  row.description.help = "an average with a fault";
  row.make = [](std::string spec, OptionValues, std::unique_ptr<Hook>) {
    return std::make_unique<FaultyHook>(std::move(spec));
  };
  ASSERT_OK(RegisterHook(std::move(row)));
}

Case WithFault(uint64_t seed) {
  Case one = RandomCase(seed);
  one.hook = "faulty";
  for (ParameterCase& parameter : one.parameters) {
    parameter.dtype = DType::kFloat64;
  }
  for (StepCase& step : one.steps) {
    step.hook.clear();
    step.carry_state = false;
  }
  return one;
}

bool Fails(const Case& one) { return !Verdict(one, RunCase(one)).empty(); }

// Whatever case the fault is found in: it ends with two ranks, one step and
// one parameter of three elements.
TEST(ShrinkTest, AWrongHookEndsInATinyCase) {
  RegisterFaulty();
  int found = 0;
  for (uint64_t seed = 1; found < 3 && seed < 40; ++seed) {
    const Case one = WithFault(seed);
    if (SizeOfCase(one) < 100 || !Fails(one)) continue;
    ++found;
    const Case end = Shrink(one, Fails, 1000);
    EXPECT_TRUE(Fails(end));
    EXPECT_EQ(end.hook, "faulty");
    EXPECT_EQ(end.world, 2) << ToText(end);
    EXPECT_EQ(end.steps.size(), 1u) << ToText(end);
    EXPECT_LE(end.parameters.size(), 3u) << ToText(end);
    EXPECT_LE(SizeOfCase(end), 12) << ToText(end);
  }
  EXPECT_EQ(found, 3);
}

}  // namespace
}  // namespace coxswain::property
