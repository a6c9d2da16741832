#include "client/checkpoint/save_together.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {

absl::Status Agree(Communicator& communicator, const absl::Status& mine,
                   absl::string_view what, absl::Duration timeout) {
  const auto all_ok = std::make_shared<float>(mine.ok() ? 1.0f : 0.0f);
  const WorkPtr work = communicator.AllReduce(
      Span{all_ok.get(), 1, DType::kFloat32, Device{}}, ReduceOp::kMin);
  // Past a timeout the work still writes there.
  work->OnDone([all_ok](const absl::Status&) {});
  const absl::Status exchanged = work->Wait(timeout);
  if (!mine.ok()) return mine;
  COXSWAIN_RETURN_IF_ERROR(exchanged);
  if (*all_ok > 0.5f) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("another rank could not ", what, "; its log says why"));
}

absl::StatusOr<std::string> SaveTogether(
    CheckpointClient& checkpoints, Communicator& communicator,
    const CheckpointLabel& label, const absl::StatusOr<std::string>& shard,
    absl::Duration timeout) {
  absl::StatusOr<std::string> id =
      shard.ok() ? checkpoints.Save(label.step, communicator.rank(),
                                    communicator.size(), label.metadata, *shard)
                 : shard.status();
  const bool leader = communicator.rank() == 0;
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
  COXSWAIN_RETURN_IF_ERROR(Agree(
      communicator, committed,
      absl::StrCat("commit the checkpoint of step ", label.step), timeout));
  return id;
}

}  // namespace coxswain
