#ifndef COXSWAIN_CLIENT_STAND_IN_DESK_STREAM_H_
#define COXSWAIN_CLIENT_STAND_IN_DESK_STREAM_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "client/rpc/coordinator_stub.h"
#include "client/stand_in/stand_in_desk.h"

namespace coxswain {

// The way of rank 0 to its own desk: an Attach stream without a network. One
// thread at a time sends; callbacks run within Send, or on a thread that brings
// another rank's words.
class DeskStream : public AttachStream {
 public:
  DeskStream(std::shared_ptr<StandInDesk> desk,
             StreamCallbacks<v1::AttachEvent> callbacks)
      : desk_(std::move(desk)), callbacks_(std::move(callbacks)) {}
  ~DeskStream() override {
    if (visit_ != 0) desk_->Depart(visit_);
  }

  bool Send(const v1::AttachRequest& request) override {
    if (request.has_hello()) return Arrive(request.hello());
    if (visit_ == 0) return false;
    if (request.has_let_go()) {
      desk_->Depart(visit_);
      callbacks_.on_end(absl::OkStatus());
      return true;
    }
    return desk_->Hear(visit_, request).ok();
  }

 private:
  bool Arrive(const v1::Hello& hello) {
    const auto visit =
        desk_->Arrive(hello, {callbacks_.on_event, callbacks_.on_end});
    if (visit.ok()) {
      visit_ = *visit;
    } else {
      callbacks_.on_end(visit.status());
    }
    return visit.ok();
  }

  const std::shared_ptr<StandInDesk> desk_;
  const StreamCallbacks<v1::AttachEvent> callbacks_;
  StandInDesk::Visit visit_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_STAND_IN_DESK_STREAM_H_
