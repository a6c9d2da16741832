#include "base/host_memory.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"

namespace coxswain {
namespace {

bool IsAligned(const HostMemory& memory, uintptr_t to) {
  return reinterpret_cast<uintptr_t>(memory.get()) % to == 0;
}

TEST(HostMemoryTest, IsAlignedAndWritable) {
  for (const size_t bytes : {0u, 1u, 64u, 1000u, 4u << 20, (9u << 20) + 1}) {
    const HostMemory memory = AllocateHostMemory(bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_TRUE(IsAligned(memory, 64));
    std::memset(memory.get(), 0x5a, bytes);
  }
}

TEST(HostMemoryTest, LargeMemoryBeginsWithAHugePage) {
  EXPECT_TRUE(IsAligned(AllocateHostMemory((9u << 20) + 1), 2u << 20));
}

TEST(HostMemoryTest, MemoryThatIsNotThereIsNull) {
  EXPECT_EQ(AllocateHostMemory(std::numeric_limits<size_t>::max()), nullptr);
}

}  // namespace
}  // namespace coxswain
