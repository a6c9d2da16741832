// When a job is done, and what workers that come later receive.

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "server/membership/membership_fixture.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using DoneTest = MembershipTest;

bool IsNotifiedThatTheJobIsDone(const Worker& worker) {
  return worker.answers.size() == 1 &&
         DetailOf(worker.answers[0].status()).has_job_finished();
}

TEST_F(DoneTest, AProcessThatIsStartedAgainHasNothingToDo) {
  const auto team = Run(2);
  for (Worker* worker : team) ASSERT_OK(Leave(worker, false));
  for (int term = 0; term < 2; ++term) {
    // It left cleanly and failed after that.
    Worker* again = Make(2, 0);
    Join(again);
    EXPECT_TRUE(IsNotifiedThatTheJobIsDone(*again));
    EXPECT_THAT(again->answers.at(0),
                StatusIs(absl::StatusCode::kCancelled,
                         AllOf(HasSubstr("job 'job' is done"),
                               HasSubstr("have left cleanly"))));
    Restart();
  }
}

TEST_F(DoneTest, OthersMayBeginTheJobAnew) {
  const auto team = Run(2);
  for (Worker* worker : team) ASSERT_OK(Leave(worker, false));
  for (int term = 0; term < 2; ++term) {
    // The same process, in a program that runs the job twice.
    Join(team[0]);
    EXPECT_THAT(team[0]->answers, SizeIs(1));
    membership_->Withdraw(team[0]->join_id);
    for (const uint64_t launcher : {0, 8}) {
      Worker* other = Make(2, 0);
      other->request.launcher_id = launcher;
      Join(other);
      EXPECT_THAT(other->answers, IsEmpty());
      membership_->Withdraw(other->join_id);
    }
    // While they wait, too.
    Worker* again = Make(2, 1);
    Join(again);
    EXPECT_TRUE(IsNotifiedThatTheJobIsDone(*again));
    Restart();
  }
}

TEST_F(DoneTest, ARestartedWorkerWaitsForTheOthersToBeDone) {
  const auto team = Run(3);
  ASSERT_OK(Leave(team[0], false));
  Worker* again = Make(3, 0);
  Join(again);
  EXPECT_THAT(again->answers, IsEmpty());
  Worker* other = Make(3, 1, "job", "host-z");
  Join(other);
  EXPECT_THAT(other->answers.at(0),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("all 3 ranks taken")));
  ASSERT_OK(Leave(team[1], false));
  ASSERT_OK(Leave(team[2], false));
  EXPECT_TRUE(IsNotifiedThatTheJobIsDone(*again));
}

TEST_F(DoneTest, ARestartedWorkerTakesPartIfTheOthersMustGoOn) {
  const auto team = Run(3);
  ASSERT_OK(Leave(team[0], false));
  Worker* again = Make(3, 0);
  Join(again);
  membership_->ReportExit(team[1]->exit(9));
  Join(Make(3, 1));
  Rejoin(team[2]);
  ASSERT_THAT(again->answers, SizeIs(1));
  ASSERT_OK(again->answers[0]);
  EXPECT_EQ(again->joined().rank, 0);
}

TEST_F(DoneTest, OfManyMembersEachIsKnown) {
  constexpr int kMembers = 1500;
  const auto team = Run(kMembers);
  for (Worker* worker : team) ASSERT_OK(Leave(worker, false));
  Worker* last = Make(kMembers, kMembers - 1);
  Join(last);
  EXPECT_TRUE(IsNotifiedThatTheJobIsDone(*last));
  // Of these, a later term knows the first.
  Restart();
  Worker* first = Make(kMembers, 1023);
  Join(first);
  EXPECT_TRUE(IsNotifiedThatTheJobIsDone(*first));
  Worker* unknown = Make(kMembers, 1024);
  Join(unknown);
  EXPECT_THAT(unknown->answers, IsEmpty());
}

TEST_F(DoneTest, WhenAllDrainTheSparesGoOn) {
  const auto team = RunElastic(1, 2, 2);
  Worker* spare = MakeElastic(1, 2, 0, "host-b");
  Join(spare);
  AskToYield(Generation(1));
  for (Worker* worker : team) ASSERT_OK(Leave(worker, false, "drained"));
  EXPECT_THAT(spare->answers, IsEmpty());
  EXPECT_THAT(Description().last_event,
              HasSubstr("left cleanly, before their work was done"));
  Pass(options_.last_call);
  ASSERT_OK(spare->answers.at(0));
  EXPECT_EQ(spare->joined().previous, Generation(1));
  ASSERT_THAT(*spare->joined().lost, SizeIs(2));
  EXPECT_TRUE(spare->joined().lost->front().left);
  EXPECT_EQ(spare->joined().lost->front().reason, "drained");
}

TEST_F(DoneTest, WhenAllDrainTooFewSparesWaitUntilTheirDeadline) {
  const auto team = RunElastic(2, 3, 3);
  Worker* spare = MakeElastic(2, 3, 0, "host-b");
  Join(spare);
  AskToYield(Generation(1));
  for (Worker* worker : team) ASSERT_OK(Leave(worker, false, "drained"));
  Pass(spare->request.timeout - absl::Seconds(1));
  EXPECT_THAT(spare->answers, IsEmpty());
  Pass(absl::Seconds(1));
  EXPECT_THAT(spare->answers.at(0),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("1 of 2 workers have joined")));
  // A worker that was drained may be back: the job is not done.
  for (int slot : {0, 1}) Join(MakeElastic(2, 3, slot));
  Pass(options_.last_call);
  EXPECT_EQ(Description().state, JobState::kRunning);
}

TEST_F(DoneTest, AnAttemptThatWasDrainedIsNotOver) {
  Worker* worker = MakeElastic(1, 1, 0);
  worker->request.attempt = 3;
  Join(worker);
  Attach(worker);
  AskToYield(Generation(1));
  ASSERT_OK(Leave(worker, false, "drained"));
  Worker* again = MakeElastic(1, 1, 0);
  again->request.attempt = 3;
  Join(again);
  EXPECT_OK(again->answers.at(0));
}

TEST_F(DoneTest, ADrainIsOneAfterARestart) {
  for (const bool one_dies : {false, true}) {
    const auto team = RunElastic(1, 2, 2);
    AskToYield(team[0]->joined().generation);
    Restart();
    for (Worker* worker : team) Attach(worker);
    Worker* spare = MakeElastic(1, 2, 0, "host-b");
    Join(spare);
    Fence fence = team[0]->fence();
    fence.term = membership_->term();
    ASSERT_OK(membership_->Leave(fence, "drained", false));
    fence.incarnation = team[1]->request.incarnation;
    if (one_dies) {
      membership_->ReportExit(team[1]->exit(9));
    } else {
      ASSERT_OK(membership_->Leave(fence, "drained", false));
    }
    Pass(options_.last_call);
    ASSERT_OK(spare->answers.at(0));
    // And the next one can be done all the same.
    Attach(spare);
    ASSERT_OK(Leave(spare, false));
    Worker* again = MakeElastic(1, 2, 0, "host-b");
    Join(again);
    EXPECT_TRUE(IsNotifiedThatTheJobIsDone(*again));
    ++launcher_;
  }
}

TEST_F(DoneTest, ADrainThatIsNotDurableIsNotSent) {
  const auto team = RunElastic(1, 2, 2);
  std::vector<size_t> received;
  store_.on_apply = [&] { received.push_back(team[0]->events.size()); };
  AskToYield(Generation(1));
  EXPECT_EQ(received, std::vector<size_t>{0});
  EXPECT_THAT(team[0]->events, SizeIs(1));
  // Once is enough.
  AskToYield(Generation(1));
  EXPECT_THAT(received, SizeIs(1));
  EXPECT_THAT(team[0]->events, SizeIs(2));
}

TEST_F(DoneTest, WithAFullDiskADrainIsSentAllTheSame) {
  const auto team = RunElastic(1, 2, 2);
  store_.writes_left = 0;
  AskToYield(Generation(1));
  EXPECT_THAT(team[1]->events, SizeIs(1));
  // It is written later.
  store_.writes_left = 1000;
  Pass(absl::Seconds(2));
  Restart();
  for (Worker* worker : team) Attach(worker);
  Fence fence = team[0]->fence();
  fence.term = membership_->term();
  ASSERT_OK(membership_->Leave(fence, "drained", false));
  membership_->ReportExit(team[1]->exit(9));
  Worker* again = MakeElastic(1, 2, 1);
  Join(again);
  Pass(options_.last_call);
  EXPECT_OK(again->answers.at(0));
}

}  // namespace
}  // namespace coxswain::server
