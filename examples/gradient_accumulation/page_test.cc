// The program in docs/gradient-synchronization.md is the one that is compiled.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(GradientSynchronizationPageTest, ShowsTheProgramAsItIs) {
  const std::string program = Read("examples/gradient_accumulation/main.cc");
  const std::vector<std::string> blocks =
      absl::StrSplit(Read("docs/gradient-synchronization.md"), "```cpp\n");
  ASSERT_GT(blocks.size(), 1u);
  for (size_t i = 1; i < blocks.size(); ++i) {
    const std::string code = blocks[i].substr(0, blocks[i].find("```"));
    EXPECT_TRUE(absl::StrContains(program, code)) << code;
  }
}

}  // namespace
}  // namespace coxswain
