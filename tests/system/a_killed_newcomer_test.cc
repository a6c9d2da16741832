// A newcomer whose process is killed while the members send it their state.

#include <torch/optim/adam.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process.h"
#include "tests/system/newcomer_fixture.h"

namespace coxswain::torch::catches_up_test {
namespace {

using ::testing::SizeIs;

// Set in a process that is to be killed: the port of the test's coordinator.
constexpr char kPortVariable[] = "COXSWAIN_TEST_COORDINATOR_PORT";
constexpr char kTakesState[] = "takes the state";

// Where it keeps what it has, before it takes the members' state, it comes no
// further.
class EndlessBackup : public ::torch::optim::Adam {
 public:
  using Adam::Adam;
  void save(::torch::serialize::OutputArchive& archive) const override {
    if (std::this_thread::get_id() == trains_) return Adam::save(archive);
    std::puts(kTakesState);
    std::fflush(stdout);
    while (true) pause();
  }

 private:
  const std::thread::id trains_ = std::this_thread::get_id();
};

class AKilledNewcomerTest : public ANewcomerCatchesUpTest {
 protected:
  // Starts the running test again, as a newcomer in a process of its own.
  std::unique_ptr<Process> StartProcess() const {
    char self[4096] = {};
    EXPECT_GT(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
    const auto* const test =
        ::testing::UnitTest::GetInstance()->current_test_info();
    Process::Options options;
    options.command = {
        self, absl::StrCat("--gtest_filter=", test->test_suite_name(), ".",
                           test->name())};
    options.environment[kPortVariable] = absl::StrCat(port_);
    auto process = Process::Start(std::move(options));
    EXPECT_OK(process);
    return process.ok() ? *std::move(process) : nullptr;
  }
  // What that process does; returns if it is not killed.
  void RunUntilKilled(const std::string& port) {
    ASSERT_TRUE(absl::SimpleAtoi(port, &port_));
    at::set_num_threads(1);
    make_optimizer_ = [](Net& net) {
      return std::make_unique<EndlessBackup>(
          net.parameters(),
          ::torch::optim::AdamOptions(0.01).weight_decay(0.1));
    };
    Worker& newcomer = Add(2);
    const absl::Status status = ElasticTraining::Run(
        OptionsOf(newcomer), newcomer.net, *newcomer.optimizer,
        [&](ElasticTraining& t) { return Body(newcomer, t); });
    FAIL() << "it was not killed: " << status;
  }
};

// Its members are connected, and have a state for it that it does not take.
TEST_F(AKilledNewcomerTest, IsForgotten) {
  if (const char* const port = std::getenv(kPortVariable)) {
    return RunUntilKilled(port);
  }
  StartCoordinator();
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& next = Add(3);
  std::unique_ptr<Process> process;
  int64_t takes = 0;
  int64_t killed = 0;
  const auto give_up = [&](ElasticTraining& t, const std::string& why) {
    ADD_FAILURE() << why;
    process.reset();
    t.session().schedule().RequestStop(why);
  };
  a.before_step = [&, together = 0](ElasticTraining& t) mutable {
    if (t.step() == 20 && takes == 0) {
      process = StartProcess();
      if (process == nullptr) give_up(t, "it was not started");
    } else if (process != nullptr && t.world_size() == 3) {
      give_up(t, "it is a member");
    } else if (process != nullptr && takes == 0) {
      const absl::Status seen =
          process->WaitForStdout(kTakesState, absl::ZeroDuration());
      if (seen.ok()) {
        takes = t.step();
      } else if (!absl::IsDeadlineExceeded(seen)) {
        give_up(t, seen.ToString());
      }
    } else if (process != nullptr && t.step() == takes + 20) {
      process->Signal(SIGKILL);
      const auto exit = process->Wait(kTimeout);
      EXPECT_OK(exit);
      EXPECT_EQ(exit.ok() ? exit->signal : 0, SIGKILL);
      process.reset();
      killed = t.step();
    } else if (killed > 0 && t.step() == killed + 20) {
      EXPECT_THAT(a.reports, SizeIs(1)) << "there was a regroup";
      Start(next);
    } else if (t.world_size() == 3 && ++together == 10) {
      t.session().schedule().RequestStop("ten steps with the next one");
    }
  };
  Start(a);
  Start(b);
  a.thread.join();
  Join();
  EXPECT_GT(takes, 20);
  EXPECT_EQ(killed, takes + 20);
  for (const Worker* worker : {&a, &b, &next}) {
    EXPECT_OK(worker->status) << "slot " << worker->slot;
    EXPECT_TRUE(BitsOf(*worker->net) == BitsOf(*a.net))
        << "slot " << worker->slot;
  }
  EXPECT_THAT(a.reports, SizeIs(2));
  ASSERT_THAT(next.reports, SizeIs(1));
  EXPECT_TRUE(next.reports[0].caught_up);
}

}  // namespace
}  // namespace coxswain::torch::catches_up_test
