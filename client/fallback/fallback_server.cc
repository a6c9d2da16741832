#include "client/fallback/fallback_server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/rpc/credentials.h"
#include "grpc/grpc.h"
#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "transport/accepting_server.h"
#include "transport/connection_acceptor.h"
#include "transport/listen_address.h"

namespace coxswain {
namespace {

// A ticket with the longest texts, or a position with a plan.
constexpr int kMaxMessageBytes = 1 << 20;
constexpr int kMaxStreamsPerConnection = 8;
// As many as the largest job has members, each with one.
constexpr int kMaxConnections = 16'384;
// Of these, silent ones are some, and leave the process what it needs.
constexpr int kMaxWaiting = 1024;
constexpr int kWaitingPart = 8;
// Streams that have not sent a hello.
constexpr size_t kMaxWithoutHello = 64;
constexpr std::chrono::seconds kHelloTimeout{10};
// Events for a rank that does not read them; each stream of exchanges has two
// at most under way.
constexpr size_t kMaxQueuedEvents = 256;
constexpr absl::Duration kShutdown = absl::Seconds(2);

// The streams that have not sent a hello, the oldest first.
class WithoutHello {
 public:
  using Entry = uint64_t;

  Entry Add(grpc::CallbackServerContext* context) {
    MutexLock lock(&mutex_);
    // A context lives until its stream is done, and Remove comes before. One
    // that is cancelled makes room at once, and is not cancelled again.
    if (contexts_.size() >= kMaxWithoutHello) {
      contexts_.begin()->second->TryCancel();
      contexts_.erase(contexts_.begin());
    }
    contexts_[++newest_] = context;
    return newest_;
  }
  void Remove(Entry entry) {
    MutexLock lock(&mutex_);
    contexts_.erase(entry);
  }

 private:
  Mutex mutex_;
  Entry newest_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Entry, grpc::CallbackServerContext*> contexts_
      ABSL_GUARDED_BY(mutex_);
};

// Ends a stream whose hello does not come, unless it is destroyed before.
class HelloDeadline {
 public:
  explicit HelloDeadline(grpc::CallbackServerContext* context) {
    // The alarm may go off while the stream ends: it holds the call.
    grpc_call_ref(context->c_call());
    const std::shared_ptr<grpc_call> call(context->c_call(), grpc_call_unref);
    alarm_.Set(std::chrono::system_clock::now() + kHelloTimeout,
               [call](bool expired) {
                 if (!expired) return;
                 grpc_call_cancel_with_status(
                     call.get(), GRPC_STATUS_DEADLINE_EXCEEDED,
                     "the stream's hello did not arrive in time", nullptr);
               });
  }

 private:
  grpc::Alarm alarm_;
};

// One rank's stream. gRPC owns it until OnDone.
class FallbackStream
    : public grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachEvent> {
 public:
  // `admitted`: whether this peer may attach at all.
  FallbackStream(std::shared_ptr<FallbackCoordinator> coordinator,
                 WithoutHello* without_hello,
                 grpc::CallbackServerContext* context,
                 const absl::Status& admitted)
      : coordinator_(std::move(coordinator)),
        without_hello_(without_hello),
        entry_(without_hello->Add(context)) {
    if (!admitted.ok()) {
      Close(admitted);
      return;
    }
    hello_deadline_.emplace(context);
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Over(absl::OkStatus());
    if (request_.has_fallback_release()) return Over(absl::OkStatus());
    const absl::Status handled =
        attachment_ == 0
            ? TakeHello()
            : coordinator_->Handle(attachment_, std::move(request_));
    if (!handled.ok()) return Over(handled);
    request_.Clear();
    StartRead(&request_);
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) queue_.clear();
    }
    Advance();
  }

  void OnCancel() override {
    Over(absl::CancelledError("the rank has cancelled its stream"));
  }

  void OnDone() override {
    if (attachment_ != 0) coordinator_->Detach(attachment_);
    NoteHello();
    delete this;
  }

 private:
  // On the thread of reads, of which there is one at a time.
  absl::Status TakeHello() {
    if (!request_.has_hello()) {
      return absl::InvalidArgumentError("a stream begins with a hello");
    }
    NoteHello();
    FallbackCoordinator::Callbacks callbacks;
    callbacks.on_event = [this](const v1::AttachEvent& event) { Write(event); };
    callbacks.on_end = [this](const absl::Status& status) { Close(status); };
    const auto attachment =
        coordinator_->Attach(request_.hello(), std::move(callbacks));
    if (!attachment.ok()) return attachment.status();
    attachment_ = *attachment;
    return absl::OkStatus();
  }

  void NoteHello() {
    MutexLock lock(&mutex_);
    if (std::exchange(hello_received_, true)) return;
    without_hello_->Remove(entry_);
    hello_deadline_.reset();
  }

  void Write(const v1::AttachEvent& event) {
    {
      MutexLock lock(&mutex_);
      if (closing_) return;
      if (queue_.size() < kMaxQueuedEvents) {
        queue_.push_back(event);
      } else {
        queue_.clear();
        closing_ = true;
        status_ = absl::ResourceExhaustedError(
            absl::StrCat("the rank does not read its events; at most ",
                         kMaxQueuedEvents, " of them wait (kMaxQueuedEvents)"));
      }
    }
    Advance();
  }

  // What was sent counts no more before the rank can know of the end.
  void Over(const absl::Status& status) {
    if (attachment_ != 0) coordinator_->Detach(attachment_);
    {
      MutexLock lock(&mutex_);
      queue_.clear();
    }
    Close(status);
  }

  void Close(const absl::Status& status) {
    {
      MutexLock lock(&mutex_);
      if (closing_) return;
      closing_ = true;
      status_ = status;
    }
    Advance();
  }

  void Advance() {
    bool write = false;
    absl::Status status;
    {
      MutexLock lock(&mutex_);
      if (writing_ || finished_) return;
      if (!queue_.empty()) {
        write = writing_ = true;
        event_ = std::move(queue_.front());
        queue_.pop_front();
      } else if (closing_) {
        finished_ = true;
        status = status_;
      } else {
        return;
      }
    }
    if (write) {
      StartWrite(&event_);
    } else {
      Finish(ToGrpcStatus(status));
    }
  }

  const std::shared_ptr<FallbackCoordinator> coordinator_;
  WithoutHello* const without_hello_;
  const WithoutHello::Entry entry_;
  v1::AttachRequest request_;            // of the read under way
  std::atomic<uint64_t> attachment_{0};  // reads set it
  std::optional<HelloDeadline> hello_deadline_;
  v1::AttachEvent event_;  // of the write under way

  Mutex mutex_;
  std::deque<v1::AttachEvent> queue_ ABSL_GUARDED_BY(mutex_);
  bool hello_received_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class FallbackService : public v1::Rendezvous::CallbackService {
 public:
  FallbackService(std::shared_ptr<FallbackCoordinator> coordinator,
                  std::string job, ClientSecurity security)
      : coordinator_(std::move(coordinator)),
        job_(std::move(job)),
        security_(std::move(security)) {}

  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachEvent>* Attach(
      grpc::CallbackServerContext* context) override {
    return new FallbackStream(coordinator_, &without_hello_, context,
                              AdmitToFallback(*context, security_, job_));
  }

 private:
  const std::shared_ptr<FallbackCoordinator> coordinator_;
  const std::string job_;
  const ClientSecurity security_;
  WithoutHello without_hello_;
};

std::string HostPort(absl::string_view host, int port) {
  if (absl::StrContains(host, ':') && !absl::StartsWith(host, "[")) {
    return absl::StrCat("[", host, "]:", port);
  }
  return absl::StrCat(host, ":", port);
}

}  // namespace

struct FallbackServer::Parts {
  Parts(std::shared_ptr<FallbackCoordinator> coordinator,
        const std::string& job, const ClientSecurity& security)
      : service(std::move(coordinator), job, security) {}
  FallbackService service;
  std::string address;
  std::unique_ptr<AcceptingServer> server;
};

absl::StatusOr<std::unique_ptr<FallbackServer>> FallbackServer::Start(
    absl::string_view host, std::shared_ptr<FallbackCoordinator> coordinator,
    const std::string& job, const ClientSecurity& security) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto credentials,
                            MakeFallbackServerCredentials(security));
  COXSWAIN_ASSIGN_OR_RETURN(Listeners listeners,
                            Listen({std::string(host), 0}));
  auto parts = std::make_unique<Parts>(std::move(coordinator), job, security);
  parts->address = HostPort(host, listeners.port);
  const int connections = ConnectionLimit(kMaxConnections);
  AcceptingServer::Options options;
  options.listeners = std::move(listeners);
  options.limits.max_waiting_connections =
      std::min(kMaxWaiting, connections / kWaitingPart);
  options.connections = std::make_shared<AcceptedConnections>(connections);
  options.credentials = credentials;
  options.preface = IsEncrypted(security) ? Preface::kTls : Preface::kHttp2;
  options.max_message_bytes = kMaxMessageBytes;
  options.max_streams_per_connection = kMaxStreamsPerConnection;
  grpc::ServerBuilder builder;
  builder.RegisterService(&parts->service);
  COXSWAIN_ASSIGN_OR_RETURN(
      parts->server, AcceptingServer::Start(std::move(options), &builder));
  return std::unique_ptr<FallbackServer>(new FallbackServer(std::move(parts)));
}

FallbackServer::FallbackServer(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

FallbackServer::~FallbackServer() { parts_->server->Shutdown(kShutdown); }

const std::string& FallbackServer::address() const { return parts_->address; }

}  // namespace coxswain
