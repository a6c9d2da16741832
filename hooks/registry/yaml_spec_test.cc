#include "hooks/registry/yaml_spec.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace coxswain::yaml_spec_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns the error of a YAML text, without what all of them begin with.
std::string ErrorOf(const std::string& text) {
  const auto spec = HookSpecFromYaml(text);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << text;
  const std::string message(spec.status().message());
  EXPECT_THAT(message, HasSubstr("hook YAML")) << text;
  return message;
}

void ExpectSpecs(
    const std::vector<std::pair<std::string, std::string>>& cases) {
  for (const auto& [text, expected] : cases) {
    const auto spec = HookSpecFromYaml(text);
    ASSERT_TRUE(spec.ok()) << text << "\n" << spec.status();
    EXPECT_EQ(*spec, expected) << text;
  }
}

TEST(YamlSpecTest, ASpecIsAScalar) {
  ExpectSpecs({{"powersgd(rank=4)", "powersgd(rank=4)"},
               {"# ours\n---\n'fp16( powersgd(rank=2) )'\n...\n",
                "fp16(powersgd(rank=2))"}});
}

TEST(YamlSpecTest, AMapInOurWords) {
  ExpectSpecs({
      {"{name: allreduce}", "allreduce"},
      {"name: powersgd\noptions: {rank: 4, error_feedback: false}\n",
       "powersgd(rank=4,error_feedback=false)"},
      {"name: power_sgd\noptions:\n  start_powerSGD_iter: \"7\"\n",
       "powersgd(start_step=7)"},
      {"{name: powersgd, options: {rank: 4}, wrap: fp16}",
       "fp16(powersgd(rank=4))"},
      {"{name: fp16, options: {order: cast_then_divide}}",
       "fp16(order=cast_then_divide)"},
      {"name: stats\noptions: {every: 10}\ninner:\n  name: fp16\n"
       "  inner: powersgd(rank=2)\n",
       "stats(every=10,fp16(powersgd(rank=2)))"},
      {"name: powersgd\nwrap: [{name: stats, options: {every: 5}}, bf16]\n",
       "stats(every=5,bf16(powersgd))"},
      {"{name: fp16, inner: powersgd, wrap: stats}", "stats(fp16(powersgd))"},
      {"{name: noop, options: {}}", "noop"},
  });
}

TEST(YamlSpecTest, AcceleratesWords) {
  ExpectSpecs({
      {"comm_hook: no", "allreduce"},
      {"{comm_hook: no, comm_wrapper: no, comm_state_option: {}}", "allreduce"},
      {"comm_hook: fp16", "fp16"},
      {"comm_hook: bf16\ncomm_wrapper: no", "bf16"},
      {"{comm_hook: fp16, comm_wrapper: bf16}", "bf16(fp16)"},
      {"comm_hook: power_sgd\ncomm_wrapper: bf16\ncomm_state_option:\n"
       "  matrix_approximation_rank: 2\n  start_powerSGD_iter: 500\n"
       "  use_error_feedback: True\n  warm_start: False\n",
       "bf16(powersgd(rank=2,start_step=500,warm_start=false))"},
  });
}

TEST(YamlSpecTest, WhatAccelerateIgnoresIsAnError) {
  EXPECT_THAT(ErrorOf("comm_wrapper: fp16"),
              AllOf(HasSubstr("line 1, column 1:"),
                    HasSubstr("comm_wrapper fp16 has no hook to wrap")));
  EXPECT_THAT(
      ErrorOf("comm_hook: no\ncomm_wrapper: bf16"),
      AllOf(HasSubstr("line 2, column 1:"), HasSubstr("no hook to wrap"),
            HasSubstr("comm_hook: bf16")));
  for (const char* hook : {"fp16", "bf16", "no"}) {
    EXPECT_THAT(
        ErrorOf(absl::StrCat("comm_hook: ", hook,
                             "\ncomm_state_option: {warm_start: true}")),
        AllOf(HasSubstr("line 2, column 1:"),
              HasSubstr("for comm_hook power_sgd and batched_power_sgd")));
  }
}

TEST(YamlSpecTest, UnknownWordsAreErrorsThatListTheKnown) {
  EXPECT_THAT(ErrorOf("name: powersgd\nranks: 4\n"),
              AllOf(HasSubstr("line 2, column 1: 'ranks' is no key of a hook"),
                    HasSubstr("name, options, inner, wrap")));
  EXPECT_THAT(ErrorOf("{comm_hook: power_sgd, name: x}"),
              AllOf(HasSubstr("column 24: 'name'"),
                    HasSubstr("comm_hook, comm_wrapper, comm_state_option")));
  EXPECT_THAT(ErrorOf("comm_hook: powersgd"),
              HasSubstr("line 1, column 12: comm_hook is one of no, fp16, bf16,"
                        " power_sgd, batched_power_sgd; found 'powersgd'"));
  EXPECT_THAT(ErrorOf("name: powersgd\noptions:\n  rank: 2\n  rnak: 4\n"),
              AllOf(HasSubstr("line 4, column 3: powersgd has no option "),
                    HasSubstr("'rnak'"), HasSubstr("rank (1 to 1024)")));
  EXPECT_THAT(ErrorOf("{name: powersgd, options: {rank: 0}}"),
              HasSubstr("line 1, column 28: rank must be between 1 and 1024"));
  EXPECT_THAT(ErrorOf("wrap: fp16\nname: powresgd\n"),
              HasSubstr("line 2, column 7: there is no hook 'powresgd'; the "
                        "hooks are "));
  EXPECT_THAT(ErrorOf("\n  powersgd(rank=0)"),
              AllOf(HasSubstr("line 2, column 3:"), HasSubstr("got 0")));
}

TEST(YamlSpecTest, WhatIsNoHookIsAnError) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "document"},
      {"# nothing", "document"},
      {"allreduce\n---\nfp16\n", "found more"},
      // Which YAML::LoadAll reads for ever.
      {",", "found more"},
      {", fp16]\n&a x", "found more"},
      {"~", "expected a hook"},
      {"[fp16, powersgd]", "found a list"},
      {"{options: {rank: 1}}", "a hook needs a name"},
      {"{name: {a: b}}", "expected a hook's name, found a map"},
      {"{name: }", "found nothing"},
      {"{name: 'power sgd'}", "found 'power sgd'"},
      {"{name: 'fp16(powersgd'}", "expected a hook's name"},
      {"{name: powersgd, options: rank}", "options is a map"},
      {"{name: powersgd, options: {rank: }}", "a value for rank"},
      {"{name: powersgd, options: {rank: '4)'}}", "found '4)'"},
      {"{name: powersgd, options: {rank: [4]}}", "found a list"},
      {"{name: powersgd, options: {[a]: 4}}", "a list is no key of options"},
      {"{name: powersgd, name: fp16}", "'name' is given twice"},
      {"{name: powersgd, options: {rank: 1, rank: 2}}", "given twice"},
      {"{name: powersgd, options: {rank: 1, matrix_approximation_rank: 2}}",
       "given twice"},
      {"{name: powersgd, inner: fp16}", "takes no inner hook"},
      {"{name: stats}", "needs one, as in stats(allreduce)"},
      {"{name: fp16, wrap: bf16(allreduce)}", "without an inner hook"},
      {"{name: fp16, wrap: powersgd}", "takes no inner hook"},
      {"{comm_hook: [fp16]}", "comm_hook is one of"},
      {"powersgd(rank=4", "expected ',' or ')'"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(ErrorOf(text), HasSubstr(expected)) << text;
  }
}

TEST(YamlSpecTest, BrokenYamlNamesThePlace) {
  EXPECT_THAT(ErrorOf("name: powersgd\noptions: {rank: 4\n"),
              HasSubstr("hook YAML, line "));
  EXPECT_THAT(ErrorOf("name: [\n"), HasSubstr("line 2"));
  ErrorOf("a: b: c");
  ErrorOf("*nowhere");
  ErrorOf(std::string("\0\xff\xfe\x01", 4));
}

TEST(YamlSpecTest, DepthIsLimited) {
  ExpectSpecs(
      {{"{name: fp16, wrap: [stats, bf16, bf16]}", "stats(bf16(bf16(fp16)))"}});
  EXPECT_THAT(ErrorOf("{name: fp16, wrap: [stats, bf16, bf16, bf16]}"),
              HasSubstr("more than 4 hooks"));
  EXPECT_THAT(ErrorOf("{name: fp16, wrap: [bf16, bf16, bf16, bf16, bf16]}"),
              HasSubstr("more than 4 hooks"));
  EXPECT_THAT(ErrorOf("{name: fp16, inner: {name: fp16, inner: {name: fp16, "
                      "inner: {name: fp16, inner: {name: fp16}}}}}"),
              HasSubstr("more than 4 hooks"));
}

TEST(YamlSpecTest, TextsMadeToHurtAreErrors) {
  EXPECT_THAT(HookSpecFromYaml(std::string(kMaxHookYaml + 1, ' ')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("may have 16384 bytes")));
  // Each list has the one before nine times.
  std::string bomb = "name: fp16\na0: &a0 [x]\n";
  for (int i = 1; i < 10; ++i) {
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [");
    for (int k = 0; k < 9; ++k) absl::StrAppend(&bomb, "*a", i - 1, ",");
    absl::StrAppend(&bomb, "]\n");
  }
  EXPECT_THAT(ErrorOf(bomb), HasSubstr("'a0' is no key"));
  // Maps that contain themselves.
  EXPECT_THAT(ErrorOf("&a {name: fp16, inner: *a}"), HasSubstr("more than 4"));
  EXPECT_THAT(ErrorOf("&a {name: fp16, wrap: *a}"), HasSubstr("more than 4"));
  EXPECT_THAT(ErrorOf("&a {name: fp16, wrap: [*a, *a, *a, *a]}"),
              HasSubstr("more than 4"));
  for (const char* bracket :
       {"[", "{", "- ", "? ", "&a ", "!", "'", "\"", ": "}) {
    std::string deep;
    while (deep.size() + 2 < kMaxHookYaml) deep += bracket;
    ErrorOf(deep);
  }
}

// Returns a file with this text.
std::string File(const std::string& text) {
  const std::string path = testing::TempDir() + "/hook.yaml";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(ReadHookArgumentTest, IsASpecOrAFile) {
  EXPECT_EQ(*ReadHookArgument("powersgd(start_powerSGD_iter=7)"),
            "powersgd(start_step=7)");
  EXPECT_EQ(*ReadHookArgument("@" + File("{name: powersgd, wrap: fp16}\n")),
            "fp16(powersgd)");
}

TEST(ReadHookArgumentTest, ErrorsNameTheFile) {
  EXPECT_THAT(ReadHookArgument("powresgd"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("hook spec \"powresgd\"")));
  EXPECT_THAT(ReadHookArgument("@" + File("name: powresgd")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("/hook.yaml: hook YAML, line 1"),
                             HasSubstr("there is no hook 'powresgd'"))));
  EXPECT_THAT(ReadHookArgument("@" + File(std::string(kMaxHookYaml * 2, 'x'))),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("may have 16384 bytes")));
  for (const std::string& path :
       {std::string(), std::string("/no/such.yaml")}) {
    EXPECT_THAT(ReadHookArgument("@" + path),
                StatusIs(absl::StatusCode::kNotFound,
                         HasSubstr("from file '" + path + "'")));
  }
  EXPECT_FALSE(ReadHookArgument("@" + testing::TempDir()).ok());
}

}  // namespace
}  // namespace coxswain::yaml_spec_test
