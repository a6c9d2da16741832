#include "client/rpc/grpc_coordinator_stub.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include "base/grpc_status.h"
#include "base/mutex.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "proto/checkpoint.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"

namespace coxswain {
namespace {

using ContextPtr = std::shared_ptr<grpc::ClientContext>;

// A heartbeat that cannot be written for this many others is of no use; the
// rest is for tickets and votes, of which each stream has two at most.
constexpr size_t kMaxWritesBeforeHeartbeat = 16;
constexpr size_t kMaxQueuedWrites = 256;

ContextPtr MakeContext(const CallOptions& options) {
  auto context = std::make_shared<grpc::ClientContext>();
  const absl::Duration timeout = std::min(options.timeout, absl::Hours(8760));
  context->set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::microseconds(absl::ToInt64Microseconds(timeout)));
  return context;
}

// Cancels a call when a signal is raised, as long as this object lives.
class CancelLink {
 public:
  CancelLink(CancelSignal* signal, const ContextPtr& context)
      : signal_(signal) {
    if (signal_ == nullptr) return;
    id_ = signal_->OnRaise([context]() { context->TryCancel(); });
  }
  ~CancelLink() {
    if (signal_ != nullptr) signal_->Forget(id_);
  }
  CancelLink(const CancelLink&) = delete;
  CancelLink& operator=(const CancelLink&) = delete;

  // The signal's status instead of a cancelled call's own.
  absl::Status Translate(const grpc::Status& status) const {
    if (!status.ok() && signal_ != nullptr) {
      absl::Status raised = signal_->status();
      if (!raised.ok()) return raised;
    }
    return FromGrpcStatus(status);
  }

 private:
  CancelSignal* const signal_;
  uint64_t id_ = 0;
};

// What the two kinds of event streams share, over gRPC's reactor for each.
// gRPC calls OnDone last; the destructor of the stream waits for it.
template <typename Reactor, typename Event>
class EventReactor : public Reactor {
 public:
  EventReactor(CancelSignal* cancel, StreamCallbacks<Event> callbacks)
      : context_(std::make_shared<grpc::ClientContext>()),
        callbacks_(std::move(callbacks)),
        link_(cancel, context_) {}

  // Ends the stream and waits until no callback can run any more.
  void Stop() {
    context_->TryCancel();
    MutexLock lock(&mutex_);
    stopping_ = true;
    // gRPC ends a cancelled call without waiting for anyone.
    done_cv_.WaitForWork(
        &mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return done_; });
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      OnReadsEnded();
      return;
    }
    callbacks_.on_event(event_);
    event_.Clear();
    this->StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    bool stopping = false;
    {
      MutexLock lock(&mutex_);
      stopping = stopping_;
    }
    if (!stopping) callbacks_.on_end(link_.Translate(status));
    MutexLock lock(&mutex_);
    done_ = true;
    done_cv_.NotifyAll();
  }

 protected:
  virtual void OnReadsEnded() {}

  const ContextPtr context_;
  Event event_;
  Mutex mutex_;

 private:
  const StreamCallbacks<Event> callbacks_;
  const CancelLink link_;
  CondVar done_cv_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

class GrpcAttachStream : public AttachStream {
 public:
  GrpcAttachStream(v1::Rendezvous::Stub* stub,
                   StreamCallbacks<v1::AttachEvent> callbacks)
      : reactor_(/*cancel=*/nullptr, std::move(callbacks)) {
    reactor_.Start(stub);
  }
  ~GrpcAttachStream() override { reactor_.Stop(); }

  bool Send(const v1::AttachRequest& request) override {
    return reactor_.Send(request);
  }

 private:
  class Reactor
      : public EventReactor<
            grpc::ClientBidiReactor<v1::AttachRequest, v1::AttachEvent>,
            v1::AttachEvent> {
   public:
    using EventReactor::EventReactor;

    void Start(v1::Rendezvous::Stub* stub) {
      stub->async()->Attach(context_.get(), this);
      AddHold();  // For the writes, which start outside of gRPC's callbacks.
      StartRead(&event_);
      StartCall();
    }

    // gRPC never calls back from within StartWrite, so it is safe under the
    // lock, which keeps it from running after the hold has gone.
    bool Send(const v1::AttachRequest& request) {
      MutexLock lock(&mutex_);
      const size_t room = request.has_heartbeat() ? kMaxWritesBeforeHeartbeat
                                                  : kMaxQueuedWrites;
      if (ended_ || writes_.size() >= room) return false;
      writes_.push_back(request);
      if (writes_.size() == 1) StartWrite(&writes_.front());
      return true;
    }

    void OnWriteDone(bool ok) override {
      MutexLock lock(&mutex_);
      writes_.pop_front();
      if (!ok || ended_) {
        writes_.clear();
      } else if (!writes_.empty()) {
        StartWrite(&writes_.front());
      }
    }

   private:
    void OnReadsEnded() override {
      {
        MutexLock lock(&mutex_);
        ended_ = true;
      }
      RemoveHold();
    }

    bool ended_ ABSL_GUARDED_BY(mutex_) = false;
    // The front one is being written.
    std::deque<v1::AttachRequest> writes_ ABSL_GUARDED_BY(mutex_);
  };

  Reactor reactor_;
};

class GrpcWatchStream : public EventStream {
 public:
  GrpcWatchStream(v1::Store::Stub* stub, const v1::WatchRequest& request,
                  CancelSignal* cancel,
                  StreamCallbacks<v1::WatchEvent> callbacks)
      : reactor_(cancel, std::move(callbacks)) {
    reactor_.Start(stub, request);
  }
  ~GrpcWatchStream() override { reactor_.Stop(); }

 private:
  class Reactor : public EventReactor<grpc::ClientReadReactor<v1::WatchEvent>,
                                      v1::WatchEvent> {
   public:
    using EventReactor::EventReactor;

    void Start(v1::Store::Stub* stub, const v1::WatchRequest& request) {
      request_ = request;
      stub->async()->Watch(context_.get(), &request_, this);
      StartRead(&event_);
      StartCall();
    }

   private:
    v1::WatchRequest request_;
  };

  Reactor reactor_;
};

class GrpcUploadStream : public UploadStream {
 public:
  GrpcUploadStream(v1::Checkpoint::Stub* stub, const CallOptions& options)
      : context_(MakeContext(options)),
        link_(options.cancel, context_),
        writer_(stub->Upload(context_.get(), &response_)) {}
  ~GrpcUploadStream() override {
    if (finished_) return;
    context_->TryCancel();
    writer_->Finish();
  }

  bool Write(const v1::UploadRequest& request) override {
    return writer_->Write(request);
  }
  absl::Status Finish() override {
    finished_ = true;
    writer_->WritesDone();
    return link_.Translate(writer_->Finish());
  }

 private:
  const ContextPtr context_;
  const CancelLink link_;
  v1::UploadResponse response_;
  const std::unique_ptr<grpc::ClientWriter<v1::UploadRequest>> writer_;
  bool finished_ = false;
};

class GrpcDownloadStream : public DownloadStream {
 public:
  GrpcDownloadStream(v1::Checkpoint::Stub* stub,
                     const v1::DownloadRequest& request,
                     const CallOptions& options)
      : context_(MakeContext(options)),
        link_(options.cancel, context_),
        reader_(stub->Download(context_.get(), request)) {}
  ~GrpcDownloadStream() override {
    if (finished_) return;
    context_->TryCancel();
    reader_->Finish();
  }

  bool Read(v1::DownloadChunk* chunk) override { return reader_->Read(chunk); }
  absl::Status Finish() override {
    finished_ = true;
    return link_.Translate(reader_->Finish());
  }

 private:
  const ContextPtr context_;
  const CancelLink link_;
  const std::unique_ptr<grpc::ClientReader<v1::DownloadChunk>> reader_;
  bool finished_ = false;
};

class GrpcCoordinatorStub : public CoordinatorStub {
 public:
  GrpcCoordinatorStub(std::string address,
                      const std::shared_ptr<grpc::Channel>& channel)
      : address_(std::move(address)),
        channel_(channel),
        unary_(channel),
        rendezvous_(channel),
        checkpoint_(channel),
        store_(channel) {}

  absl::Status Call(absl::string_view method,
                    const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response,
                    const CallOptions& options) override {
    const ContextPtr context = MakeContext(options);
    const CancelLink link(options.cancel, context);
    Mutex mutex;
    CondVar done_cv;
    bool done = false;
    grpc::Status result;
    unary_.UnaryCall(context.get(), std::string(method), {}, &request, response,
                     [&](grpc::Status status) {
                       MutexLock lock(&mutex);
                       result = std::move(status);
                       done = true;
                       done_cv.NotifyAll();
                     });
    MutexLock lock(&mutex);
    // gRPC ends every call at its deadline.
    done_cv.WaitForWork(&mutex, [&done]() { return done; });
    return link.Translate(result);
  }

  std::unique_ptr<AttachStream> Attach(
      StreamCallbacks<v1::AttachEvent> callbacks) override {
    return std::make_unique<GrpcAttachStream>(&rendezvous_,
                                              std::move(callbacks));
  }
  std::unique_ptr<EventStream> Watch(
      const v1::WatchRequest& request, CancelSignal* cancel,
      StreamCallbacks<v1::WatchEvent> callbacks) override {
    return std::make_unique<GrpcWatchStream>(&store_, request, cancel,
                                             std::move(callbacks));
  }
  std::unique_ptr<UploadStream> Upload(const CallOptions& options) override {
    return std::make_unique<GrpcUploadStream>(&checkpoint_, options);
  }
  std::unique_ptr<DownloadStream> Download(
      const v1::DownloadRequest& request, const CallOptions& options) override {
    return std::make_unique<GrpcDownloadStream>(&checkpoint_, request, options);
  }

  bool Connected() const override {
    return channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
  }
  std::string address() const override { return address_; }

 private:
  using UnaryStub = grpc::TemplatedGenericStub<google::protobuf::MessageLite,
                                               google::protobuf::MessageLite>;

  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  UnaryStub unary_;
  v1::Rendezvous::Stub rendezvous_;
  v1::Checkpoint::Stub checkpoint_;
  v1::Store::Stub store_;
};

}  // namespace

std::shared_ptr<CoordinatorStub> MakeGrpcCoordinatorStub(
    const std::string& address) {
  grpc::ChannelArguments arguments;
  // A proxy of the environment is for the web, not for the cluster.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Stubs do not share a connection, nor its pauses after a failure.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Our callers pause between attempts; gRPC's default of up to two minutes
  // on top would make a late coordinator look dead.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Also how long a connection may take to be made: a frozen coordinator's
  // host accepts it, and says nothing.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  // Only callers know what may be repeated.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  // Errors travel, with their details, in the trailing metadata.
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);
  // A coordinator whose host is gone, or that is frozen, sends nothing that
  // would end a stream: it is noticed within eight seconds, soon after a
  // standby has taken over. One that is busy with thousands of workers may take
  // seconds to answer a ping, and would only have more to do if they all came
  // again. The coordinator allows a ping each second.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 3000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return std::make_shared<GrpcCoordinatorStub>(
      address, grpc::CreateCustomChannel(
                   address, grpc::InsecureChannelCredentials(), arguments));
}

}  // namespace coxswain
