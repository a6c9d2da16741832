#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/test_cluster.h"

namespace coxswain {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 6;
constexpr int kEvery = 10;            // steps from one checkpoint to the next
constexpr char kOpen[] = ".uploads";  // in the folder of the term

// A worker is killed as soon as a checkpoint is begun, while its shards travel.
// The checkpoint is complete or it is none; the job goes on from the newest
// that is, with the same bits on all ranks.
class KillWhileSavingTest : public testing::Test {
 protected:
  // Of complete checkpoints, or of those that are open.
  std::vector<int> Steps(bool open) const {
    std::vector<int> steps;
    std::error_code ignored;  // folders come and go
    const std::string folder = cluster_.state_folder() + "/checkpoints";
    for (const auto& parent : fs::directory_iterator(folder, ignored)) {
      const bool of_term = parent.path().filename().string().front() == '@';
      if (of_term != open) continue;
      for (const auto& entry : fs::directory_iterator(parent, ignored)) {
        const std::string name = entry.path().filename().string();
        int step = 0;
        if (std::sscanf(name.c_str(), "step-%d-", &step) != 1) continue;
        if (!open || absl::EndsWith(name, kOpen)) steps.push_back(step);
      }
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  int Newest() const { return Steps(false).empty() ? 0 : Steps(false).back(); }

  TestCluster::Launcher StartToy(std::vector<std::string> toy) {
    // A model whose upload takes a while.
    toy.insert(toy.end(),
               {"--hidden", "4096", "--hook", "powersgd(rank=2,start_step=2)"});
    TestCluster::Launch launch = {"bow", 2, {}, toy};
    launch.program = kToyWorker;
    return cluster_.Start(launch);
  }

  void Await(const TestCluster::Launcher launcher) {
    cluster_.Await("the launcher ends",
                   [&] { return cluster_.status(launcher).has_value(); });
  }

  // Kills one as soon as the checkpoint of `step` is begun.
  void KillWhileSaving(TestCluster::Launcher launcher, int step,
                       size_t victim) {
    ASSERT_TRUE(cluster_.AwaitSeen("a checkpoint is begun", [&] {
      const std::vector<int> open = Steps(true);
      return Newest() == step || std::count(open.begin(), open.end(), step) > 0;
    }));
    const std::vector<pid_t> pids = cluster_.PidsOf(launcher);
    ASSERT_EQ(pids.size(), 2u);
    kill(pids[victim], SIGKILL);
  }

  TestCluster cluster_;
};

TEST_F(KillWhileSavingTest, TheNewestCompleteCheckpointStaysWhole) {
  cluster_.Serve();
  const auto first = StartToy(
      {"--steps", absl::StrCat(kEvery), "--save-at", absl::StrCat(kEvery)});
  Await(first);
  ASSERT_EQ(cluster_.status(first), 0) << cluster_.Transcript();
  ASSERT_EQ(Newest(), kEvery);
  int cut = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int step = Newest() + kEvery;
    const auto launcher = StartToy({"--restore", "--steps", "1000000000",
                                    "--save-at", absl::StrCat(step)});
    KillWhileSaving(launcher, step, round % 2);
    if (HasFatalFailure()) return;
    Await(launcher);
    EXPECT_EQ(cluster_.status(launcher), 128 + SIGKILL)
        << cluster_.Transcript();
    if (Newest() == step - kEvery) ++cut;
    ASSERT_THAT(Newest(), testing::AnyOf(step - kEvery, step));
  }
  std::printf("%d of %d checkpoints were cut\n", cut, kRounds);
  const int from = Newest();
  const auto last =
      StartToy({"--restore", "--digest", "--steps", absl::StrCat(from + 3)});
  Await(last);
  cluster_.Finish({{last, 0}});
  const auto digests = DigestsByRank(cluster_.Transcript());
  ASSERT_EQ(digests.size(), 2u) << cluster_.Transcript();
  EXPECT_EQ(digests.at(0), digests.at(1));
  EXPECT_EQ(digests.at(0).begin()->first, from + 1);
}

}  // namespace
}  // namespace coxswain
