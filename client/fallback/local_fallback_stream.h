#ifndef COXSWAIN_CLIENT_FALLBACK_LOCAL_FALLBACK_STREAM_H_
#define COXSWAIN_CLIENT_FALLBACK_LOCAL_FALLBACK_STREAM_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "client/fallback/fallback_coordinator.h"
#include "client/rpc/coordinator_stub.h"

namespace coxswain {

// Attaches rank 0 to its own fallback coordinator: an Attach stream without a
// network. One thread at a time sends; callbacks run within Send, or on a
// thread that brings another rank's messages.
class LocalFallbackStream : public AttachStream {
 public:
  LocalFallbackStream(std::shared_ptr<FallbackCoordinator> coordinator,
                      StreamCallbacks<v1::AttachEvent> callbacks)
      : coordinator_(std::move(coordinator)),
        callbacks_(std::move(callbacks)) {}
  ~LocalFallbackStream() override {
    if (attachment_ != 0) coordinator_->Detach(attachment_);
  }

  bool Send(const v1::AttachRequest& request) override {
    if (request.has_hello()) return Attach(request.hello());
    if (attachment_ == 0) return false;
    if (request.has_fallback_release()) {
      coordinator_->Detach(attachment_);
      callbacks_.on_end(absl::OkStatus());
      return true;
    }
    return coordinator_->Handle(attachment_, request).ok();
  }

 private:
  bool Attach(const v1::Hello& hello) {
    const auto attachment =
        coordinator_->Attach(hello, {callbacks_.on_event, callbacks_.on_end});
    if (attachment.ok()) {
      attachment_ = *attachment;
    } else {
      callbacks_.on_end(attachment.status());
    }
    return attachment.ok();
  }

  const std::shared_ptr<FallbackCoordinator> coordinator_;
  const StreamCallbacks<v1::AttachEvent> callbacks_;
  FallbackCoordinator::AttachmentId attachment_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_FALLBACK_LOCAL_FALLBACK_STREAM_H_
