#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/reduce/hook_state.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "hooks/spec.h"
#include "tests/golden/golden_states.h"

// The bytes of hook states, as they were saved once, are read, loaded, and
// saved again to the same bytes.

namespace coxswain {
namespace {

std::string BytesOf(const std::string& file) {
  const std::string path = absl::StrCat("tests/golden/hook_states/", file);
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path << " is missing; see tests/golden/README.md";
  return std::string(std::istreambuf_iterator<char>(in), {});
}

HookState StateIn(const std::string& file) {
  auto state = ParseHookState(BytesOf(file));
  EXPECT_OK(state);
  return state.ok() ? *std::move(state) : HookState();
}

class HookStateGolden : public testing::TestWithParam<GoldenState> {
 protected:
  static std::string FileOf(const std::string& part) {
    return absl::StrCat(GetParam().name, part, ".cxhs");
  }
};

TEST_P(HookStateGolden, TheBytesAreReadAndWrittenAsTheyWere) {
  for (const auto& [file, bytes] : TrainedStates(GetParam())) {
    const std::string golden = BytesOf(file);
    EXPECT_EQ(golden.substr(0, 8), std::string("CXHS\1\0\0\0", 8));
    EXPECT_EQ(SerializeHookState(StateIn(file)), golden);
    // Its values depend on the CPU; which ones there are does not.
    EXPECT_EQ(bytes.size(), golden.size()) << file;
  }
}

TEST_P(HookStateGolden, ACheckpointLoadsAndIsSavedAgain) {
  const HookState state = StateIn(FileOf(""));
  EXPECT_EQ(state.spec, *CanonicalSpec(GetParam().spec));
  HookState again;
  if (GetParam().averager) {
    AveragerTeam team = MakeGoldenTeam(GetParam());
    ASSERT_OK(team.Load(state));
    again = team.Save();
  } else {
    HookWorld world = MakeGoldenWorld(GetParam());
    ASSERT_OK(world.Load(state));
    again = world.Save();
  }
  EXPECT_EQ(SerializeHookState(again), BytesOf(FileOf("")));
}

TEST_P(HookStateGolden, EachRanksOwnStateLoadsAndIsSavedAgain) {
  if (GetParam().averager) return;
  HookWorld world = MakeGoldenWorld(GetParam());
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string file = FileOf(absl::StrCat(".own", rank));
    ASSERT_OK(world.hook(rank).LoadOwn(StateIn(file), 1));
    EXPECT_EQ(SerializeHookState(world.SaveOwn(rank)), BytesOf(file));
  }
}

INSTANTIATE_TEST_SUITE_P(States, HookStateGolden,
                         testing::ValuesIn(GoldenStates()),
                         [](const testing::TestParamInfo<GoldenState>& info) {
                           return info.param.name;
                         });

TEST(HookStateGoldenTest, EachHookWithAStateHasItsFile) {
  // Those that keep the step only, as fp16 does, and what saves as the hook
  // that it wraps.
  std::set<std::string> seen = {"allreduce", "bf16", "noop", "stats"};
  for (const GoldenState& golden : GoldenStates()) {
    seen.insert(ParseSpec(golden.spec)->name);
  }
  for (const HookDescription& hook : ListHooks()) {
    EXPECT_EQ(seen.count(hook.name), 1u) << hook.name;
  }
}

}  // namespace
}  // namespace coxswain
