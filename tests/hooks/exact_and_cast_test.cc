// The hooks without error feedback against their mathematics in double, over
// 200 steps with fresh random gradients.

#include <cmath>
#include <string>
#include <vector>

#include "client/device/tensor.h"
#include "gtest/gtest.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/reference/rounding.h"

namespace coxswain {
namespace {

constexpr int64_t kSteps = 200;

// Returns a few tensors, among them a scalar and an empty one.
std::vector<ParameterSpec> SmallModel(DType dtype) {
  std::vector<ParameterSpec> model = OddParameters(dtype);
  return {model[1], model[2], model[5], model[7], model[9]};
}

std::vector<Gradients> Local(const std::vector<ParameterSpec>& parameters,
                             int size, int64_t step) {
  std::vector<Gradients> local;
  for (int rank = 0; rank < size; ++rank) {
    local.push_back(NormalGradients(parameters, 5, rank, step));
  }
  return local;
}

// Values over the whole range of float16, its subnormal numbers and what is
// beyond its largest included.
std::vector<Gradients> OfAllSizes(std::vector<Gradients> local, int64_t step) {
  for (Gradients& own : local) {
    for (auto& values : own) {
      for (size_t i = 0; i < values.size(); ++i) {
        const auto spread = static_cast<int>((i * 7 + step) % 44);
        values[i] = std::ldexp(values[i], spread - 27);
      }
    }
  }
  return local;
}

// As a single process computes it, which has all gradients and sums them in
// double. Each rank's division and each addition rounds once.
TEST(ExactHooksTest, AllReduceIsTheSingleProcess) {
  for (const auto& [dtype, unit] : {std::pair{DType::kFloat64, 0x1p-53},
                                    std::pair{DType::kFloat32, 0x1p-24}}) {
    const auto parameters = SmallModel(dtype);
    for (const int size : {1, 2, 3, 5, 8}) {
      HookWorld world("allreduce", parameters, size);
      for (int64_t step = 0; step < kSteps; ++step) {
        const auto local =
            reference::RoundTo(dtype, Local(parameters, size, step));
        EXPECT_LE(RelativeDifference(world.Step(local), MeanOver(local)),
                  2 * size * unit);
      }
    }
  }
}

// Where no operation rounds, the bits are those of a single process: whole
// multiples of 1/64, and a number of ranks that is a power of two.
TEST(ExactHooksTest, WithoutRoundingTheBitsAreThoseOfTheSingleProcess) {
  for (const std::string spec :
       {"allreduce", "fp16", "fp16(order=cast_then_divide)", "bf16(allreduce)",
        "stats(allreduce)"}) {
    const auto parameters = OddParameters(DType::kFloat32);
    for (const int size : {1, 2, 4, 8}) {
      HookWorld world(spec, parameters, size);
      for (int64_t step = 0; step < 20; ++step) {
        auto local = Local(parameters, size, step);
        for (Gradients& own : local) {
          for (auto& values : own) {
            for (double& value : values) {
              value = std::nearbyint(std::fmax(-2, std::fmin(2, value)));
            }
          }
        }
        EXPECT_EQ(world.Step(local), MeanOver(local)) << spec;
      }
    }
  }
}

// noop leaves every rank its own bits.
TEST(LocalHooksTest, NoopIsEachRanksOwnGradient) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    const auto parameters = SmallModel(dtype);
    HookWorld world("noop", parameters, 3);
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto local = reference::RoundTo(dtype, Local(parameters, 3, step));
      EXPECT_EQ(world.ExchangeApart(local), local);
      world.Commit();
    }
    EXPECT_EQ(world.payload_bytes(), 0);
  }
}

// The gradient side of post_local_sgd: the average of all, then of blocks of
// two ranks, the last of which has one.
TEST(LocalHooksTest, PostLocalSgdAveragesWithinItsBlocks) {
  const auto parameters = SmallModel(DType::kFloat64);
  HookWorld world("post_local_sgd(start_step=3,subgroup=2)", parameters, 5);
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto local = Local(parameters, 5, step);
    const auto results = world.ExchangeApart(local);
    world.Commit();
    for (size_t rank = 0; rank < 5; ++rank) {
      const size_t first = rank / 2 * 2;
      std::vector<Gradients> block = {local[first]};
      if (first < 4) block.push_back(local[first + 1]);
      EXPECT_LE(
          RelativeDifference(results[rank], MeanOver(step < 3 ? local : block)),
          1e-15);
    }
  }
}

struct CastCase {
  const char* spec;
  DType wide;
  DType narrow;
  bool divide_first;
};

class CastTest : public testing::TestWithParam<CastCase> {};

// Bit for bit: the roundings are few and known.
TEST_P(CastTest, IsItsEmulationBitForBit) {
  const CastCase& cast = GetParam();
  const auto parameters = SmallModel(cast.wide);
  for (const int size : {1, 2, 3, 5, 8}) {
    HookWorld world(cast.spec, parameters, size);
    for (int64_t step = 0; step < kSteps; ++step) {
      auto local = Local(parameters, size, step);
      if (step % 2 == 1) local = OfAllSizes(std::move(local), step);
      local = reference::RoundTo(cast.wide, std::move(local));
      const Gradients expected = reference::CastReference(
          local, cast.wide, cast.narrow, cast.divide_first);
      const Gradients got = world.Step(local);
      for (size_t p = 0; p < got.size(); ++p) {
        for (size_t i = 0; i < got[p].size(); ++i) {
          // Infinities of both signs make NaN.
          if (std::isnan(expected[p][i])) {
            EXPECT_TRUE(std::isnan(got[p][i]));
          } else {
            ASSERT_EQ(got[p][i], expected[p][i])
                << "step " << step << " of " << size << " ranks, parameter "
                << p << " element " << i;
          }
        }
      }
    }
  }
}

constexpr CastCase kCasts[] = {
    {"fp16", DType::kFloat32, DType::kFloat16, true},
    {"fp16", DType::kFloat64, DType::kFloat16, true},
    {"bf16", DType::kFloat32, DType::kBFloat16, true},
    {"bf16", DType::kFloat64, DType::kBFloat16, true},
    {"fp16(order=cast_then_divide)", DType::kFloat32, DType::kFloat16, false},
    {"fp16(order=cast_then_divide)", DType::kFloat64, DType::kFloat16, false},
    {"bf16(order=cast_then_divide)", DType::kFloat32, DType::kBFloat16, false},
    {"bf16(order=cast_then_divide)", DType::kFloat64, DType::kBFloat16, false},
    // Divides in the gradients' type, like the wrapped hook, then narrows.
    {"fp16(allreduce)", DType::kFloat32, DType::kFloat16, true},
    {"bf16(allreduce)", DType::kFloat64, DType::kBFloat16, true},
    // Gradients that are narrow already are averaged in their own type.
    {"allreduce", DType::kFloat16, DType::kFloat16, true},
    {"allreduce", DType::kBFloat16, DType::kBFloat16, true},
    {"bf16", DType::kFloat16, DType::kFloat16, true},
};

INSTANTIATE_TEST_SUITE_P(Casts, CastTest, testing::ValuesIn(kCasts));

}  // namespace
}  // namespace coxswain
