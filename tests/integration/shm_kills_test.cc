#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "tests/integration/killed_ranks.h"

namespace coxswain {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

namespace fs = std::filesystem;

constexpr int kVictims = 2;   // a round
constexpr int kRounds = 100;  // 200 kills

absl::Time Now() { return Clock::Real()->Now(); }

std::string Contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns those of the sockets that the ranks have listened at that a process
// holds.
std::vector<std::string> OpenSockets(const KilledRanks& ranks) {
  const std::string all = Contents("/proc/net/unix");
  std::vector<std::string> open;
  for (const auto& entry : fs::directory_iterator(ranks.folder())) {
    const std::string name = Contents(entry.path());
    if (absl::StartsWith(name, "coxswain-") &&
        absl::StrContains(all, "@" + name)) {
      open.push_back(name);
    }
  }
  return open;
}

std::vector<std::string> FilesInDevShm() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    names.push_back(entry.path().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns whether a process has a segment mapped or a descriptor of one.
bool HoldsSegment(const fs::path& process) {
  if (absl::StrContains(Contents(process / "maps"), "/memfd:coxswain")) {
    return true;
  }
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(process / "fd", error)) {
    const fs::path target = fs::read_symlink(entry.path(), error);
    if (absl::StrContains(target.string(), "/memfd:coxswain")) return true;
  }
  return false;
}

void CheckNothingIsLeft(const KilledRanks& ranks) {
  EXPECT_THAT(OpenSockets(ranks), IsEmpty());
  EXPECT_THAT(OwnProcesses(), IsEmpty());
}

TEST(ShmKillsTest, TheSearchesFindSomethingWhileRanksRun) {
  KilledRanks round("shm", "small", 1);
  round.Start(/*victims=*/0);
  round.AwaitAllThere();
  EXPECT_THAT(OpenSockets(round), SizeIs(KilledRanks::kRanks - 1));
  const auto running = OwnProcesses();
  EXPECT_THAT(running, SizeIs(KilledRanks::kRanks));
  for (const fs::path& process : running) EXPECT_TRUE(HoldsSegment(process));
  round.Terminate();
  round.CheckSurvivors();
  CheckNothingIsLeft(round);
}

TEST(ShmKillsTest, SurvivorsEndWithAnErrorAndNothingIsLeft) {
  const std::vector<std::string> stages = {"connect", "allocate", "small",
                                           "direct",  "pieces",   "messages"};
  const std::vector<std::string> files = FilesInDevShm();
  int killed = 0;
  absl::Duration slowest;
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    const std::string& stage = stages[static_cast<size_t>(i) % stages.size()];
    SCOPED_TRACE(absl::StrCat("round ", i, ": ", stage));
    KilledRanks round("shm", stage, static_cast<uint64_t>(i));
    round.Start(kVictims);
    killed += round.AwaitVictims();
    const absl::Time begun = Now();
    // Every other time a launcher reports the death to those that still wait;
    // else they notice by themselves.
    if (stage == "connect" && i % 4 == 0) round.Terminate();
    round.CheckSurvivors();
    if (stage != "connect") slowest = std::max(slowest, Now() - begun);
    CheckNothingIsLeft(round);
  }
  EXPECT_EQ(killed, kRounds * kVictims);
  EXPECT_EQ(FilesInDevShm(), files);
  EXPECT_FALSE(HoldsSegment("/proc/self"));
  RecordProperty("slowest_survivor",
                 absl::StrCat(absl::FormatDuration(slowest)));
  std::printf(
      "%d kills; the last survivor of a connected group ended at most "
      "%s after the last kill\n",
      killed, absl::FormatDuration(slowest).c_str());
}

}  // namespace
}  // namespace coxswain
