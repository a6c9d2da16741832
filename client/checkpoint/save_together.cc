#include "client/checkpoint/save_together.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {

namespace {

// A coordinator that was started again between the uploads and the commit
// knows none of them, or only those of the ranks that came later.
constexpr int kMostAttempts = 3;
bool LacksUploads(const absl::Status& committed) {
  return absl::IsNotFound(committed) || absl::IsFailedPrecondition(committed);
}

// The least that a rank brings.
absl::StatusOr<float> Least(Communicator& communicator, float mine,
                            absl::Duration timeout) {
  const auto least = std::make_shared<float>(mine);
  const WorkPtr work = communicator.AllReduce(
      Span{least.get(), 1, DType::kFloat32, Device{}}, ReduceOp::kMin);
  // Past a timeout the work still writes there.
  work->OnDone([least](const absl::Status&) {});
  COXSWAIN_RETURN_IF_ERROR(work->Wait(timeout));
  return *least;
}

absl::Status AnotherCouldNot(absl::string_view what) {
  return absl::AbortedError(
      absl::StrCat("another rank could not ", what, "; its log says why"));
}

enum class Commit { kAgain, kDone };

// What rank 0's commit came to, for all ranks.
absl::StatusOr<Commit> AgreeOnCommit(Communicator& communicator,
                                     const absl::Status& mine, bool last,
                                     const CheckpointLabel& label,
                                     absl::Duration timeout) {
  const bool again = !last && LacksUploads(mine);
  const float brought = mine.ok() ? 1.0f : again ? 0.5f : 0.0f;
  const absl::StatusOr<float> least = Least(communicator, brought, timeout);
  if (!mine.ok() && !again) return mine;
  COXSWAIN_RETURN_IF_ERROR(least.status());
  if (*least > 0.75f) return Commit::kDone;
  if (*least > 0.25f) return Commit::kAgain;
  return AnotherCouldNot(
      absl::StrCat("commit the checkpoint of step ", label.step));
}

}  // namespace

absl::Status CheckSavable(const Hook& hook, const Averager* averager) {
  if (hook.needs_averager() && averager == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state of hook ", hook.spec(),
                     " is of no use without its averager's; pass that too"));
  }
  if (averager == nullptr || !averager->diverged()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the ranks' parameters are apart (averager ", averager->spec(),
      "); call AverageNow before they are copied and saved"));
}

absl::Status Agree(Communicator& communicator, const absl::Status& mine,
                   absl::string_view what, absl::Duration timeout) {
  const absl::StatusOr<float> least =
      Least(communicator, mine.ok() ? 1.0f : 0.0f, timeout);
  if (!mine.ok()) return mine;
  COXSWAIN_RETURN_IF_ERROR(least.status());
  return *least > 0.5f ? absl::OkStatus() : AnotherCouldNot(what);
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
      // Nobody commits it any more, and the job may have few open at a time.
      if (leader && id.ok()) checkpoints.Delete(*id).IgnoreError();
      return saved;
    }
    const absl::Status committed =
        leader ? checkpoints.Commit(*id, label.retention).status()
               : absl::OkStatus();
    COXSWAIN_ASSIGN_OR_RETURN(
        const Commit commit,
        AgreeOnCommit(communicator, committed, attempt == kMostAttempts, label,
                      timeout));
    if (commit == Commit::kDone) return id;
  }
}

}  // namespace coxswain
