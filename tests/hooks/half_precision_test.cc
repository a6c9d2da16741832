// Gradients of 16 bits, and what travels in 16 bits, leave errors of 32.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/device/tensor.h"
#include "client/reduce/hook_state.h"
#include "gtest/gtest.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/every_hook.h"

namespace coxswain {
namespace {

class HalfPrecisionTest : public testing::TestWithParam<AnyHook> {};

bool IsError(const StateTensor& tensor) {
  return tensor.kind.rfind("error", 0) == 0;
}

TEST_P(HalfPrecisionTest, ErrorsAreFloat32OrWider) {
  for (const auto& [gradient, error] :
       {std::pair{DType::kFloat16, DType::kFloat32},
        std::pair{DType::kBFloat16, DType::kFloat32},
        std::pair{DType::kFloat32, DType::kFloat32},
        std::pair{DType::kFloat64, DType::kFloat64}}) {
    const auto parameters = OddParameters(gradient);
    HookWorld world = StartedWorld(GetParam(), parameters, 2);
    for (int64_t step = 0; step < 3; ++step) {
      world.Step(AllGradients(parameters, 41, 2, step));
    }
    int errors = 0;
    for (const StateTensor& tensor : world.Save().tensors) {
      if (!IsError(tensor)) continue;
      ++errors;
      EXPECT_EQ(tensor.dtype, error) << tensor.kind << " " << tensor.parameter;
    }
    EXPECT_GT(errors, 0);
  }
}

// Of an error E in bfloat16, additions of less than E / 512 would be lost: an
// element that grows by the same amount in every step would stop at 512 of
// them. Here one grows for 3,000 steps, beside six others that are so much
// larger that they take all columns of the factors, and set the scale of the
// codes. Nothing of it is missing in sent and error together.
void Accumulate(const AnyHook& hook, DType dtype) {
  const std::vector<ParameterSpec> parameters = {
      NamedParameter("w", {16, 16}, dtype)};
  constexpr int kSteps = 3000;
  constexpr size_t kElement = 9 * 16 + 12;  // row 9, column 12
  const double small = std::ldexp(1.0, -19);
  const Gradients zero = {std::vector<double>(256, 0.0)};
  Gradients gradient = zero;
  for (size_t i = 0; i < 6; ++i) gradient[0][i * 16 + i] = 1;
  gradient[0][kElement] = small;
  HookWorld world(hook.spec, parameters, 2);
  for (int64_t step = 0; step < hook.start_step; ++step) {
    world.Step({zero, zero});
  }
  Gradients sent;
  for (int step = 0; step < kSteps; ++step) {
    AddTo(sent, world.Step({gradient, gradient}));
  }
  const double error = MeanError(world.Save(), parameters, 2)[0][kElement];
  EXPECT_NEAR((sent[0][kElement] + error) / (kSteps * small), 1, 0.02);
  // It goes out once nothing else does. The gradients are then not zero but
  // tiny: a basis that has only ever seen six columns would not find a seventh.
  for (int64_t step = 0; step < 100; ++step) {
    Gradients tiny;
    AddTo(tiny, NormalGradients(parameters, 42, 0, step), std::ldexp(1.0, -17));
    AddTo(sent, world.Step({tiny, tiny}));
    AddTo(sent, tiny, -1);
  }
  EXPECT_NEAR(sent[0][kElement] / (kSteps * small), 1, 0.05)
      << error << " was kept";
}

TEST_P(HalfPrecisionTest, ErrorsBelowTheResolutionOfGradientsAddUp) {
  // The wrappers narrow what is wide.
  const bool wrapped = GetParam().spec.find("16(") != std::string::npos;
  Accumulate(GetParam(), wrapped ? DType::kFloat32 : DType::kBFloat16);
}

INSTANTIATE_TEST_SUITE_P(Hooks, HalfPrecisionTest,
                         testing::ValuesIn(EveryFeedbackHook()), AnyHookName);

}  // namespace
}  // namespace coxswain
