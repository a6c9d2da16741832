#include "server/membership/wait_list.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace coxswain::server {

void WaitList::Begin(absl::Time now, absl::Time survivors_until) {
  most_present_ = size();
  last_arrival_ = now;
  survivors_until_ = survivors_until;
}

int* WaitList::CountOf(const Member& member) {
  const auto found = expected_.find(member.identity);
  if (found == expected_.end()) return nullptr;
  return found->second.incarnation == member.incarnation ? &survivors_present_
                                                         : &replaced_;
}

void WaitList::Expect(const Member& survivor) {
  if (!expected_.emplace(survivor.identity, survivor).second) return;
  const Waiter* const waiter = Find(survivor.identity);
  if (waiter != nullptr) ++*CountOf(waiter->member);
}

void WaitList::ExpectNoLonger(const WorkerIdentity& identity) {
  if (expected_.count(identity) == 0) return;
  const Waiter* const waiter = Find(identity);
  if (waiter != nullptr) --*CountOf(waiter->member);
  expected_.erase(identity);
}

void WaitList::ExpectNobody() {
  expected_.clear();
  survivors_present_ = replaced_ = 0;
}

bool WaitList::IsSurvivor(const Member& member) const {
  const auto found = expected_.find(member.identity);
  return found != expected_.end() &&
         found->second.incarnation == member.incarnation;
}

std::map<int, WorkerIdentity> WaitList::Awaited() const {
  std::map<int, WorkerIdentity> awaited;
  for (const auto& [identity, survivor] : expected_) {
    if (waiters_.count(identity) > 0) continue;
    awaited.emplace(survivor.rank, identity);
  }
  return awaited;
}

void WaitList::Add(Waiter waiter, Manifest manifest, absl::Time now) {
  const WorkerIdentity identity = waiter.member.identity;
  if (waiter.arrival == 0) waiter.arrival = next_arrival_++;
  manifests_.Put(identity, std::move(manifest));
  timeouts_.insert(waiter.timeout);
  incarnations_[waiter.member.incarnation] = identity;
  if (int* const count = CountOf(waiter.member)) ++*count;
  const bool added = waiters_.emplace(identity, std::move(waiter)).second;
  COXSWAIN_CHECK(added);
  // Only one that makes them more than ever: one that comes and goes delays no
  // other.
  if (size() > most_present_) {
    most_present_ = size();
    last_arrival_ = now;
  }
  NoteAgreement(now);
}

Waiter WaitList::Take(const WorkerIdentity& identity, absl::Time now) {
  const auto found = waiters_.find(identity);
  COXSWAIN_CHECK(found != waiters_.end());
  Waiter waiter = std::move(found->second);
  waiters_.erase(found);
  manifests_.Remove(identity);
  timeouts_.erase(timeouts_.find(waiter.timeout));
  incarnations_.erase(waiter.member.incarnation);
  if (int* const count = CountOf(waiter.member)) --*count;
  NoteAgreement(now);
  return waiter;
}

const Waiter* WaitList::Find(const WorkerIdentity& identity) const {
  const auto found = waiters_.find(identity);
  return found == waiters_.end() ? nullptr : &found->second;
}

const Waiter* WaitList::Find(Incarnation incarnation) const {
  const auto found = incarnations_.find(incarnation);
  return found == incarnations_.end() ? nullptr : Find(found->second);
}

std::vector<WorkerIdentity> WaitList::Identities() const {
  std::vector<WorkerIdentity> identities;
  identities.reserve(waiters_.size());
  for (const auto& entry : waiters_) identities.push_back(entry.first);
  return identities;
}

std::vector<WorkerIdentity> WaitList::Choose(int count) const {
  std::vector<const Waiter*> order;
  for (const auto& entry : waiters_) order.push_back(&entry.second);
  if (static_cast<int>(order.size()) > count) {
    std::sort(order.begin(), order.end(),
              [this](const Waiter* a, const Waiter* b) {
                const bool a_survives = IsSurvivor(a->member);
                const bool b_survives = IsSurvivor(b->member);
                if (a_survives != b_survives) return a_survives;
                return a->arrival < b->arrival;
              });
    order.resize(count);
  }
  std::vector<WorkerIdentity> chosen;
  for (const Waiter* waiter : order) chosen.push_back(waiter->member.identity);
  return chosen;
}

int WaitList::min() const {
  return empty() || !manifests_.agreed() ? max()
                                         : manifests_.manifest().MinWorldSize();
}

RoundState WaitList::State() const {
  RoundState state;
  state.present = size();
  state.survivors_present = survivors_present_;
  state.survivors_awaited =
      static_cast<int>(expected_.size()) - survivors_present_ - replaced_;
  state.last_arrival = last_arrival_;
  if (!timeouts_.empty()) {
    state.first_deadline = last_arrival_ + *timeouts_.begin();
  }
  state.survivors_until = survivors_until_;
  state.mismatch_since = mismatch_since_;
  return state;
}

void WaitList::NoteAgreement(absl::Time now) {
  mismatch_since_ = manifests_.agreed() ? absl::InfiniteFuture()
                                        : std::min(mismatch_since_, now);
}

}  // namespace coxswain::server
