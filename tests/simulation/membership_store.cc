#include "tests/simulation/membership_store.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "base/check.h"
#include "server/state/cluster_records.h"

namespace coxswain::simulation {
namespace {

bool IsDeparture(const server::StateBatch& batch) {
  return std::any_of(batch.writes().begin(), batch.writes().end(),
                     [](const server::StateBatch::Write& write) {
                       return absl::StartsWith(write.table, "members/") &&
                              absl::StartsWith(write.key, "gone/");
                     });
}

}  // namespace

void MembershipStore::Write(server::StateBatch batch, Done done) {
  waiting_.push_back({std::move(batch), std::move(done), false});
  Begin();
}

void MembershipStore::AfterWritten(std::function<void()> done) {
  waiting_.push_back({server::StateBatch(),
                      [done = std::move(done)](const absl::Status&) { done(); },
                      true});
  Begin();
}

void MembershipStore::Begin() {
  if (!transaction_.empty() || waiting_.empty()) return;
  transaction_.assign(std::make_move_iterator(waiting_.begin()),
                      std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  timeline_.In(dice_.Between(absl::Microseconds(100), slowest_write_),
               [this, crashes = crashes_] {
                 if (crashes == crashes_) Finish();
               });
}

void MembershipStore::Finish() {
  const std::vector<Entry> committed = std::exchange(transaction_, {});
  std::vector<absl::Status> outcomes;
  outcomes.reserve(committed.size());
  for (const Entry& entry : committed) {
    const bool fails = !entry.only_waits && dice_.Chance(failing_);
    outcomes.push_back(fails ? absl::UnavailableError("disk full")
                             : Apply(entry));
  }
  Begin();
  for (size_t i = 0; i < committed.size(); ++i) committed[i].done(outcomes[i]);
}

absl::Status MembershipStore::Apply(const Entry& entry) {
  if (loses_departure_ && IsDeparture(entry.batch)) {
    loses_departure_ = false;
    return absl::OkStatus();
  }
  return durable_.Apply(entry.batch);
}

void MembershipStore::Crash() {
  ++crashes_;
  if (dice_.Chance(0.5)) {
    for (const Entry& entry : transaction_) Apply(entry).IgnoreError();
  }
  transaction_.clear();
  waiting_.clear();
}

void MembershipStore::Drain() {
  ++crashes_;
  for (const Entry& entry : transaction_) Apply(entry).IgnoreError();
  for (const Entry& entry : waiting_) Apply(entry).IgnoreError();
  transaction_.clear();
  waiting_.clear();
}

std::optional<server::LoadedJob> MembershipStore::Load() const {
  auto loaded = server::LoadJobs(durable_, Generation(server::kMaxNumber));
  COXSWAIN_CHECK(loaded.ok());
  if (!loaded->jobs.empty()) return std::move(loaded->jobs.front());
  if (loaded->unreadable.empty()) return std::nullopt;
  server::LoadedJob damaged;
  damaged.damage = absl::DataLossError(loaded->unreadable.front().reason);
  return damaged;
}

}  // namespace coxswain::simulation
