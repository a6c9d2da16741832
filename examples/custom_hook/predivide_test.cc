#include "examples/custom_hook/predivide.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/hook_conformance.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

// The suite that the library's own hooks pass.
std::vector<HookCase> Cases() {
  static const absl::Status registered = examples::RegisterPredivide();
  EXPECT_OK(registered);
  return {PlainHookCase("Float32", "predivide", DType::kFloat32, 4, 1e-6),
          PlainHookCase("Float64", "predivide(factor=3)", DType::kFloat64, 8,
                        1e-14),
          PlainHookCase("Fp16", "fp16(predivide(factor=4))", DType::kFloat32, 2,
                        1e-3),
          PlainHookCase("Stats", "stats(predivide)", DType::kFloat32, 4, 1e-6)};
}

INSTANTIATE_TEST_SUITE_P(Predivide, HookConformance, testing::ValuesIn(Cases()),
                         HookCaseName);

TEST(PredivideTest, IsNamedLikeAnyOtherHook) {
  EXPECT_EQ(*CanonicalSpec("fp16(predivide(factor=8.0))"),
            "fp16(predivide(factor=8))");
  EXPECT_THAT(MakeHook("predivide(factor=0.5)"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("factor must be between 1 and 1000000")));
  EXPECT_THAT(examples::RegisterPredivide(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("name")));
}

TEST(PredivideTest, KeepsBitsThatDividingFirstLoses) {
  const std::vector<ParameterSpec> parameters = {
      {"p", {2, 2}, DType::kFloat32, {}, {}}};
  // A quarter of these is not a multiple of the smallest float16.
  const double small = std::ldexp(1.0, -24);
  const std::vector<Gradients> local(4, {{small, 2 * small, 3 * small, small}});
  HookWorld first("fp16", parameters, 4);
  HookWorld later("fp16(predivide(factor=1))", parameters, 4);
  EXPECT_EQ(later.Step(local), local[0]);
  EXPECT_NE(first.Step(local), local[0]);
}

}  // namespace
}  // namespace coxswain
