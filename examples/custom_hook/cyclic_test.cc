#include "examples/custom_hook/cyclic.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/hook_conformance.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

// Returns the bytes of every parts-th element, and of one more for the bucket.
HookCase CyclicCase(std::string name, int64_t parts) {
  HookCase hook;
  hook.name = std::move(name);
  hook.spec = absl::StrCat("cyclic(parts=", parts, ")");
  hook.average_tolerance = -1e-5;  // over several steps
  hook.first_step_tolerance = 1e-5;
  hook.later_tolerance = 1e-5;
  hook.freezes_layout = true;
  hook.error_feedback = true;
  hook.bucket_bytes = [parts](const std::vector<ParameterSpec>& parameters,
                              const HookStep& step) {
    int64_t count = 1;
    for (const ParameterSpec& parameter : parameters) {
      for (int64_t i = 0; i < parameter.count(); ++i) {
        if ((i + step.step) % parts == 0) ++count;
      }
    }
    return 4 * count;
  };
  return hook;
}

// The suite that the library's own hooks pass.
std::vector<HookCase> Cases() {
  static const absl::Status registered = examples::RegisterCyclic();
  EXPECT_OK(registered);
  return {CyclicCase("InFour", 4), CyclicCase("InSeven", 7)};
}

INSTANTIATE_TEST_SUITE_P(Cyclic, HookConformance, testing::ValuesIn(Cases()),
                         HookCaseName);

TEST(CyclicTest, SendsEachElementWithinAsManySteps) {
  const std::vector<ParameterSpec> parameters = {
      {"p", {6}, DType::kFloat32, {}, {}}};
  HookWorld world("cyclic(parts=3)", parameters, 2);
  const std::vector<Gradients> first = {{{1, 2, 3, 4, 5, 6}},
                                        {{3, 4, 5, 6, 7, 8}}};
  const std::vector<Gradients> none(2, {{0, 0, 0, 0, 0, 0}});
  EXPECT_EQ(world.Step(first), (Gradients{{2, 0, 0, 5, 0, 0}}));
  EXPECT_EQ(world.Step(none), (Gradients{{0, 0, 4, 0, 0, 7}}));
  EXPECT_EQ(world.Step(none), (Gradients{{0, 3, 0, 0, 6, 0}}));
  EXPECT_EQ(world.hook(0).ErrorNorm(), 0);
}

}  // namespace
}  // namespace coxswain
