// The coordinator's own records, as a damaged or a foreign state has them.

#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/fake_clock.h"
#include "base/random.h"
#include "server/group/group_records.h"
#include "server/group/groups.h"
#include "server/membership/membership.h"
#include "server/plan/plan_record.h"
#include "server/plan/plan_store.h"
#include "server/schedule/position_record.h"
#include "server/schedule/schedule_registry.h"
#include "server/state/cluster_records.h"
#include "server/state/direct_writer.h"
#include "server/state/earlier_records.h"
#include "server/state/etcd/etcd_keys.h"
#include "server/state/memory_state_store.h"
#include "server/store/key_value_store.h"
#include "server/store/store_records.h"
#include "tests/fuzz/decoders.h"
#include "tests/fuzz/fuzz_bytes.h"

namespace coxswain {
namespace {

using server::MemoryStateStore;

class CountedRandom : public RandomSource {
 public:
  uint64_t Next() override { return Mix64(++count_); }

 private:
  uint64_t count_ = 0;
};

void ReadPosition(absl::string_view bytes) {
  const auto position = server::DecodePosition(bytes);
  if (!position.ok()) return;
  const std::string again = server::EncodePosition(*position);
  const auto same = server::DecodePosition(again);
  COXSWAIN_CHECK(same.ok() && server::EncodePosition(*same) == again);
}

void ReadGroups(absl::string_view bytes) {
  const auto ranks = server::DecodeRanks(bytes);
  if (ranks.ok()) server::EncodeRanks(*ranks);
  const auto mesh = server::DecodeMesh(bytes);
  if (mesh.ok()) {
    const auto again = server::DecodeMesh(server::EncodeMesh(*mesh));
    COXSWAIN_CHECK(again.ok() && *again == *mesh);
  }
  const auto requests = server::DecodeRequests(bytes);
  if (requests.ok()) {
    const auto again =
        server::DecodeRequests(server::EncodeRequests(*requests));
    COXSWAIN_CHECK(again.ok() && *again == *requests);
  }
}

// Tables, keys and values until the bytes are used up.
void FillState(FuzzBytes* bytes, MemoryStateStore* store) {
  static constexpr const char* kTables[] = {
      "jobs",         "members/1", "manifest/1",    "cluster",
      "plan.current", "plan.next", "plan.manifest", "plan.before",
      "plan.trial",   "store/1",   "group/1",       "schedule/1"};
  while (!bytes->empty()) {
    const size_t which = bytes->Below(std::size(kTables) + 1);
    const std::string table = which < std::size(kTables)
                                  ? kTables[which]
                                  : std::string(bytes->Text());
    const std::string key(bytes->Text());
    size_t size = bytes->Byte();
    size = size << 8 | bytes->Byte();
    store->Put(table, key, bytes->Take(size)).IgnoreError();
  }
}

// A coordinator's components over what is in the store.
void Start(MemoryStateStore* store) {
  FakeClock clock;
  CountedRandom random;
  // Most states are refused without it.
  server::RepairClusterRecords(&random, store).IgnoreError();
  if (!server::ReadClusterRecords(*store).ok()) return;
  COXSWAIN_CHECK(
      server::TakeOverRecords(server::PlanStore::TableNames(), store).ok());
  server::DirectWriter writer(store);
  auto plans = server::PlanStore::Load({}, &writer);
  if (!plans.ok()) return;
  auto membership =
      server::Membership::Open({}, {&clock, &random, &writer, plans->get()});
  if (!membership.ok()) return;
  server::ScheduleRegistry schedule(
      {}, {&clock, membership->get(), plans->get(), &writer});
  server::KeyValueStore kept({}, &clock, &writer);
  server::Groups groups({}, &clock, &writer);
  (*membership)->AddObserver(plans->get());
  (*membership)->AddObserver(&schedule);
  (*membership)->AddObserver(&kept);
  (*membership)->AddObserver(&groups);
  // No record of a job keeps a coordinator from starting.
  COXSWAIN_CHECK((*membership)->Resume().ok());
  clock.Advance(absl::Minutes(20));
  schedule.Tick(clock.Now());
  (*membership)->Tick();
  (*membership)->Describe("").IgnoreError();
  (*membership)->Shutdown();
}

}  // namespace

void FuzzRecords(absl::string_view input) {
  FuzzBytes bytes(input);
  const size_t which = bytes.Below(5);
  const std::string key(bytes.Text());
  const absl::string_view rest = bytes.Rest();
  switch (which) {
    case 0:
      return ReadPosition(rest);
    case 1:
      return ReadGroups(rest);
    case 2:
      return server::DecodePlan(rest).IgnoreError();
    case 3:
      return server::EtcdKeys("coxswain/").Parse(rest).IgnoreError();
    default:
      if (key.empty()) return;  // each kind of record has a letter
      server::DecodeAnswer(key, rest).IgnoreError();
      server::DecodeBarrierRecord(key).IgnoreError();
  }
}

void FuzzState(absl::string_view input) {
  MemoryStateStore store;
  FuzzBytes bytes(input);
  FillState(&bytes, &store);
  Start(&store);
}

}  // namespace coxswain
