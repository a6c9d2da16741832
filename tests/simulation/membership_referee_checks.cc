// The part of the referee that compares.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "schedule/sign_interval.h"
#include "server/membership/stalled_members.h"
#include "tests/simulation/membership_referee.h"

namespace coxswain::simulation {
namespace {

// Ticks, and what is between a decision and what follows from it.
constexpr absl::Duration kSlack = absl::Seconds(2);

// With a thousand members each answer to a Leave is not looked up.
constexpr int64_t kCheckedPromises = 50;

bool SameMember(const server::Member& a, const server::Member& b) {
  return a.identity == b.identity && a.incarnation == b.incarnation &&
         a.rank == b.rank && a.local_rank == b.local_rank && a.host == b.host &&
         a.address == b.address;
}

bool SameAnswer(const server::JoinResult& a, const server::JoinResult& b) {
  return a.cluster_id == b.cluster_id && a.previous == b.previous &&
         a.previous_world_size == b.previous_world_size &&
         a.lost_count == b.lost_count && a.reason == b.reason &&
         a.unreachable == b.unreachable;
}

}  // namespace

bool MembershipReferee::IsDurable(Generation generation) {
  if (!(durable_ < generation)) return true;
  const std::optional<server::LoadedJob> found = store_.Load();
  if (found.has_value() && found->damage.ok()) {
    durable_ = std::max(durable_, found->job.generation);
  }
  return !(durable_ < generation);
}

void MembershipReferee::CheckMembers(const server::RunCommit& commit) {
  const Run& next = *committing_;
  if (!runs_.empty() && !(runs_.rbegin()->first < next.generation)) {
    Violate(absl::StrCat("the number of generation ", next.generation.value(),
                         " was used before"));
  }
  if (running()) Violate("a generation is made while another one runs");
  const int size = static_cast<int>(next.ranks.size());
  if (size < history_.min || size > history_.max) {
    Violate(absl::StrCat("a generation has ", size, " members"));
  }
  std::set<Incarnation> asking;
  for (const auto& [number, join_id] : joins_) {
    if (!join_id.removed) asking.insert(join_id.incarnation);
  }
  std::set<WorkerIdentity> identities;
  for (size_t rank = 0; rank < next.ranks.size(); ++rank) {
    const server::Member& member = next.ranks[rank].member;
    if (member.rank != static_cast<int>(rank)) Violate("ranks are no ranks");
    if (!identities.insert(member.identity).second) {
      Violate("a worker is in a generation twice");
    }
    if (asking.count(member.incarnation) == 0) {
      Violate(
          absl::StrCat(member.ToString(), " does not ask for a generation"));
    }
  }
  if (next.by_incarnation.size() != next.ranks.size()) {
    Violate("a process is in a generation twice");
  }
  // It follows the last one, unless that has no survivor.
  const Generation previous = commit.run.previous;
  const bool follows = last_ != nullptr && previous == last_->generation;
  const bool must =
      last_ != nullptr &&
      std::any_of(last_->ranks.begin(), last_->ranks.end(),
                  [](const RankState& state) { return state.survives(); });
  if ((previous != Generation(0) && !follows) ||
      (finished_ && previous != Generation(0)) || (must && !follows)) {
    Violate("a generation follows another one than the last");
  }
}

void MembershipReferee::CheckRanks(const Run& next) {
  if (last_ == nullptr) return;
  std::map<WorkerIdentity, int> ranks;
  for (const RankState& state : next.ranks) {
    ranks[state.member.identity] = state.member.rank;
  }
  for (const RankState& state : last_->ranks) {
    const auto found = ranks.find(state.member.identity);
    if (found == ranks.end() || found->second == state.member.rank) continue;
    if (state.member.rank >= static_cast<int>(next.ranks.size())) continue;
    Violate(
        absl::StrCat(state.member.ToString(), " becomes rank ", found->second));
  }
}

void MembershipReferee::CheckSurvivors(const Run& next) {
  if (last_ == nullptr || finished_ || !history_.elastic()) return;
  std::set<WorkerIdentity> here;
  for (const auto& [number, join_id] : joins_) {
    if (!join_id.removed) here.insert(join_id.identity);
  }
  const RankState* awaited = nullptr;
  bool present = false;
  for (const RankState& state : last_->ranks) {
    if (!state.survives()) continue;
    if (next.by_incarnation.count(state.member.incarnation) > 0) present = true;
    if (here.count(state.member.identity) > 0 || StallsRound(state)) continue;
    awaited = &state;
  }
  if (awaited == nullptr) return;
  const absl::Duration limit =
      present ? history_.options.last_call : history_.options.survivor_timeout;
  if (now() >= last_->ended_at + limit) return;
  Violate(absl::StrCat(
      "a generation begins without ", awaited->member.ToString(), ", ",
      absl::FormatDuration(now() - last_->ended_at), " after the last one"));
}

absl::Time MembershipReferee::LookedSince() const {
  const bool stood_still = now() - looked_at_ > history_.stall_timeout / 2;
  return stood_still ? now() : looked_since_;
}

bool MembershipReferee::StallsRound(const RankState& state) const {
  const absl::Duration timeout = history_.stall_timeout;
  if (timeout == absl::InfiniteDuration()) return false;
  const absl::Time since = LookedSince();
  // Together with the one whose loss has ended the generation just now.
  if (last_->stalled_at == now()) {
    return now() >= std::max(state.sign, since) + timeout;
  }
  if (last_->resumed) return false;
  const absl::Duration longest = std::max(
      timeout,
      server::kHeartbeatsPerStall *
          schedule::SignInterval(history_.interval(),
                                 static_cast<int>(last_->ranks.size())));
  const auto silent = [&](const RankState& one) {
    return now() >= std::max({one.sign, last_->ended_at, since}) + longest;
  };
  std::map<Incarnation, absl::Time> waiting;  // since when
  for (const auto& [number, join_id] : joins_) {
    if (join_id.removed) continue;
    absl::Time& at =
        waiting.try_emplace(join_id.incarnation, join_id.at).first->second;
    at = std::max(at, join_id.at);
  }
  if (static_cast<int>(waiting.size()) < history_.min) return false;
  if (waiting.count(state.member.incarnation) > 0 || !silent(state)) {
    return false;
  }
  // All others that survive wait, one of them at least, or are as silent.
  bool any = false;
  for (const RankState& other : last_->ranks) {
    if (!other.survives()) continue;
    const auto found = waiting.find(other.member.incarnation);
    if (found == waiting.end()) {
      if (!silent(other)) return false;
      continue;
    }
    if (now() < found->second + timeout / 2) return false;
    any = true;
  }
  return any;
}

void MembershipReferee::CheckAnswer(const PendingJoin& join_id,
                                    const server::JoinResult& result) {
  Run* const run = Find(result.generation);
  // A worker that asks again while it is announced is answered after that.
  if (run == nullptr || (!run->running && run->announced)) {
    return Violate("a worker is answered with a generation that does not run");
  }
  if (result.term != term_) Violate("an answer is of another term");
  if (run->list != result.members) {
    const bool same =
        result.members->size() == run->ranks.size() &&
        std::equal(run->ranks.begin(), run->ranks.end(),
                   result.members->begin(),
                   [](const RankState& state, const server::Member& member) {
                     return SameMember(state.member, member);
                   });
    if (!same) Violate("members are answered with different members");
    run->list = result.members;
  }
  const auto rank = static_cast<size_t>(result.rank);
  if (rank >= run->ranks.size() ||
      !(run->ranks[rank].member.incarnation == join_id.incarnation) ||
      !(run->ranks[rank].member.identity == join_id.identity)) {
    Violate(absl::StrCat(join_id.identity.ToString(),
                         " is answered with the rank of another"));
  }
  if (run->plans.count(result.plan.version) == 0) {
    Violate("a worker is answered with another plan");
  }
  if (!run->answer.has_value()) {
    run->answer = result;
  } else if (!SameAnswer(*run->answer, result)) {
    Violate("members are answered differently");
  }
}

bool MembershipReferee::JustLost(const Run& run, const RankState& state) const {
  const server::MembershipOptions& options = history_.options;
  if (state.exited || state.replaced || state.failed) return true;
  if (run.first_left < absl::InfiniteFuture() &&
      now() >= run.first_left + options.rejoin_grace) {
    return true;
  }
  if (Stalls(run, state)) return true;
  if (state.detached_at == absl::InfiniteFuture()) {
    return now() >= state.sign + options.lease;
  }
  const absl::Duration soon =
      std::min(options.broken_peer_grace, options.reattach_grace);
  const bool broken = state.broken_at >= state.detached_at - soon;
  return now() >= state.detached_at + (broken ? soon : options.reattach_grace);
}

bool MembershipReferee::Stalls(const Run& run, const RankState& state) const {
  const absl::Duration timeout = history_.stall_timeout;
  if (timeout == absl::InfiniteDuration()) return false;
  const absl::Time since = LookedSince();
  const auto silent = [&](const RankState& one) {
    return now() >= std::max(one.sign, since) + timeout;
  };
  if (!silent(state)) return false;
  std::set<Incarnation> asking;
  for (const auto& [number, join_id] : joins_) {
    if (!join_id.removed) asking.insert(join_id.incarnation);
  }
  bool any = false;
  for (const RankState& other : run.ranks) {
    if (&other == &state) continue;
    const bool reports =
        other.waits && now() <= other.reported + 2 * history_.interval();
    const bool gone = other.left || other.failed || !other.survives();
    if (asking.count(other.member.incarnation) > 0 || (reports && !gone)) {
      any = true;
    } else if (!gone && !silent(other)) {
      return false;
    }
  }
  return any;
}

void MembershipReferee::CheckLoss(const server::Member& lost) {
  RankState* const state = last_->Find(lost.incarnation);
  if (state == nullptr || !SameMember(state->member, lost)) {
    return Violate("a generation ends by the loss of one that was not in it");
  }
  if (!JustLost(*last_, *state)) {
    Violate(absl::StrCat(lost.ToString(), " counts as lost without a reason"));
  }
  if (Stalls(*last_, *state)) last_->stalled_at = now();
  // One that failed may come back all the same.
  state->lost = !state->failed || state->for_good;
  ++losses_;
}

void MembershipReferee::CheckPromises(const server::LoadedJob& found) {
  if (found.job.finished) return;
  for (const auto& [incarnation, promise] : left_) {
    if (promise.generation != found.job.generation) continue;
    const RankState* const state = last_->Find(incarnation);
    if (state == nullptr) continue;
    const auto departure = found.departures.find(state->member.rank);
    if (departure == found.departures.end() ||
        (departure->second.rejoins && !promise.rejoins)) {
      Violate(absl::StrCat("that ", state->member.ToString(),
                           " has left was answered, and is not durable"));
    }
  }
  for (const Incarnation incarnation : dead_) {
    const RankState* const state = last_->Find(incarnation);
    if (state == nullptr) continue;
    const auto departure = found.departures.find(state->member.rank);
    if (departure == found.departures.end() || departure->second.rejoins) {
      Violate(absl::StrCat("that ", state->member.ToString(),
                           " is dead was answered, and is not durable"));
    }
  }
}

void MembershipReferee::OnLeaveAnswered(Generation generation,
                                        Incarnation incarnation,
                                        const server::LeaveNotice& notice,
                                        const absl::Status& status) {
  if (!status.ok()) return;
  Promise& promise = left_[incarnation];
  // The answer to an earlier one may come later.
  if (promise.generation == generation && !promise.rejoins) return;
  promise = {generation, notice.rejoin};
  LookUpPromises();
}

void MembershipReferee::OnExitAnswered(Incarnation incarnation,
                                       const absl::Status& status) {
  if (!status.ok()) return;
  // One that asks afterwards, as its message was late, lives for the job.
  for (const auto& [number, join_id] : joins_) {
    if (join_id.incarnation == incarnation) return;
  }
  dead_.insert(incarnation);
  LookUpPromises();
}

void MembershipReferee::LookUpPromises() {
  const bool large = history_.max > kCheckedPromises;
  if (large && ++promises_ % kCheckedPromises != 0) return;
  const std::optional<server::LoadedJob> found = store_.Load();
  if (!found.has_value() || last_ == nullptr) return;
  if (!found->damage.ok()) return Violate(found->damage.message());
  if (found->job.generation == last_->generation) CheckPromises(*found);
}

void MembershipReferee::OnTick(const server::JobMembership& machine,
                               bool settled, uint64_t pick) {
  CheckFence(machine, pick);
  CheckDeadlines();
  NoteAlsoLost(machine);
  OnLooked();
  if (machine.commit() != nullptr) return;
  CheckNoDelay(machine);
  if (settled) CheckWaiting(machine);
}

void MembershipReferee::NoteAlsoLost(const server::JobMembership& machine) {
  if (last_ == nullptr || machine.generation() != last_->generation) return;
  for (RankState& state : last_->ranks) {
    const server::MemberRecord* const record =
        machine.members().Find(state.member.incarnation);
    // One that failed, and comes back, is found as one that was lost.
    if (record == nullptr || !state.survives() || record->rejoins ||
        record->liveness.state != server::MemberState::kLost) {
      continue;
    }
    // Of a coordinator that stops nothing is known of the end, nor what the
    // others did then.
    const bool silent = now() >= state.sign + history_.stall_timeout;
    const bool may_be = stopping_ ? silent || JustLost(*last_, state)
                                  : state.failed || StallsRound(state);
    if (!may_be) {
      Violate(absl::StrCat(state.member.ToString(),
                           " counts as lost, too, without a reason"));
    }
    state.lost = true;
  }
}

void MembershipReferee::CheckNoDelay(const server::JobMembership& machine) {
  if (machine.state() != server::JobState::kForming) return;
  if (last_ == nullptr || last_->running || finished_ || stopping_) return;
  std::set<Incarnation> asking;
  for (const auto& [number, join_id] : joins_) {
    if (!join_id.withdrawn) asking.insert(join_id.incarnation);
  }
  if (static_cast<int>(asking.size()) < history_.min) return;
  bool any = false;
  for (const RankState& state : last_->ranks) {
    if (!state.survives()) continue;
    if (asking.count(state.member.incarnation) == 0) return;
    any = true;
  }
  if (!any) return;
  Violate(absl::StrCat("all survivors of generation ",
                       last_->generation.value(), " are back, and ",
                       asking.size(), " workers wait for time to pass"));
}

void MembershipReferee::CheckFence(const server::JobMembership& machine,
                                   uint64_t pick) {
  if (runs_.empty()) return;
  // The last one, or that before it.
  auto entry = std::prev(runs_.end());
  if (pick % 4 == 0 && entry != runs_.begin()) --entry;
  const Run& run = entry->second;
  const RankState& state = run.ranks[(pick / 4) % run.ranks.size()];
  const bool member = run.running && !state.left;
  const bool admitted =
      machine.Admit(run.generation, state.member.incarnation).ok();
  if (member == admitted) return;
  Violate(absl::StrCat(state.member.ToString(), " of generation ",
                       run.generation.value(),
                       admitted ? " is admitted" : " is not admitted"));
}

void MembershipReferee::CheckDeadlines() {
  if (!running()) return;
  const server::MembershipOptions& options = history_.options;
  for (const RankState& state : last_->ranks) {
    if (state.left) continue;
    const bool detached = state.detached_at < absl::InfiniteFuture();
    const absl::Time deadline = detached
                                    ? state.detached_at + options.reattach_grace
                                    : state.sign + options.lease;
    if (now() <= deadline + kSlack) continue;
    Violate(absl::StrCat("the coordinator does not miss ",
                         state.member.ToString(),
                         ", of which nothing is known since ",
                         absl::FormatDuration(now() - state.sign)));
  }
}

void MembershipReferee::CheckWaiting(const server::JobMembership& machine) {
  int asking = 0;
  absl::Time first = absl::InfiniteFuture();
  for (auto it = joins_.begin(); it != joins_.end();) {
    if (it->second.withdrawn) {
      it = joins_.erase(it);
      continue;
    }
    ++asking;
    first = std::min(first, it->second.at);
    ++it;
  }
  const server::JobSummary summary = machine.Summarise(now());
  if (summary.waiting != asking) {
    return Violate(absl::StrCat(asking, " workers have not been answered, and ",
                                summary.waiting, " wait"));
  }
  if (asking == 0) return;
  if (machine.state() == server::JobState::kEnded) {
    return Violate("workers wait, and no round is open");
  }
  const absl::Duration longest =
      history_.join_timeout + history_.options.survivor_timeout + kSlack;
  if (machine.state() == server::JobState::kForming &&
      now() > std::max(first, last_change_) + longest) {
    Violate("a worker waits beyond its deadline");
  }
}

}  // namespace coxswain::simulation
