#ifndef COXSWAIN_CLIENT_RPC_FAKE_COORDINATOR_STUB_H_
#define COXSWAIN_CLIENT_RPC_FAKE_COORDINATOR_STUB_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/rpc/coordinator_stub.h"

namespace coxswain {

// An Attach stream whose other end is a test. Thread-safe.
class FakeAttachment {
 public:
  explicit FakeAttachment(StreamCallbacks<v1::AttachEvent> callbacks)
      : callbacks_(std::move(callbacks)) {}

  // Sends an event to the client, unless it has closed the stream.
  void Event(const v1::AttachEvent& event) {
    MutexLock lock(&callback_mutex_);
    if (!closed_) callbacks_.on_event(event);
  }
  void Attached() {
    v1::AttachEvent event;
    event.mutable_attached();
    Event(event);
  }
  void End(const absl::Status& status) {
    MutexLock lock(&callback_mutex_);
    if (!closed_) callbacks_.on_end(status);
    closed_ = true;
  }
  void Close() {
    MutexLock lock(&callback_mutex_);
    closed_ = true;
  }
  // Returns whether either end has closed the stream.
  bool closed() {
    MutexLock lock(&callback_mutex_);
    return closed_;
  }

  void Received(const v1::AttachRequest& request) {
    MutexLock lock(&mutex_);
    received_.push_back(request);
    changed_.NotifyAll();
  }
  int Count(const std::function<bool(const v1::AttachRequest&)>& condition) {
    MutexLock lock(&mutex_);
    return static_cast<int>(
        std::count_if(received_.begin(), received_.end(), condition));
  }
  // Waits until one of the requests satisfies the condition.
  bool WaitForRequest(
      const std::function<bool(const v1::AttachRequest&)>& condition) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, absl::Seconds(20),
                            [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                              for (const auto& request : received_) {
                                if (condition(request)) return true;
                              }
                              return false;
                            });
  }

 private:
  // Held while a callback runs, so that none runs after Close.
  Mutex callback_mutex_;
  bool closed_ ABSL_GUARDED_BY(callback_mutex_) = false;
  const StreamCallbacks<v1::AttachEvent> callbacks_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<v1::AttachRequest> received_ ABSL_GUARDED_BY(mutex_);
};

// A coordinator in memory whose answers a test writes. A call without an
// answer is UNIMPLEMENTED. Set it up before it is used; then thread-safe.
class FakeCoordinatorStub : public CoordinatorStub {
 public:
  ~FakeCoordinatorStub() override {
    std::vector<std::thread> answering;
    {
      MutexLock lock(&mutex_);
      answering.swap(answering_);
    }
    for (std::thread& thread : answering) thread.join();
  }

  // Answers the call "Service/Method".
  template <typename Request, typename Response>
  void Answer(const std::string& method,
              std::function<absl::StatusOr<Response>(const Request&,
                                                     const CallOptions&)>
                  answer) {
    answers_["/coxswain.v1." + method] =
        [answer](const google::protobuf::MessageLite& request,
                 google::protobuf::MessageLite* response,
                 const CallOptions& options) {
          auto result = answer(static_cast<const Request&>(request), options);
          if (!result.ok()) return result.status();
          *static_cast<Response*>(response) = *std::move(result);
          return absl::OkStatus();
        };
  }

  absl::Status Call(absl::string_view method,
                    const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response,
                    const CallOptions& options) override {
    const auto answer = answers_.find(std::string(method));
    if (answer == answers_.end()) {
      return absl::UnimplementedError(absl::StrCat("no answer to ", method));
    }
    return answer->second(request, response, options);
  }

  // Called for each stream that the client opens from now on; by default it is
  // accepted. At any time.
  void OnAttach(std::function<void(FakeAttachment&)> on_attach) {
    MutexLock lock(&mutex_);
    on_attach_ = std::move(on_attach);
  }

  std::unique_ptr<AttachStream> Attach(
      StreamCallbacks<v1::AttachEvent> callbacks) override {
    auto attachment = std::make_shared<FakeAttachment>(std::move(callbacks));
    auto stream = std::make_unique<ClientEnd>(attachment);
    // Not within this call, as gRPC does not either: the caller may hold locks.
    MutexLock lock(&mutex_);
    const size_t number = answering_.size();
    answering_.emplace_back([this, number, attachment, on_attach = on_attach_] {
      on_attach(*attachment);
      MutexLock lock(&mutex_);
      attached_.WaitFor(&mutex_, absl::Seconds(20),
                        [this, number]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                          return attachments_.size() == number;
                        });
      attachments_.push_back(attachment);
      attached_.NotifyAll();
    });
    return stream;
  }

  // Returns the n-th stream that the client opens, from 0; waits for it, and
  // for what OnAttach does with it.
  std::shared_ptr<FakeAttachment> AttachmentNumber(size_t n) {
    MutexLock lock(&mutex_);
    const bool came = attached_.WaitFor(
        &mutex_, absl::Seconds(20), [this, n]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return attachments_.size() > n;
        });
    return came ? attachments_[n] : nullptr;
  }

  std::function<std::unique_ptr<EventStream>(const v1::WatchRequest&,
                                             StreamCallbacks<v1::WatchEvent>)>
      on_watch;
  std::unique_ptr<EventStream> Watch(
      const v1::WatchRequest& request, CancelSignal* /*cancel*/,
      StreamCallbacks<v1::WatchEvent> callbacks) override {
    return on_watch(request, std::move(callbacks));
  }

  std::function<std::unique_ptr<UploadStream>()> on_upload;
  std::unique_ptr<UploadStream> Upload(const CallOptions&) override {
    return on_upload();
  }
  std::function<std::unique_ptr<DownloadStream>(const v1::DownloadRequest&)>
      on_download;
  std::unique_ptr<DownloadStream> Download(const v1::DownloadRequest& request,
                                           const CallOptions&) override {
    return on_download(request);
  }
  std::function<std::unique_ptr<VerifyStream>(const v1::VerifyRequest&)>
      on_verify;
  std::unique_ptr<VerifyStream> Verify(const v1::VerifyRequest& request,
                                       const CallOptions&) override {
    return on_verify(request);
  }

  std::atomic<bool> connected{true};
  bool Connected() const override { return connected; }
  std::string address() const override { return "127.0.0.1:4711"; }

 private:
  class ClientEnd : public AttachStream {
   public:
    explicit ClientEnd(std::shared_ptr<FakeAttachment> attachment)
        : attachment_(std::move(attachment)) {}
    ~ClientEnd() override { attachment_->Close(); }
    bool Send(const v1::AttachRequest& request) override {
      attachment_->Received(request);
      return true;
    }

   private:
    const std::shared_ptr<FakeAttachment> attachment_;
  };

  std::map<std::string,
           std::function<absl::Status(const google::protobuf::MessageLite&,
                                      google::protobuf::MessageLite*,
                                      const CallOptions&)>>
      answers_;
  Mutex mutex_;
  CondVar attached_;
  std::vector<std::shared_ptr<FakeAttachment>> attachments_
      ABSL_GUARDED_BY(mutex_);
  std::function<void(FakeAttachment&)> on_attach_ ABSL_GUARDED_BY(mutex_) =
      [](FakeAttachment& stream) { stream.Attached(); };
  std::vector<std::thread> answering_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_FAKE_COORDINATOR_STUB_H_
