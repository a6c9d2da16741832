#include "tests/simulation/membership_referee.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain::simulation {

MembershipReferee::RankState* MembershipReferee::Run::Find(
    Incarnation incarnation) {
  const auto found = by_incarnation.find(incarnation);
  return found == by_incarnation.end() ? nullptr : &ranks[found->second];
}

MembershipReferee::Run* MembershipReferee::Find(Generation generation) {
  const auto found = runs_.find(generation);
  return found == runs_.end() ? nullptr : &found->second;
}

MembershipReferee::RankState* MembershipReferee::FindRank(
    Generation generation, Incarnation incarnation) {
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
  looked_at_ = looked_since_ = absl::InfinitePast();
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
  if (last_->received_regroup && !found.job.regroups && !finished) {
    Violate("members were sent away, and that is forgotten");
  }
  last_->regroups = found.job.regroups;
  last_->ended_at = now();
  last_->resumed = true;
  last_->began = now();
  last_->first_left = absl::InfiniteFuture();
  if (last_->running) noticed_ = noticed_last_ = last_->generation;
  for (RankState& state : last_->ranks) {
    RankState fresh;
    fresh.member = state.member;
    fresh.launcher = state.launcher;
    fresh.sign = fresh.detached_at = now();
    const auto departure = found.departures.find(state.member.rank);
    if (departure != found.departures.end()) {
      fresh.left = true;
      fresh.for_good = !departure->second.rejoins;
      fresh.failed = !departure->second.left;
      if (departure->second.rejoins) last_->first_left = now();
      noticed_left_.insert(state.member.rank);
    }
    if (finished) fresh.left = fresh.for_good = true;
    state = std::move(fresh);
  }
}

void MembershipReferee::OnResumed(const server::GenerationResumed& resumed) {
  const server::GenerationBegin& begin = resumed.begin;
  if (last_ == nullptr || !last_->running ||
      begin.generation != last_->generation ||
      begin.world_size != static_cast<int>(last_->ranks.size())) {
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
  joins_.clear();
  streams_.clear();
  aborted_.clear();
  ended_streams_.clear();
  noticed_ = Generation(0);
  noticed_left_.clear();
  abort_asked_ = false;
  if (last_ != nullptr) last_->running = false;
}

void MembershipReferee::OnJoin(uint64_t join_id,
                               const server::JoinRequest& request,
                               bool committing) {
  PendingJoin& added = joins_[join_id];
  added.identity = request.identity;
  added.incarnation = request.incarnation;
  added.launcher = request.launcher_id;
  added.at = last_change_ = now();
  OnSign(request.incarnation, now());
  dead_.erase(request.incarnation);
  if (request.launcher_id == 0) return;
  for (Run* const run :
       {last_, committing_.has_value() ? &*committing_ : nullptr}) {
    if (run == nullptr) continue;
    for (RankState& state : run->ranks) {
      if (state.launcher != request.launcher_id ||
          state.member.incarnation == request.incarnation ||
          !(state.member.identity == request.identity)) {
        continue;
      }
      if (finished_ && !committing && !stopping_) added.must_finish = true;
      state.replaced = true;
    }
  }
}

void MembershipReferee::AfterJoin(uint64_t join_id) {
  const auto found = joins_.find(join_id);
  if (found != joins_.end() && found->second.must_finish) {
    Violate(absl::StrCat(found->second.identity.ToString(),
                         " waits for a job that is done"));
  }
}

void MembershipReferee::OnWithdraw(uint64_t join_id, bool committing) {
  const auto found = joins_.find(join_id);
  if (found != joins_.end()) {
    found->second.withdrawn = true;
    found->second.removed = !committing;
  }
  last_change_ = now();
}

void MembershipReferee::OnLeave(Generation generation, Incarnation incarnation,
                                const server::LeaveNotice& notice) {
  if (!notice.failed) return;
  for (Run* const run :
       {Find(generation), committing_.has_value() ? &*committing_ : nullptr}) {
    if (run == nullptr || run->generation != generation) continue;
    RankState* const state = run->Find(incarnation);
    if (state == nullptr) continue;
    state->failed = true;
    if (!notice.rejoin) state->for_good = true;
  }
}

void MembershipReferee::OnDeparture(Generation generation,
                                    Incarnation incarnation,
                                    const server::LeaveNotice& notice) {
  RankState* const state = FindRank(generation, incarnation);
  if (state == nullptr) return;
  state->for_good = !notice.rejoin;
  last_change_ = now();
}

void MembershipReferee::OnExit(Incarnation incarnation) {
  last_change_ = now();
  for (Run* const run :
       {last_, committing_.has_value() ? &*committing_ : nullptr}) {
    RankState* const state = run == nullptr ? nullptr : run->Find(incarnation);
    if (state != nullptr) state->exited = true;
  }
}

void MembershipReferee::OnAttached(Generation generation,
                                   Incarnation incarnation, int stream) {
  RankState* const state = FindRank(generation, incarnation);
  if (state == nullptr || !last_->running || state->left ||
      last_->generation != generation) {
    return Violate("one that is no member is attached");
  }
  streams_[stream] = incarnation;
  state->sign = now();
  state->detached_at = absl::InfiniteFuture();
  state->broken_at = absl::InfinitePast();
}

void MembershipReferee::OnSign(Incarnation incarnation, absl::Time at) {
  RankState* const state =
      last_ == nullptr ? nullptr : last_->Find(incarnation);
  if (state != nullptr) state->sign = std::max(state->sign, at);
}

void MembershipReferee::OnHeartbeat(Incarnation incarnation,
                                    absl::Duration waiting) {
  OnSign(incarnation, now());
  RankState* const state =
      last_ == nullptr ? nullptr : last_->Find(incarnation);
  if (state == nullptr) return;
  state->reported = now();
  state->waits = waiting >= history_.stall_timeout / 2;
}

void MembershipReferee::OnPeerBroken(int rank) {
  last_->ranks[static_cast<size_t>(rank)].broken_at = now();
}

void MembershipReferee::OnRegroupSent(bool regroups) {
  last_->regroups = regroups;
}

void MembershipReferee::OnPlan(int64_t version) {
  last_->plans.insert(version);
}

void MembershipReferee::OnLooked() {
  looked_since_ = LookedSince();
  looked_at_ = now();
}

void MembershipReferee::OnTimeoutsRestarted() {
  if (last_ == nullptr) return;
  for (RankState& state : last_->ranks) {
    state.sign = now();
    if (state.detached_at < absl::InfiniteFuture()) state.detached_at = now();
  }
  if (last_->first_left < absl::InfiniteFuture()) last_->first_left = now();
}

}  // namespace coxswain::simulation
