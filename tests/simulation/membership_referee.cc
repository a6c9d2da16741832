#include "tests/simulation/membership_referee.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain::simulation {

MembershipReferee::Seat* MembershipReferee::Run::Find(Incarnation incarnation) {
  const auto found = by_incarnation.find(incarnation);
  return found == by_incarnation.end() ? nullptr : &seats[found->second];
}

MembershipReferee::Run* MembershipReferee::Find(Generation generation) {
  const auto found = runs_.find(generation);
  return found == runs_.end() ? nullptr : &found->second;
}

MembershipReferee::Seat* MembershipReferee::FindSeat(Generation generation,
                                                     Incarnation incarnation) {
  Run* const run = Find(generation);
  return run == nullptr ? nullptr : run->Find(incarnation);
}

void MembershipReferee::Violate(absl::string_view what) {
  if (!violation_.empty()) return;
  violation_ = absl::StrCat(
      "at ", absl::FormatDuration(now() - absl::UnixEpoch()), ": ", what);
}

void MembershipReferee::OnTerm(Term term,
                               const std::optional<server::LoadedJob>& found) {
  term_ = term;
  stopping_ = false;
  last_change_ = now();
  noticed_last_ = Generation(0);
  for (auto& [generation, run] : runs_) run.noticed = false;
  if (!found.has_value()) {
    if (!runs_.empty()) Violate("the job is forgotten");
    last_ = nullptr;
    committing_.reset();
    return;
  }
  const server::KeptJob& job = found->job;
  if (!found->damage.ok()) return Violate(found->damage.message());
  if (!runs_.empty() && job.generation < runs_.rbegin()->first) {
    return Violate(absl::StrCat(
        "generation ", job.generation.value(), " is found, and generation ",
        runs_.rbegin()->first.value(), " is forgotten"));
  }
  last_ = Find(job.generation);
  // Its commit was under way when the term before ended.
  if (last_ == nullptr && committing_.has_value() &&
      committing_->generation == job.generation) {
    ++generations_;
    last_ = &(runs_[job.generation] = *std::move(committing_));
  }
  committing_.reset();
  if (last_ == nullptr) return Violate("what is found was never written");
  TakeUp(*found);
}

void MembershipReferee::TakeUp(const server::LoadedJob& found) {
  CheckPromises(found);
  const bool finished = found.job.finished;
  finished_ = finished;
  last_->running = found.job.running;
  if (last_->heard_regroup && !found.job.regroups && !finished) {
    Violate("members were sent away, and that is forgotten");
  }
  last_->regroups = found.job.regroups;
  last_->ended_at = now();
  last_->first_left = absl::InfiniteFuture();
  if (last_->running) noticed_ = noticed_last_ = last_->generation;
  for (Seat& seat : last_->seats) {
    Seat fresh;
    fresh.member = seat.member;
    fresh.launcher = seat.launcher;
    fresh.sign = fresh.detached_at = now();
    const auto gone = found.departures.find(seat.member.rank);
    if (gone != found.departures.end()) {
      fresh.left = true;
      fresh.for_good = !gone->second.rejoins;
      fresh.failed = !gone->second.left;
      if (gone->second.rejoins) last_->first_left = now();
      noticed_left_.insert(seat.member.rank);
    }
    if (finished) fresh.left = fresh.for_good = true;
    seat = std::move(fresh);
  }
}

void MembershipReferee::OnResumed(const server::GenerationResumed& resumed) {
  const server::GenerationBegin& begin = resumed.begin;
  if (last_ == nullptr || !last_->running ||
      begin.generation != last_->generation ||
      begin.world_size != static_cast<int>(last_->seats.size())) {
    return Violate("another generation is resumed than was found");
  }
  last_->noticed = true;
  last_->plans.insert(begin.plan.version);
  const std::set<int> left(resumed.left.begin(), resumed.left.end());
  if (left != noticed_left_) Violate("others have left than was found");
}

void MembershipReferee::OnRestored(const server::JobMembership& machine) {
  for (const auto& [incarnation, promise] : left_) {
    if (promise.generation != machine.generation() || promise.rejoins) continue;
    const server::MemberRecord* const record =
        machine.members().Find(incarnation);
    if (record == nullptr) continue;
    if (server::IsLive(record->liveness.state) || record->rejoins) {
      Violate(absl::StrCat(record->member.ToString(),
                           " has left for good, and is expected again"));
    }
  }
}

void MembershipReferee::OnStopped() {
  tickets_.clear();
  streams_.clear();
  aborted_.clear();
  ended_streams_.clear();
  noticed_ = Generation(0);
  noticed_left_.clear();
  abort_asked_ = false;
  if (last_ != nullptr) last_->running = false;
}

void MembershipReferee::OnJoin(uint64_t ticket,
                               const server::JoinRequest& request,
                               bool committing) {
  Ticket& added = tickets_[ticket];
  added.identity = request.identity;
  added.incarnation = request.incarnation;
  added.launcher = request.launcher_id;
  added.at = last_change_ = now();
  dead_.erase(request.incarnation);
  if (request.launcher_id == 0) return;
  for (Run* const run :
       {last_, committing_.has_value() ? &*committing_ : nullptr}) {
    if (run == nullptr) continue;
    for (Seat& seat : run->seats) {
      if (seat.launcher != request.launcher_id ||
          seat.member.incarnation == request.incarnation ||
          !(seat.member.identity == request.identity)) {
        continue;
      }
      if (finished_ && !committing && !stopping_) added.must_finish = true;
      seat.replaced = true;
    }
  }
}

void MembershipReferee::AfterJoin(uint64_t ticket) {
  const auto found = tickets_.find(ticket);
  if (found != tickets_.end() && found->second.must_finish) {
    Violate(absl::StrCat(found->second.identity.ToString(),
                         " waits for a job that is done"));
  }
}

void MembershipReferee::OnWithdraw(uint64_t ticket, bool committing) {
  const auto found = tickets_.find(ticket);
  if (found != tickets_.end()) {
    found->second.withdrawn = true;
    found->second.gone = !committing;
  }
  last_change_ = now();
}

void MembershipReferee::OnLeave(Generation generation, Incarnation incarnation,
                                const server::LeaveNotice& notice) {
  if (!notice.failed) return;
  for (Run* const run :
       {Find(generation), committing_.has_value() ? &*committing_ : nullptr}) {
    if (run == nullptr || run->generation != generation) continue;
    Seat* const seat = run->Find(incarnation);
    if (seat == nullptr) continue;
    seat->failed = true;
    if (!notice.rejoin) seat->for_good = true;
  }
}

void MembershipReferee::OnDeparture(Generation generation,
                                    Incarnation incarnation,
                                    const server::LeaveNotice& notice) {
  Seat* const seat = FindSeat(generation, incarnation);
  if (seat == nullptr) return;
  seat->for_good = !notice.rejoin;
  last_change_ = now();
}

void MembershipReferee::OnExit(Incarnation incarnation) {
  last_change_ = now();
  for (Run* const run :
       {last_, committing_.has_value() ? &*committing_ : nullptr}) {
    Seat* const seat = run == nullptr ? nullptr : run->Find(incarnation);
    if (seat != nullptr) seat->exited = true;
  }
}

void MembershipReferee::OnAttached(Generation generation,
                                   Incarnation incarnation, int stream) {
  Seat* const seat = FindSeat(generation, incarnation);
  if (seat == nullptr || !last_->running || seat->left ||
      last_->generation != generation) {
    return Violate("one that is no member is attached");
  }
  streams_[stream] = incarnation;
  seat->sign = now();
  seat->detached_at = absl::InfiniteFuture();
  seat->broken_at = absl::InfinitePast();
}

void MembershipReferee::OnSign(Incarnation incarnation, absl::Time at) {
  Seat* const seat = last_ == nullptr ? nullptr : last_->Find(incarnation);
  if (seat != nullptr) seat->sign = std::max(seat->sign, at);
}

void MembershipReferee::OnPeerBroken(int rank) {
  last_->seats[static_cast<size_t>(rank)].broken_at = now();
}

void MembershipReferee::OnRegroupTold(bool regroups) {
  last_->regroups = regroups;
}

void MembershipReferee::OnPlan(int64_t version) {
  last_->plans.insert(version);
}

void MembershipReferee::OnPatience() {
  if (last_ == nullptr) return;
  for (Seat& seat : last_->seats) {
    seat.sign = now();
    if (seat.detached_at < absl::InfiniteFuture()) seat.detached_at = now();
  }
  if (last_->first_left < absl::InfiniteFuture()) last_->first_left = now();
}

}  // namespace coxswain::simulation
