// The table in docs/schedule.md is that of the terms.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/terms.h"

namespace coxswain {
namespace {

std::string TermsAsMarkdown() {
  const auto defaults = schedule::Terms().ToMap();
  std::string table =
      "| setting | values | default | meaning |\n|---|---|---|---|\n";
  for (const schedule::SettingInfo& setting : schedule::SettingList()) {
    absl::StrAppend(&table, "| `", setting.name, "` | ",
                    absl::StrReplaceAll(setting.values, {{"|", ", "}}), " | `",
                    defaults.at(setting.name), "` | ", setting.meaning, " |\n");
  }
  return table;
}

TEST(SchedulePageTest, ItsTableIsThatOfTheTerms) {
  std::stringstream page;
  page << std::ifstream("docs/schedule.md").rdbuf();
  const std::vector<std::string> parts =
      absl::StrSplit(page.str(), "<!-- terms -->\n");
  ASSERT_EQ(parts.size(), 3u) << "between two lines <!-- terms -->";
  EXPECT_EQ(parts[1], TermsAsMarkdown()) << "write this there:\n"
                                         << TermsAsMarkdown();
}

TEST(SchedulePageTest, EveryTermIsExplainedBesidesTheTable) {
  std::stringstream page;
  page << std::ifstream("docs/schedule.md").rdbuf();
  const std::vector<std::string> parts =
      absl::StrSplit(page.str(), "<!-- terms -->\n");
  ASSERT_EQ(parts.size(), 3u);
  for (const schedule::SettingInfo& setting : schedule::SettingList()) {
    EXPECT_THAT(parts[2], testing::HasSubstr(setting.name));
  }
}

}  // namespace
}  // namespace coxswain
