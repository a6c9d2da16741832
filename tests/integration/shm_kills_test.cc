#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "tests/support/process.h"

namespace coxswain {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

namespace fs = std::filesystem;

constexpr char kWorker[] = "tests/integration/shm_worker";
constexpr int kRanks = 4;
constexpr int kVictims = 2;   // a round
constexpr int kRounds = 100;  // 200 kills
// Survivors end in milliseconds. A machine may be slow, but a wait that only
// the ranks' own timeout ends is too long.
constexpr absl::Duration kWaitTimeout = absl::Seconds(30);
constexpr absl::Duration kTimeout = absl::Minutes(2);
// Errors of ranks that wait to connect to a rank that has died.
constexpr absl::Duration kConnectTimeout = absl::Seconds(1);
constexpr char kMark[] = "SHM_KILLS_TEST";

absl::Time Now() { return Clock::Real()->Now(); }

std::string Contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A folder that the ranks of one round use as their store.
class Folder {
 public:
  Folder() : path_(testing::TempDir() + "/shm-XXXXXX") {
    COXSWAIN_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~Folder() {
    std::error_code ignored;  // it lies in the test's own folder
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

  // Returns the names of the sockets that the ranks have listened at.
  std::vector<std::string> SocketNames() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_)) {
      const std::string value = Contents(entry.path());
      if (absl::StartsWith(value, "coxswain-")) names.push_back(value);
    }
    return names;
  }

 private:
  std::string path_;
};

// Returns those of the names that a process holds.
std::vector<std::string> OpenSockets(const Folder& folder) {
  const std::string all = Contents("/proc/net/unix");
  std::vector<std::string> open;
  for (const std::string& name : folder.SocketNames()) {
    if (absl::StrContains(all, "@" + name)) open.push_back(name);
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

// Returns the running processes that this test has started, and their
// descendants, found by a variable of their environment.
std::vector<fs::path> OwnProcesses() {
  const std::string mark = absl::StrCat(kMark, "=", getpid());
  std::vector<fs::path> own;
  std::error_code error;  // processes come and go
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::vector<std::string> variables =
        absl::StrSplit(Contents(entry.path() / "environ"), '\0');
    if (std::count(variables.begin(), variables.end(), mark) > 0) {
      own.push_back(entry.path());
    }
  }
  return own;
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

class Round {
 public:
  Round(std::string stage, int seed)
      : stage_(std::move(stage)), random_(static_cast<uint64_t>(seed), 0) {}

  // Starts all ranks; the first `victims` of a random order are killed.
  void Start(int victims) {
    const absl::Duration timeout =
        stage_ == "connect" && victims > 0 ? kConnectTimeout : kTimeout;
    std::vector<int64_t> die_after(kRanks, -1);
    for (int i = 0; i < victims; ++i) {
      int rank = 0;
      do {
        rank = static_cast<int>(Uniform() * kRanks);
      } while (die_after[static_cast<size_t>(rank)] >= 0);
      die_after[static_cast<size_t>(rank)] = TimeToDie();
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const int64_t time = die_after[static_cast<size_t>(rank)];
      Process::Options options;
      options.command = {kWorker,
                         folder_.path(),
                         absl::StrCat(rank),
                         absl::StrCat(kRanks),
                         stage_,
                         absl::StrCat(absl::ToInt64Milliseconds(timeout)),
                         absl::StrCat(time)};
      options.environment[kMark] = absl::StrCat(getpid());
      auto process = Process::Start(std::move(options));
      ASSERT_OK(process);
      (time < 0 ? survivors_ : victims_).push_back(*std::move(process));
    }
  }

  void AwaitAllThere() {
    for (const auto& process : survivors_) {
      ASSERT_OK(process->WaitForStdout("all there\n", kWaitTimeout));
    }
  }
  void Terminate() {
    for (const auto& process : survivors_) {
      ASSERT_OK(process->WaitForStdout("begun\n", kWaitTimeout));
      process->Signal(SIGTERM);
    }
  }

  // Waits for the victims; returns how many were killed.
  int AwaitVictims() {
    int killed = 0;
    for (const auto& process : victims_) {
      const auto exit = process->Wait(kWaitTimeout);
      EXPECT_OK(exit);
      if (exit.ok() && exit->signal == SIGKILL) ++killed;
    }
    return killed;
  }

  // Expects that they end, and with an error that names the cause.
  void CheckSurvivors() {
    for (const auto& process : survivors_) {
      const auto exit = process->Wait(kWaitTimeout);
      ASSERT_OK(exit);
      EXPECT_EQ(exit->Status(), 3)
          << stage_ << ": " << process->out() << process->err();
    }
  }
  void CheckNothingIsLeft() const {
    EXPECT_THAT(OpenSockets(folder_), IsEmpty()) << stage_;
    EXPECT_THAT(OwnProcesses(), IsEmpty()) << stage_;
  }

  const Folder& folder() const { return folder_; }

 private:
  double Uniform() { return random_.Uniform(drawn_++); }
  // Short times as often as long ones: the stages differ in what they need.
  int64_t TimeToDie() {
    const double decades = stage_ == "connect" ? 3.5 : 2.5;
    return static_cast<int64_t>(50 * std::pow(10.0, decades * Uniform()));
  }

  const std::string stage_;
  const CounterRandom random_;
  uint64_t drawn_ = 0;
  const Folder folder_;
  std::vector<std::unique_ptr<Process>> survivors_;
  std::vector<std::unique_ptr<Process>> victims_;
};

TEST(ShmKillsTest, TheSearchesFindSomethingWhileRanksRun) {
  Round round("small", 1);
  round.Start(/*victims=*/0);
  round.AwaitAllThere();
  EXPECT_THAT(OpenSockets(round.folder()), SizeIs(kRanks - 1));
  const auto running = OwnProcesses();
  EXPECT_THAT(running, SizeIs(kRanks));
  for (const fs::path& process : running) EXPECT_TRUE(HoldsSegment(process));
  round.Terminate();
  round.CheckSurvivors();
  round.CheckNothingIsLeft();
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
    Round round(stage, i);
    round.Start(kVictims);
    killed += round.AwaitVictims();
    const absl::Time begun = Now();
    // Every other time a launcher reports the death to those that still wait;
    // else they notice by themselves.
    if (stage == "connect" && i % 4 == 0) round.Terminate();
    round.CheckSurvivors();
    if (stage != "connect") slowest = std::max(slowest, Now() - begun);
    round.CheckNothingIsLeft();
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
