// What `coxswain status` and `coxswain why` show of a job that stalls, of which
// a rank is killed then, before and after a restart of the coordinator.
#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"
#include "tests/system/test_cluster.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ContainsRegex;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

class WhatAnOperatorIsShownTest : public testing::Test {
 protected:
  void SetUp() override { cluster_.Serve(); }

  // Returns what a command of the job prints.
  std::string Ask(std::vector<std::string> command) {
    command.insert(command.begin(), kCoxswain);
    command.insert(command.end(), {"--coordinator", cluster_.address()});
    const Ended ended = RunToEnd(command);
    EXPECT_EQ(ended.status, 0) << ended.err;
    return ended.out;
  }
  // Returns the error of one that fails.
  std::string ErrorOf(std::vector<std::string> command) {
    command.insert(command.begin(), kCoxswain);
    command.insert(command.end(), {"--coordinator", cluster_.address()});
    const Ended ended = RunToEnd(command);
    EXPECT_EQ(ended.status, 1) << ended.out;
    return ended.err;
  }
  void RestartCoordinator() {
    cluster_.KillCoordinator();
    cluster_.Serve();
  }
  TestCluster::Launcher Start(const std::vector<std::string>& toy) {
    TestCluster::Launch launch;
    launch.node = "bow";
    launch.nproc = 3;
    launch.run = {"--exit-grace", "1s"};
    launch.program = kToyWorker;
    launch.toy = toy;
    return cluster_.Start(launch);
  }

  TestCluster cluster_;
};

TEST_F(WhatAnOperatorIsShownTest, AStallThenADeathThenARestart) {
  Latch latch;
  const auto launcher =
      Start({"--steps", "10", "--latch", latch.path(), "--stall-at", "1:5",
             "--term", "progress_timeout=10m"});
  std::string status;
  ASSERT_TRUE(cluster_.AwaitSeen("status names the rank", [&] {
    status = Ask({"status"});
    return absl::StrContains(status, "the others wait for ");
  }));
  const std::string why_command =
      absl::StrCat("coxswain why rows --coordinator ", cluster_.address());
  EXPECT_THAT(status, AllOf(HasSubstr("job rows: running"),
                            ContainsRegex("wait for rank 1 \\(bow/[0-9] on "),
                            ContainsRegex(" since 20[0-9-]+ [0-9:]+ UTC: step "
                                          "5 of stream"),
                            HasSubstr("rank 1 has not announced it"),
                            HasSubstr("look further: " + why_command)));
  EXPECT_THAT(Ask({"why", "rows"}),
              AllOf(HasSubstr("- step 5 of stream"), HasSubstr("py-spy dump"),
                    Not(HasSubstr("no problem found"))));
  ASSERT_TRUE(cluster_.AwaitDescribed("its step is known", [](const auto& job) {
    return job.members_size() == 3 && job.members(1).step() == 5;
  }));

  const std::map<int, pid_t> pids = PidsByRank(cluster_.Transcript());
  ASSERT_THAT(pids, SizeIs(3));
  ASSERT_EQ(kill(pids.at(1), SIGKILL), 0);
  ASSERT_TRUE(cluster_.Await("the launcher has ended", [&] {
    return cluster_.status(launcher).has_value();
  }));
  EXPECT_EQ(cluster_.status(launcher), 128 + SIGKILL);
  latch.Open();
  for (const bool restarted : {false, true}) {
    SCOPED_TRACE(restarted ? "after the restart" : "before the restart");
    if (restarted) RestartCoordinator();
    status = Ask({"status", "--job", "rows"});
    EXPECT_THAT(status, AllOf(HasSubstr("job rows: ended"),
                              ContainsRegex("last end, [0-9a-z.]+ ago "
                                            "\\(20[0-9-]+ [0-9:]+ UTC\\): rank "
                                            "1 .* was lost: killed by signal "
                                            "9"),
                              HasSubstr("dmesg -T"), HasSubstr(why_command),
                              Not(HasSubstr("the others wait for"))));
    // The rank is shown with its last step, and how it ended.
    EXPECT_THAT(LinesWith(status, " lost "),
                Contains(AllOf(ContainsRegex("^  1 .* lost +5 "),
                               HasSubstr("killed by signal 9"))))
        << status;
    const std::string why = Ask({"why", "rows"});
    EXPECT_THAT(why, AllOf(HasSubstr("killed by signal 9"),
                           HasSubstr("\nnext: most often the kernel"),
                           Not(HasSubstr("no problem found"))));
    EXPECT_EQ(absl::StrContains(why, "the coordinator was restarted since"),
              restarted);
    EXPECT_THAT(LinesWith(status, " lost "), Each(Not(HasSubstr(" lost  0 "))));
  }
  cluster_.Finish({});
}

TEST_F(WhatAnOperatorIsShownTest,
       WhatHasEndedWellIsNoFailureAfterARestartEither) {
  const auto launcher = Start({"--steps", "10"});
  ASSERT_TRUE(cluster_.Await("the launcher has ended", [&] {
    return cluster_.status(launcher).has_value();
  }));
  RestartCoordinator();
  const std::string status = Ask({"status"});
  EXPECT_THAT(status,
              AllOf(HasSubstr("job rows: ended"),
                    HasSubstr("all 3 members of job 'rows' have left cleanly"),
                    HasSubstr("its ranks are not known any more: the "
                              "coordinator was restarted since then; last step "
                              "10\n"),
                    Not(HasSubstr("next:"))));
  EXPECT_THAT(Ask({"why", "rows"}),
              AllOf(HasSubstr("have left cleanly"), Not(HasSubstr("next:"))));
  EXPECT_THAT(ErrorOf({"status", "--job", "row"}),
              HasSubstr("did you mean 'rows'?"));
  EXPECT_THAT(ErrorOf({"why", "digits"}), HasSubstr("it has rows\n"));
  cluster_.Finish({{launcher, 0}});
}

}  // namespace
}  // namespace coxswain
