#include "base/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>

#include "gtest/gtest.h"

namespace coxswain {
namespace {

template <typename Memory>
bool IsAligned(const Memory& memory, uintptr_t to) {
  return reinterpret_cast<uintptr_t>(memory.get()) % to == 0;
}

// Bytes of this process that the system has given memory to.
int64_t Resident() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
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

TEST(ZeroedMemoryTest, IsAlignedAndOfZeros) {
  for (const size_t bytes : {0u, 1u, 64u, 1000u, 4u << 20, (9u << 20) + 1}) {
    // The second time it may be memory that was freed.
    for (int time = 0; time < 2; ++time) {
      const ZeroedMemory memory = AllocateZeroedMemory(bytes);
      ASSERT_NE(memory, nullptr);
      EXPECT_TRUE(IsAligned(memory, 64));
      const char* const data = static_cast<const char*>(memory.get());
      EXPECT_TRUE(
          std::all_of(data, data + bytes, [](char byte) { return byte == 0; }));
      std::memset(memory.get(), 0x5a, bytes);
    }
  }
  EXPECT_TRUE(IsAligned(AllocateZeroedMemory((9u << 20) + 1), 2u << 20));
}

TEST(ZeroedMemoryTest, TakesMemoryOfTheSystemAsItIsUsed) {
  constexpr size_t kBytes = 64u << 20;
  const int64_t before = Resident();
  const ZeroedMemory memory = AllocateZeroedMemory(kBytes);
  ASSERT_NE(memory, nullptr);
  EXPECT_LT(Resident() - before, static_cast<int64_t>(kBytes / 2));
  std::memset(memory.get(), 1, kBytes);
  EXPECT_GT(Resident() - before, static_cast<int64_t>(kBytes / 2));
}

TEST(ZeroedMemoryTest, IsGivenBack) {
  constexpr size_t kBytes = 64u << 20;
  const auto use = [] {
    std::memset(AllocateZeroedMemory(kBytes).get(), 1, kBytes);
  };
  use();  // a sanitizer keeps memory of its own for it
  const int64_t before = Resident();
  for (int time = 0; time < 4; ++time) use();
  EXPECT_LT(Resident() - before, static_cast<int64_t>(kBytes));
}

TEST(ZeroedMemoryTest, MemoryThatIsNotThereIsNull) {
  for (const size_t less : {0u, 1u << 20, 4u << 20}) {
    EXPECT_EQ(AllocateZeroedMemory(std::numeric_limits<size_t>::max() - less),
              nullptr);
  }
}

}  // namespace
}  // namespace coxswain
