// All ranks compute the same bits, and the same as ever, whatever instruction
// set and however many threads each of them uses.

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hooks/kernels/parallel.h"
#include "hooks/registry/registry.h"
#include "hooks/spec.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/every_hook.h"

namespace coxswain {
namespace {

constexpr int kThreads[] = {1, 2, 3, 8};

// Gives the kernels back as they were.
class KernelSettings {
 public:
  ~KernelSettings() {
    EXPECT_TRUE(UseKernelTarget(target_));
    SetKernelThreads(threads_);
  }

 private:
  const std::string target_ = KernelTarget();
  const int threads_ = KernelThreads();
};

void UseTarget(const std::string& name) { EXPECT_TRUE(UseKernelTarget(name)); }

// All that a run leaves: each rank's results, step by step, and the state.
struct Outcome {
  std::vector<std::vector<Gradients>> results;
  std::string state;

  bool operator==(const Outcome& other) const {
    return results == other.results && state == other.state;
  }
};

// Gradients of all ranks, step by step: of the plain steps and `steps` more.
using Input = std::vector<std::vector<Gradients>>;

Input InputFor(const AnyHook& hook,
               const std::vector<ParameterSpec>& parameters, int size,
               int64_t steps) {
  Input input;
  for (int64_t step = 0; step < hook.start_step + steps; ++step) {
    input.push_back(AllGradients(parameters, 8, size, step));
  }
  return input;
}

// Takes the hooks through these steps, the last of which is tried twice.
Outcome OutcomeOf(const AnyHook& hook,
                  const std::vector<ParameterSpec>& parameters,
                  const Input& input,
                  const std::function<void(int)>& before_each_rank) {
  KernelSettings restored;
  HookWorld world(hook.spec, parameters, static_cast<int>(input[0].size()));
  world.BeforeEachRank(before_each_rank);
  Outcome outcome;
  for (const std::vector<Gradients>& local : input) {
    if (&local == &input.back()) {
      world.ExchangeApart(local);
      world.Rollback();
    }
    if (hook.ranks_differ) {
      outcome.results.push_back(world.ExchangeApart(local));
    } else {
      outcome.results.push_back({world.Exchange(local)});
    }
    world.Commit();
  }
  outcome.state = SerializeHookState(world.Save());
  return outcome;
}

// Rank r's instruction set and threads; different ones from step to step.
std::function<void(int)> Mixed() {
  return [targets = KernelTargets(), calls = size_t{0}](int rank) mutable {
    const size_t turn = static_cast<size_t>(rank) + calls++ / 97;
    UseTarget(targets[turn % targets.size()]);
    SetKernelThreads(kThreads[(turn / 2) % 4]);
  };
}

class SameBitsTest : public testing::TestWithParam<AnyHook> {};

TEST_P(SameBitsTest, WithAnotherInstructionSetOnEachOfOneToEightRanks) {
  const std::string best = KernelTargets().front();
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    const auto parameters = OddParameters(dtype);
    for (int size = 1; size <= 8; ++size) {
      if (dtype != DType::kFloat32 && size != 3 && size != 6) continue;
      const Input input = InputFor(GetParam(), parameters, size, 3);
      const auto plain = [&](int) {
        UseTarget(best);
        SetKernelThreads(1);
      };
      EXPECT_TRUE(OutcomeOf(GetParam(), parameters, input, plain) ==
                  OutcomeOf(GetParam(), parameters, input, Mixed()))
          << size << " ranks, " << NameOf(dtype);
    }
  }
}

// Large enough for several threads (hooks/kernels/parallel.h), and of no
// round size.
TEST_P(SameBitsTest, WithEveryInstructionSetAndEveryNumberOfThreads) {
  const std::vector<ParameterSpec> parameters = {
      NamedParameter("large", {293, 401}), NamedParameter("bias", {293})};
  const Input input = InputFor(GetParam(), parameters, 2, 2);
  const auto run = [&](const std::string& target, int threads) {
    return OutcomeOf(GetParam(), parameters, input, [&](int) {
      UseTarget(target);
      SetKernelThreads(threads);
    });
  };
  const auto targets = KernelTargets();
  const Outcome expected = run(targets[0], 1);
  for (size_t i = 1; i < targets.size(); ++i) {
    EXPECT_TRUE(run(targets[i], kThreads[i % 4]) == expected) << targets[i];
  }
  for (const int threads : kThreads) {
    EXPECT_TRUE(run(targets[0], threads) == expected) << threads << " threads";
  }
  EXPECT_TRUE(OutcomeOf(GetParam(), parameters, input, Mixed()) == expected);
}

INSTANTIATE_TEST_SUITE_P(Hooks, SameBitsTest, testing::ValuesIn(EveryHook()),
                         AnyHookName);

TEST(EveryHookTest, HasEveryHookOfTheRegistry) {
  std::set<std::string> covered;
  for (const AnyHook& hook : EveryHook()) {
    covered.insert(ParseSpec(hook.spec)->name);
  }
  for (const HookDescription& hook : ListHooks()) {
    EXPECT_EQ(covered.count(hook.name), 1u) << hook.name;
  }
}

}  // namespace
}  // namespace coxswain
