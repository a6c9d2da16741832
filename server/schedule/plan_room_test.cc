#include "server/schedule/plan_room.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "server/state/memory_state_store.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

class PlanRoomTest : public testing::Test {
 protected:
  void SetUp() override { Reload(); }
  void Reload() {
    room_.reset();
    ASSERT_OK_AND_ASSIGN(room_, PlanRoom::Load(options_, &store_));
  }
  Plan Begin(int generation, const std::string& hook, int accumulation,
             const std::string& job = "job") {
    return Begin(generation, hook, accumulation, PlanTrial::kUnknown, job);
  }
  Plan Begin(int generation, const std::string& hook, int accumulation,
             PlanTrial last, const std::string& job = "job") {
    GenerationStart start;
    start.job = job;
    start.generation = Generation(generation);
    start.hook = hook;
    start.accumulation_steps = accumulation;
    start.last = last;
    return room_->BeginGeneration(std::move(start)).value_or(Plan());
  }

  PlanOptions options_;
  MemoryStateStore store_;
  std::unique_ptr<PlanRoom> room_;
};

TEST_F(PlanRoomTest, FirstPlanIsWhatTheManifestSays) {
  const Plan plan = Begin(1, "powersgd(rank=2)", 4);
  EXPECT_EQ(plan.version, 1);
  EXPECT_EQ(plan.hook, "powersgd(rank=2)");
  EXPECT_EQ(plan.accumulation_steps, 4);
  EXPECT_EQ(plan.compression_start_step, -1);
}

TEST_F(PlanRoomTest, SameManifestKeepsTheVersion) {
  Begin(1, "allreduce", 1);
  EXPECT_EQ(Begin(2, "allreduce", 1).version, 1);
  const Plan changed = Begin(3, "bf16", 1);
  EXPECT_EQ(changed.version, 2);
  EXPECT_EQ(changed.hook, "bf16");
}

TEST_F(PlanRoomTest, ProposalTakesEffectAtTheNextGenerationAndStays) {
  Begin(1, "allreduce", 1);
  ASSERT_OK_AND_ASSIGN(const Plan next,
                       room_->Propose("job", 1, Plan{0, 8, "bf16", 100}));
  EXPECT_EQ(next.version, 2);
  ASSERT_OK_AND_ASSIGN(const auto plans, room_->Get("job"));
  EXPECT_EQ(plans.current.version, 1);
  ASSERT_TRUE(plans.next.has_value());
  EXPECT_EQ(plans.next->hook, "bf16");

  for (int generation : {2, 3}) {
    const Plan plan = Begin(generation, "allreduce", 1);
    EXPECT_EQ(plan.version, 2);
    EXPECT_EQ(plan.hook, "bf16");
    EXPECT_EQ(plan.accumulation_steps, 8);
    EXPECT_EQ(plan.compression_start_step, 100);
  }
  EXPECT_FALSE(room_->Get("job")->next.has_value());
}

TEST_F(PlanRoomTest, RepeatedProposalIsAcceptedAgain) {
  Begin(1, "allreduce", 1);
  const Plan proposal{0, 2, "bf16", -1};
  ASSERT_OK(room_->Propose("job", 1, proposal));
  ASSERT_OK_AND_ASSIGN(const Plan again, room_->Propose("job", 1, proposal));
  EXPECT_EQ(again.version, 2);
}

TEST_F(PlanRoomTest, ProposalThatMadeNoStepIsDropped) {
  Begin(1, "allreduce", 1);
  ASSERT_OK(room_->Propose("job", 1, Plan{0, 8, "nosuchhook", 100}));
  EXPECT_EQ(Begin(2, "allreduce", 1, PlanTrial::kProved).hook, "nosuchhook");
  Reload();  // Also a restarted coordinator knows that it is on trial.
  EXPECT_EQ(Begin(3, "allreduce", 1).hook, "nosuchhook");
  const Plan back = Begin(4, "allreduce", 1, PlanTrial::kFailed);
  EXPECT_EQ(back.hook, "allreduce");
  EXPECT_EQ(back.accumulation_steps, 1);
  EXPECT_EQ(back.compression_start_step, -1);
  EXPECT_EQ(back.version, 3);
  Reload();
  EXPECT_EQ(Begin(5, "allreduce", 1, PlanTrial::kFailed).version, 3);
}

TEST_F(PlanRoomTest, ProposalThatMadeAStepOnceStaysWhenALaterGenerationFails) {
  Begin(1, "allreduce", 1);
  ASSERT_OK(room_->Propose("job", 1, Plan{0, 8, "bf16", -1}));
  Begin(2, "allreduce", 1, PlanTrial::kFailed);
  Begin(3, "allreduce", 1, PlanTrial::kProved);
  Reload();
  EXPECT_EQ(Begin(4, "allreduce", 1, PlanTrial::kFailed).hook, "bf16");
}

TEST_F(PlanRoomTest, TheCallersWritesAreCommittedWithThePlan) {
  GenerationStart start;
  start.job = "job";
  start.generation = Generation(1);
  start.hook = "allreduce";
  start.accumulation_steps = 1;
  start.batch.Put("cluster", "next_generation", "2");
  ASSERT_OK(room_->BeginGeneration(start));
  EXPECT_EQ(store_.Get("cluster", "next_generation").value_or(""), "2");
  store_.FailWrites(absl::UnavailableError("disk full"));
  start.batch.Put("cluster", "next_generation", "3");
  EXPECT_FALSE(room_->BeginGeneration(start).ok());
  EXPECT_EQ(store_.Get("cluster", "next_generation").value_or(""), "2");
}

TEST_F(PlanRoomTest, ProposalAgainstAnOldVersionIsRefused) {
  Begin(1, "allreduce", 1);
  ASSERT_OK(room_->Propose("job", 1, Plan{0, 2, "bf16", -1}));
  EXPECT_THAT(room_->Propose("job", 1, Plan{0, 3, "fp16", -1}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("version 2, not 1")));
}

TEST_F(PlanRoomTest, OutOfRangeProposalsAreRefused) {
  Begin(1, "allreduce", 1);
  for (const Plan& plan :
       {Plan{0, 0, "bf16", -1}, Plan{0, 1'000'001, "bf16", -1},
        Plan{0, 1, "", -1}, Plan{0, 1, std::string(4097, 'x'), -1},
        Plan{0, 1, "bf16", -2}}) {
    EXPECT_THAT(
        room_->Propose("job", 1, plan),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must")));
  }
}

TEST_F(PlanRoomTest, UnknownJobIsNotFound) {
  EXPECT_THAT(room_->Get("ghost"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ghost")));
  EXPECT_THAT(room_->Propose("ghost", 0, Plan{0, 1, "bf16", -1}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ghost")));
}

TEST_F(PlanRoomTest, PlansAndProposalsSurviveARestart) {
  Begin(1, "allreduce", 1);
  ASSERT_OK(room_->Propose("job", 1, Plan{0, 2, "bf16", 7}));
  Reload();
  ASSERT_OK_AND_ASSIGN(const auto plans, room_->Get("job"));
  EXPECT_EQ(plans.current.hook, "allreduce");
  ASSERT_TRUE(plans.next.has_value());
  EXPECT_EQ(plans.next->compression_start_step, 7);
  Begin(2, "allreduce", 1);
  Reload();
  EXPECT_EQ(Begin(3, "allreduce", 1).hook, "bf16");
}

TEST_F(PlanRoomTest, NothingChangesWhenTheCommitFails) {
  Begin(1, "allreduce", 1);
  store_.FailWrites(absl::UnavailableError("disk full"));
  EXPECT_THAT(room_->Propose("job", 1, Plan{0, 2, "bf16", -1}),
              StatusIs(absl::StatusCode::kUnavailable, "disk full"));
  EXPECT_FALSE(room_->Get("job")->next.has_value());
}

TEST_F(PlanRoomTest, OldestPlanOfAnEndedJobMakesRoom) {
  options_.max_plans = 2;
  Reload();
  Begin(1, "allreduce", 1, "running");
  Begin(2, "allreduce", 1, "ended");
  room_->OnGenerationEnded("ended", Generation(2), absl::AbortedError("x"));
  Begin(3, "allreduce", 1, "new");
  EXPECT_OK(room_->Get("running"));
  EXPECT_OK(room_->Get("new"));
  EXPECT_FALSE(room_->Get("ended").ok());
  Reload();
  EXPECT_FALSE(room_->Get("ended").ok());
}

}  // namespace
}  // namespace coxswain::server
