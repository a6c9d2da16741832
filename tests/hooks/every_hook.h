#ifndef COXSWAIN_TESTS_HOOKS_EVERY_HOOK_H_
#define COXSWAIN_TESTS_HOOKS_EVERY_HOOK_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "client/device/tensor.h"
#include "client/reduce/bucket.h"
#include "gtest/gtest.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {

// A hook of the registry, and what a test must know of it.
struct AnyHook {
  std::string name;  // of the test case
  std::string spec;
  int64_t start_step = 0;
  // Keeps what a step leaves out as an error, and names the gradients that
  // are not finite.
  bool error_feedback = false;
  // Ranks go different ways once it has started.
  bool ranks_differ = false;
};

inline void PrintTo(const AnyHook& hook, std::ostream* out) {
  *out << hook.spec;
}

inline std::string AnyHookName(const testing::TestParamInfo<AnyHook>& info) {
  return info.param.name;
}

// Returns every hook of the registry at least once, in each of its modes;
// wrapped ones too. Those that keep errors are started after two plain steps at
// most.
std::vector<AnyHook> EveryHook();

// Returns those of EveryHook with error feedback.
std::vector<AnyHook> EveryFeedbackHook();

// Returns NormalGradients of all ranks.
std::vector<Gradients> AllGradients(
    const std::vector<ParameterSpec>& parameters, uint64_t stream, int size,
    int64_t step);

// Returns a parameter called `name`.
ParameterSpec NamedParameter(std::string name, std::vector<int64_t> shape,
                             DType dtype = DType::kFloat32);

bool AllFinite(const Gradients& gradients);
bool AllNan(const Gradients& gradients);

// Makes a world of this hook and takes it through its plain steps.
HookWorld StartedWorld(const AnyHook& hook,
                       const std::vector<ParameterSpec>& parameters, int size);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_HOOKS_EVERY_HOOK_H_
