#ifndef COXSWAIN_SERVER_MEMBERSHIP_WAIT_LIST_H_
#define COXSWAIN_SERVER_MEMBERSHIP_WAIT_LIST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "schedule/ticket.h"
#include "server/membership/manifest_agreement.h"
#include "server/membership/member.h"
#include "server/membership/membership_types.h"
#include "server/membership/round.h"

namespace coxswain::server {

// A worker whose Join has not been answered yet.
struct Waiter {
  Member member;  // without a rank
  uint64_t launcher_id = 0;
  uint64_t join_id = 0;
  uint64_t arrival = 0;  // the order of arrival; 0: not numbered yet
  absl::Duration timeout;
  Generation after;  // its last generation
  // Where it takes the members' state; without an address: nowhere.
  schedule::Newcomer catch_up;
  // Since when the members of a generation are to send it their state, which
  // happens once; InfiniteFuture: not yet. And which ranks report that it need
  // not be waited for: rank 0 of one that is in step, until that lacks a piece
  // that was damaged, and ranks that send it nothing more.
  absl::Time catching_up_since = absl::InfiniteFuture();
  std::set<int> settled_by;
  int damage_reports = 0;  // that were logged
  std::function<void(absl::StatusOr<JoinResult>)> callback;
};

// Holds the workers that wait for the next generation of a job, and the
// survivors of the last one that are expected among them. While a generation
// runs these are its spares, and members that joined again early. Cheap for
// many: only what has to looks at all of them. Thread-compatible.
class WaitList {
 public:
  using Waiters = std::map<WorkerIdentity, Waiter>;

  // Begins a round, or a generation: all timeouts count from now on. While no
  // survivor has joined, the round waits for them until `survivors_until`.
  void Begin(absl::Time now, absl::Time survivors_until);

  // The survivors. They are processes: another one in the place of a survivor
  // has none of its state, but shows that the survivor will not join.
  void Expect(const Member& survivor);
  void ExpectNoLonger(const WorkerIdentity& identity);
  void ExpectNobody();
  // Returns the expected ones that have not joined, by rank.
  std::map<int, WorkerIdentity> Awaited() const;

  // No other worker here may have the identity, or the incarnation.
  void Add(Waiter waiter, Manifest manifest, absl::Time now);
  Waiter Take(const WorkerIdentity& identity, absl::Time now);
  // Null if there is none.
  const Waiter* Find(const WorkerIdentity& identity) const;
  const Waiter* Find(Incarnation incarnation) const;
  Waiter* FindMutable(Incarnation incarnation) {
    return const_cast<Waiter*>(Find(incarnation));
  }
  const Waiters& waiters() const { return waiters_; }
  int size() const { return static_cast<int>(waiters_.size()); }
  bool empty() const { return waiters_.empty(); }
  std::vector<WorkerIdentity> Identities() const;
  // Returns at most `count`: survivors before others, then in the order of
  // arrival.
  std::vector<WorkerIdentity> Choose(int count) const;

  const ManifestAgreement& manifests() const { return manifests_; }
  // Returns how many may be in the generation; the largest number asked for.
  int max() const { return manifests_.world_size(); }
  int min() const;

  RoundState State() const;
  absl::Time last_arrival() const { return last_arrival_; }
  absl::Time DeadlineOf(const Waiter& waiter) const {
    return last_arrival_ + waiter.timeout;
  }

 private:
  // Returns which count of the expected ones this process is in; null: none.
  int* CountOf(const Member& member);
  bool IsSurvivor(const Member& member) const;
  void NoteAgreement(absl::Time now);

  Waiters waiters_;
  std::map<Incarnation, WorkerIdentity> incarnations_;
  std::multiset<absl::Duration> timeouts_;
  ManifestAgreement manifests_;
  std::map<WorkerIdentity, Member> expected_;
  int survivors_present_ = 0;
  int replaced_ = 0;  // survivors in whose places other processes wait
  uint64_t next_arrival_ = 1;
  int most_present_ = 0;
  absl::Time last_arrival_;
  absl::Time survivors_until_ = absl::InfinitePast();
  absl::Time mismatch_since_ = absl::InfiniteFuture();
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_WAIT_LIST_H_
