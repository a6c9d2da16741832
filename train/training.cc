#include "train/training.h"

#include "base/status_macros.h"
#include "schedule/terms.h"

namespace coxswain {

absl::Status TrainingBase::EndEpoch() {
  COXSWAIN_ASSIGN_OR_RETURN(const bool rest, Flush());
  if (rest) COXSWAIN_RETURN_IF_ERROR(TakeStep());
  COXSWAIN_RETURN_IF_ERROR(AwaitOthers());
  between_epochs_ = true;
  return absl::OkStatus();
}

absl::Status TrainingBase::AwaitOthers() {
  if (plan().terms.uneven_data == schedule::UnevenData::kRefuse) {
    return absl::OkStatus();
  }
  // Until the ranks that have more data are out of it as well.
  while (going() && !epoch_ended()) {
    COXSWAIN_ASSIGN_OR_RETURN(const bool more, StepWithoutData());
    if (!more) break;
    COXSWAIN_RETURN_IF_ERROR(TakeStep());
  }
  return absl::OkStatus();
}

absl::Status TrainingBase::EndStep(bool sync) {
  stepped_ = sync;
  return sync ? TakeStep() : absl::OkStatus();
}

}  // namespace coxswain
