#include "client/checkpoint/save_together.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/rank_values.h"

namespace coxswain {

namespace {

// A coordinator that was started again between the uploads and the commit
// knows none of them, or only those of the ranks that came later.
constexpr int kMostAttempts = 3;
bool LacksUploads(const absl::Status& committed) {
  return absl::IsNotFound(committed) || absl::IsFailedPrecondition(committed);
}

// How far a rank got; the least of all ranks' is the outcome for all.
enum Outcome : int64_t { kFailed, kAgain, kDone };

absl::StatusOr<int64_t> Least(Communicator& communicator, Outcome mine,
                              absl::Duration timeout) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> least,
      ReduceValues(communicator, {mine}, ReduceOp::kMin, timeout));
  return least[0];
}

absl::Status AnotherCouldNot(absl::string_view what) {
  return absl::AbortedError(
      absl::StrCat("another rank could not ", what, "; see its log"));
}

// Returns what rank 0's commit came to, for all ranks: kDone or kAgain.
absl::StatusOr<int64_t> AgreeOnCommit(Communicator& communicator,
                                      const absl::Status& mine, bool last,
                                      const CheckpointLabel& label,
                                      absl::Duration timeout) {
  const bool again = !last && LacksUploads(mine);
  const Outcome outcome = mine.ok() ? kDone : again ? kAgain : kFailed;
  absl::StatusOr<int64_t> least = Least(communicator, outcome, timeout);
  if (!mine.ok() && !again) return mine;
  COXSWAIN_RETURN_IF_ERROR(least.status());
  if (*least != kFailed) return least;
  return AnotherCouldNot(
      absl::StrCat("commit the checkpoint of step ", label.step));
}

}  // namespace

absl::StatusOr<CheckpointDescription> FindCheckpoint(
    CheckpointClient& checkpoints, absl::string_view id) {
  COXSWAIN_ASSIGN_OR_RETURN(auto list, checkpoints.List());
  for (CheckpointDescription& checkpoint : list) {
    if (id.empty() || checkpoint.id == id) return std::move(checkpoint);
  }
  return absl::NotFoundError(
      id.empty()
          ? "this job has no complete checkpoint"
          : absl::StrCat("this job has no complete checkpoint '", id, "'"));
}

absl::Status CheckSavable(const Hook& hook, const Averager* averager) {
  if (hook.needs_averager() && averager == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state of hook ", hook.spec(),
                     " is of no use without its averager's; pass that too"));
  }
  if (averager == nullptr || !averager->diverged()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the ranks' parameters differ (averager ", averager->spec(),
                   "); call AverageNow before they are copied and saved"));
}

absl::Status Agree(Communicator& communicator, const absl::Status& mine,
                   absl::string_view what, absl::Duration timeout) {
  const absl::StatusOr<int64_t> least =
      Least(communicator, mine.ok() ? kDone : kFailed, timeout);
  if (!mine.ok()) return mine;
  COXSWAIN_RETURN_IF_ERROR(least.status());
  return *least == kDone ? absl::OkStatus() : AnotherCouldNot(what);
}

absl::StatusOr<std::string> SaveTogether(
    CheckpointClient& checkpoints, Communicator& communicator,
    const CheckpointLabel& label, const absl::StatusOr<std::string>& shard,
    absl::Duration timeout) {
  const bool leader = communicator.rank() == 0;
  for (int attempt = 1;; ++attempt) {
    absl::StatusOr<std::string> id =
        shard.ok()
            ? checkpoints.Save(label.step, communicator.rank(),
                               communicator.size(), label.metadata, *shard)
            : shard.status();
    const absl::Status saved = Agree(
        communicator, id.status(),
        absl::StrCat("save its shard of the checkpoint of step ", label.step),
        timeout);
    if (!saved.ok()) {
      // It will not be committed, and the job may have few open at a time.
      if (leader && id.ok()) checkpoints.Delete(*id).IgnoreError();
      return saved;
    }
    const absl::Status committed =
        leader ? checkpoints.Commit(*id, label.retention).status()
               : absl::OkStatus();
    COXSWAIN_ASSIGN_OR_RETURN(
        const int64_t commit,
        AgreeOnCommit(communicator, committed, attempt == kMostAttempts, label,
                      timeout));
    if (commit == kDone) return id;
  }
}

}  // namespace coxswain
