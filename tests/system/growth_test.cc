#include "tests/system/growth.h"

#include <unistd.h>

#include <vector>

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

TEST(GrowthTest, AProcessThatKeepsWhatItGetsIsFound) {
  std::vector<std::vector<char>> kept;
  Growth growth;
  for (int i = 0; i < 16; ++i) {
    growth.Look(getpid());
    kept.emplace_back(8 << 20, 'x');
  }
  EXPECT_NONFATAL_FAILURE(growth.ExpectNone("this process"), "this process");
}

TEST(GrowthTest, DescriptorsCount) {
  std::vector<int> kept;
  Growth growth;
  for (int i = 0; i < 16; ++i) {
    growth.Look(getpid());
    for (int more = 0; more < 5; ++more) kept.push_back(dup(0));
  }
  EXPECT_NONFATAL_FAILURE(growth.ExpectNone("this process"), "descriptors");
  for (const int fd : kept) close(fd);
}

TEST(GrowthTest, OneThatHoldsTheSameIsRight) {
  const std::vector<char> held(8 << 20, 'x');
  Growth growth;
  for (int i = 0; i < 16; ++i) growth.Look(getpid());
  growth.ExpectNone("this process");
  EXPECT_EQ(growth.looks(), 16u);
  growth.Clear();
  growth.Look(-1);  // no process
  EXPECT_EQ(growth.looks(), 0u);
}

}  // namespace
}  // namespace coxswain
