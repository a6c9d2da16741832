// A coordinator is started on the state of an earlier one: real sessions of two
// jobs go on, and only the job of a record that cannot be read pays for it.

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "proto/state.pb.h"
#include "server/components/components.h"
#include "server/membership/membership.h"
#include "server/state/cluster_records.h"
#include "server/state/earlier_forms.h"
#include "server/state/quarantine.h"
#include "server/state/record.h"
#include "tests/integration/stored_jobs.h"

namespace coxswain {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class EarlierStateTest : public StoredJobsTest {
 protected:
  std::string Table(const std::string& name) const {
    return absl::StrCat(name, "/", hit_->generation());
  }
};

TEST_P(EarlierStateTest, JobsGoOnAsIfNothingHadHappened) {
  ASSERT_OK(Start());
  RunJobs();
  for (Session* session : {other_.get(), hit_.get()}) {
    ASSERT_OK(session->CreateGroup("some.group:1", {0}));
    ASSERT_OK(session->store().Add("sum", 41));
  }
  const std::string cluster = coordinator_->view().membership->cluster_id();
  coordinator_.reset();
  std::string before;
  {
    const auto state = Acquire();
    before = *state->store().Get(Table("group"), "mgrid");
    ASSERT_OK(server::MakeEarlier(&state->store()));
    EXPECT_NE(*state->store().Get(Table("group"), "mgrid"), before);
  }
  ASSERT_OK(Start());
  EXPECT_THAT(coordinator_->view().quarantined, IsEmpty());
  EXPECT_EQ(coordinator_->view().membership->cluster_id(), cluster);
  for (Session* session : {other_.get(), hit_.get()}) {
    ExpectGoesOn(session);
    if (HasFatalFailure()) return;
    EXPECT_OK(session->CreateGroup("some.group:1", {0}));
    const auto sum = session->store().Add("sum", 1);
    ASSERT_OK(sum);
    EXPECT_EQ(*sum, 42);
  }
  coordinator_.reset();
  {
    const auto state = Acquire();
    EXPECT_EQ(*state->store().Get(Table("group"), "mgrid"), before);
    const auto records = server::ReadClusterRecords(state->store());
    ASSERT_OK(records);
    EXPECT_EQ(records->schema, server::kStateSchema);
  }
  // And the next one finds nothing left to do.
  ASSERT_OK(Start());
  for (Session* session : {other_.get(), hit_.get()}) ExpectGoesOn(session);
  LeaveAll();
}

TEST_P(EarlierStateTest, ARecordThatCannotBeReadCostsItsJobOnly) {
  ASSERT_OK(Start());
  RunJobs();
  coordinator_.reset();
  const std::string cut(23, '\0');
  {
    const auto state = Acquire();
    ASSERT_OK(server::MakeEarlier(&state->store()));
    ASSERT_OK(state->store().Put(Table("group"), "mgrid", cut));
  }
  ASSERT_OK(Start());
  const auto& quarantined = coordinator_->view().quarantined;
  ASSERT_THAT(quarantined, SizeIs(1));
  EXPECT_EQ(quarantined[0].table, Table("group"));
  EXPECT_EQ(quarantined[0].key, "mgrid");
  EXPECT_EQ(quarantined[0].job, "hit");
  EXPECT_EQ(quarantined[0].bytes, cut.size());
  EXPECT_THAT(quarantined[0].reason, HasSubstr("earlier coordinator"));
  ExpectGoesOn(other_.get());
  while (true) {
    const auto event = hit_->events().Next(kTimeout);
    ASSERT_OK(event);
    if (event->kind == SessionEvent::Kind::kGenerationEnded) break;
  }
  auto next = hit_->Rejoin();
  ASSERT_OK(next);
  hit_ = *std::move(next);
  LeaveAll();
}

// As the older one of a pair is refused once the newer one has led.
TEST_P(EarlierStateTest, AStateOfALaterSchemaIsRefusedAndLeftAsItIs) {
  ASSERT_OK(Start());
  RunJobs();
  coordinator_.reset();
  {
    const auto state = Acquire();
    server::StateBatch later;
    server::PutSchema(server::kStateSchema + 1, &later);
    ASSERT_OK(state->store().Apply(later));
  }
  for (const bool repair : {false, true}) {
    const absl::Status refused = Start(repair);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("run the newer coordinator"));
  }
  {
    // The earlier coordinator has released the lead, and the newer one
    // continues.
    const auto state = Acquire();
    server::StateBatch known;
    server::PutSchema(server::kStateSchema, &known);
    ASSERT_OK(state->store().Apply(known));
  }
  ASSERT_OK(Start());
  for (Session* session : {other_.get(), hit_.get()}) ExpectGoesOn(session);
  LeaveAll();
}

INSTANTIATE_TEST_SUITE_P(Stores, EarlierStateTest,
                         ::testing::Values("sqlite", "etcd"),
                         [](const auto& info) { return info.param; });

// A file has no standby.
class EarlierPairTest : public EarlierStateTest {};

// The older one of a pair leads, and ends while the newer one waits.
TEST_P(EarlierPairTest, AStandbyTakesOverFromAnOlderCoordinator) {
  ASSERT_OK(Start());
  RunJobs();
  coordinator_.reset();
  auto older = Acquire();
  ASSERT_OK(server::MakeEarlier(&older->store()));
  // What the older coordinator writes while the newer one stands by is of its
  // own form.
  const std::string group(8, '\0');
  ASSERT_OK(Start(false, [&] {
    if (older == nullptr) return;
    EXPECT_OK(older->store().Put(Table("group"), "glate", group));
    older.reset();
  }));
  EXPECT_EQ(older, nullptr);
  EXPECT_THAT(coordinator_->view().quarantined, IsEmpty());
  for (Session* session : {other_.get(), hit_.get()}) ExpectGoesOn(session);
  coordinator_.reset();
  {
    const auto state = Acquire();
    state::v1::GroupRanks ranks;
    ranks.add_ranks(0);
    EXPECT_EQ(*state->store().Get(Table("group"), "glate"),
              server::SerializeRecord(ranks));
  }
  ASSERT_OK(Start());
  for (Session* session : {other_.get(), hit_.get()}) ExpectGoesOn(session);
  LeaveAll();
}

INSTANTIATE_TEST_SUITE_P(Etcd, EarlierPairTest, ::testing::Values("etcd"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace coxswain
