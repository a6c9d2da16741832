// Real workers save all the time, and the coordinator, one of them, both or all
// are killed in turn, at random moments. After each kill: every checkpoint that
// was reported complete exists, the newest one is whole, byte by byte, nothing
// is left of those that were not completed, and the next one can be saved.
//
// KILLS and SEED come from the environment: --test_env=SEED=7 for another run.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/rpc/member_context.h"
#include "client/rpc/stub_factory.h"
#include "tests/checkpoint/shard_bytes.h"
#include "tests/support/environment.h"
#include "tests/support/loopback.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::IsEmpty;

namespace fs = std::filesystem;

constexpr char kSaver[] = "tests/checkpoint/saver";
constexpr char kJob[] = "saves";
constexpr int kRanks = 2;
// As long as several checkpoints take.
constexpr absl::Duration kLongestLife = absl::Milliseconds(200);
constexpr absl::Duration kLook = absl::Milliseconds(5);

class CheckpointKillTest : public testing::Test {
 protected:
  enum class Victim { kCoordinator, kWorker, kBoth, kAll };

  CheckpointKillTest()
      : address_(absl::StrCat("127.0.0.1:", UnusedPort())),
        random_(FromEnvironment("SEED", 1), 0) {}

  void Serve() {
    coordinator_ = Start({kCoxswain, "serve", "--listen", address_,
                          "--state-dir", folder_.path("state")});
  }
  void StartWorkers() {
    workers_ = Start({kCoxswain, "run", "--nproc", absl::StrCat(kRanks),
                      "--coordinator", address_, "--job", kJob, "--", kSaver});
  }

  // Waiting collects the output of the workers meanwhile.
  void Pass(absl::Duration time) {
    workers_->WaitForStdout("(never printed)", time).IgnoreError();
  }

  // Returns the newest step of which a worker knows that it is complete.
  int64_t Announced() const {
    int64_t newest = 0;
    for (const std::string& line : LinesWith(workers_->out(), "complete ")) {
      long long step = 0;
      const size_t at = line.find("complete ");
      if (std::sscanf(line.c_str() + at, "complete %lld", &step) == 1) {
        newest = std::max<int64_t>(newest, step);
      }
    }
    return newest;
  }

  CheckpointClient Checkpoints() const {
    v1::Fence fence;
    fence.set_job(kJob);
    return CheckpointClient(std::make_shared<MemberContext>(
        ConnectWithoutRetries(address_), fence, RetryPolicy()));
  }

  // Returns what is below the checkpoints' folder, besides complete ones.
  std::vector<std::string> Garbage() const {
    std::vector<std::string> found;
    std::error_code ignored;  // there is no folder before the first
    for (const auto& parent :
         fs::directory_iterator(folder_.path("state/checkpoints"), ignored)) {
      const std::string parent_name = parent.path().filename().string();
      for (const auto& entry : fs::directory_iterator(parent, ignored)) {
        const std::string name = entry.path().filename().string();
        if (parent_name != kJob) {
          found.push_back(absl::StrCat(parent_name, "/", name));
        } else if (!fs::exists(entry.path() / "MANIFEST", ignored)) {
          found.push_back(name + " without manifest");
        } else if (FilesIn(entry.path()) != kRanks + 1) {
          found.push_back(name + " with other files than its manifest's");
        }
      }
    }
    return found;
  }
  static int FilesIn(const fs::path& folder) {
    std::error_code ignored;
    return static_cast<int>(std::distance(
        fs::directory_iterator(folder, ignored), fs::directory_iterator()));
  }
  void ExpectNoGarbage() {
    const absl::Time deadline = Clock::Real()->Now() + kTimeout;
    while (!Garbage().empty() && Clock::Real()->Now() < deadline) Pass(kLook);
    EXPECT_THAT(Garbage(), IsEmpty());
  }

  // Everything that is listed is whole, and what was announced is among it.
  void ExpectWhole(int64_t announced) {
    CheckpointClient checkpoints = Checkpoints();
    const auto all = checkpoints.List();
    ASSERT_THAT(all, IsOk());
    ASSERT_FALSE(all->empty());
    EXPECT_GE(all->front().step, announced);
    const auto shards = checkpoints.LoadAll(all->front());
    ASSERT_THAT(shards, IsOk());
    ASSERT_EQ(shards->size(), static_cast<size_t>(kRanks));
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE((*shards)[rank] == ShardBytes(all->front().step, rank))
          << "shard " << rank << " of step " << all->front().step;
    }
  }

  void Kill(Process& process) {
    process.Signal(SIGKILL);
    EXPECT_THAT(process.Wait(kTimeout), IsOk());
  }
  void KillWorker(int rank) {
    const std::vector<std::string> savers = Savers();
    ASSERT_EQ(savers.size(), static_cast<size_t>(kRanks));
    pid_t pid = 0;
    ASSERT_EQ(std::sscanf(savers[rank].c_str(), "%d ", &pid), 1);
    kill(pid, SIGKILL);
  }
  static std::vector<std::string> Savers() {
    std::vector<std::string> savers;
    for (const std::string& stray : StrayProcesses()) {
      if (absl::EndsWith(stray, " saver")) savers.push_back(stray);
    }
    return savers;
  }

  // Returns what it killed: each kind in turn, so that few kills have all of
  // them.
  std::string KillOnce(int kill) {
    const uint64_t bits = random_.Bits(draws_++);
    const auto victim = static_cast<Victim>(kill % 4);
    if (victim == Victim::kCoordinator) {
      Kill(*coordinator_);
      Serve();  // the workers find it, and begin the open checkpoint again
      return "the coordinator";
    }
    if (victim == Victim::kWorker || victim == Victim::kBoth) {
      KillWorker(static_cast<int>(bits / 4 % kRanks));
    }
    if (victim != Victim::kWorker) {
      Kill(*coordinator_);
      if (victim == Victim::kAll) workers_->SignalGroup(SIGKILL);
      Serve();
    }
    return victim == Victim::kWorker ? "a worker"
           : victim == Victim::kBoth ? "a worker and the coordinator"
                                     : "all";
  }

  // No worker is left that could save meanwhile.
  void EndWorkers() {
    workers_->SignalGroup(SIGKILL);
    EXPECT_THAT(workers_->Wait(kTimeout), IsOk());
    const absl::Time deadline = Clock::Real()->Now() + kTimeout;
    while (!Savers().empty() && Clock::Real()->Now() < deadline) {
      coordinator_->WaitForStdout("(never printed)", kLook).IgnoreError();
    }
    EXPECT_THAT(Savers(), IsEmpty());
  }

  const std::string address_;
  const CounterRandom random_;
  uint64_t draws_ = 0;
  TemporaryFolder folder_;
  std::unique_ptr<Process> coordinator_;
  std::unique_ptr<Process> workers_;
};

TEST_F(CheckpointKillTest, TheNewestCompleteCheckpointIsAlwaysWhole) {
  const int wanted = static_cast<int>(FromEnvironment("KILLS", 12));
  Serve();
  StartWorkers();
  int64_t last = 0;
  for (int kills = 0; kills < wanted && !HasFailure(); ++kills) {
    // The next save works, whatever was killed before.
    ASSERT_THAT(workers_->WaitForStdout(
                    absl::StrCat("complete ", last + 1, "\n"), kTimeout),
                IsOk())
        << workers_->err() << coordinator_->err();
    Pass(kLongestLife * random_.Uniform(draws_++));
    const std::string who = KillOnce(kills);
    SCOPED_TRACE(absl::StrCat("kill ", kills, ": ", who));
    if (who == "the coordinator") {
      ASSERT_THAT(
          workers_->WaitForStdout(
              absl::StrCat("complete ", Announced() + 2, "\n"), kTimeout),
          IsOk())
          << workers_->err() << coordinator_->err();
    }
    EndWorkers();
    const int64_t announced = Announced();
    last = std::max(last, announced);
    ExpectWhole(last);
    ExpectNoGarbage();
    const auto all = Checkpoints().List();
    ASSERT_THAT(all, IsOk());
    last = all->front().step;
    StartWorkers();
  }
  EndWorkers();
  coordinator_->Signal(SIGTERM);
  EXPECT_THAT(coordinator_->Wait(kTimeout), IsOk());
}

}  // namespace
}  // namespace coxswain
