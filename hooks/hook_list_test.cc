#include "hooks/hook_list.h"

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

using testing::HasSubstr;

HookDescription Example() {
  HookDescription hook;
  hook.name = "shrink";
  hook.aliases = {"smaller"};
  hook.help = "everything becomes smaller";
  hook.options = {IntOption("rank", 2, 1, 8, "how small | how fast", {"r"}),
                  BoolOption("warm", true, "whether it is warm")};
  hook.card = {"4 N", "1 all-reduce", "none", "exact", "when large is better"};
  return hook;
}

HookDescription Bare() {
  HookDescription hook;
  hook.name = "own";
  hook.help = "a hook of its own";
  return hook;
}

TEST(HookListTest, TextForATerminal) {
  EXPECT_EQ(HooksAsText({Example(), Bare()}),
            "shrink (also smaller)\n"
            "  everything becomes smaller\n"
            "  rank=2 [1 to 8]\n"
            "      how small | how fast (also r)\n"
            "  warm=true [true or false]\n"
            "      whether it is warm\n"
            "  bytes        4 N\n"
            "  collectives  1 all-reduce\n"
            "  memory       none\n"
            "  numerics     exact\n"
            "  not for      when large is better\n"
            "\n"
            "own\n"
            "  a hook of its own\n");
}

TEST(HookListTest, LinesFitTheTerminal) {
  for (const absl::string_view line :
       absl::StrSplit(HooksAsText(ListHooks()), '\n')) {
    if (absl::StrContains(line, '[')) continue;  // an option's is not broken
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(HookListTest, Markdown) {
  EXPECT_EQ(HooksAsMarkdown({Example(), Bare()}),
            "### `shrink`\n"
            "\n"
            "everything becomes smaller. Also named `smaller`.\n"
            "\n"
            "| option | default | values | what it is |\n"
            "|---|---|---|---|\n"
            "| `rank` | 2 | 1 to 8 | how small \\| how fast; also `r` |\n"
            "| `warm` | true | true or false | whether it is warm |\n"
            "\n"
            "| cost | |\n"
            "|---|---|\n"
            "| bytes | 4 N |\n"
            "| collectives | 1 all-reduce |\n"
            "| memory | none |\n"
            "| numerics | exact |\n"
            "| not for | when large is better |\n"
            "\n"
            "### `own`\n"
            "\n"
            "a hook of its own.\n");
}

TEST(HookListTest, JsonHasTheTypesOfTheDefaults) {
  const auto json = nlohmann::json::parse(HooksAsJson({Example()}));
  const auto& hook = json["hooks"][0];
  EXPECT_EQ(hook["name"], "shrink");
  EXPECT_EQ(hook["aliases"][0], "smaller");
  EXPECT_EQ(hook["needs_inner"], false);
  EXPECT_EQ(hook["options"][0]["default"], 2);
  EXPECT_EQ(hook["options"][0]["range"], "1 to 8");
  EXPECT_EQ(hook["options"][0]["aliases"][0], "r");
  EXPECT_EQ(hook["options"][1]["default"], true);
  EXPECT_EQ(hook["options"][1]["type"], "bool");
  EXPECT_EQ(hook["card"]["avoid"], "when large is better");
}

TEST(HookListTest, EveryHookAndOptionIsListed) {
  const std::string text = HooksAsText(ListHooks());
  const auto json = nlohmann::json::parse(HooksAsJson(ListHooks()));
  EXPECT_EQ(json["hooks"].size(), ListHooks().size());
  for (const HookDescription& hook : ListHooks()) {
    EXPECT_THAT("\n" + text, HasSubstr("\n" + hook.name));
    for (const OptionDescription& option : hook.options) {
      EXPECT_THAT(text, HasSubstr(absl::StrCat("\n  ", option.name, "=",
                                               option.DefaultText())));
    }
  }
}

TEST(HookListTest, TheDocumentHasTheCardsOfTheRegistry) {
  std::stringstream document;
  document << std::ifstream("docs/hooks.md").rdbuf();
  const std::vector<std::string> parts =
      absl::StrSplit(document.str(), "<!-- cards -->\n");
  ASSERT_EQ(parts.size(), 3u) << "between two lines <!-- cards -->";
  EXPECT_EQ(parts[1], HooksAsMarkdown(ListHooks()))
      << "docs/hooks.md is not up to date: tools/update_hook_cards.sh";
}

}  // namespace
}  // namespace coxswain
