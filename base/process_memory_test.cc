#include "base/process_memory.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace coxswain {
namespace {

constexpr int64_t kMachine = int64_t{64} << 30;

class ProcessMemoryTest : public testing::Test {
 protected:
  void Write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  int64_t Memory(const std::string& groups) const {
    return ProcessMemory(kMachine, root_, groups);
  }

  const std::string root_ =
      testing::TempDir() + "/" +
      testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(ProcessMemoryTest, WithoutGroupsItIsTheMachines) {
  EXPECT_EQ(Memory(""), kMachine);
  EXPECT_EQ(Memory("0::/\n"), kMachine);
  EXPECT_EQ(Memory("no such text"), kMachine);
}

TEST_F(ProcessMemoryTest, AContainerSeesItsLimitAtTheRoot) {
  Write("memory.max", "2147483648\n");
  EXPECT_EQ(Memory("0::/\n"), int64_t{2} << 30);
}

TEST_F(ProcessMemoryTest, GroupsAboveCountToo) {
  Write("system.slice/memory.max", "4294967296\n");
  Write("system.slice/coxswain.service/memory.max", "max\n");
  EXPECT_EQ(Memory("0::/system.slice/coxswain.service\n"), int64_t{4} << 30);
  Write("system.slice/coxswain.service/memory.max", "1073741824\n");
  EXPECT_EQ(Memory("0::/system.slice/coxswain.service\n"), int64_t{1} << 30);
  EXPECT_EQ(Memory("0::/user.slice\n"), kMachine);
}

TEST_F(ProcessMemoryTest, VersionOneInAContainer) {
  Write("memory/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(Memory("4:memory:/docker/abc\n"), int64_t{512} << 20);
  // Without a limit it contains a number that no machine has.
  Write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Memory("4:memory:/docker/abc\n"), kMachine);
}

TEST_F(ProcessMemoryTest, WhatIsNoNumberLimitsNothing) {
  Write("memory.max", "0\n");
  EXPECT_EQ(Memory("0::/\n"), kMachine);
  Write("memory.max", "-5 lots\n");
  EXPECT_EQ(Memory("0::/\n"), kMachine);
}

TEST(ThisProcessMemoryTest, IsSome) { EXPECT_GT(ProcessMemory(), 1 << 20); }

}  // namespace
}  // namespace coxswain
