#include "server/membership/manifest_agreement.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "proto/types.pb.h"
#include "server/membership/membership.h"
#include "server/plan/plan_store.h"
#include "server/state/direct_writer.h"
#include "server/state/memory_state_store.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Manifest WithHook(const std::string& hook, int world = 2) {
  Manifest manifest;
  manifest.world_size = world;
  manifest.hook = hook;
  manifest.accumulation_steps = 1;
  manifest.parameters = {{"weight", {2, 3}, "float32", {}}};
  return manifest;
}

Member Named(const std::string& node, int slot, int rank = -1) {
  Member member;
  member.identity = {node, slot};
  member.rank = rank;
  return member;
}

TEST(ManifestAgreementTest, EqualOnesAgreeUntilAnotherComes) {
  ManifestAgreement manifests;
  EXPECT_TRUE(manifests.agreed());
  manifests.Put({"a", 0}, WithHook("bf16"));
  manifests.Put({"a", 1}, WithHook("bf16"));
  EXPECT_TRUE(manifests.agreed());
  manifests.Put({"a", 2}, WithHook("fp16", 3));
  EXPECT_FALSE(manifests.agreed());
  EXPECT_EQ(manifests.world_size(), 3);
  manifests.Remove({"a", 2});
  EXPECT_TRUE(manifests.agreed());
  EXPECT_EQ(manifests.manifest().hook, "bf16");
  // A worker's later manifest replaces its own.
  manifests.Put({"a", 0}, WithHook("fp16"));
  EXPECT_FALSE(manifests.agreed());
  manifests.Put({"a", 1}, WithHook("fp16"));
  EXPECT_TRUE(manifests.agreed());
  EXPECT_EQ(manifests.manifest().hook, "fp16");
}

TEST(ManifestAgreementTest, RanksAreNamedWhereTheyAreKnown) {
  ManifestAgreement manifests;
  manifests.Put({"a", 0}, WithHook("bf16"));
  manifests.Put({"b", 0}, WithHook("fp16"));
  EXPECT_THAT(manifests.Differences({Named("a", 0), Named("b", 0)}),
              ElementsAre("hook: bf16 on a/0; fp16 on b/0"));
  EXPECT_THAT(manifests.Differences({Named("b", 0, 0), Named("a", 0, 1)}),
              ElementsAre("hook: fp16 on rank 0 (b/0); bf16 on rank 1 (a/0)"));
}

TEST(ManifestAgreementTest, OfTooManyOnlyTheNumberIsKept) {
  ManifestAgreement manifests;
  std::vector<Member> members;
  for (int slot = 0; slot < 20; ++slot) {
    manifests.Put({"a", slot}, WithHook(absl::StrCat("hook", slot), 20));
    members.push_back(Named("a", slot));
  }
  const auto lines = manifests.Differences(members);
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(lines[0], HasSubstr("hook: hook0 on a/0"));
  EXPECT_EQ(lines[1], "and 4 more workers with yet other manifests");
  // Whether these agree is not known, even when the others are gone.
  for (int slot = 0; slot < 16; ++slot) manifests.Remove({"a", slot});
  EXPECT_FALSE(manifests.agreed());
  for (int slot = 16; slot < 20; ++slot) manifests.Remove({"a", slot});
  EXPECT_TRUE(manifests.agreed());
}

TEST(ManifestAgreementTest, ThereIsAlwaysALine) {
  ManifestAgreement manifests;
  Manifest plain = WithHook("bf16");
  Manifest tricky = plain;
  tricky.settings["seed"] = "unset";
  manifests.Put({"a", 0}, plain);
  manifests.Put({"a", 1}, tricky);
  EXPECT_FALSE(manifests.agreed());
  EXPECT_THAT(manifests.Differences({Named("a", 0), Named("a", 1)}), SizeIs(1));
  for (int slot = 2; slot < 20; ++slot) {
    manifests.Put({"b", slot}, WithHook(absl::StrCat(slot)));
  }
  manifests.Remove({"a", 0});
  manifests.Remove({"a", 1});
  for (int slot = 2; slot < 16; ++slot) manifests.Remove({"b", slot});
  // Of those that are left no manifest is kept.
  EXPECT_THAT(manifests.Differences({Named("b", 16)}),
              ElementsAre("and 4 more workers with yet other manifests"));
}

class CountingRandom : public RandomSource {
 public:
  uint64_t Next() override { return Mix64(count_++); }

 private:
  uint64_t count_ = 1;
};

struct Worker {
  JoinRequest request;
  uint64_t join_id = 0;
  std::vector<absl::StatusOr<JoinResult>> answers;
};

std::vector<std::string> DifferencesOf(const absl::Status& status) {
  const v1::ErrorDetail detail = DetailOf(status);
  const auto& lines = detail.manifest_mismatch().differences();
  return {lines.begin(), lines.end()};
}

// What becomes of a round whose manifests differ.
class MismatchTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(plans_, PlanStore::Load(PlanOptions(), &writer_));
    ASSERT_OK_AND_ASSIGN(
        membership_,
        Membership::Open(MembershipOptions(),
                         {&clock_, &random_, &writer_, plans_.get()}));
  }

  JoinRequest Template(const std::string& node, int slot,
                       const Manifest& manifest) {
    JoinRequest request;
    request.job = "job";
    request.identity = {node, slot};
    request.incarnation = Incarnation(++incarnations_);
    request.launcher_id = node[0];  // one launcher on each node
    request.host = node;
    request.address = node;
    request.manifest = manifest;
    request.timeout = absl::Seconds(30);
    return request;
  }
  Worker* Join(const std::string& node, int slot, const Manifest& manifest) {
    Worker& worker = workers_.emplace_back();
    worker.request = Template(node, slot, manifest);
    JoinAgain(&worker);
    return &worker;
  }
  void JoinAgain(Worker* worker) {
    worker->join_id = membership_->Join(worker->request, [worker](auto result) {
      worker->answers.push_back(std::move(result));
    });
  }
  void Pass(absl::Duration time) {
    clock_.Advance(time);
    membership_->Tick();
  }
  JobDescription Description() {
    auto jobs = membership_->Describe("job");
    return jobs.ok() ? jobs->front() : JobDescription();
  }
  static void ExpectRefused(const Worker& worker, const std::string& line) {
    ASSERT_THAT(worker.answers, SizeIs(1));
    const absl::Status& status = worker.answers[0].status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 AllOf(HasSubstr("workers of job 'job' differ"),
                                       HasSubstr(line))));
    EXPECT_THAT(DifferencesOf(status), ElementsAre(line));
  }

  FakeClock clock_;
  CountingRandom random_;
  MemoryStateStore store_;
  DirectWriter writer_{&store_};
  std::unique_ptr<PlanStore> plans_;
  std::unique_ptr<Membership> membership_;
  std::deque<Worker> workers_;  // addresses stay
  uint64_t incarnations_ = 0;
};

TEST_F(MismatchTest, AllAreRefusedOnceAllAreThere) {
  const Worker* a = Join("a", 0, WithHook("bf16", 3));
  const Worker* c = Join("c", 0, WithHook("fp16", 3));
  EXPECT_THAT(a->answers, IsEmpty());
  EXPECT_THAT(c->answers, IsEmpty());
  EXPECT_EQ(Description().state, JobState::kForming);
  const Worker* b = Join("b", 0, WithHook("bf16", 3));
  const std::string line =
      "hook: bf16 on rank 0 (a/0), rank 1 (b/0); fp16 on rank 2 (c/0)";
  for (const Worker* worker : {a, b, c}) ExpectRefused(*worker, line);
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_EQ(Description().last_event,
            "the workers of job 'job' differ, and all must be alike (3 of 3 "
            "workers had joined): " +
                line);
}

TEST_F(MismatchTest, ThosePresentAreRefusedWhenTheRestTakesTooLong) {
  const Worker* a = Join("a", 0, WithHook("bf16", 3));
  Pass(absl::Seconds(5));
  const Worker* b = Join("b", 0, WithHook("fp16", 3));
  Pass(absl::Milliseconds(1900));
  EXPECT_THAT(a->answers, IsEmpty());
  Pass(absl::Milliseconds(100));
  const std::string line = "hook: bf16 on a/0; fp16 on b/0";
  ExpectRefused(*a, line);
  ExpectRefused(*b, line);
  EXPECT_THAT(Description().last_event, HasSubstr("2 of 3 workers"));
}

TEST_F(MismatchTest, NoWorkerIsHeldBeyondItsOwnDeadline) {
  Worker& a = workers_.emplace_back();
  a.request = Template("a", 0, WithHook("bf16", 3));
  a.request.timeout = absl::Seconds(1);
  JoinAgain(&a);
  const Worker* b = Join("b", 0, WithHook("fp16", 3));
  Pass(absl::Milliseconds(900));
  EXPECT_THAT(b->answers, IsEmpty());
  Pass(absl::Milliseconds(100));
  ExpectRefused(a, "hook: bf16 on a/0; fp16 on b/0");
  EXPECT_THAT(b->answers, SizeIs(1));
}

TEST_F(MismatchTest, AnotherWorldSizeIsADifference) {
  const Worker* a = Join("a", 0, WithHook("bf16", 2));
  const Worker* b = Join("b", 0, WithHook("bf16", 4));
  EXPECT_THAT(a->answers, IsEmpty()) << "the larger number counts";
  Pass(absl::Seconds(2));
  ExpectRefused(*a, "world_size: 2 on a/0; 4 on b/0");
  ExpectRefused(*b, "world_size: 2 on a/0; 4 on b/0");
}

TEST_F(MismatchTest, ReplacedInTimeTheRoundIsWholeAgain) {
  const Worker* a = Join("a", 0, WithHook("bf16", 3));
  const Worker* wrong = Join("b", 0, WithHook("fp16", 3));
  Pass(absl::Seconds(1));
  const Worker* right = Join("b", 0, WithHook("bf16", 3));
  EXPECT_THAT(wrong->answers.at(0),
              StatusIs(absl::StatusCode::kCancelled, testing::_));
  Pass(absl::Seconds(5));
  EXPECT_THAT(a->answers, IsEmpty());
  // A new mismatch has a settle time of its own.
  const Worker* c = Join("c", 0, WithHook("bf16", 3));
  ASSERT_THAT(c->answers, SizeIs(1));
  EXPECT_OK(a->answers.at(0));
  EXPECT_OK(right->answers.at(0));
  EXPECT_OK(c->answers[0]);
}

TEST_F(MismatchTest, WithdrawnInTimeTheRoundIsWholeAgain) {
  const Worker* a = Join("a", 0, WithHook("bf16"));
  const Worker* wrong = Join("b", 0, WithHook("fp16", 3));
  membership_->Withdraw(wrong->join_id);
  Pass(absl::Seconds(5));
  EXPECT_THAT(a->answers, IsEmpty());
  Join("b", 0, WithHook("bf16"));
  EXPECT_OK(a->answers.at(0));
}

TEST_F(MismatchTest, AWorkerThatWaitsAloneIsBoundToNoOther) {
  const Worker* a = Join("a", 0, WithHook("bf16"));
  const Worker* again = Join("a", 0, WithHook("fp16"));
  EXPECT_THAT(a->answers.at(0),
              StatusIs(absl::StatusCode::kCancelled, testing::_));
  Pass(absl::Seconds(5));
  EXPECT_THAT(again->answers, IsEmpty());
  Join("b", 0, WithHook("fp16"));
  EXPECT_OK(again->answers.at(0));
}

TEST_F(MismatchTest, LateOnesOfARefusedLauncherAreRefusedAtOnce) {
  const std::string line = "hook: bf16 on a/0; fp16 on b/0";
  Worker* a = Join("a", 0, WithHook("bf16", 4));
  Join("b", 0, WithHook("fp16", 4));
  Pass(absl::Seconds(2));
  ExpectRefused(*Join("b", 1, WithHook("fp16", 4)), line);
  ExpectRefused(*Join("a", 1, WithHook("bf16", 4)), line);
  // Whose answer was lost.
  JoinAgain(a);
  ASSERT_THAT(a->answers, SizeIs(2));
  EXPECT_EQ(a->answers[1].status(), a->answers[0].status());
  EXPECT_EQ(Description().state, JobState::kEnded);

  // Another launcher begins anew, and after a while anyone.
  EXPECT_THAT(Join("c", 0, WithHook("bf16", 4))->answers, IsEmpty());
  Pass(absl::Seconds(28));
  ExpectRefused(*Join("a", 2, WithHook("bf16", 4)), line);
  EXPECT_THAT(Join("d", 0, WithHook("bf16", 4))->answers, IsEmpty());
  Pass(absl::Seconds(2));
  EXPECT_THAT(Join("a", 3, WithHook("bf16", 4))->answers, IsEmpty());
}

TEST_F(MismatchTest, WithoutALauncherALateOneBeginsANewRound) {
  for (int slot = 0; slot < 2; ++slot) {
    Worker& worker = workers_.emplace_back();
    worker.request = Template("a", slot, WithHook(absl::StrCat(slot)));
    worker.request.launcher_id = 0;
    JoinAgain(&worker);
  }
  EXPECT_THAT(workers_[0].answers, SizeIs(1));
  Worker& late = workers_.emplace_back();
  late.request = Template("a", 2, WithHook("bf16"));
  late.request.launcher_id = 0;
  // Only whose answer was lost.
  JoinAgain(&workers_[1]);
  ASSERT_THAT(workers_[1].answers, SizeIs(2));
  EXPECT_EQ(workers_[1].answers[1].status(), workers_[1].answers[0].status());
  JoinAgain(&late);
  EXPECT_THAT(late.answers, IsEmpty());
}

TEST_F(MismatchTest, TheErrorOfAnyMismatchFitsIntoTrailingMetadata) {
  Manifest one = WithHook(std::string(4000, 'x'));
  Manifest other = WithHook(std::string(4000, 'y'));
  for (int i = 0; i < 1000; ++i) {
    one.parameters.push_back({std::string(1000, 'a'), {i}, "float32", {}});
    other.parameters.push_back({std::string(1000, 'b'), {i}, "float32", {}});
  }
  const Worker* a = Join(std::string(250, 'a'), 0, one);
  Join(std::string(250, 'b'), 0, other);
  const absl::Status& status = a->answers.at(0).status();
  const std::vector<std::string> lines = DifferencesOf(status);
  EXPECT_GT(lines.size(), 3u);
  EXPECT_LE(lines.size(), 20u);
  EXPECT_THAT(lines.back(), HasSubstr("more differences"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\n  ..."));
  const size_t detail = DetailOf(status).ByteSizeLong();
  // In base64, and next to the message.
  EXPECT_LT(detail * 4 / 3 + status.message().size(), 7000u);
}

TEST_F(MismatchTest, RanksOfAMeshAreNamedWithTheirCoordinates) {
  Manifest one = WithHook("bf16"), other = WithHook("fp16");
  one.mesh = other.mesh = "dp=*";
  const Worker* a = Join("a", 0, one);
  const Worker* b = Join("b", 0, other);
  const std::string line =
      "hook: bf16 on rank 0 (dp 0; a/0); fp16 on rank 1 (dp 1; b/0)";
  ExpectRefused(*a, line);
  ExpectRefused(*b, line);
}

TEST_F(MismatchTest, AnotherMeshIsADifference) {
  Manifest one = WithHook("bf16"), other = WithHook("bf16");
  one.mesh = "dp=*";
  other.mesh = "shard=2";
  const Worker* a = Join("a", 0, one);
  Join("b", 0, other);
  ExpectRefused(*a, "mesh: dp=* on rank 0 (a/0); shard=2 on rank 1 (b/0)");
}

TEST_F(MismatchTest, AMeshAndNoneDiffer) {
  Manifest one = WithHook("bf16");
  one.mesh = "dp=*";
  const Worker* a = Join("a", 0, one);
  Join("b", 0, WithHook("bf16"));
  ExpectRefused(*a, "mesh: dp=* on rank 0 (a/0); none on rank 1 (b/0)");
}

}  // namespace
}  // namespace coxswain::server
