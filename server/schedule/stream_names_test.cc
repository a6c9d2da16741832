// Streams whose names are those of folders: "." and ".." are as good as any.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/membership/flat_event.h"
#include "server/schedule/schedule_registry.h"
#include "server/state/direct_writer.h"
#include "server/state/memory_state_store.h"
#include "server/state/quarantine.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr const char* kNames[] = {".", "..", "train"};

class OneMore : public RandomSource {
 public:
  uint64_t Next() override { return ++count_; }

 private:
  uint64_t count_ = 0;
};

class StreamNamesTest : public testing::Test {
 protected:
  void SetUp() override { Open(); }

  void Open() {
    schedule_.reset();
    membership_.reset();
    plans_.reset();
    ASSERT_OK_AND_ASSIGN(plans_, PlanStore::Load(PlanOptions(), &writer_));
    ASSERT_OK_AND_ASSIGN(
        membership_,
        Membership::Open(MembershipOptions(),
                         {&clock_, &random_, &writer_, plans_.get()}));
    schedule_ = std::make_unique<ScheduleRegistry>(
        ScheduleLimits(),
        ScheduleRegistry::Dependencies{&clock_, membership_.get(), plans_.get(),
                                       &writer_});
    membership_->AddObserver(plans_.get());
    membership_->AddObserver(schedule_.get());
    ASSERT_OK(membership_->Resume());
  }

  // The generation of a job of two workers; sets their fences.
  Generation RunJob() {
    absl::StatusOr<JoinResult> joined[2];
    for (int rank = 0; rank < 2; ++rank) {
      JoinRequest request;
      request.job = "job";
      request.identity = {"host-a", rank};
      request.incarnation = Incarnation(rank + 1);
      request.host = "host-a";
      request.address = "host-a:1";
      request.manifest.world_size = 2;
      request.manifest.hook = "allreduce";
      request.manifest.accumulation_steps = 1;
      request.timeout = absl::Seconds(30);
      membership_->Join(request, [&joined, rank](auto result) {
        joined[rank] = std::move(result);
      });
    }
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_OK(joined[rank]);
      if (!joined[rank].ok()) return Generation();
      fences_[rank] = {joined[rank]->cluster_id, joined[rank]->term,    "job",
                       joined[rank]->generation, Incarnation(rank + 1), 1};
    }
    return joined[0]->generation;
  }
  // What is sent to the rank goes to events_.
  AttachedRank Attach(int rank) {
    const auto attachment = membership_->Attach(
        fences_[rank],
        [this](const AttachEvent& event) { events_.emplace_back(event); });
    EXPECT_OK(attachment);
    const AttachedRank attached =
        membership_->AttachedRankOf(attachment.value_or(0))
            .value_or(AttachedRank());
    schedule_->OnAttached(attached);
    return attached;
  }

  FakeClock clock_;
  OneMore random_;
  MemoryStateStore state_;
  DirectWriter writer_{&state_};
  std::unique_ptr<PlanStore> plans_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<ScheduleRegistry> schedule_;
  Fence fences_[2];
  std::vector<FlatEvent> events_;
};

schedule::Ticket FirstTicket() {
  schedule::Ticket ticket;
  ticket.plan_version = 1;
  ticket.hook = "allreduce";
  return ticket;
}

// Rank 0 leaves with the only copies of the decisions, and the coordinator is
// started again.
TEST_F(StreamNamesTest, PositionsOfAllStreamsSurviveARestart) {
  const Generation generation = RunJob();
  const AttachedRank ranks[] = {Attach(0), Attach(1)};
  std::vector<JobSchedule::Position> last;
  for (const char* name : kNames) {
    schedule::Ticket ticket = FirstTicket();
    ticket.stop = absl::StrCat("a signal in ", name);
    ASSERT_OK(schedule_->OnTicket(ranks[0], name, ticket));
    ASSERT_OK(schedule_->OnTicket(ranks[1], name, FirstTicket()));
    ASSERT_FALSE(events_.empty());
    EXPECT_THAT(events_.back().decision.stop, HasSubstr(ticket.stop));
    last.push_back({name, events_.back().decision});
  }
  ASSERT_OK(schedule_->OnLeaving("job", generation, {0, 0, last}));
  ASSERT_OK(membership_->Leave(fences_[0], "done", false));
  const std::string table = absl::StrCat("schedule/", generation.value());
  ASSERT_OK_AND_ASSIGN(const auto records, state_.List(table));
  EXPECT_THAT(records,
              ElementsAre(Pair(".", testing::_), Pair("..", testing::_),
                          Pair("train", testing::_)));

  Open();
  ASSERT_OK_AND_ASSIGN(const auto quarantined, ListQuarantined(state_));
  EXPECT_THAT(quarantined, IsEmpty());
  EXPECT_EQ(state_.List(table).value_or(decltype(records)()), records);
  const AttachedRank attached = Attach(1);
  for (const auto& [name, decision] : last) {
    events_.clear();
    ASSERT_OK(schedule_->OnTicket(attached, name, FirstTicket()));
    ASSERT_EQ(events_.size(), 1u) << name;
    EXPECT_EQ(events_[0].kind, FlatEvent::Kind::kDecision);
    EXPECT_EQ(events_[0].stream, name);
    EXPECT_EQ(events_[0].decision.stop, decision.stop);
  }
}

}  // namespace
}  // namespace coxswain::server
