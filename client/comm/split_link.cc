#include "client/comm/split_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace coxswain {

// What the link shares with a callback that may outlive it.
struct SplitLink::Target {
  Mutex mutex;
  // Null once the link is gone.
  std::function<void(absl::string_view)> abort ABSL_GUARDED_BY(mutex);
};

SplitLink::SplitLink(std::shared_ptr<CancelSignal> parent,
                     std::function<void(absl::string_view reason)> abort)
    : parent_(std::move(parent)), target_(std::make_shared<Target>()) {
  {
    MutexLock lock(&target_->mutex);
    target_->abort = std::move(abort);
  }
  id_ = parent_->OnRaise([target = target_, signal = std::weak_ptr(parent_)] {
    const auto raised = signal.lock();
    const absl::Status why =
        raised == nullptr ? absl::OkStatus() : raised->status();
    MutexLock lock(&target->mutex);
    if (target->abort == nullptr) return;
    target->abort(absl::StrCat("the communicator it was split off ended: ",
                               why.message()));
  });
}

SplitLink::~SplitLink() {
  parent_->Forget(id_);
  MutexLock lock(&target_->mutex);
  target_->abort = nullptr;
}

}  // namespace coxswain
