#include "hooks/scratch.h"

#include <cstdint>
#include <cstring>
#include <memory>

#include "gtest/gtest.h"

namespace coxswain {
namespace {

TEST(ScratchPoolTest, MemoryIsUsedAgainAfterItsLastHolder) {
  ScratchPool pool;
  auto first = pool.Take<float>(1000);
  float* const memory = first.get();
  auto second_holder = first;
  first.reset();
  const auto other = pool.Take<float>(1000);
  EXPECT_NE(other.get(), memory);
  second_holder.reset();
  EXPECT_EQ(pool.Take<double>(400).get(),
            static_cast<void*>(memory));  // the smallest block that will do
}

TEST(ScratchPoolTest, MemoryIsAlignedAndAsLargeAsAsked) {
  ScratchPool pool;
  for (const size_t count : {0u, 1u, 7u, 64u, 100001u}) {
    const auto memory = pool.Take<double>(count);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0u);
    std::memset(memory.get(), 1, count * sizeof(double));
  }
}

TEST(ScratchPoolTest, MemoryOutlivesThePool) {
  auto pool = std::make_unique<ScratchPool>();
  const auto memory = pool->Take<int64_t>(3);
  pool.reset();
  memory.get()[2] = 5;
  EXPECT_EQ(memory.get()[2], 5);
}

}  // namespace
}  // namespace coxswain
