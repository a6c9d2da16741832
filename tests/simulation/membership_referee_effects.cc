// The part of the referee that sees what goes out.
#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/types.pb.h"
#include "server/membership/member_proto.h"
#include "tests/simulation/membership_referee.h"
#include "transport/error_detail.h"

namespace coxswain::simulation {

void MembershipReferee::OnCommit(const server::RunCommit& commit) {
  if (committing_.has_value()) Violate("two generations are being committed");
  Run& next = committing_.emplace();
  next.generation = commit.run.generation;
  for (const server::MemberRecord& record : commit.run.members) {
    RankState& state = next.ranks.emplace_back();
    state.member = record.member;
    state.launcher = record.launcher_id;
    next.by_incarnation[record.member.incarnation] = next.ranks.size() - 1;
  }
  CheckMembers(commit);
  if (commit.run.previous != Generation(0)) CheckRanks(next);
  CheckSurvivors(next);
}

void MembershipReferee::OnCommitFailed() {
  committing_.reset();
  last_change_ = now();
}

void MembershipReferee::OnBegan(const server::GenerationBegin& begin) {
  if (!committing_.has_value() || committing_->generation != begin.generation ||
      begin.world_size != static_cast<int>(committing_->ranks.size())) {
    return Violate("a generation begins that was not committed");
  }
  Run& run = runs_[begin.generation] = *std::move(committing_);
  committing_.reset();
  last_ = &run;
  run.running = true;
  run.began = now();
  run.plans.insert(begin.plan.version);
  for (RankState& state : run.ranks) state.sign = now();
  finished_ = false;
  last_change_ = now();
  ++generations_;
  largest_ = std::max<int64_t>(largest_, begin.world_size);
}

void MembershipReferee::OnLeft(Generation generation, int rank) {
  if (last_ == nullptr || last_->generation != generation || !last_->running) {
    return Violate("a member leaves a generation that does not run");
  }
  RankState& state = last_->ranks[static_cast<size_t>(rank)];
  if (std::exchange(state.left, true)) Violate("a member has left twice");
  last_->first_left = std::min(last_->first_left, now());
}

void MembershipReferee::OnRegroupWanted(Generation generation) {
  if (last_ == nullptr || last_->generation != generation || !last_->running) {
    return Violate("a generation is to regroup that does not run");
  }
  const absl::Duration age = now() - last_->began;
  if (age >= history_.options.growth_min_age) return;
  Violate(absl::StrCat("a generation is to regroup that is ",
                       absl::FormatDuration(age), " old"));
}

void MembershipReferee::OnCatchUpWanted(Generation generation,
                                        Incarnation spare) {
  if (last_ == nullptr || last_->generation != generation || !last_->running) {
    return Violate("members of a generation that does not run are to send");
  }
  if (last_->Find(spare) != nullptr) {
    return Violate("a member is to catch up with its own generation");
  }
  const bool waits =
      std::any_of(joins_.begin(), joins_.end(), [spare](const auto& entry) {
        return entry.second.incarnation == spare && !entry.second.removed;
      });
  if (!waits) Violate("one that does not wait is to catch up");
}

void MembershipReferee::OnEnded(Generation generation,
                                const absl::Status& status) {
  if (last_ == nullptr || last_->generation != generation || !last_->running) {
    return Violate("a generation ends that does not run");
  }
  if (!streams_.empty()) Violate("a stream outlives its generation");
  last_->running = false;
  if (stopping_) return;
  const v1::ErrorDetail detail = DetailOf(status);
  std::optional<server::Member> lost;
  if (detail.has_member_lost()) {
    lost = server::FromProto(detail.member_lost().member());
  }
  for (const int stream : ended_streams_) {
    const auto aborted = aborted_.find(stream);
    if (aborted == aborted_.end()) {
      Violate("a member of a generation that has ended was sent no abort");
    } else if (aborted->second.has_value() != lost.has_value() ||
               (lost.has_value() &&
                !(aborted->second->incarnation == lost->incarnation))) {
      Violate("an abort names another member than the end");
    }
  }
  EndRun(lost);
}

void MembershipReferee::EndRun(const std::optional<server::Member>& lost) {
  std::vector<RankState>& ranks = last_->ranks;
  if (lost.has_value()) {
    CheckLoss(*lost);
  } else if (!abort_asked_ &&
             !std::all_of(ranks.begin(), ranks.end(),
                          [](const RankState& state) { return state.left; })) {
    Violate("a generation ends without a reason");
  }
  abort_asked_ = false;
  last_->ended_at = last_change_ = now();
  const bool all_left =
      std::all_of(ranks.begin(), ranks.end(), [](const RankState& state) {
        return state.lost || (state.left && state.for_good);
      });
  const bool well =
      std::any_of(ranks.begin(), ranks.end(), [](const RankState& state) {
        return state.left && state.for_good && !state.failed && !state.lost;
      });
  finished_ = all_left && well && !last_->regroups;
}

void MembershipReferee::OnAnnounced(Generation generation) {
  Run* const run = Find(generation);
  if (run != nullptr) run->announced = true;
}

void MembershipReferee::OnAnswered(
    uint64_t join_id, const absl::StatusOr<server::JoinResult>& result) {
  const auto found = joins_.find(join_id);
  if (found == joins_.end()) {
    return Violate("a Join is answered that does not wait");
  }
  const PendingJoin answered = found->second;
  joins_.erase(found);
  if (answered.must_finish && !DetailOf(result.status()).has_job_finished()) {
    Violate(absl::StrCat(answered.identity.ToString(),
                         " is started again for a job that is done, and is "
                         "answered ",
                         result.status().ToString()));
  }
  if (result.status().code() == absl::StatusCode::kInvalidArgument) {
    Violate(result.status().ToString());
  }
  if (result.ok()) CheckAnswer(answered, *result);
}

void MembershipReferee::OnSent(int stream, const server::AttachEvent& event) {
  const auto open = streams_.find(stream);
  if (open == streams_.end()) {
    return Violate("a stream is sent something after its end");
  }
  const auto* const sent = std::get_if<server::MembershipEvent>(&event);
  if (sent == nullptr) return;
  if (sent->kind == server::MembershipEvent::Kind::kAbort) {
    aborted_[stream] = sent->member;
  }
  if (sent->kind == server::MembershipEvent::Kind::kFallback &&
      !sent->address.empty() && sent->address != fallback_) {
    Violate("another fallback coordinator is named than rank 0 has");
  }
}

void MembershipReferee::OnClosed(int stream, const absl::Status& status) {
  const auto open = streams_.find(stream);
  if (open == streams_.end()) return Violate("a stream ends twice");
  if (status.ok() || absl::IsCancelled(status)) return OnDetached(stream);
  ended_streams_.push_back(stream);
  streams_.erase(open);
}

void MembershipReferee::OnDetached(int stream) {
  const auto open = streams_.find(stream);
  if (open == streams_.end()) return Violate("a stream ends twice");
  RankState* const state = last_->Find(open->second);
  if (state != nullptr) state->detached_at = now();
  streams_.erase(open);
}

void MembershipReferee::OnNoticeBegan(Generation generation) {
  if (noticed_ != Generation(0) || !(noticed_last_ < generation)) {
    Violate("observers learn of a begin out of order");
  }
  noticed_ = noticed_last_ = generation;
  noticed_left_.clear();
  Run* const run = Find(generation);
  if (run != nullptr) run->noticed = true;
}

void MembershipReferee::OnNoticeLeft(Generation generation, int rank) {
  if (noticed_ != generation || !noticed_left_.insert(rank).second) {
    Violate("observers learn of a departure out of order");
  }
}

void MembershipReferee::OnNoticeEnded(Generation generation) {
  if (noticed_ != generation) Violate("observers learn of an end out of order");
  noticed_ = Generation(0);
  const Run* const run = Find(generation);
  if (run == nullptr) return;
  for (const RankState& state : run->ranks) {
    if (state.left && noticed_left_.count(state.member.rank) == 0) {
      Violate(absl::StrCat("observers do not learn that ",
                           state.member.ToString(), " has left"));
    }
  }
}

void MembershipReferee::OnGiven(const server::JoinResult& result) {
  Run* const run = Find(result.generation);
  if (run == nullptr || !run->noticed) {
    Violate("a worker learns of a generation before its observers");
  }
  if (!IsDurable(result.generation)) {
    Violate("a worker learns of a generation that is not durable");
  }
}

void MembershipReferee::OnRegroupReceived(Generation generation) {
  Run* const run = Find(generation);
  if (run != nullptr) run->received_regroup = true;
}

}  // namespace coxswain::simulation
