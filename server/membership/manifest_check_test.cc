#include "server/membership/manifest_check.h"

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Manifest MakeManifest() {
  Manifest manifest;
  manifest.world_size = 2;
  manifest.hook = "allreduce";
  manifest.accumulation_steps = 1;
  manifest.parameters = {{"conv1.weight", {16, 1, 3, 3}, "float32"},
                         {"conv1.bias", {16}, "float32"}};
  manifest.settings = {{"seed", "1"}};
  return manifest;
}

TEST(DiffManifestsTest, EqualManifestsDoNotDiffer) {
  EXPECT_THAT(DiffManifests(MakeManifest(), "host-a/0", MakeManifest()),
              IsEmpty());
}

TEST(DiffManifestsTest, EachDifferenceIsOneReadableLine) {
  Manifest ours = MakeManifest();
  ours.world_size = 3;
  ours.hook = "bf16";
  ours.accumulation_steps = 4;
  ours.settings = {{"bucket", "25"}};
  ours.parameters[1] = {"fc.bias", {10}, "float32"};
  EXPECT_THAT(
      DiffManifests(MakeManifest(), "host-a/0", ours),
      ElementsAre("world_size: 2 on host-a/0, 3 here",
                  "hook: allreduce on host-a/0, bf16 here",
                  "accumulation_steps: 1 on host-a/0, 4 here",
                  "setting bucket: unset on host-a/0, 25 here",
                  "setting seed: 1 on host-a/0, unset here",
                  "parameter 1: conv1.bias float32[16] on host-a/0, fc.bias "
                  "float32[10] here"));
}

TEST(DiffManifestsTest, ListsOfDifferentLengthSayWhatIsMissing) {
  Manifest ours = MakeManifest();
  ours.parameters.pop_back();
  EXPECT_THAT(DiffManifests(MakeManifest(), "host-a/0", ours),
              ElementsAre("number of parameters: 2 on host-a/0, 1 here",
                          "parameter 1: conv1.bias float32[16] on host-a/0, "
                          "nothing here"));
}

TEST(DiffManifestsTest, ManyDifferencesAreCounted) {
  Manifest theirs;
  Manifest ours;
  for (int i = 0; i < 30; ++i) {
    theirs.parameters.push_back({absl::StrCat("a", i), {1}, "float32"});
    ours.parameters.push_back({absl::StrCat("b", i), {1}, "float32"});
  }
  const auto lines = DiffManifests(theirs, "host-a/0", ours);
  ASSERT_THAT(lines, SizeIs(kMaxDifferences));
  EXPECT_EQ(lines.back(), "and 11 more differences");
}

TEST(DiffManifestsTest, LongNamesStayWithinTheBytesOfAnError) {
  Manifest theirs;
  Manifest ours;
  for (int i = 0; i < 30; ++i) {
    theirs.parameters.push_back({std::string(1000, 'a'), {i}, "float32"});
    ours.parameters.push_back({std::string(1000, 'b'), {i}, "float32"});
  }
  const auto lines = DiffManifests(theirs, std::string(300, 'h'), ours);
  const size_t bytes = std::accumulate(
      lines.begin(), lines.end(), size_t{0},
      [](size_t sum, const std::string& line) { return sum + line.size(); });
  EXPECT_LE(bytes, kMaxDifferenceBytes + 40);
  EXPECT_THAT(lines.back(), HasSubstr("more differences"));
}

struct BadManifest {
  std::function<void(Manifest*)> spoil;
  absl::StatusCode code;
  std::string message;
};

TEST(CheckManifestTest, EveryBoundIsNamed) {
  const MembershipOptions options;
  EXPECT_OK(CheckManifest(MakeManifest(), options));
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto exhausted = absl::StatusCode::kResourceExhausted;
  const std::vector<BadManifest> cases = {
      {[](Manifest* m) { m->world_size = 0; }, invalid, "world_size"},
      {[](Manifest* m) { m->world_size = 5000; }, exhausted,
       "max_members_per_job"},
      {[](Manifest* m) { m->accumulation_steps = 0; }, invalid,
       "accumulation_steps"},
      {[](Manifest* m) { m->hook.assign(5000, 'x'); }, exhausted,
       "max_hook_bytes"},
      {[](Manifest* m) { m->settings["x"].assign(5000, 'x'); }, exhausted,
       "max_setting_bytes"},
      {[](Manifest* m) {
         for (int i = 0; i < 300; ++i) m->settings[absl::StrCat(i)] = "";
       },
       exhausted, "max_settings"},
      {[](Manifest* m) { m->parameters.resize(100'001); }, exhausted,
       "max_parameters"},
      {[](Manifest* m) { m->parameters[0].name.assign(2000, 'x'); }, exhausted,
       "max_parameter_name_bytes"},
      {[](Manifest* m) { m->parameters[0].shape.resize(17, 1); }, exhausted,
       "max_dimensions"},
      {[](Manifest* m) { m->parameters[0].shape[0] = -1; }, invalid,
       "conv1.weight"},
      {[](Manifest* m) { m->parameters[0].dtype.clear(); }, invalid, "dtype"},
  };
  for (const BadManifest& bad : cases) {
    Manifest manifest = MakeManifest();
    bad.spoil(&manifest);
    EXPECT_THAT(CheckManifest(manifest, options),
                StatusIs(bad.code, HasSubstr(bad.message)));
  }
}

}  // namespace
}  // namespace coxswain::server
