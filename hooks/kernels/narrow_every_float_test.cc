#include <cstdint>
#include <vector>

#include "base/float16.h"
#include "gtest/gtest.h"
#include "hooks/kernels/elementwise.h"
#include "hooks/kernels/parallel.h"

// All 2^32 floats, with every instruction set: some minutes.

namespace coxswain {
namespace {

constexpr uint32_t kBlock = 1u << 20;

void ExpectBlock(uint32_t block) {
  std::vector<float> in;
  std::vector<uint16_t> float16, bfloat16;
  for (uint32_t i = 0; i < kBlock; ++i) {
    const float value = FloatFromBits(block * kBlock + i);
    in.push_back(value);
    float16.push_back(FloatToFloat16(value * 1.0f));
    bfloat16.push_back(FloatToBFloat16(value * 1.0f));
  }
  std::vector<uint16_t> out(kBlock);
  for (const auto& target : KernelTargets()) {
    ASSERT_TRUE(UseKernelTarget(target));
    ScaleToFloat16(in.data(), out.data(), kBlock, 1);
    ASSERT_EQ(out, float16) << target << ", block " << block;
    ScaleToBFloat16(in.data(), out.data(), kBlock, 1);
    ASSERT_EQ(out, bfloat16) << target << ", block " << block;
  }
}

TEST(NarrowEveryFloatTest, IsThatOfOneElement) {
  for (uint32_t block = 0; block < 4096; ++block) {
    ExpectBlock(block);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace coxswain
