// What an operator does with the checkpoints of a running job: asks for one,
// looks at it, ends the job, which saves its last step, and goes on with fewer
// workers from where it ended.
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/loopback.h"
#include "tests/system/scenario.h"

namespace coxswain::operator_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kTrain[] = "examples/fashion_mnist/train";
constexpr char kJob[] = "fashion";

class OperatorTest : public testing::Test {
 protected:
  OperatorTest() : address_(absl::StrCat("127.0.0.1:", UnusedPort())) {
    coordinator_ = Start({kCoxswain, "serve", "--listen", address_,
                          "--state-dir", folder_.path("state")});
  }

  std::unique_ptr<Process> Train(int workers,
                                 const std::vector<std::string>& options) {
    std::vector<std::string> command = {kCoxswain,
                                        "run",
                                        "--nproc",
                                        absl::StrCat(workers),
                                        "--coordinator",
                                        address_,
                                        "--job",
                                        kJob,
                                        "--",
                                        kTrain,
                                        "--hook",
                                        "powersgd(rank=2)",
                                        "--batch",
                                        "32",
                                        "--epochs",
                                        "1000",
                                        "--events"};
    command.insert(command.end(), options.begin(), options.end());
    return Start(command);
  }

  Ended Checkpoint(std::vector<std::string> words) {
    words.insert(words.begin(), {kCoxswain, "checkpoint"});
    words.insert(words.end(),
                 {"--coordinator", address_, "--job", std::string(kJob)});
    return RunToEnd(words);
  }
  json List() {
    const Ended listed = Checkpoint({"list", "--json"});
    EXPECT_EQ(listed.status, 0) << listed.err;
    json list = json::parse(listed.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(list.is_discarded()) << listed.out;
    return list.is_discarded() ? json::array() : list["checkpoints"];
  }

  // Returns the list once it has `count` checkpoints, or after kTimeout.
  json ListOnceThereAre(size_t count) {
    const absl::Time deadline = Clock::Real()->Now() + kTimeout;
    json list = List();
    while (list.size() < count && Clock::Real()->Now() < deadline) {
      list = List();
    }
    return list;
  }

  TemporaryFolder folder_;
  const std::string address_;
  std::unique_ptr<Process> coordinator_;
};

TEST_F(OperatorTest, NowThenTheLastStepThenFewerWorkers) {
  const std::unique_ptr<Process> job = Train(2, {});
  ASSERT_TRUE(job->WaitForStdout("\"step\"", kTimeout).ok()) << job->err();
  EXPECT_TRUE(List().empty());

  const Ended asked = Checkpoint({"now"});
  ASSERT_EQ(asked.status, 0) << asked.err;
  const json saved = ListOnceThereAre(1);
  ASSERT_EQ(saved.size(), 1u) << saved;
  const int64_t step = saved[0]["step"];
  EXPECT_GT(step, 0);
  const Ended verified = Checkpoint({"verify", "newest"});
  EXPECT_EQ(verified.status, 0) << verified.err;
  const Ended shown = Checkpoint({"show", absl::StrCat(step)});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("powersgd(rank=2"));

  job->Signal(SIGTERM);
  EndOf(*job);
  const json both = List();
  ASSERT_EQ(both.size(), 2u) << both << job->err();
  const int64_t last = both[0]["step"];
  EXPECT_GT(last, step);

  const std::unique_ptr<Process> alone = Train(1, {"--resume", "newest"});
  ASSERT_TRUE(alone->WaitForStdout("\"step\"", kTimeout).ok()) << alone->err();
  alone->Signal(SIGTERM);
  EndOf(*alone);
  const json all = List();
  ASSERT_EQ(all.size(), 3u) << all << alone->err();
  EXPECT_GT(all[0]["step"], last);
}

}  // namespace
}  // namespace coxswain::operator_test
