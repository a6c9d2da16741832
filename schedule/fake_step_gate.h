#ifndef COXSWAIN_SCHEDULE_FAKE_STEP_GATE_H_
#define COXSWAIN_SCHEDULE_FAKE_STEP_GATE_H_

#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "schedule/step_gate.h"

namespace coxswain::schedule {

// A coordinator in memory for the gates of `world_size` ranks, in as many
// threads: a round is decided when the tickets of all ranks are there, and with
// commit_vote all votes. For tests of code that uses gates. It skips where a
// ticket or a vote asks for it, as the real one does, and where SkipAt requests
// it; it compares nothing. Thread-safe.
class FakeSchedule {
 public:
  explicit FakeSchedule(int world_size, Plan plan = {})
      : plan_(std::move(plan)) {
    for (int rank = 0; rank < world_size; ++rank) {
      gates_.push_back(std::make_unique<Gate>(this, rank));
    }
    tickets_.resize(world_size);
    votes_.resize(world_size);
    buckets_.resize(world_size);
  }

  StepGate* gate(int rank) { return gates_[rank].get(); }

  // Sets what happens in a round. Called before the round is decided.
  void SkipAt(int64_t round,
              const std::string& reason = "the test asks for it") {
    MutexLock lock(&mutex_);
    skips_[round] = reason;
  }
  void StopAt(int64_t round,
              const std::string& reason = "the test asks for it") {
    MutexLock lock(&mutex_);
    stops_[round] = reason;
  }
  void CheckpointAt(int64_t round,
                    const std::string& reason = "the test asks for it") {
    MutexLock lock(&mutex_);
    checkpoints_[round] = reason;
  }
  void NameAt(int64_t round, const Newcomer& newcomer) {
    MutexLock lock(&mutex_);
    newcomers_[round].push_back(newcomer);
  }
  // Puts a plan in force from the next round on.
  void ChangePlanAt(int64_t round, const Plan& plan) {
    MutexLock lock(&mutex_);
    plans_[round] = plan;
  }
  // Makes it one of a version that knows nothing of the votes' sums.
  void SumUpNothing() {
    MutexLock lock(&mutex_);
    sums_up_ = false;
  }
  // Ends all waits of this round and of later ones, like the end of a
  // generation.
  void FailAt(int64_t round, const absl::Status& why) {
    MutexLock lock(&mutex_);
    failures_[round] = why;
    changed_.NotifyAll();
  }

  // Returns what a rank has sent, by round. A vote is recorded whether it
  // counts or not.
  std::vector<Ticket> tickets(int rank) const {
    MutexLock lock(&mutex_);
    return tickets_[rank];
  }
  std::vector<Vote> votes(int rank) const {
    MutexLock lock(&mutex_);
    return votes_[rank];
  }
  std::vector<int> buckets(int rank) const {
    MutexLock lock(&mutex_);
    return buckets_[rank];
  }

 private:
  class Gate : public StepGate {
   public:
    Gate(FakeSchedule* schedule, int rank)
        : schedule_(*schedule), rank_(rank) {}

    absl::Status Announce(const Ticket& ticket) override {
      MutexLock lock(&schedule_.mutex_);
      if (announced_) {
        return absl::FailedPreconditionError(
            absl::StrCat("rank ", rank_, " announces a round before it has ",
                         "taken the decision on round ", round_));
      }
      announced_ = true;
      schedule_.tickets_[rank_].push_back(ticket);
      schedule_.changed_.NotifyAll();
      return schedule_.FailureLocked(round_);
    }
    absl::Status AwaitGrant() override {
      MutexLock lock(&schedule_.mutex_);
      if (schedule_.PlanLocked(round_).terms.enforcement !=
          Enforcement::kStrict) {
        return absl::OkStatus();
      }
      return schedule_.WaitLocked(schedule_.tickets_, round_);
    }
    absl::StatusOr<Decision> Decide(const Vote& vote) override {
      MutexLock lock(&schedule_.mutex_);
      if (!announced_) {
        return absl::FailedPreconditionError(absl::StrCat(
            "rank ", rank_, " votes on round ", round_, " unannounced"));
      }
      schedule_.votes_[rank_].push_back(vote);
      schedule_.changed_.NotifyAll();
      absl::StatusOr<Decision> decision = schedule_.DecideLocked(round_);
      if (decision.ok()) {
        announced_ = false;
        ++round_;
      }
      return decision;
    }
    void NoteBucket(int bucket) override {
      MutexLock lock(&schedule_.mutex_);
      schedule_.buckets_[rank_].push_back(bucket);
    }

   private:
    FakeSchedule& schedule_;
    const int rank_;
    // Under the schedule's mutex.
    int64_t round_ = 0;
    bool announced_ = false;
  };

  absl::Status FailureLocked(int64_t round) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto failure = failures_.upper_bound(round);
    return failure == failures_.begin() ? absl::OkStatus()
                                        : std::prev(failure)->second;
  }

  // Waits until every rank has sent its part of the round.
  template <typename Sent>
  absl::Status WaitLocked(const std::vector<std::vector<Sent>>& sent,
                          int64_t round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool over = changed_.WaitFor(
        &mutex_, absl::Seconds(20), [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return !FailureLocked(round).ok() || Complete(sent, round);
        });
    if (over) return FailureLocked(round);
    return absl::DeadlineExceededError(absl::StrCat(
        "FakeSchedule: not all ranks have sent their part of round ", round));
  }
  template <typename Sent>
  static bool Complete(const std::vector<std::vector<Sent>>& sent,
                       int64_t round) {
    for (const auto& of_rank : sent) {
      if (static_cast<int64_t>(of_rank.size()) <= round) return false;
    }
    return true;
  }

  absl::StatusOr<Decision> DecideLocked(int64_t round)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool voting = PlanLocked(round).terms.commit_vote;
    absl::Status waited =
        voting ? WaitLocked(votes_, round) : WaitLocked(tickets_, round);
    if (!waited.ok()) return waited;
    Decision decision;
    for (size_t rank = 0; rank < tickets_.size(); ++rank) {
      NoteSkip(rank, tickets_[rank][round].skip, &decision);
      if (voting && !votes_[rank][round].commit) {
        NoteSkip(rank, votes_[rank][round].reason, &decision);
        decision.commit = false;
      }
    }
    if (voting) decision.sums = SumsLocked(round);
    if (const auto skip = skips_.find(round); skip != skips_.end()) {
      decision.commit = false;
      decision.reason = skip->second;
    }
    if (const auto stop = stops_.find(round); stop != stops_.end()) {
      decision.stop = stop->second;
    }
    const auto checkpoint = checkpoints_.find(round);
    if (decision.commit && checkpoint != checkpoints_.end()) {
      decision.checkpoint = checkpoint->second;
    }
    if (const auto plan = plans_.find(round); plan != plans_.end()) {
      decision.plan = plan->second;
    }
    const auto newcomers = newcomers_.find(round);
    if (newcomers != newcomers_.end()) decision.newcomers = newcomers->second;
    return decision;
  }
  std::optional<GradientSums> SumsLocked(int64_t round) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    GradientSums all;
    for (const std::vector<Vote>& votes : votes_) {
      if (!sums_up_ || !votes[round].sums) return std::nullopt;
      all.sum_of_squares += votes[round].sums->sum_of_squares;
      all.non_finite += votes[round].sums->non_finite;
    }
    return all;
  }
  static void NoteSkip(size_t rank, const std::string& reason,
                       Decision* decision) {
    if (reason.empty()) return;
    decision->commit = false;
    absl::StrAppend(&decision->reason, decision->reason.empty() ? "" : "; ",
                    "rank ", rank, ": ", reason);
  }
  // Returns the plan in force in this round.
  const Plan& PlanLocked(int64_t round) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto later = plans_.lower_bound(round);
    return later == plans_.begin() ? plan_ : std::prev(later)->second;
  }

  const Plan plan_;  // that the rounds begin with
  std::vector<std::unique_ptr<Gate>> gates_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::vector<Ticket>> tickets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<Vote>> votes_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<int>> buckets_ ABSL_GUARDED_BY(mutex_);
  bool sums_up_ ABSL_GUARDED_BY(mutex_) = true;
  std::map<int64_t, std::string> skips_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::string> stops_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::string> checkpoints_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Plan> plans_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::vector<Newcomer>> newcomers_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_FAKE_STEP_GATE_H_
