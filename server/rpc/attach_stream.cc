#include "server/rpc/attach_stream.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {
namespace {

v1::AttachEvent ToProto(const AttachEvent& event) {
  v1::AttachEvent proto;
  if (event.kind == AttachEvent::Kind::kAbort) {
    v1::Abort* abort = proto.mutable_abort();
    abort->set_reason(event.reason);
    if (event.member.has_value()) {
      *abort->mutable_lost()->mutable_member() =
          coxswain::server::ToProto(*event.member);
      abort->mutable_lost()->set_reason(event.reason);
    }
  } else {
    v1::MemberLeft* left = proto.mutable_member_left();
    left->set_reason(event.reason);
    *left->mutable_member() = coxswain::server::ToProto(*event.member);
  }
  return proto;
}

}  // namespace

AttachStream* AttachStream::Start(const RpcOptions& options,
                                  Membership* membership,
                                  grpc::CallbackServerContext* context) {
  std::shared_ptr<AttachStream> stream(new AttachStream(options, membership));
  stream->self_ = stream;
  stream->hello_deadline_.emplace(context, options.first_message_timeout,
                                  "the stream's hello did not come");
  stream->StartRead(&stream->request_);
  return stream.get();
}

void AttachStream::OnReadDone(bool ok) {
  if (ok) {
    if (HandleRequest()) StartRead(&request_);
    return;
  }
  {
    MutexLock lock(&mutex_);
    if (closing_) return;  // What is queued may still be sent.
  }
  Disconnect(absl::CancelledError("the worker closed the stream"));
}

bool AttachStream::HandleRequest() {
  uint64_t attachment = 0;
  {
    MutexLock lock(&mutex_);
    if (closing_) return false;
    attachment = attachment_;
  }
  if (attachment == 0 && request_.has_hello()) {
    hello_deadline_.reset();
    return HandleHello(request_.hello());
  }
  if (attachment != 0 && request_.has_heartbeat()) {
    const v1::Heartbeat& heartbeat = request_.heartbeat();
    // Refused only when the stream is being closed, which says why.
    membership_
        ->Heartbeat(attachment,
                    {heartbeat.step(), heartbeat.collective_sequence(),
                     heartbeat.payload_bytes(), heartbeat.wire_bytes()})
        .IgnoreError();
    return true;
  }
  Disconnect(absl::InvalidArgumentError(
      "an Attach stream is one hello, then heartbeats"));
  return false;
}

bool AttachStream::HandleHello(const v1::Hello& hello) {
  const absl::StatusOr<uint64_t> attachment = membership_->Attach(
      FromProto(hello.fence()),
      [self = shared_from_this()](const AttachEvent& event) {
        self->HandleEvent(event);
      });
  if (!attachment.ok()) {
    Close(attachment.status());
    return false;
  }
  bool broken = false;
  {
    MutexLock lock(&mutex_);
    attachment_ = *attachment;
    greeted_ = true;
    v1::AttachEvent attached;
    attached.mutable_attached();
    queue_.push_front(std::move(attached));
    broken = broken_;
  }
  if (broken) membership_->Detach(*attachment);
  Advance();
  return !broken;
}

void AttachStream::HandleEvent(const AttachEvent& event) {
  if (event.kind == AttachEvent::Kind::kClosed) {
    Close(event.status);
    return;
  }
  bool overflow = false;
  {
    MutexLock lock(&mutex_);
    if (closing_) return;
    overflow = queue_.size() >= static_cast<size_t>(options_.max_queued_events);
    if (!overflow) queue_.push_back(ToProto(event));
  }
  if (overflow) {
    Disconnect(absl::ResourceExhaustedError(
        absl::StrCat("the worker does not read its events; max_queued_events "
                     "is ",
                     options_.max_queued_events)));
    return;
  }
  Advance();
}

void AttachStream::Disconnect(const absl::Status& status) {
  uint64_t attachment = 0;
  {
    MutexLock lock(&mutex_);
    broken_ = true;
    queue_.clear();
    attachment = attachment_;
  }
  if (attachment != 0) membership_->Detach(attachment);
  Close(status);
}

void AttachStream::Close(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (closing_) return;
    closing_ = true;
    status_ = status;
    // A hello that was refused gets no answer but the status.
    if (!status.ok() && queue_.empty()) greeted_ = true;
  }
  Advance();
}

void AttachStream::Advance() {
  const v1::AttachEvent* event = nullptr;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    if (!greeted_ && !broken_) return;
    if (!queue_.empty() && !broken_) {
      writing_ = true;
      event_ = std::move(queue_.front());
      queue_.pop_front();
      event = &event_;
    } else if (closing_) {
      finished_ = true;
      status = status_;
    } else {
      return;
    }
  }
  if (event != nullptr) {
    StartWrite(event);
  } else {
    Finish(ToGrpcStatus(status));
  }
}

void AttachStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mutex_);
    writing_ = false;
  }
  if (!ok) Disconnect(absl::CancelledError("the connection was lost"));
  Advance();
}

void AttachStream::OnCancel() {
  const auto self = shared_from_this();
  Disconnect(absl::CancelledError("the connection was lost"));
}

void AttachStream::OnDone() {
  const std::shared_ptr<AttachStream> self = std::move(self_);
}

}  // namespace coxswain::server
