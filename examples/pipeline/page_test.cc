// What docs/parallelism.md shows of this program is what is compiled.
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

TEST(PipelinePageTest, ShowsTheProgramAsItIs) {
  const std::string program = Read("examples/pipeline/main.cc");
  const std::vector<std::string> blocks =
      absl::StrSplit(Read("docs/parallelism.md"),
                     "<!-- tested: examples/pipeline/page_test.cc -->\n"
                     "```cpp\n");
  ASSERT_GT(blocks.size(), 2u);
  for (size_t i = 1; i < blocks.size(); ++i) {
    const std::string code = blocks[i].substr(0, blocks[i].find("```"));
    EXPECT_TRUE(absl::StrContains(program, code)) << code;
  }
}

}  // namespace
}  // namespace coxswain
