#include "server/membership/manifest_diff.h"

#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::server::manifest_diff_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Manifest MakeManifest() {
  Manifest manifest;
  manifest.world_size = 2;
  manifest.hook = "allreduce";
  manifest.accumulation_steps = 1;
  manifest.parameters = {{"conv1.weight", {16, 1, 3, 3}, "float32", {}},
                         {"conv1.bias", {16}, "float32", {}}};
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
  ours.terms = {{"tail", "drop"}};
  ours.mesh = "dp=*";
  ours.settings = {{"bucket", "25"}};
  ours.parameters[0].strides = {1, 1, 48, 16};
  ours.parameters[1] = {"fc.bias", {10}, "float32", {}};
  EXPECT_THAT(
      DiffManifests(MakeManifest(), "host-a/0", ours),
      ElementsAre("world_size: 2 on host-a/0, 3 here",
                  "mesh: none on host-a/0, dp=* here",
                  "accumulation_steps: 1 on host-a/0, 4 here",
                  "hook: allreduce on host-a/0, bf16 here",
                  "tail: flush on host-a/0, drop here",
                  "setting bucket: unset on host-a/0, 25 here",
                  "setting seed: 1 on host-a/0, unset here",
                  "parameter 0: conv1.weight float32[16,1,3,3] on host-a/0, "
                  "conv1.weight float32[16,1,3,3] strides [1,1,48,16] here",
                  "parameter 1: conv1.bias float32[16] on host-a/0, fc.bias "
                  "float32[10] here"));
}

TEST(DiffManifestsTest, ListsOfDifferentLengthNameWhatIsMissing) {
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
    theirs.parameters.push_back({absl::StrCat("a", i), {1}, "float32", {}});
    ours.parameters.push_back({absl::StrCat("b", i), {1}, "float32", {}});
  }
  const auto lines = DiffManifests(theirs, "host-a/0", ours);
  ASSERT_THAT(lines, SizeIs(kMaxDifferences));
  EXPECT_EQ(lines.back(), "and 11 more differences");
}

TEST(DiffManifestsTest, LongNamesStayWithinTheBytesOfAnError) {
  Manifest theirs;
  Manifest ours;
  for (int i = 0; i < 30; ++i) {
    theirs.parameters.push_back({std::string(1000, 'a'), {i}, "float32", {}});
    ours.parameters.push_back({std::string(1000, 'b'), {i}, "float32", {}});
  }
  const auto lines = DiffManifests(theirs, std::string(300, 'h'), ours);
  const size_t bytes = std::accumulate(
      lines.begin(), lines.end(), size_t{0},
      [](size_t sum, const std::string& line) { return sum + line.size(); });
  EXPECT_LE(bytes, kMaxDifferenceBytes + 40);
  EXPECT_THAT(lines.back(), HasSubstr("more differences"));
}

TEST(DiffManifestsTest, LongValuesAreShownWhereTheyPart) {
  Manifest theirs;
  Manifest ours;
  theirs.hook = std::string(1000, 'a') + "(rank=4)" + std::string(1000, 'c');
  ours.hook = std::string(1000, 'a') + "(rank=2)" + std::string(1000, 'c');
  const auto lines = DiffManifests(theirs, "host-a/0", ours);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0],
              AllOf(HasSubstr("hook: ...aaa"), HasSubstr("aa(rank=4)cc"),
                    HasSubstr("aa(rank=2)cc")));
  EXPECT_LT(lines[0].size(), 300u);
}

TEST(DiffManifestsTest, APeersTextStaysOnItsLine) {
  Manifest theirs;
  Manifest ours;
  ours.hook = "bf16\nhook: forged";
  EXPECT_THAT(DiffManifests(theirs, "host-a/0", ours),
              ElementsAre("hook:  on host-a/0, bf16?hook: forged here"));
}

Manifest WithHook(const std::string& hook) {
  Manifest manifest = MakeManifest();
  manifest.hook = hook;
  return manifest;
}

TEST(DiffAmongManyTest, EveryValueHasItsHoldersTheMostCommonFirst) {
  const Manifest odd = WithHook("powersgd(rank=2)");
  const Manifest common = WithHook("powersgd(rank=4)");
  EXPECT_THAT(
      DiffManifests({{&odd, {1}}, {&common, {0, 2}}}, {"bow/0", "bow/1", "c"}),
      ElementsAre("hook: powersgd(rank=4) on bow/0, c; "
                  "powersgd(rank=2) on bow/1"));
}

TEST(DiffAmongManyTest, WorkersThatAgreeInALineAreNamedTogether) {
  Manifest a = WithHook("bf16");
  Manifest b = WithHook("bf16");
  b.accumulation_steps = 4;
  Manifest c = WithHook("fp16");
  EXPECT_THAT(DiffManifests({{&a, {2}}, {&b, {1}}, {&c, {0}}}, {"x", "y", "z"}),
              ElementsAre("accumulation_steps: 1 on x, z; 4 on y",
                          "hook: bf16 on y, z; fp16 on x"));
}

TEST(DiffAmongManyTest, ManyHoldersAndValuesAreCounted) {
  std::vector<Manifest> manifests;
  for (int i = 0; i < 9; ++i) manifests.push_back(WithHook(absl::StrCat(i)));
  std::vector<HeldManifest> held;
  std::vector<std::string> names;
  for (int i = 0; i < 9; ++i) held.push_back({&manifests[i], {}});
  for (size_t i = 0; i < 30; ++i) {
    names.push_back(absl::StrCat("w", i));
    held[i < 20 ? 3 : i % 9].holders.push_back(i);
  }
  const auto lines = DiffManifests(held, names);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0],
              AllOf(HasSubstr("hook: 3 on w0, w1, w2, w3 and 17 more; "),
                    HasSubstr("; and 5 other values")));
}

}  // namespace
}  // namespace coxswain::server::manifest_diff_test
