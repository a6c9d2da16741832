#include "cli/launch/failure_report.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

WorkerFailure Failed(int slot, int code, int signal = 0, bool stopped = false) {
  WorkerFailure failure;
  failure.exit = {slot, 100 + slot, code, signal, stopped};
  failure.incarnation = 1000 + static_cast<uint64_t>(slot);
  return failure;
}

// The same once the coordinator has answered that slot 1 of `node` was lost.
WorkerFailure After(WorkerFailure failure, const std::string& reason,
                    const std::string& node = "here") {
  failure.answer.set_ended(reason);
  v1::Member* const lost = failure.answer.mutable_lost();
  lost->mutable_identity()->set_node(node);
  lost->mutable_identity()->set_slot(1);
  lost->set_incarnation(node == "here" ? 1001 : 77);
  return failure;
}

TEST(FailureReportTest, TheMemberThatWasLostIsTheCauseWhoeverEndedFirst) {
  const std::string reason = "rank 1 (here/1) was lost: failed: no such file";
  EXPECT_THAT(
      DescribeFailures(
          "here", {After(Failed(0, 1), reason), After(Failed(2, 1), reason),
                   After(Failed(1, 3), reason)}),
      ElementsAre("cause: worker here/1 (pid 101) exited with code 3; the "
                  "coordinator's reason: " +
                      reason,
                  "consequence: worker here/0 (pid 100) exited with code 1",
                  "consequence: worker here/2 (pid 102) exited with code 1"));
}

TEST(FailureReportTest, AWorkerThatHungIsTheCauseAndNotOneOfItsVictims) {
  const std::string reason =
      "rank 1 (here/1) was lost: no sign of life for 10s";
  EXPECT_THAT(
      DescribeFailures(
          "here", {After(Failed(0, 1), reason),
                   After(Failed(1, 0, SIGKILL, /*stopped=*/true), reason)}),
      ElementsAre("cause: worker here/1 (pid 101) was killed by signal 9 "
                  "(SIGKILL), ended by this launcher; the coordinator's "
                  "reason: " +
                      reason,
                  "consequence: worker here/0 (pid 100) exited with code 1"));
}

TEST(FailureReportTest, TheCauseMayBeOnAnotherNode) {
  const std::string reason =
      "rank 9 (there/1) was lost: killed by signal 9 (reported by its "
      "launcher)";
  EXPECT_THAT(
      DescribeFailures("here", {After(Failed(0, 1), reason, "there")}),
      ElementsAre(
          "cause: " + reason + "; see the log of the launcher of node there",
          "consequence: worker here/0 (pid 100) exited with code 1"));
}

TEST(FailureReportTest, AnEndWithoutALossHasItsReason) {
  WorkerFailure failure = Failed(0, 1);
  failure.answer.set_ended("the job is stalled by rank 2");
  EXPECT_THAT(DescribeFailures("here", {failure}),
              ElementsAre("cause: the job is stalled by rank 2",
                          HasSubstr("consequence: worker here/0")));
}

TEST(FailureReportTest, WithoutAnAnswerAWorkerThatWasKilledIsTheCause) {
  EXPECT_THAT(
      DescribeFailures(
          "here", {Failed(0, 1), Failed(1, 0, SIGABRT), Failed(2, 0, SIGKILL),
                   Failed(3, 0, SIGKILL, /*stopped=*/true)}),
      ElementsAre(HasSubstr("cause: worker here/2 (pid 102) was killed by "
                            "signal 9 (SIGKILL)"),
                  HasSubstr("consequence: worker here/0"),
                  HasSubstr("consequence: worker here/1"),
                  HasSubstr("SIGKILL), ended by this launcher")));
  EXPECT_THAT(DescribeFailures("here", {Failed(2, 7), Failed(0, 1)}),
              ElementsAre(HasSubstr("cause: worker here/2"),
                          HasSubstr("consequence: worker here/0")));
}

TEST(FailureReportTest, OneFailureAloneNeedsNoReport) {
  EXPECT_THAT(DescribeFailures("here", {}), IsEmpty());
  EXPECT_THAT(DescribeFailures("here", {Failed(0, 1)}), IsEmpty());
  EXPECT_THAT(DescribeFailures("here", {Failed(0, 0, SIGKILL, true)}),
              IsEmpty());
  EXPECT_THAT(
      DescribeFailures("here", {After(Failed(1, 1),
                                      "rank 1 was lost: exited with code 1 "
                                      "(reported by its launcher)")}),
      IsEmpty());
}

TEST(FailureReportTest, WorkersThatWereAskedToStopHaveNoOtherCause) {
  const std::string reason =
      "rank 1 was lost: killed by signal 15 (reported by its launcher)";
  EXPECT_THAT(
      DescribeFailures("here", {After(Failed(1, 0, SIGTERM, true), reason),
                                After(Failed(0, 0, SIGTERM, true), reason)}),
      IsEmpty());
}

TEST(FailureReportTest, FailuresOfAnEarlierGenerationAreNoConsequences) {
  EXPECT_THAT(DescribeFailures("here", {After(Failed(0, 1), "an earlier loss"),
                                        After(Failed(1, 2), "the last one"),
                                        After(Failed(2, 1), "the last one")}),
              ElementsAre(HasSubstr("cause: worker here/1"),
                          HasSubstr("consequence: worker here/2")));
}

TEST(FailureReportTest, OfManyConsequencesSomeAreCounted) {
  std::vector<WorkerFailure> failures;
  for (int slot = 0; slot < 20; ++slot) failures.push_back(Failed(slot, 1));
  const auto lines = DescribeFailures("here", failures);
  EXPECT_THAT(lines, SizeIs(18));
  EXPECT_EQ(lines.back(), "and 3 other consequences");
}

}  // namespace
}  // namespace coxswain
