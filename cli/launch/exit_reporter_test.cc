#include "cli/launch/exit_reporter.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::ElementsAre;

constexpr absl::Duration kSoon = absl::Seconds(20);

// A coordinator that takes reports, or never answers.
class FakeCoordinator {
 public:
  explicit FakeCoordinator(bool answers)
      : stub_(std::make_shared<FakeCoordinatorStub>()) {
    stub_->Answer<v1::ReportExitRequest, v1::ReportExitResponse>(
        "Rendezvous/ReportExit",
        [this, answers](const v1::ReportExitRequest& exit,
                        const CallOptions& options)
            -> absl::StatusOr<v1::ReportExitResponse> {
          {
            MutexLock lock(&mutex_);
            slots_.push_back(exit.identity().slot());
            called_.NotifyAll();
          }
          if (answers) return v1::ReportExitResponse();
          EXPECT_TRUE(options.cancel->WaitFor(kSoon)) << "was not given up";
          return options.cancel->status();
        });
  }

  std::shared_ptr<CoordinatorStub> stub() { return stub_; }
  bool WaitForCall() {
    MutexLock lock(&mutex_);
    return called_.WaitFor(&mutex_, kSoon, [this] { return !slots_.empty(); });
  }
  std::vector<int> slots() {
    MutexLock lock(&mutex_);
    return slots_;
  }

 private:
  const std::shared_ptr<FakeCoordinatorStub> stub_;
  Mutex mutex_;
  CondVar called_;
  std::vector<int> slots_;
};

v1::ReportExitRequest ExitOf(int slot) {
  v1::ReportExitRequest exit;
  exit.mutable_identity()->set_slot(slot);
  return exit;
}

TEST(ExitReporterTest, ReportsArriveInOrder) {
  FakeCoordinator coordinator(true);
  ExitReporter reporter(coordinator.stub());
  reporter.Report(ExitOf(2));
  reporter.Report(ExitOf(0));
  reporter.Report(ExitOf(1));
  EXPECT_TRUE(reporter.Drain(kSoon));
  EXPECT_THAT(coordinator.slots(), ElementsAre(2, 0, 1));
}

TEST(ExitReporterTest, ACoordinatorThatDoesNotAnswerHoldsUpNothing) {
  FakeCoordinator coordinator(false);
  {
    ExitReporter reporter(coordinator.stub());
    reporter.Report(ExitOf(0));
    reporter.Report(ExitOf(1));
    EXPECT_TRUE(coordinator.WaitForCall());
    EXPECT_FALSE(reporter.Drain(absl::Milliseconds(1)));
  }  // gives up the first, does not begin the second
  EXPECT_THAT(coordinator.slots(), ElementsAre(0));
}

TEST(ExitReporterTest, ACoordinatorThatComesBackHearsOfIt) {
  const auto stub = std::make_shared<FakeCoordinatorStub>();
  std::vector<uint64_t> incarnations;  // of the reporter's thread, then ours
  const std::vector<absl::Status> answers = {
      absl::UnavailableError("not there"),
      absl::DeadlineExceededError("does not answer"),
      absl::OkStatus(),
      absl::InvalidArgumentError("is odd"),
      absl::OkStatus(),
  };
  stub->Answer<v1::ReportExitRequest, v1::ReportExitResponse>(
      "Rendezvous/ReportExit",
      [&](const v1::ReportExitRequest& exit,
          const CallOptions&) -> absl::StatusOr<v1::ReportExitResponse> {
        incarnations.push_back(exit.incarnation());
        const absl::Status& answer = answers.at(incarnations.size() - 1);
        if (answer.ok()) return v1::ReportExitResponse();
        return answer;
      });
  ExitReporter reporter(stub);
  for (uint64_t incarnation = 1; incarnation <= 3; ++incarnation) {
    v1::ReportExitRequest exit = ExitOf(0);
    exit.set_incarnation(incarnation);
    reporter.Report(exit);
  }
  ASSERT_TRUE(reporter.Drain(kSoon));
  // The first is repeated until it is taken; what is refused is given up.
  EXPECT_THAT(incarnations, ElementsAre(1, 1, 1, 2, 3));
}

TEST(ExitReporterTest, NothingToReportIsDone) {
  ExitReporter reporter(std::make_shared<FakeCoordinatorStub>());
  EXPECT_TRUE(reporter.Drain(kSoon));
}

TEST(ExitReporterTest, KeepsTheAnswerToTheLastReportOfASlot) {
  const auto stub = std::make_shared<FakeCoordinatorStub>();
  stub->Answer<v1::ReportExitRequest, v1::ReportExitResponse>(
      "Rendezvous/ReportExit",
      [](const v1::ReportExitRequest& exit,
         const CallOptions&) -> absl::StatusOr<v1::ReportExitResponse> {
        v1::ReportExitResponse answer;
        answer.set_ended(absl::StrCat("by exit code ", exit.exit_code()));
        return answer;
      });
  ExitReporter reporter(stub);
  for (const int code : {3, 4}) {
    v1::ReportExitRequest exit = ExitOf(1);
    exit.set_exit_code(code);
    reporter.Report(exit);
  }
  ASSERT_TRUE(reporter.Drain(kSoon));
  EXPECT_EQ(reporter.AnswerOf(1).ended(), "by exit code 4");
  EXPECT_EQ(reporter.AnswerOf(0).ended(), "");
}

}  // namespace
}  // namespace coxswain
