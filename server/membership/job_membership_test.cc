// The machine of one job alone: no threads, no store, no clock.

#include "server/membership/job_membership.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string CodeOf(const absl::Status& status) {
  return absl::StatusCodeToString(status.code());
}

// The effects, in a few words.
struct Words {
  std::string operator()(const job_effect::Answer& answer) const {
    return absl::StrCat("answer ", answer.join_id, " ",
                        CodeOf(answer.result.status()),
                        answer.on_refused != nullptr ? " refused" : "");
  }
  std::string operator()(const job_effect::Reply& reply) const {
    return absl::StrCat("reply ", CodeOf(reply.status));
  }
  std::string operator()(const job_effect::ReplyWhenSaved&) const {
    return "reply when saved";
  }
  std::string operator()(const job_effect::Send& send) const {
    using Kind = MembershipEvent::Kind;
    const auto kind = std::get<MembershipEvent>(*send.event).kind;
    return kind == Kind::kAbort        ? "send abort"
           : kind == Kind::kMemberLeft ? "send left"
                                       : "send other";
  }
  std::string operator()(const job_effect::SendMessages& send) const {
    return send.when_written ? "messages when written" : "messages";
  }
  std::string operator()(const job_effect::CloseStream& close) const {
    return absl::StrCat("close ", close.attachment);
  }
  std::string operator()(const job_effect::Detached& detached) const {
    return absl::StrCat("detached ", detached.attachment);
  }
  std::string operator()(const job_effect::NotifyBegan& began) const {
    return absl::StrCat("began ", began.begin.generation.value());
  }
  std::string operator()(const job_effect::NotifyLeft& left) const {
    return absl::StrCat("left ", left.rank);
  }
  std::string operator()(const job_effect::NotifyRegroupWanted& wanted) const {
    return absl::StrCat("regroup wanted: ", wanted.reason);
  }
  std::string operator()(const job_effect::NotifyCatchUpWanted& wanted) const {
    return absl::StrCat("catch-up wanted: ", wanted.newcomers.size());
  }
  std::string operator()(const job_effect::NotifyEnded& ended) const {
    return absl::StrCat("ended ", ended.generation.value());
  }
  std::string operator()(const job_effect::Announce& announce) const {
    std::vector<std::string> answers;
    for (const auto& answer : announce.answers) {
      answers.push_back((*this)(answer));
    }
    return absl::StrCat("announce ", announce.generation.value(), ": ",
                        absl::StrJoin(answers, ", "));
  }
  std::string operator()(const job_effect::Save&) const { return "save"; }
  std::string operator()(const job_effect::WriteDeparture&) const {
    return "write departure";
  }
  std::string operator()(const job_effect::Commit& commit) const {
    return absl::StrCat("commit ", commit.commit->run.generation.value());
  }
  std::string operator()(const job_effect::Discard&) const { return "discard"; }
};

std::vector<std::string> InWords(const JobEffects& effects) {
  std::vector<std::string> words;
  for (const JobEffect& effect : effects) {
    words.push_back(std::visit(Words(), effect));
  }
  return words;
}

// Returns the only effect of its kind.
template <typename Effect>
const Effect& Only(const JobEffects& effects) {
  const Effect* only = nullptr;
  for (const JobEffect& effect : effects) {
    const auto* const one = std::get_if<Effect>(&effect);
    if (one == nullptr) continue;
    EXPECT_EQ(only, nullptr);
    only = one;
  }
  EXPECT_NE(only, nullptr) << "there is none";
  return *only;
}

class JobMembershipTest : public testing::Test {
 protected:
  JobMembershipTest() {
    coordinator_.cluster_id = "cluster";
    coordinator_.term = Term(3);
    coordinator_.next_generation = [this] {
      return Generation(++generations_);
    };
    coordinator_.new_data_key = [this] {
      const auto key = std::make_shared<const std::string>(
          absl::StrCat("key of generation ", generations_));
      data_key_ = key;
      return key;
    };
  }

  // The id of a join is its incarnation. It is never answered.
  job_input::Join MakeJoin(int world, int slot, uint64_t incarnation,
                           Generation after = Generation(0)) {
    job_input::Join join;
    join.request.job = "job";
    join.request.identity = {"host-a", slot};
    join.request.incarnation = Incarnation(incarnation);
    join.request.launcher_id = 7;
    join.request.manifest.world_size = world;
    join.request.manifest.accumulation_steps = 1;
    join.request.timeout = absl::Seconds(30);
    join.request.after_generation = after;
    join.request.on_refused = [](const absl::Status&) { FAIL(); };
    join.callback = [](const absl::StatusOr<JoinResult>&) { FAIL(); };
    join.join_id = incarnation;
    return join;
  }
  static job_input::Leave MakeLeave(Generation generation,
                                    uint64_t incarnation) {
    job_input::Leave leave;
    leave.generation = generation;
    leave.incarnation = Incarnation(incarnation);
    leave.notice.reason = "done";
    leave.callback = [](const absl::Status&) { FAIL(); };
    return leave;
  }
  static job_input::Exit MakeExit(int slot, uint64_t incarnation) {
    job_input::Exit exit;
    exit.report.job = "job";
    exit.report.launcher_id = 7;
    exit.report.identity = {"host-a", slot};
    exit.report.incarnation = Incarnation(incarnation);
    exit.report.signal = 9;
    exit.callback = [](const absl::Status&) { FAIL(); };
    return exit;
  }
  static schedule::Plan MakePlan() {
    schedule::Plan plan;
    plan.version = 1;
    return plan;
  }

  JobEffects Take(JobInput input) {
    JobEffects effects;
    job_.Take(std::move(input), now_, &effects);
    return effects;
  }
  JobEffects Tick() {
    JobEffects effects;
    job_.Tick(false, now_, &effects);
    return effects;
  }
  JobEffects FinishCommit(absl::StatusOr<schedule::Plan> plan) {
    JobEffects effects;
    job_.FinishCommit(std::move(plan), now_, &effects);
    return effects;
  }
  // The attachment has the number of the incarnation.
  JobEffects Attach(uint64_t incarnation) {
    JobEffects effects;
    EXPECT_OK(job_.Attach(
        job_.generation(), Incarnation(incarnation), incarnation,
        [](const AttachEvent&) { FAIL(); }, now_, &effects));
    return effects;
  }
  // A generation of two processes, 1 and 2, that are attached.
  void Run() {
    EXPECT_THAT(Take(MakeJoin(2, 0, 1)), IsEmpty());
    EXPECT_THAT(InWords(Take(MakeJoin(2, 1, 2))), ElementsAre("commit 1"));
    EXPECT_THAT(InWords(FinishCommit(MakePlan())),
                ElementsAre("began 1", "announce 1: answer 1 OK, answer 2 OK"));
    JobEffects effects;
    job_.Announced(Generation(1), &effects);
    EXPECT_THAT(effects, IsEmpty());
    EXPECT_THAT(Attach(1), IsEmpty());
    EXPECT_THAT(Attach(2), IsEmpty());
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  int64_t generations_ = 0;
  std::weak_ptr<const std::string> data_key_;  // of the last generation
  JobMembership::Coordinator coordinator_;
  JobMembership job_{&coordinator_, "job", now_};
};

TEST_F(JobMembershipTest, LivesThroughALossAndGoesOn) {
  Run();
  EXPECT_TRUE(job_.Runs(Generation(1)));
  now_ += coordinator_.options.lease - absl::Seconds(1);
  job_.NoteProgress(0, Progress(), now_);
  EXPECT_THAT(Tick(), IsEmpty());
  now_ += absl::Seconds(1);
  EXPECT_THAT(InWords(Tick()),
              ElementsAre("send abort", "close 1", "send abort", "close 2",
                          "ended 1", "save"));
  EXPECT_EQ(job_.state(), JobState::kEnded);
  EXPECT_TRUE(data_key_.expired());

  EXPECT_THAT(Take(MakeJoin(2, 0, 1, Generation(1))), IsEmpty());
  EXPECT_EQ(job_.state(), JobState::kForming);
  EXPECT_THAT(InWords(Take(MakeJoin(2, 1, 3))), ElementsAre("commit 2"));
  ASSERT_NE(job_.commit(), nullptr);
  EXPECT_EQ(job_.commit()->start.last, PlanTrial::kFailed);
  const JobEffects effects = FinishCommit(MakePlan());
  EXPECT_THAT(InWords(effects),
              ElementsAre("began 2", "announce 2: answer 1 OK, answer 3 OK"));
  const auto& announce = Only<job_effect::Announce>(effects);
  ASSERT_OK(announce.answers[1].result);
  const JoinResult& result = *announce.answers[1].result;
  EXPECT_EQ(result.term, Term(3));
  EXPECT_EQ(result.rank, 1);
  EXPECT_EQ(result.previous, Generation(1));
  ASSERT_NE(result.data_key, nullptr);
  EXPECT_EQ(*result.data_key, "key of generation 2");
  ASSERT_THAT(*result.lost, SizeIs(1));
  EXPECT_EQ((*result.lost)[0].member.incarnation, Incarnation(2));
}

TEST_F(JobMembershipTest, AFailedCommitEndsTheRoundAndSkipsItsNumber) {
  Take(MakeJoin(2, 0, 1));
  Take(MakeJoin(2, 1, 2));
  EXPECT_THAT(
      InWords(FinishCommit(absl::AbortedError("another owns it"))),
      ElementsAre("discard", "answer 1 UNAVAILABLE", "answer 2 UNAVAILABLE"));
  EXPECT_EQ(job_.state(), JobState::kEnded);
  EXPECT_EQ(job_.generation(), Generation(0));
  Take(MakeJoin(2, 0, 1));
  EXPECT_THAT(InWords(Take(MakeJoin(2, 1, 2))), ElementsAre("commit 2"));
}

TEST_F(JobMembershipTest, InputsWaitForTheCommitInTheirOrder) {
  Take(MakeJoin(2, 0, 1));
  Take(MakeJoin(2, 1, 2));
  EXPECT_THAT(Take(MakeExit(1, 2)), IsEmpty());
  EXPECT_THAT(Take(MakeJoin(2, 1, 3)), IsEmpty());
  EXPECT_THAT(Take(job_input::Withdraw{3, {"host-a", 1}}), IsEmpty());
  EXPECT_THAT(Take(MakeLeave(Generation(9), 1)), IsEmpty());
  EXPECT_THAT(Tick(), IsEmpty());
  EXPECT_THAT(
      InWords(FinishCommit(MakePlan())),
      ElementsAre("began 1", "announce 1: answer 1 OK, answer 2 OK", "ended 1",
                  "save", "reply when saved", "reply NOT_FOUND"));
  // The third waited, and withdrew.
  EXPECT_EQ(job_.Summarise(now_).waiting, 0);
}

TEST_F(JobMembershipTest, TheNextCommitHoldsUpWhatCameAfterIt) {
  Take(MakeJoin(2, 0, 1));
  Take(MakeJoin(2, 1, 2));
  Take(MakeExit(0, 1));
  Take(MakeJoin(2, 1, 2, Generation(1)));
  Take(MakeJoin(2, 0, 3));
  Take(MakeExit(0, 3));
  const std::vector<std::string> words = InWords(FinishCommit(MakePlan()));
  ASSERT_THAT(words, testing::Not(IsEmpty()));
  EXPECT_EQ(words.back(), "commit 2");
  EXPECT_THAT(InWords(FinishCommit(MakePlan())),
              ElementsAre("began 2", "announce 2: answer 3 OK, answer 2 OK",
                          "ended 2", "save", "reply when saved"));
}

TEST_F(JobMembershipTest, OnlySoManyWaitForACommit) {
  Take(MakeJoin(2, 0, 1));
  Take(MakeJoin(2, 1, 2));
  JobEffects effects;
  uint64_t incarnation = 3;
  while (effects.empty()) {
    ASSERT_LT(incarnation, 100u);
    effects = Take(MakeJoin(2, 0, incarnation++));
  }
  const auto& answer = Only<job_effect::Answer>(effects);
  EXPECT_EQ(answer.join_id, incarnation - 1);
  EXPECT_NE(answer.on_refused, nullptr);
  EXPECT_THAT(answer.result, StatusIs(absl::StatusCode::kUnavailable,
                                      HasSubstr("wait for that to join")));
  effects.clear();
  for (int i = 0; i < 2000 && effects.empty(); ++i) {
    effects = Take(MakeExit(0, 1));
  }
  EXPECT_THAT(InWords(effects), ElementsAre("reply UNAVAILABLE"));
  // A departure that was let in before is not refused.
  EXPECT_THAT(Take(job_input::DepartureWritten{MakeLeave(Generation(1), 1)}),
              IsEmpty());
}

TEST_F(JobMembershipTest, ARepeatedCallIsAnsweredAfterTheObservers) {
  Take(MakeJoin(2, 0, 1));
  Take(MakeJoin(2, 1, 2));
  FinishCommit(MakePlan());
  EXPECT_THAT(Take(MakeJoin(2, 0, 1)), IsEmpty());
  JobEffects effects;
  job_.Announced(Generation(1), &effects);
  EXPECT_THAT(InWords(effects), ElementsAre("answer 1 OK"));
  EXPECT_THAT(InWords(Take(MakeJoin(2, 0, 1))), ElementsAre("answer 1 OK"));
}

TEST_F(JobMembershipTest, ADepartureCountsOnceItIsWritten) {
  Run();
  JobEffects effects = Take(MakeLeave(Generation(1), 1));
  EXPECT_THAT(InWords(effects), ElementsAre("write departure"));
  EXPECT_OK(job_.Admit(Generation(1), Incarnation(1)));
  EXPECT_THAT(InWords(Take(Only<job_effect::WriteDeparture>(effects).written)),
              ElementsAre("close 1", "left 0", "send left", "reply OK"));
  effects = Take(MakeLeave(Generation(1), 2));
  EXPECT_THAT(InWords(Take(Only<job_effect::WriteDeparture>(effects).written)),
              ElementsAre("close 2", "left 1", "ended 1", "save", "reply OK"));
  EXPECT_THAT(job_.Describe(now_).last_event, HasSubstr("have left cleanly"));
  // Once more changes nothing, and waits for what was written before.
  effects = Take(MakeLeave(Generation(1), 2));
  EXPECT_THAT(InWords(effects), ElementsAre("write departure"));
  EXPECT_THAT(InWords(Take(Only<job_effect::WriteDeparture>(effects).written)),
              ElementsAre("reply OK"));
}

// What is answered is durable: the end of the generation, too, which a write
// before may have lost.
TEST_F(JobMembershipTest, AFailureIsWrittenWithTheEndThatItCauses) {
  Run();
  job_input::Leave leave = MakeLeave(Generation(1), 1);
  leave.notice.failed = true;
  JobEffects effects = Take(leave);
  EXPECT_EQ(InWords(effects).back(), "write departure");
  const auto& written = std::get<job_effect::WriteDeparture>(effects.back());
  EXPECT_EQ(written.batch.writes().size(), 2u);
  EXPECT_THAT(InWords(Take(written.written)), ElementsAre("reply OK"));
}

// Of a finished job only its record is kept.
TEST_F(JobMembershipTest, AFailureThatFinishesTheJobIsWrittenWithThat) {
  Run();
  JobEffects effects = Take(MakeLeave(Generation(1), 1));
  Take(Only<job_effect::WriteDeparture>(effects).written);
  job_input::Leave leave = MakeLeave(Generation(1), 2);
  leave.notice.failed = true;
  effects = Take(leave);
  EXPECT_EQ(InWords(effects).back(), "write departure");
  const auto& written = std::get<job_effect::WriteDeparture>(effects.back());
  EXPECT_EQ(written.batch.writes().size(), 1u);
  EXPECT_THAT(InWords(Take(written.written)), ElementsAre("reply OK"));
}

TEST_F(JobMembershipTest, AWaiterWithdrawsItsOwnTicketOnly) {
  Take(MakeJoin(2, 0, 1));
  EXPECT_THAT(Take(job_input::Withdraw{9, {"host-a", 0}}), IsEmpty());
  EXPECT_EQ(job_.Summarise(now_).waiting, 1);
  EXPECT_THAT(Take(job_input::Withdraw{1, {"host-a", 0}}), IsEmpty());
  EXPECT_EQ(job_.Summarise(now_).waiting, 0);
  EXPECT_EQ(job_.state(), JobState::kEnded);
}

TEST_F(JobMembershipTest, MessagesThatRegroupAreWrittenBeforeTheyAreSent) {
  Run();
  schedule::Message decided;
  decided.kind = schedule::Message::Kind::kDecision;
  JobEffects effects;
  job_.SendMessages({decided}, &effects);
  decided.decision.regroup = "rank 0 is drained";
  job_.SendMessages({decided}, &effects);
  job_.SendMessages({decided}, &effects);
  EXPECT_THAT(InWords(effects),
              ElementsAre("messages", "save", "messages when written",
                          "messages when written"));
}

TEST_F(JobMembershipTest, WhatIsNotSavedIsTriedAgain) {
  Run();
  EXPECT_OK(job_.CheckSaved());
  job_.NoteUnsaved(now_);
  EXPECT_THAT(job_.CheckSaved(), StatusIs(absl::StatusCode::kUnavailable,
                                          HasSubstr("report it again")));
  EXPECT_THAT(Tick(), IsEmpty());
  now_ += absl::Seconds(1);
  EXPECT_THAT(InWords(Tick()), ElementsAre("save"));
  EXPECT_OK(job_.CheckSaved());
}

TEST_F(JobMembershipTest, ShutdownAnswersAllAndRefusesWhatFollows) {
  Run();
  Take(MakeJoin(2, 1, 2, Generation(1)));
  const absl::Status status = absl::UnavailableError("coordinator shuts down");
  JobEffects effects;
  job_.Shutdown(status, now_, &effects);
  EXPECT_THAT(InWords(effects),
              ElementsAre("answer 2 UNAVAILABLE", "close 1", "ended 1"));
  EXPECT_THAT(InWords(Take(MakeJoin(2, 1, 4))),
              ElementsAre("answer 4 UNAVAILABLE refused"));
  EXPECT_THAT(InWords(Take(MakeLeave(Generation(1), 1))),
              ElementsAre("reply UNAVAILABLE"));
}

TEST_F(JobMembershipTest, ShutdownAnswersWhatWaitsForACommit) {
  Take(MakeJoin(1, 0, 1));
  Take(MakeJoin(1, 0, 2));
  JobEffects effects;
  job_.Shutdown(absl::UnavailableError("shuts down"), now_, &effects);
  EXPECT_THAT(InWords(effects), ElementsAre("answer 1 UNAVAILABLE",
                                            "answer 2 UNAVAILABLE refused"));
  EXPECT_EQ(job_.commit(), nullptr);
}

// Which effects an input has follows from what was brought before.
TEST_F(JobMembershipTest, ACopyGoesOnLikeTheOriginal) {
  Run();
  JobMembership copy = job_;
  JobEffects effects;
  copy.Take(MakeExit(0, 1), now_, &effects);
  EXPECT_TRUE(job_.Runs(Generation(1)));
  EXPECT_EQ(InWords(effects), InWords(Take(MakeExit(0, 1))));
}

LoadedJob MakeLoaded() {
  LoadedJob loaded;
  loaded.job.name = "job";
  loaded.job.generation = Generation(5);
  loaded.job.world_size = 2;
  loaded.job.running = true;
  loaded.job.manifest = Generation(5);
  loaded.manifest.world_size = 2;
  loaded.manifest.accumulation_steps = 1;
  for (int rank = 0; rank < 2; ++rank) {
    KeptMember& kept = loaded.members.emplace_back();
    kept.member.identity = {"host-a", rank};
    kept.member.incarnation = Incarnation(rank + 1);
    kept.member.rank = rank;
    kept.launcher_id = 7;
  }
  return loaded;
}

TEST_F(JobMembershipTest, GoesOnWithWhatAnEarlierTermHasLeft) {
  LoadedJob loaded = MakeLoaded();
  loaded.departures[1].left = true;
  job_.Restore(std::move(loaded), MakePlan(), now_);
  const auto resumed = job_.Resume(now_);
  ASSERT_TRUE(resumed.has_value());
  EXPECT_EQ(resumed->begin.generation, Generation(5));
  EXPECT_THAT(resumed->left, ElementsAre(1));
  JobEffects effects;
  job_.FinishResume({}, now_, &effects);
  EXPECT_THAT(effects, IsEmpty());
  EXPECT_THAT(Attach(1), IsEmpty());
  // One whose answer was lost. The key was in the memory of the earlier one.
  const JobEffects again = Take(MakeJoin(2, 0, 1));
  const auto& answer = Only<job_effect::Answer>(again);
  ASSERT_OK(answer.result);
  EXPECT_EQ(answer.result->data_key, nullptr);
  EXPECT_THAT(job_.Admit(Generation(5), Incarnation(2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("has left the job")));
}

TEST_F(JobMembershipTest, EndsWhatCannotGoOn) {
  job_.Restore(MakeLoaded(), std::nullopt, now_);
  EXPECT_FALSE(job_.Resume(now_).has_value());
  JobEffects effects;
  job_.FinishResume({}, now_, &effects);
  EXPECT_THAT(InWords(effects), ElementsAre("ended 5", "save"));
  EXPECT_THAT(job_.Describe(now_).last_event,
              HasSubstr("its stored plan could not be read"));
}

TEST_F(JobMembershipTest, TheLastHadLeftWhenTheCoordinatorStopped) {
  LoadedJob loaded = MakeLoaded();
  loaded.departures[0].left = loaded.departures[1].left = true;
  job_.Restore(std::move(loaded), MakePlan(), now_);
  EXPECT_FALSE(job_.Resume(now_).has_value());
  JobEffects effects;
  job_.FinishResume({}, now_, &effects);
  EXPECT_THAT(InWords(effects), ElementsAre("ended 5", "save"));
  EXPECT_THAT(job_.Describe(now_).last_event,
              HasSubstr("all 2 members of job 'job' have left"));
}

TEST_F(JobMembershipTest, AJobInQuarantineIsKnownByName) {
  job_.RestoreUnknown();
  EXPECT_EQ(job_.state(), JobState::kEnded);
  EXPECT_THAT(job_.Describe(now_).last_event, HasSubstr("is in quarantine"));
  StateBatch batch;
  job_.Forget(&batch);
  EXPECT_TRUE(batch.empty());
}

}  // namespace
}  // namespace coxswain::server
