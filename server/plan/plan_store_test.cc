#include "server/plan/plan_store.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/status_matchers.h"
#include "proto/types.pb.h"
#include "server/state/cluster_records.h"
#include "server/state/memory_state_store.h"
#include "server/state/quarantine.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

schedule::Plan MakePlan(int accumulation, const std::string& hook,
                        int64_t start_step) {
  schedule::Plan plan;
  plan.accumulation_steps = accumulation;
  plan.hook = hook;
  plan.compression_start_step = start_step;
  return plan;
}

class PlanStoreTest : public testing::Test {
 protected:
  void SetUp() override { Reload(); }
  void Reload() {
    plans_.reset();
    ASSERT_OK_AND_ASSIGN(plans_, PlanStore::Load(options_, &store_));
  }
  schedule::Plan Begin(int generation, const std::string& hook,
                       int accumulation, const std::string& job = "job") {
    return Begin(generation, hook, accumulation, PlanTrial::kUnknown, job);
  }
  schedule::Plan Begin(int generation, const std::string& hook,
                       int accumulation, PlanTrial last,
                       const std::string& job = "job") {
    GenerationStart start;
    start.job = job;
    start.generation = Generation(generation);
    start.settings.hook = hook;
    start.settings.accumulation_steps = accumulation;
    start.last = last;
    return plans_->BeginGeneration(std::move(start)).value_or(schedule::Plan());
  }

  GenerationStart StartOf(int generation, int accumulation, int world_size,
                          const std::map<std::string, std::string>& terms) {
    GenerationStart start;
    start.job = "job";
    start.generation = Generation(generation);
    start.settings.hook = "allreduce";
    start.settings.accumulation_steps = accumulation;
    start.world_size = world_size;
    start.terms = terms;
    return start;
  }
  absl::StatusOr<schedule::Plan> BeginWith(
      int generation, int accumulation, int world_size,
      const std::map<std::string, std::string>& terms = {}) {
    return plans_->BeginGeneration(
        StartOf(generation, accumulation, world_size, terms));
  }
  // What comes into force with this step; version 0: nothing.
  schedule::Plan Take(int generation, int64_t step) {
    const auto plan = plans_->TakeEffect("job", Generation(generation), step);
    EXPECT_OK(plan);
    return plan.ok() && plan->has_value() ? **plan : schedule::Plan();
  }

  PlanOptions options_;
  MemoryStateStore store_;
  std::unique_ptr<PlanStore> plans_;
};

TEST_F(PlanStoreTest, TheWorkersReportWhenCompressionStarts) {
  GenerationStart start = StartOf(1, 2, 2, {});
  start.settings.compression_start_step = 7;
  ASSERT_OK_AND_ASSIGN(schedule::Plan plan, plans_->BeginGeneration(start));
  EXPECT_EQ(plan.compression_start_step, 7);
  Reload();
  start.generation = Generation(2);
  ASSERT_OK_AND_ASSIGN(plan, plans_->BeginGeneration(start));
  EXPECT_EQ(plan.version, 1) << "the same program goes on with its plan";
  EXPECT_EQ(plan.compression_start_step, 7);
  start.generation = Generation(3);
  start.settings.compression_start_step = -1;
  ASSERT_OK_AND_ASSIGN(plan, plans_->BeginGeneration(start));
  EXPECT_EQ(plan.version, 2);
  EXPECT_EQ(plan.compression_start_step, -1);
}

TEST_F(PlanStoreTest, FirstPlanIsThatOfTheManifest) {
  const schedule::Plan plan = Begin(1, "powersgd(rank=2)", 4);
  EXPECT_EQ(plan.version, 1);
  EXPECT_EQ(plan.hook, "powersgd(rank=2)");
  EXPECT_EQ(plan.accumulation_steps, 4);
  EXPECT_EQ(plan.compression_start_step, -1);
}

TEST_F(PlanStoreTest, SameManifestKeepsTheVersion) {
  Begin(1, "allreduce", 1);
  EXPECT_EQ(Begin(2, "allreduce", 1).version, 1);
  const schedule::Plan changed = Begin(3, "bf16", 1);
  EXPECT_EQ(changed.version, 2);
  EXPECT_EQ(changed.hook, "bf16");
}

TEST_F(PlanStoreTest, TheLogHasEarlierNamesBesideTheNewOnes) {
  Begin(1, "allreduce", 1);
  testing::internal::CaptureStderr();
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(8, "bf16", 100)));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr(" accumulation_steps=8 accumulation=8 "));
}

TEST_F(PlanStoreTest, ProposalTakesEffectAtTheNextGenerationAndStays) {
  Begin(1, "allreduce", 1);
  ASSERT_OK_AND_ASSIGN(const schedule::Plan next,
                       plans_->Propose("job", 1, MakePlan(8, "bf16", 100)));
  EXPECT_EQ(next.version, 2);
  ASSERT_OK_AND_ASSIGN(const auto plans, plans_->Get("job"));
  EXPECT_EQ(plans.current.version, 1);
  ASSERT_TRUE(plans.next.has_value());
  EXPECT_EQ(plans.next->hook, "bf16");

  for (int generation : {2, 3}) {
    const schedule::Plan plan = Begin(generation, "allreduce", 1);
    EXPECT_EQ(plan.version, 2);
    EXPECT_EQ(plan.hook, "bf16");
    EXPECT_EQ(plan.accumulation_steps, 8);
    EXPECT_EQ(plan.compression_start_step, 100);
  }
  EXPECT_FALSE(plans_->Get("job")->next.has_value());
}

TEST_F(PlanStoreTest, RepeatedProposalIsAcceptedAgain) {
  Begin(1, "allreduce", 1);
  const schedule::Plan proposal = MakePlan(2, "bf16", -1);
  ASSERT_OK(plans_->Propose("job", 1, proposal));
  ASSERT_OK_AND_ASSIGN(const schedule::Plan again,
                       plans_->Propose("job", 1, proposal));
  EXPECT_EQ(again.version, 2);
}

TEST_F(PlanStoreTest, ProposalThatMadeNoStepIsDropped) {
  Begin(1, "allreduce", 1);
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(8, "nosuchhook", 100)));
  EXPECT_EQ(Begin(2, "allreduce", 1, PlanTrial::kProved).hook, "nosuchhook");
  Reload();  // Also a restarted coordinator knows that it is on trial.
  EXPECT_EQ(Begin(3, "allreduce", 1).hook, "nosuchhook");
  const schedule::Plan back = Begin(4, "allreduce", 1, PlanTrial::kFailed);
  EXPECT_EQ(back.hook, "allreduce");
  EXPECT_EQ(back.accumulation_steps, 1);
  EXPECT_EQ(back.compression_start_step, -1);
  EXPECT_EQ(back.version, 3);
  Reload();
  EXPECT_EQ(Begin(5, "allreduce", 1, PlanTrial::kFailed).version, 3);
}

TEST_F(PlanStoreTest, ProposalThatMadeAStepOnceStaysWhenALaterGenerationFails) {
  Begin(1, "allreduce", 1);
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(8, "bf16", -1)));
  Begin(2, "allreduce", 1, PlanTrial::kFailed);
  Begin(3, "allreduce", 1, PlanTrial::kProved);
  Reload();
  EXPECT_EQ(Begin(4, "allreduce", 1, PlanTrial::kFailed).hook, "bf16");
}

TEST_F(PlanStoreTest, TheCallersWritesAreCommittedWithThePlan) {
  GenerationStart start;
  start.job = "job";
  start.generation = Generation(1);
  start.settings.hook = "allreduce";
  start.settings.accumulation_steps = 1;
  start.batch.Put("cluster", "next_generation", "2");
  ASSERT_OK(plans_->BeginGeneration(start));
  EXPECT_EQ(store_.Get("cluster", "next_generation").value_or(""), "2");
  store_.FailWrites(absl::UnavailableError("disk full"));
  start.batch.Put("cluster", "next_generation", "3");
  EXPECT_FALSE(plans_->BeginGeneration(start).ok());
  EXPECT_EQ(store_.Get("cluster", "next_generation").value_or(""), "2");
}

TEST_F(PlanStoreTest, ProposalAgainstAnOldVersionIsRefused) {
  Begin(1, "allreduce", 1);
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(2, "bf16", -1)));
  EXPECT_THAT(plans_->Propose("job", 1, MakePlan(3, "fp16", -1)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("version 2, not 1")));
}

TEST_F(PlanStoreTest, OutOfRangeProposalsAreRefused) {
  Begin(1, "allreduce", 1);
  for (const schedule::Plan& plan :
       {MakePlan(0, "bf16", -1), MakePlan(1'000'001, "bf16", -1),
        MakePlan(1, "", -1), MakePlan(1, std::string(4097, 'x'), -1),
        MakePlan(1, "bf16", -2)}) {
    EXPECT_THAT(
        plans_->Propose("job", 1, plan),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must")));
  }
}

TEST_F(PlanStoreTest, UnknownJobIsNotFound) {
  EXPECT_THAT(plans_->Get("ghost"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ghost")));
  EXPECT_THAT(plans_->Propose("ghost", 0, MakePlan(1, "bf16", -1)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ghost")));
}

TEST_F(PlanStoreTest, PlansAndProposalsSurviveARestart) {
  Begin(1, "allreduce", 1);
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(2, "bf16", 7)));
  Reload();
  ASSERT_OK_AND_ASSIGN(const auto plans, plans_->Get("job"));
  EXPECT_EQ(plans.current.hook, "allreduce");
  ASSERT_TRUE(plans.next.has_value());
  EXPECT_EQ(plans.next->compression_start_step, 7);
  Begin(2, "allreduce", 1);
  Reload();
  EXPECT_EQ(Begin(3, "allreduce", 1).hook, "bf16");
}

TEST_F(PlanStoreTest, NothingChangesWhenTheCommitFails) {
  Begin(1, "allreduce", 1);
  store_.FailWrites(absl::UnavailableError("disk full"));
  EXPECT_THAT(plans_->Propose("job", 1, MakePlan(2, "bf16", -1)),
              StatusIs(absl::StatusCode::kUnavailable, "disk full"));
  EXPECT_FALSE(plans_->Get("job")->next.has_value());
}

TEST_F(PlanStoreTest, APlanGoesWithItsJob) {
  Begin(1, "allreduce", 1, "gone");
  Begin(2, "allreduce", 1, "here");
  ASSERT_OK(plans_->Propose("gone", 1, MakePlan(2, "bf16", -1)));
  StateBatch batch;
  plans_->Forget("gone", &batch);
  plans_->Forget("never heard of", &batch);
  EXPECT_FALSE(plans_->Get("gone").ok());
  EXPECT_OK(plans_->Get("here"));
  ASSERT_OK(store_.Apply(batch));
  const auto tables = store_.Tables("plan.");
  for (const std::string& table : *tables) {
    EXPECT_FALSE(store_.Get(table, "gone").ok()) << table;
  }
  EXPECT_EQ(Begin(3, "allreduce", 1, "gone").version, 1) << "another job";
}

TEST_F(PlanStoreTest, PlansWithoutAJobAreDroppedAtTheStart) {
  constexpr int kJobs = 60;  // more than one batch of deletions
  for (int i = 1; i <= kJobs; ++i) {
    Begin(i, "allreduce", 1, absl::StrCat("job-", i));
  }
  Reload();
  plans_->KeepOnly({"job-7", "job-31", "never heard of"});
  EXPECT_OK(plans_->Get("job-7"));
  EXPECT_FALSE(plans_->Get("job-8").ok());
  const auto tables = store_.Tables("plan.");
  for (const std::string& table : *tables) {
    EXPECT_EQ(store_.List(table)->size(), 2u) << table;
  }
}

TEST_F(PlanStoreTest, NothingComesIntoForceThatCouldNotBeReadAgain) {
  ASSERT_OK(BeginWith(1, 1, 2));
  schedule::Plan plan = MakePlan(4, "bf16", -1);
  plan.at_step = schedule::Plan::kAtNextStep;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  EXPECT_THAT(
      plans_->TakeEffect("job", Generation(1), schedule::kMaxStep + 1),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at_step")));
  EXPECT_EQ(plans_->Get("job")->current.version, 1);
  EXPECT_TRUE(plans_->Get("job")->next.has_value());
  EXPECT_EQ(Take(1, schedule::kMaxStep).version, 2);
  Reload();
  EXPECT_EQ(plans_->Get("job")->current.at_step, schedule::kMaxStep);
}

TEST_F(PlanStoreTest, TermsOfTheManifestArePartOfThePlan) {
  ASSERT_OK_AND_ASSIGN(const schedule::Plan plan,
                       BeginWith(1, 2, 4, {{"tail", "drop"}}));
  EXPECT_EQ(plan.terms.tail, schedule::TailPolicy::kDrop);
  EXPECT_EQ(plan.global_micro_batches, 8);
  EXPECT_EQ(BeginWith(2, 2, 4, {{"tail", "drop"}})->version, 1);
  Reload();
  EXPECT_EQ(BeginWith(3, 2, 4, {{"tail", "drop"}})->version, 1);
  // Defaults are the same, given or not.
  EXPECT_EQ(BeginWith(4, 2, 4, {{"tail", "drop"}, {"max_steps", "0"}})->version,
            1);
  ASSERT_OK_AND_ASSIGN(const schedule::Plan other, BeginWith(5, 2, 4));
  EXPECT_EQ(other.version, 2);
  EXPECT_EQ(other.terms.tail, schedule::TailPolicy::kFlush);
}

TEST_F(PlanStoreTest, BadTermsAreRefused) {
  EXPECT_THAT(
      BeginWith(1, 1, 1, {{"tail", "wag"}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tail=wag")));
  EXPECT_THAT(
      BeginWith(1, 1, 1, {{"enforcement", "off"}, {"commit_vote", "true"}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("do not go together")));
  EXPECT_THAT(BeginWith(1, 1, 1, {{"tail", std::string(1000, 'x')}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1000")));
  EXPECT_FALSE(plans_->Get("job").ok());
}

TEST_F(PlanStoreTest, TheGlobalBatchIsKeptWhenFourBecomeThree) {
  const std::map<std::string, std::string> terms = {
      {"on_resize", "keep_global_batch"}, {"uneven_data", "wait_for_all"}};
  ASSERT_OK(BeginWith(1, 2, 4, terms));
  Reload();
  ASSERT_OK_AND_ASSIGN(const schedule::Plan plan, BeginWith(2, 2, 3, terms));
  EXPECT_EQ(plan.version, 1);
  EXPECT_EQ(plan.global_micro_batches, 8);
  EXPECT_EQ(plan.WindowOf(0, 3), 3);
  EXPECT_EQ(plan.WindowOf(1, 3), 3);
  EXPECT_EQ(plan.WindowOf(2, 3), 2);
}

TEST_F(PlanStoreTest, TheLocalBatchIsKeptOtherwise) {
  ASSERT_OK(BeginWith(1, 2, 4));
  ASSERT_OK_AND_ASSIGN(const schedule::Plan plan, BeginWith(2, 2, 3));
  EXPECT_EQ(plan.version, 1);
  EXPECT_EQ(plan.WindowOf(2, 3), 2);
}

TEST_F(PlanStoreTest, AGlobalBatchThatOneRankCannotHoldIsRefused) {
  options_.max_accumulation_steps = 10;
  Reload();
  const std::map<std::string, std::string> terms = {
      {"on_resize", "keep_global_batch"}, {"uneven_data", "wait_for_all"}};
  ASSERT_OK(BeginWith(1, 10, 4, terms));
  EXPECT_THAT(BeginWith(2, 10, 3, terms),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::AllOf(HasSubstr("max_accumulation_steps is 10"),
                                      HasSubstr("keep_local_batch"))));
  EXPECT_OK(BeginWith(3, 10, 4, terms));
}

TEST_F(PlanStoreTest, AProposalKeepsTheGlobalBatchUnlessItChangesTheSteps) {
  const std::map<std::string, std::string> terms = {
      {"on_resize", "keep_global_batch"}, {"uneven_data", "wait_for_all"}};
  ASSERT_OK(BeginWith(1, 2, 4, terms));
  ASSERT_OK_AND_ASSIGN(schedule::Plan plan, BeginWith(2, 2, 3, terms));
  plan.hook = "bf16";
  plan.global_micro_batches = 1000;  // not for a peer to set
  ASSERT_OK_AND_ASSIGN(plan, plans_->Propose("job", 1, plan));
  EXPECT_EQ(plan.global_micro_batches, 8);
  plan.accumulation_steps = 4;
  ASSERT_OK_AND_ASSIGN(plan, plans_->Propose("job", 2, plan));
  EXPECT_EQ(plan.global_micro_batches, 12);
}

TEST_F(PlanStoreTest, RecordsOfOlderCoordinatorsAreRead) {
  v1::Plan old;
  old.set_version(3);
  old.set_accumulation_steps(2);
  old.set_hook("allreduce");
  old.set_compression_start_step(-1);
  StateBatch batch;
  batch.Put("plan.current", "job", old.SerializeAsString());
  batch.Put("plan.manifest", "job", old.SerializeAsString());
  ASSERT_OK(store_.Apply(batch));
  Reload();
  EXPECT_EQ(plans_->Get("job")->current.version, 3);
  ASSERT_OK_AND_ASSIGN(const schedule::Plan plan, BeginWith(9, 2, 4));
  EXPECT_EQ(plan.version, 3);
  EXPECT_EQ(plan.global_micro_batches, 8);
}

// A plan of which one record is spoiled, beside one of another job.
class UnreadablePlanTest : public PlanStoreTest {
 protected:
  void SetUp() override {
    PlanStoreTest::SetUp();
    Begin(1, "allreduce", 1);
    ASSERT_EQ(Begin(2, "allreduce", 2).version, 2);
    ASSERT_OK_AND_ASSIGN(const schedule::Plan next,
                         plans_->Propose("job", 2, MakePlan(4, "bf16", -1)));
    ASSERT_EQ(next.version, 3);
    ASSERT_EQ(Begin(3, "allreduce", 1, "other").version, 1);
  }
  std::vector<std::string> TablesOfJob() const {
    std::vector<std::string> tables;
    for (const std::string& table : PlanStore::TableNames()) {
      if (store_.Get(table, "job").ok()) tables.push_back(table);
    }
    return tables;
  }
};

TEST_F(UnreadablePlanTest, GoesIntoQuarantineAsAWhole) {
  v1::Plan plan;
  ASSERT_TRUE(plan.ParseFromString(*store_.Get("plan.current", "job")));
  const auto edited = [&plan](const std::function<void(v1::Plan*)>& edit) {
    v1::Plan copy = plan;
    edit(&copy);
    return copy.SerializeAsString();
  };
  const std::vector<std::string> spoiled = {
      "",
      "\xff\xff\xff",
      plan.SerializeAsString().substr(0, 5),
      edited([](v1::Plan* p) { p->set_version(4); }),  // not given out yet
      edited([](v1::Plan* p) { p->set_version(int64_t{1} << 60); }),
      edited([](v1::Plan* p) { p->set_version(-1); }),
      edited([](v1::Plan* p) { p->set_at_step(-7); }),
      edited([](v1::Plan* p) { p->set_global_micro_batches(-1); })};
  std::vector<std::pair<std::string, std::string>> good;
  for (const std::string& table : TablesOfJob()) {
    good.emplace_back(table, *store_.Get(table, "job"));
  }
  ASSERT_THAT(good, testing::SizeIs(3));  // current, next, manifest
  size_t quarantined = 0;
  for (const std::string& value : spoiled) {
    SCOPED_TRACE(absl::CHexEscape(value));
    for (const auto& [table, bytes] : good) {
      ASSERT_OK(store_.Put(table, "job", bytes));
    }
    ASSERT_OK(store_.Put("plan.current", "job", value));
    Reload();
    EXPECT_FALSE(plans_->Get("job").ok());
    EXPECT_EQ(plans_->Get("other")->current.version, 1);
    EXPECT_THAT(TablesOfJob(), testing::IsEmpty());
    ASSERT_OK_AND_ASSIGN(const auto records, ListQuarantined(store_));
    ASSERT_EQ(records.size(), quarantined + 3);
    EXPECT_EQ(records[quarantined].table, "plan.current");
    EXPECT_EQ(records[quarantined].key, "job");
    EXPECT_EQ(records[quarantined].bytes, value.size());
    quarantined = records.size();
  }
}

TEST_F(UnreadablePlanTest, AnyRecordOfItMayBeTheOne) {
  for (const char* table :
       {"plan.current", "plan.before", "plan.next", "plan.manifest"}) {
    SCOPED_TRACE(table);
    ASSERT_OK(store_.Put(table, "job", "\xff"));
    Reload();
    EXPECT_FALSE(plans_->Get("job").ok());
    EXPECT_OK(plans_->Get("other"));
    EXPECT_THAT(TablesOfJob(), testing::IsEmpty());
    EXPECT_NE(Begin(4, "allreduce", 2).version, 0);
  }
}

TEST_F(UnreadablePlanTest, ItsVersionsAreNotGivenOutAgain) {
  ASSERT_OK(store_.Put("plan.current", "job", "?"));
  Reload();
  Reload();  // The quarantine is what is left of it.
  EXPECT_EQ(Begin(4, "allreduce", 2).version, 4);
  ASSERT_OK(store_.Put("plan.current", "job", "?"));
  Reload();
  EXPECT_EQ(Begin(5, "allreduce", 2).version, 5);
  // Another job counts on by itself.
  EXPECT_EQ(Begin(6, "allreduce", 7, "other").version, 2);
}

TEST_F(UnreadablePlanTest, NorAreThoseOfAPlanThatIsMissing) {
  for (const std::string& table : PlanStore::TableNames()) {
    ASSERT_OK(store_.Delete(table, "job"));
  }
  Reload();
  GenerationStart start = StartOf(4, 2, 1, {});
  start.follows = true;
  EXPECT_EQ(plans_->BeginGeneration(std::move(start))->version, 4);
}

// A record of another name may have been that of its job, or its proposal.
TEST_F(UnreadablePlanTest, IsKeptWhileTheNameOfALostRecordIsNotKnown) {
  ASSERT_OK(store_.Delete("plan.next", "job"));
  ASSERT_OK(QuarantineRecords(
      {{"plan.next", "jib", "?", "jib", kWrongChecksum}}, &store_));
  Reload();
  plans_->KeepOnly({"jib"});
  Reload();
  ASSERT_OK_AND_ASSIGN(const auto plans, plans_->Get("job"));
  EXPECT_EQ(plans.current.version, 2);
  EXPECT_OK(plans_->Get("other"));
  EXPECT_EQ(Begin(4, "bf16", 1).version, 4) << "3 may be the lost one's";
  EXPECT_EQ(Begin(5, "allreduce", 1, "new").version, 5);
}

TEST_F(UnreadablePlanTest, WithoutTheMarkNothingIsLoadedOrChanged) {
  StateBatch batch;
  ClusterRecords cluster;
  cluster.id = "cafe";
  cluster.next_plan_version = 4;
  PutClusterRecords(cluster, &batch);
  ASSERT_OK(store_.Apply(batch));
  ASSERT_OK(store_.Put("cluster", "next_plan_version", "4"));
  ASSERT_OK(store_.Put("plan.current", "job", "?"));
  EXPECT_THAT(
      PlanStore::Load(options_, &store_),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("--repair-state")));
  EXPECT_EQ(store_.Get("plan.current", "job").value_or(""), "?");
}

// An older coordinator kept no mark of versions.
TEST_F(UnreadablePlanTest, WithoutAMarkTheNextVersionIsFarAway) {
  ASSERT_OK(store_.Apply(StateBatch().DeleteTable("cluster")));
  Reload();
  EXPECT_EQ(plans_->next_version(), 4);
  ASSERT_OK(store_.Put("plan.current", "job", "?"));
  Reload();
  EXPECT_GT(plans_->next_version(), 1 << 20);
  EXPECT_GT(Begin(4, "allreduce", 2).version, 1 << 20);
}

TEST_F(PlanStoreTest, AProposalForAStepIsPendingUntilThen) {
  ASSERT_OK(BeginWith(1, 1, 2));
  schedule::Plan plan = MakePlan(4, "bf16", -1);
  plan.terms.max_steps = 40;
  plan.at_step = 5;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  EXPECT_EQ(Take(1, 4).version, 0);
  EXPECT_EQ(Take(2, 5).version, 0);  // of no such generation
  Reload();
  ASSERT_OK(plans_->Get("job"));
  EXPECT_EQ(plans_->Get("job")->next->at_step, 5);
}

TEST_F(PlanStoreTest, WhatComesIntoForceIsDurable) {
  ASSERT_OK(BeginWith(1, 1, 2));
  for (const int64_t at_step :
       {schedule::Plan::kAtNextStep, int64_t{7}, int64_t{3}}) {
    const int64_t version = plans_->Get("job")->current.version;
    schedule::Plan plan = MakePlan(static_cast<int>(10 + version), "bf16", -1);
    plan.at_step = at_step;
    ASSERT_OK(plans_->Propose("job", version, plan));
    const schedule::Plan taken = Take(1, 7);  // 3 is past
    EXPECT_EQ(taken.version, version + 1);
    EXPECT_EQ(taken.at_step, 7);
    EXPECT_EQ(taken.global_micro_batches, 2 * plan.accumulation_steps);
    EXPECT_EQ(Take(1, 8).version, 0);
  }
  Reload();
  EXPECT_EQ(plans_->Get("job")->current.version, 4);
  EXPECT_FALSE(plans_->Get("job")->next.has_value());
}

TEST_F(PlanStoreTest, NothingComesIntoForceThatIsNotStored) {
  ASSERT_OK(BeginWith(1, 1, 2));
  schedule::Plan plan = MakePlan(4, "bf16", -1);
  plan.at_step = schedule::Plan::kAtNextStep;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  store_.FailWrites(absl::UnavailableError("disk full"));
  EXPECT_THAT(plans_->TakeEffect("job", Generation(1), 1),
              StatusIs(absl::StatusCode::kUnavailable, "disk full"));
  EXPECT_EQ(plans_->Get("job")->current.version, 1);
  store_.FailWrites(absl::OkStatus());
  EXPECT_EQ(Take(1, 2).version, 2);
}

TEST_F(PlanStoreTest, AProposalForTheNextGenerationWaitsForIt) {
  ASSERT_OK(BeginWith(1, 1, 2));
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(4, "bf16", -1)));
  EXPECT_EQ(Take(1, 100).version, 0);
}

TEST_F(PlanStoreTest, AProposalWhoseStepDidNotComeBeginsTheNextGeneration) {
  ASSERT_OK(BeginWith(1, 1, 2));
  schedule::Plan plan = MakePlan(4, "bf16", -1);
  plan.at_step = 1000;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  plans_->OnGenerationEnded("job", Generation(1), absl::AbortedError("lost"));
  ASSERT_OK_AND_ASSIGN(const schedule::Plan next, BeginWith(2, 1, 2));
  EXPECT_EQ(next.version, 2);
  EXPECT_EQ(next.at_step, 0);
}

TEST_F(PlanStoreTest, OnlyARunningAndEnforcedGenerationCanChangeItsPlan) {
  schedule::Plan plan = MakePlan(4, "bf16", -1);
  plan.at_step = schedule::Plan::kAtNextStep;
  ASSERT_OK(BeginWith(1, 1, 2));
  plans_->OnGenerationEnded("job", Generation(1), absl::AbortedError("lost"));
  EXPECT_THAT(plans_->Propose("job", 1, plan),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       testing::AllOf(HasSubstr("does not run"),
                                      HasSubstr("at_step 0"))));
  ASSERT_OK(BeginWith(2, 1, 2, {{"enforcement", "off"}}));
  EXPECT_THAT(plans_->Propose("job", 2, plan),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       testing::AllOf(HasSubstr("enforcement=off"),
                                      HasSubstr("at_step 0"))));
  plan.at_step = schedule::Plan::kWithNextGeneration;
  EXPECT_OK(plans_->Propose("job", 2, plan));
}

TEST_F(PlanStoreTest, AnotherStepIsAnotherProposal) {
  ASSERT_OK(BeginWith(1, 1, 2));
  schedule::Plan plan = MakePlan(4, "bf16", -1);
  ASSERT_OK(plans_->Propose("job", 1, plan));
  plan.at_step = schedule::Plan::kAtNextStep;
  EXPECT_THAT(
      plans_->Propose("job", 1, plan),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("version 2")));
  ASSERT_OK_AND_ASSIGN(const schedule::Plan sooner,
                       plans_->Propose("job", 2, plan));
  EXPECT_EQ(sooner.version, 3);
  EXPECT_EQ(Take(1, 1).version, 3);
  // Its answer was lost, and it is in force already.
  ASSERT_OK_AND_ASSIGN(const schedule::Plan again,
                       plans_->Propose("job", 2, plan));
  EXPECT_EQ(again.version, 3);
}

TEST_F(PlanStoreTest, TermsOfAProposalMustGoTogether) {
  ASSERT_OK(BeginWith(1, 1, 2));
  schedule::Plan plan = MakePlan(4, "bf16", -1);
  plan.terms.tail = schedule::TailPolicy::kCarry;
  plan.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  EXPECT_THAT(plans_->Propose("job", 1, plan),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("do not go together")));
  plan = MakePlan(4, "bf16", -1);
  for (const int64_t at_step : {int64_t{-2}, schedule::kMaxStep + 1}) {
    plan.at_step = at_step;
    EXPECT_THAT(
        plans_->Propose("job", 1, plan),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at_step")));
  }
}

// A plan that came into force in the running generation, at its step 5.
class ChangedPlanTest : public PlanStoreTest {
 protected:
  void SetUp() override {
    PlanStoreTest::SetUp();
    ASSERT_OK(BeginWith(1, 1, 2));
    schedule::Plan plan = MakePlan(4, "nosuchhook", -1);
    plan.at_step = 5;
    ASSERT_OK(plans_->Propose("job", 1, plan));
    ASSERT_EQ(Take(1, 5).version, 2);
  }
  // After an end by a loss, with steps done before the change.
  schedule::Plan NextGeneration() {
    plans_->OnGenerationEnded("job", Generation(1), absl::AbortedError("lost"));
    GenerationStart start = StartOf(2, 1, 2, {});
    start.last = PlanTrial::kProved;
    return plans_->BeginGeneration(start).value_or(schedule::Plan());
  }
};

TEST_F(ChangedPlanTest, IsDroppedIfTheGenerationEndsBeforeItsFirstStep) {
  EXPECT_EQ(Take(1, 6).version, 0);  // the decision on step 5 itself
  const schedule::Plan back = NextGeneration();
  EXPECT_EQ(back.version, 3);
  EXPECT_EQ(back.hook, "allreduce");
}

TEST_F(ChangedPlanTest, StaysOnceTheStepAfterItsFirstIsDecided) {
  Take(1, 6);
  Take(1, 7);
  EXPECT_EQ(NextGeneration().version, 2);
  Reload();
  EXPECT_EQ(BeginWith(3, 1, 2)->version, 2);
}

TEST_F(ChangedPlanTest, StaysIfAMemberHasFinishedWithIt) {
  plans_->OnMemberLeft("job", Generation(1), 0);
  EXPECT_EQ(NextGeneration().version, 2);
}

TEST_F(ChangedPlanTest, IsOnTrialStillAfterARestart) {
  Reload();
  EXPECT_EQ(BeginWith(2, 1, 2)->version, 2);
  GenerationStart start = StartOf(3, 1, 2, {});
  start.last = PlanTrial::kFailed;
  EXPECT_EQ(plans_->BeginGeneration(start)->hook, "allreduce");
}

// A plan that began with a generation.
class BegunPlanTest : public PlanStoreTest {
 protected:
  void BeginTrial(const std::map<std::string, std::string>& terms = {}) {
    ASSERT_OK(BeginWith(1, 2, 4, terms));
    schedule::Plan plan = plans_->Get("job")->current;
    plan.hook = "bf16";
    ASSERT_OK(plans_->Propose("job", 1, plan));
    ASSERT_EQ(BeginWith(2, 2, 4, terms)->hook, "bf16");
  }
  schedule::Plan NextGeneration(
      PlanTrial last, int world_size = 4,
      const std::map<std::string, std::string>& terms = {}) {
    plans_->OnGenerationEnded("job", Generation(2), absl::AbortedError("lost"));
    GenerationStart start = StartOf(3, 2, world_size, terms);
    start.last = last;
    return plans_->BeginGeneration(start).value_or(schedule::Plan());
  }
};

TEST_F(BegunPlanTest, StaysOnceItsSecondStepIsDecided) {
  BeginTrial();
  Take(2, 101);  // It went on from a checkpoint.
  Take(2, 102);
  EXPECT_EQ(NextGeneration(PlanTrial::kFailed).hook, "bf16")
      << "a program need not report its steps";
  Reload();
  EXPECT_EQ(BeginWith(4, 2, 4)->hook, "bf16");
}

TEST_F(BegunPlanTest, IsDroppedAfterItsFirstDecisionWhateverWasReported) {
  BeginTrial();
  Take(2, 101);
  Take(2, 101);  // without data
  EXPECT_EQ(NextGeneration(PlanTrial::kProved).hook, "allreduce");
}

TEST_F(BegunPlanTest, IsJudgedByReportsWhereNothingIsDecided) {
  BeginTrial();
  EXPECT_EQ(NextGeneration(PlanTrial::kProved).hook, "bf16");
}

TEST_F(BegunPlanTest, TheGlobalBatchStaysWhenItIsDropped) {
  const std::map<std::string, std::string> terms = {
      {"on_resize", "keep_global_batch"}, {"uneven_data", "wait_for_all"}};
  BeginTrial(terms);
  const schedule::Plan back = NextGeneration(PlanTrial::kFailed, 3, terms);
  EXPECT_EQ(back.hook, "allreduce");
  EXPECT_EQ(back.global_micro_batches, 8);
}

TEST_F(PlanStoreTest, ThePlanBeforeIsKnownWhileItsGenerationRuns) {
  Begin(1, "allreduce", 1);
  EXPECT_FALSE(plans_->Get("job")->before.has_value());
  schedule::Plan plan = MakePlan(1, "bf16", -1);
  plan.at_step = 3;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  EXPECT_EQ(Take(1, 3).version, 2);
  Reload();
  ASSERT_TRUE(plans_->Get("job")->before.has_value());
  EXPECT_EQ(plans_->Get("job")->before->version, 1);
  EXPECT_EQ(plans_->Get("job")->before->hook, "allreduce");
  Begin(2, "allreduce", 1);
  EXPECT_FALSE(plans_->Get("job")->before.has_value());
}

TEST_F(PlanStoreTest, AResumedGenerationGoesOnChangingAndProvingItsPlan) {
  Begin(1, "allreduce", 1);
  schedule::Plan plan = MakePlan(1, "bf16", -1);
  plan.at_step = 3;
  ASSERT_OK(plans_->Propose("job", 1, plan));
  ASSERT_EQ(Take(1, 3).version, 2);
  Reload();
  EXPECT_EQ(Take(1, 4).version, 0) << "its generation is not known yet";
  GenerationResumed resumed;
  resumed.begin.job = "job";
  resumed.begin.generation = Generation(1);
  ASSERT_OK(plans_->OnResume({resumed}));
  plan.hook = "fp16";
  plan.at_step = schedule::Plan::kAtNextStep;
  ASSERT_OK(plans_->Propose("job", 2, plan));
  EXPECT_EQ(Take(1, 4).version, 3);
  EXPECT_EQ(plans_->Get("job")->before->version, 2);
  // On trial still: the workers' own settings come back.
  EXPECT_EQ(Begin(2, "allreduce", 1).hook, "allreduce");
}

// Of a job whose ranks are stages of a pipeline.
class PipelinePlanTest : public PlanStoreTest {
 protected:
  absl::StatusOr<schedule::Plan> BeginOn(int generation, const char* mesh_text,
                                         const char* spec = "1f1b") {
    const auto mesh = Mesh::Parse(mesh_text);
    EXPECT_OK(mesh);
    GenerationStart start =
        StartOf(generation, 4, mesh->size(), {{"pipeline", spec}});
    start.mesh = *mesh;
    return plans_->BeginGeneration(std::move(start));
  }
  // Proposes a change of the newest plan.
  absl::StatusOr<schedule::Plan> Change(
      const std::function<void(schedule::Plan*)>& edit) {
    const auto plans = plans_->Get("job");
    EXPECT_OK(plans);
    schedule::Plan plan = plans->next.value_or(plans->current);
    const int64_t version = plan.version;
    plan.at_step = schedule::Plan::kAtNextStep;
    edit(&plan);
    return plans_->Propose("job", version, plan);
  }
  absl::StatusOr<schedule::Plan> Accumulate(int steps) {
    return Change(
        [steps](schedule::Plan* plan) { plan->accumulation_steps = steps; });
  }
  absl::StatusOr<schedule::Plan> Run(const std::string& spec) {
    return Change(
        [&spec](schedule::Plan* plan) { plan->terms.pipeline = spec; });
  }
};

TEST_F(PipelinePlanTest, AProvedChangeIsAccepted) {
  ASSERT_OK_AND_ASSIGN(const schedule::Plan plan, BeginOn(1, "pp=2,dp=3"));
  // Two ranks compute each micro-batch.
  EXPECT_EQ(plan.global_micro_batches, 12);
  ASSERT_OK_AND_ASSIGN(const schedule::Plan next, Accumulate(8));
  EXPECT_EQ(next.global_micro_batches, 24);
  EXPECT_EQ(Take(1, 5).accumulation_steps, 8);
  EXPECT_OK(Run("gpipe"));
}

TEST_F(PipelinePlanTest, WhatCannotRunIsRefusedWithTheReason) {
  ASSERT_OK(BeginOn(1, "pp=2,dp=3"));
  EXPECT_THAT(Accumulate(100000),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cannot run pipeline=1f1b with 100000 "
                                 "micro-batches")));
  EXPECT_THAT(Run("interleaved(chunks=2)"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("layers do not move while a job runs")));
  EXPECT_THAT(Run(""), StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("pipeline=none gives a rank 0")));
  EXPECT_FALSE(plans_->Get("job")->next.has_value());
}

TEST_F(PipelinePlanTest, ThePlanOfARunningJobIsProvedAfterARestartToo) {
  ASSERT_OK(BeginOn(1, "pp=128"));
  Reload();
  GenerationResumed resumed;
  resumed.begin.job = "job";
  resumed.begin.generation = Generation(1);
  resumed.begin.world_size = 128;
  ASSERT_OK_AND_ASSIGN(resumed.begin.mesh, Mesh::Parse("pp=128"));
  ASSERT_OK(plans_->OnResume({resumed}));
  // Few enough for 2 ranks, but not for 128.
  EXPECT_THAT(Accumulate(65536), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("the 128 ranks")));
  EXPECT_OK(Accumulate(64));
}

TEST_F(PipelinePlanTest, AProposalThatAnotherMeshCannotRunIsDropped) {
  ASSERT_OK(BeginOn(1, "pp=2,dp=32"));
  ASSERT_OK_AND_ASSIGN(const schedule::Plan pending, Accumulate(65536));
  ASSERT_OK_AND_ASSIGN(const schedule::Plan plan, BeginOn(2, "pp=128"));
  EXPECT_EQ(plan.accumulation_steps, 4);
  EXPECT_FALSE(plans_->Get("job")->next.has_value());
  ASSERT_OK_AND_ASSIGN(const schedule::Plan next, Accumulate(8));
  EXPECT_GT(next.version, pending.version);
}

TEST_F(PipelinePlanTest, AProposalComesWithAMeshThatCanRunIt) {
  ASSERT_OK(BeginOn(1, "pp=2,dp=2"));
  ASSERT_OK(Accumulate(8));
  EXPECT_EQ(BeginOn(2, "pp=2,dp=3")->accumulation_steps, 8);
}

// Others wait for the commit with which a generation begins.
TEST_F(PipelinePlanTest, AProposalThatTakesLongToProveIsDroppedWithItsMesh) {
  ASSERT_OK(BeginOn(1, "pp=4,dp=2"));
  ASSERT_OK(Accumulate(4096));
  EXPECT_EQ(BeginOn(2, "pp=2,dp=4")->accumulation_steps, 4);
  EXPECT_FALSE(plans_->Get("job")->next.has_value());
  EXPECT_OK(Accumulate(4096));
  // The same windows and stages: what was proved holds.
  EXPECT_EQ(BeginOn(3, "pp=2,dp=3")->accumulation_steps, 4096);
}

TEST_F(PipelinePlanTest, AJobThatWasCutAnewDoesNotGetTheOldStages) {
  ASSERT_OK(BeginOn(1, "pp=2", "interleaved(chunks=2)"));
  ASSERT_OK(Accumulate(8));
  ASSERT_OK_AND_ASSIGN(const schedule::Plan plan,
                       BeginOn(2, "pp=2", "interleaved(chunks=4)"));
  EXPECT_EQ(plan.terms.pipeline, "interleaved(chunks=4)");
  EXPECT_EQ(plan.accumulation_steps, 4);
}

}  // namespace
}  // namespace coxswain::server
