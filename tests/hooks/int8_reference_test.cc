// int8 against its emulation, bit for bit, over 200 steps with fresh random
// gradients.

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/device/tensor.h"
#include "gtest/gtest.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/every_hook.h"
#include "tests/hooks/reference/int8.h"
#include "tests/hooks/reference/rounding.h"

namespace coxswain {
namespace {

// Returns all values of a bucket that has all parameters in registration order.
std::vector<double> Flat(const Gradients& gradients) {
  std::vector<double> flat;
  for (const auto& values : gradients) {
    flat.insert(flat.end(), values.begin(), values.end());
  }
  return flat;
}

class Int8ReferenceTest : public testing::TestWithParam<DType> {};

TEST_P(Int8ReferenceTest, IsItsEmulationBitForBit) {
  const std::vector<ParameterSpec> parameters = {
      NamedParameter("matrix", {7, 11}, GetParam()),
      NamedParameter("scalar", {}, GetParam()),
      NamedParameter("vector", {50}, GetParam())};
  for (const size_t block : {size_t{32}, size_t{256}}) {
    for (const int size : {1, 2, 3, 8}) {
      HookWorld world(absl::StrCat("int8(block=", block, ")"), parameters, size,
                      {{0, 1, 2}});
      reference::Int8Reference reference(GetParam(), 128,
                                         static_cast<size_t>(size), block);
      for (int64_t step = 0; step < 200; ++step) {
        auto local = AllGradients(parameters, 51, size, step);
        // Of many sizes, so that the errors of a step matter later.
        for (Gradients& own : local) {
          for (auto& values : own) {
            for (double& value : values) {
              value = std::ldexp(value, static_cast<int>(step % 9) - 4);
            }
          }
        }
        local = reference::RoundTo(GetParam(), local);
        std::vector<std::vector<double>> flat;
        for (const Gradients& own : local) flat.push_back(Flat(own));
        ASSERT_EQ(Flat(world.Step(local)), reference.Step(flat))
            << "step " << step << " of " << size << " ranks";
      }
      const std::vector<double> error =
          Flat(MeanError(world.Save(), parameters, size));
      const std::vector<double> expected = reference.MeanError();
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(error[i], expected[i], 1e-7);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Int8ReferenceTest,
                         testing::Values(DType::kFloat32, DType::kFloat64,
                                         DType::kFloat16, DType::kBFloat16),
                         [](const testing::TestParamInfo<DType>& info) {
                           return std::string(NameOf(info.param));
                         });

}  // namespace
}  // namespace coxswain
