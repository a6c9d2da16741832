#include "client/rpc/stub_factory.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/mutex.h"
#include "client/rpc/failover.h"
#include "client/rpc/grpc_coordinator_stub.h"
#include "client/rpc/retrying_stub.h"

namespace coxswain {
namespace {

// Shared with streams, which may end after the stub.
using FailoverPtr = std::shared_ptr<Failover>;

// More than any client sends before there is an answer.
constexpr size_t kMaxUnanswered = 64;

using Stubs = std::vector<std::shared_ptr<CoordinatorStub>>;

// Opened at each in turn, until one answers. What is sent before that is sent
// to each.
class FailoverAttach : public AttachStream {
 public:
  FailoverAttach(const Stubs& stubs, FailoverPtr failover,
                 StreamCallbacks<v1::AttachEvent> callbacks)
      : stubs_(stubs),
        failover_(std::move(failover)),
        callbacks_(std::move(callbacks)) {
    Open();
  }
  // The end of a stream that ends may open another one.
  ~FailoverAttach() override {
    std::vector<std::unique_ptr<AttachStream>> streams;
    {
      MutexLock lock(&mutex_);
      closed_ = true;
      streams.swap(streams_);
    }
  }

  bool Send(const v1::AttachRequest& request) override {
    MutexLock lock(&mutex_);
    AttachStream* const newest =
        streams_.empty() ? nullptr : streams_.back().get();
    if (answered_) return newest != nullptr && newest->Send(request);
    if (sent_.size() >= kMaxUnanswered) return false;
    sent_.push_back(request);
    if (newest != nullptr) newest->Send(request);  // else once it is open
    return true;
  }

 private:
  void Open() {
    const size_t at = failover_->Current();
    size_t number = 0;
    {
      MutexLock lock(&mutex_);
      if (closed_) return;
      number = streams_.size();
      streams_.emplace_back();
    }
    StreamCallbacks<v1::AttachEvent> callbacks;
    callbacks.on_event = [this](const v1::AttachEvent& event) {
      OnEvent(event);
    };
    callbacks.on_end = [this, at](const absl::Status& status) {
      OnEnd(at, status);
    };
    auto stream = stubs_[at]->Attach(std::move(callbacks));
    MutexLock lock(&mutex_);
    if (closed_) return;
    for (const v1::AttachRequest& request : sent_) stream->Send(request);
    streams_[number] = std::move(stream);
  }

  void OnEvent(const v1::AttachEvent& event) {
    {
      MutexLock lock(&mutex_);
      answered_ = true;
      sent_.clear();
    }
    callbacks_.on_event(event);
  }

  void OnEnd(size_t at, const absl::Status& status) {
    failover_->Note(at, status);
    bool again = false;
    {
      MutexLock lock(&mutex_);
      again = absl::IsUnavailable(status) && !answered_ && !closed_ &&
              streams_.size() < stubs_.size();
    }
    if (again) {
      Open();
    } else {
      callbacks_.on_end(status);
    }
  }

  const Stubs stubs_;
  const FailoverPtr failover_;
  const StreamCallbacks<v1::AttachEvent> callbacks_;
  Mutex mutex_;
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<v1::AttachRequest> sent_ ABSL_GUARDED_BY(mutex_);
  // One for each try; null while it is being opened, which it may end before.
  // The last one is in use. Those before it have ended, but cannot be destroyed
  // from within their own callbacks.
  std::vector<std::unique_ptr<AttachStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

class FailoverCoordinatorStub : public CoordinatorStub {
 public:
  FailoverCoordinatorStub(const Stubs& stubs, const Clock* clock)
      : stubs_(stubs),
        failover_(std::make_shared<Failover>(
            stubs.size(), [stubs](size_t at) { return stubs[at]->Connected(); },
            clock)) {}

  absl::Status Call(absl::string_view method,
                    const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response,
                    const CallOptions& options) override {
    return failover_->Call(options, [&](size_t at, const CallOptions& once) {
      return stubs_[at]->Call(method, request, response, once);
    });
  }

  std::unique_ptr<AttachStream> Attach(
      StreamCallbacks<v1::AttachEvent> callbacks) override {
    return std::make_unique<FailoverAttach>(stubs_, failover_,
                                            std::move(callbacks));
  }
  std::unique_ptr<EventStream> Watch(
      const v1::WatchRequest& request, CancelSignal* cancel,
      StreamCallbacks<v1::WatchEvent> callbacks) override {
    const size_t at = failover_->Current();
    callbacks.on_end = [on_end = std::move(callbacks.on_end),
                        failover = failover_, at](const absl::Status& status) {
      failover->Note(at, status);
      on_end(status);
    };
    return stubs_[at]->Watch(request, cancel, std::move(callbacks));
  }
  std::unique_ptr<UploadStream> Upload(const CallOptions& options) override {
    const size_t at = failover_->Current();
    return stubs_[at]->Upload(Noting(options, at));
  }
  std::unique_ptr<DownloadStream> Download(
      const v1::DownloadRequest& request, const CallOptions& options) override {
    const size_t at = failover_->Current();
    return stubs_[at]->Download(request, Noting(options, at));
  }
  std::unique_ptr<VerifyStream> Verify(const v1::VerifyRequest& request,
                                       const CallOptions& options) override {
    const size_t at = failover_->Current();
    return stubs_[at]->Verify(request, Noting(options, at));
  }

  bool Connected() const override {
    return stubs_[failover_->Current()]->Connected();
  }
  std::string address() const override {
    return absl::StrJoin(stubs_, ",", [](std::string* out, const auto& stub) {
      out->append(stub->address());
    });
  }

 private:
  CallOptions Noting(CallOptions options, size_t at) const {
    options.on_stream_end = [failover = failover_,
                             at](const absl::Status& status) {
      failover->Note(at, status);
    };
    return options;
  }

  const Stubs stubs_;
  const FailoverPtr failover_;
};

}  // namespace

std::shared_ptr<CoordinatorStub> MakeFailoverStub(
    const std::vector<std::shared_ptr<CoordinatorStub>>& stubs,
    const Clock* clock) {
  COXSWAIN_CHECK(!stubs.empty());
  if (stubs.size() == 1) return stubs.front();
  return std::make_shared<FailoverCoordinatorStub>(stubs, clock);
}

std::shared_ptr<CoordinatorStub> ConnectWithoutRetries(
    const std::string& address, const ClientSecurity& security,
    const Clock* clock) {
  std::vector<std::shared_ptr<CoordinatorStub>> stubs;
  for (const absl::string_view one : absl::StrSplit(address, ',')) {
    stubs.push_back(MakeGrpcCoordinatorStub(std::string(one), security));
  }
  return MakeFailoverStub(stubs, clock);
}

std::shared_ptr<CoordinatorStub> ConnectCoordinator(
    const std::string& address, const RetryPolicy& policy,
    const ClientSecurity& security) {
  return MakeRetryingStub(
      ConnectWithoutRetries(address, security, policy.clock), policy);
}

}  // namespace coxswain
