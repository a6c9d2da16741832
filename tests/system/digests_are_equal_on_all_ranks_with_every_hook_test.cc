#include <cctype>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/support/environment.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::SizeIs;

constexpr int kDigestedSteps = 12;

using Case = std::tuple<const char*, int, int>;  // hook, workers, accumulation

class EveryHookTest : public testing::TestWithParam<Case> {};

TEST_P(EveryHookTest, DigestsAreEqualAfterEveryStep) {
  const auto [hook, workers, accumulation] = GetParam();
  auto launcher =
      Start(Launcher({"--nproc", absl::StrCat(workers)},
                     {"--hook", hook, "--steps", absl::StrCat(kDigestedSteps),
                      "--accumulate", absl::StrCat(accumulation), "--digest"}));
  ASSERT_OK_AND_ASSIGN(Process::Exit exit, launcher->Wait(kTimeout));
  ASSERT_EQ(exit.Status(), 0) << launcher->err();

  const auto digests = DigestsByRank(launcher->out());
  ASSERT_THAT(digests, SizeIs(workers)) << launcher->out();
  std::set<std::string> different;
  for (const auto& [step, digest] : digests.at(0)) different.insert(digest);
  EXPECT_THAT(different, SizeIs(kDigestedSteps))
      << "a step did not change anything";
  for (const auto& [rank, steps] : digests) {
    EXPECT_EQ(steps, digests.at(0)) << "rank " << rank;
  }
}

// Returns each hook with both numbers of workers and both accumulations; in all
// combinations only if EverySetting().
std::vector<Case> Cases() {
  std::vector<Case> cases;
  bool accumulates = false;
  for (const char* hook :
       {"allreduce", "fp16", "fp16(order=cast_then_divide)", "bf16",
        "powersgd(rank=2,start_step=2)", "powersgd(rank=1,start_step=6)",
        "powersgd(start_step=2,warm_start=false)",
        "powersgd(rank=2,start_step=2,error_feedback=false)",
        "fp16(powersgd(rank=2,start_step=2))",
        "bf16(powersgd(rank=2,start_step=2))", "bf16(allreduce)"}) {
    cases.emplace_back(hook, 2, accumulates ? 4 : 1);
    cases.emplace_back(hook, 3, accumulates ? 1 : 4);
    accumulates = !accumulates;
    if (!EverySetting()) continue;
    cases.emplace_back(hook, 2, accumulates ? 4 : 1);
    cases.emplace_back(hook, 3, accumulates ? 1 : 4);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryHookTest, testing::ValuesIn(Cases()),
    [](const testing::TestParamInfo<Case>& info) {
      std::string name;
      for (const char c : std::string(std::get<0>(info.param))) {
        name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      }
      return absl::StrCat(name, "_workers", std::get<1>(info.param),
                          "_accumulate", std::get<2>(info.param));
    });

}  // namespace
}  // namespace coxswain
