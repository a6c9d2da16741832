#include "tests/integration/killed_ranks.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_matchers.h"

namespace coxswain {
namespace {

namespace fs = std::filesystem;

constexpr char kProgram[] = "tests/integration/killed_rank";
// Survivors end in milliseconds. A machine may be slow, but a wait that only
// the ranks' own timeout ends is too long.
constexpr absl::Duration kSurvivorsEnd = absl::Seconds(30);
constexpr absl::Duration kRanksTimeout = absl::Minutes(2);
// Errors of ranks that wait to connect to a rank that has died.
constexpr absl::Duration kConnectTimeout = absl::Seconds(1);
constexpr char kMark[] = "KILLED_RANKS_OF";

}  // namespace

std::vector<fs::path> OwnProcesses() {
  const std::string mark = absl::StrCat(kMark, "=", getpid());
  std::vector<fs::path> own;
  std::error_code error;  // processes come and go
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    const std::vector<std::string> variables = absl::StrSplit(text.str(), '\0');
    if (std::count(variables.begin(), variables.end(), mark) > 0) {
      own.push_back(entry.path());
    }
  }
  return own;
}

KilledRanks::KilledRanks(std::string backend, std::string stage, uint64_t seed,
                         int ranks)
    : backend_(std::move(backend)),
      stage_(std::move(stage)),
      random_(seed, /*stream=*/0),
      ranks_(ranks),
      folder_(testing::TempDir() + "/ranks-XXXXXX") {
  COXSWAIN_CHECK(mkdtemp(folder_.data()) != nullptr);
}

KilledRanks::~KilledRanks() {
  std::error_code ignored;  // it lies in the test's own folder
  fs::remove_all(folder_, ignored);
}

void KilledRanks::Start(int victims) {
  const absl::Duration timeout =
      stage_ == "connect" && victims > 0 ? kConnectTimeout : kRanksTimeout;
  std::map<int, int64_t> die_after;
  while (static_cast<int>(die_after.size()) < victims) {
    const int rank = static_cast<int>(Uniform() * ranks_);
    if (die_after.count(rank) == 0) die_after[rank] = TimeToDie();
  }
  StartEach(timeout, std::move(die_after));
}

void KilledRanks::StartEach(absl::Duration timeout,
                            std::map<int, int64_t> die_after) {
  for (int rank = 0; rank < ranks_; ++rank) {
    const int64_t time = die_after.count(rank) > 0 ? die_after[rank] : -1;
    Process::Options options;
    options.command = {kProgram,
                       backend_,
                       folder_,
                       absl::StrCat(rank),
                       absl::StrCat(ranks_),
                       stage_,
                       absl::StrCat(absl::ToInt64Milliseconds(timeout)),
                       absl::StrCat(time)};
    options.environment[kMark] = absl::StrCat(getpid());
    auto process = Process::Start(std::move(options));
    ASSERT_OK(process);
    (time < 0 ? survivors_ : victims_).push_back(*std::move(process));
  }
}

// Short times as often as long ones: the stages differ in what they need.
int64_t KilledRanks::TimeToDie() {
  const bool is_long = stage_ == "connect" || stage_ == "mixed";
  return static_cast<int64_t>(
      50 * std::pow(10.0, (is_long ? 3.5 : 2.5) * Uniform()));
}

void KilledRanks::AwaitAllThere() {
  for (const auto& process : survivors_) {
    ASSERT_OK(process->WaitForStdout("all there\n", kSurvivorsEnd));
  }
}

void KilledRanks::Terminate() {
  for (const auto& process : survivors_) {
    ASSERT_OK(process->WaitForStdout("begun\n", kSurvivorsEnd));
    process->Signal(SIGTERM);
  }
}

int KilledRanks::AwaitVictims() {
  int killed = 0;
  for (const auto& process : victims_) {
    const auto exit = process->Wait(kSurvivorsEnd);
    EXPECT_OK(exit);
    if (exit.ok() && exit->signal == SIGKILL) ++killed;
  }
  return killed;
}

void KilledRanks::CheckSurvivors() {
  for (const auto& process : survivors_) {
    const auto exit = process->Wait(kSurvivorsEnd);
    ASSERT_OK(exit);
    EXPECT_EQ(exit->Status(), 3)
        << stage_ << ": " << process->out() << process->err();
    EXPECT_THAT(process->out(), testing::AnyOf(testing::HasSubstr("rank "),
                                               testing::HasSubstr("asked to")))
        << stage_;
  }
}

void KilledRanks::StallOne(int rank) {
  AwaitAllThere();
  const auto at = survivors_.begin() + rank;
  const std::unique_ptr<Process> stalled = std::move(*at);
  survivors_.erase(at);
  stalled->Signal(SIGSTOP);
  CheckSurvivors();
  for (const auto& process : survivors_) {
    EXPECT_THAT(process->out(),
                testing::AllOf(testing::HasSubstr("DEADLINE_EXCEEDED"),
                               testing::HasSubstr(absl::StrCat(
                                   "rank ", rank, " did not come"))));
  }
  stalled->Signal(SIGKILL);
  EXPECT_OK(stalled->Wait(kSurvivorsEnd));
}

}  // namespace coxswain
