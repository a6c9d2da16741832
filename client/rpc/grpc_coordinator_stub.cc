#include "client/rpc/grpc_coordinator_stub.h"

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/grpc_status.h"
#include "base/mutex.h"
#include "client/rpc/bulk_stream.h"
#include "client/rpc/call_context.h"
#include "client/rpc/credentials.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "transport/chunk_codec.h"

namespace coxswain {
namespace {

// A heartbeat that cannot be written for this many others is of no use; the
// rest is for tickets and votes, of which each stream has two at most.
constexpr size_t kMaxWritesBeforeHeartbeat = 16;
constexpr size_t kMaxQueuedWrites = 256;

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
  GrpcUploadStream(const std::shared_ptr<grpc::Channel>& channel,
                   const CallOptions& options)
      : stream_(channel, "/coxswain.v1.Checkpoint/Upload", options) {}

  bool Write(const v1::UploadRequest& request) override {
    return stream_.Write(bulk::Encode(request));
  }
  bool WriteChunk(int64_t offset, absl::string_view data, uint32_t crc32c,
                  const std::shared_ptr<const void>& owner) override {
    const grpc::Slice slice = owner != nullptr
                                  ? bulk::Lend(data, owner)
                                  : grpc::Slice(data.data(), data.size());
    return stream_.Write(bulk::EncodeChunk(v1::UploadRequest::kChunkFieldNumber,
                                           offset, crc32c, slice));
  }
  absl::Status Finish() override {
    grpc::ByteBuffer response;
    stream_.WritesDone();
    stream_.Read(&response);
    return stream_.Finish();
  }

 private:
  BulkStream stream_;
};

// One request, of which any number of messages come back.
template <class Base, class Message>
class GrpcReadStream : public Base {
 public:
  GrpcReadStream(const std::shared_ptr<grpc::Channel>& channel,
                 const char* method,
                 const google::protobuf::MessageLite& request,
                 const CallOptions& options)
      : stream_(channel, method, options) {
    stream_.Write(bulk::Encode(request));
    stream_.WritesDone();
  }

  bool Read(Message* message) override {
    if (!stream_.Read(&buffer_)) return false;
    decoded_ = bulk::DecodeMessage(buffer_, message);
    return decoded_.ok();
  }
  // Leaves the call to the destructor if there is nothing to wait for.
  absl::Status Finish() override {
    if (!decoded_.ok()) return decoded_;
    return stream_.Finish();
  }

 protected:
  BulkStream stream_;
  grpc::ByteBuffer buffer_;
  absl::Status decoded_;
};

class GrpcDownloadStream
    : public GrpcReadStream<DownloadStream, v1::DownloadChunk> {
 public:
  using GrpcReadStream::GrpcReadStream;
  bool ReadPieces(v1::DownloadChunk* message,
                  std::vector<absl::string_view>* data) override {
    if (!stream_.Read(&buffer_)) return false;
    auto chunk = bulk::Decode(buffer_, message);
    decoded_ = chunk.status();
    if (!chunk.ok()) return false;
    chunk_ = *std::move(chunk);
    data->clear();
    if (!chunk_.has_value()) return true;
    *data = chunk_->data.pieces();
    message->mutable_chunk()->set_offset(chunk_->offset);
    message->mutable_chunk()->set_crc32c(chunk_->crc32c);
    message->mutable_chunk()->clear_data();
    return true;
  }

 private:
  std::optional<bulk::Chunk> chunk_;
};

using GrpcVerifyStream = GrpcReadStream<VerifyStream, v1::VerifyProgress>;

class GrpcCoordinatorStub : public CoordinatorStub {
 public:
  GrpcCoordinatorStub(std::string address,
                      const std::shared_ptr<grpc::Channel>& channel)
      : address_(std::move(address)),
        channel_(channel),
        unary_(channel),
        rendezvous_(channel),
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
    return std::make_unique<GrpcUploadStream>(channel_, options);
  }
  std::unique_ptr<DownloadStream> Download(
      const v1::DownloadRequest& request, const CallOptions& options) override {
    return std::make_unique<GrpcDownloadStream>(
        channel_, "/coxswain.v1.Checkpoint/Download", request, options);
  }
  std::unique_ptr<VerifyStream> Verify(const v1::VerifyRequest& request,
                                       const CallOptions& options) override {
    return std::make_unique<GrpcVerifyStream>(
        channel_, "/coxswain.v1.Checkpoint/Verify", request, options);
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
  v1::Store::Stub store_;
};

}  // namespace

std::shared_ptr<CoordinatorStub> MakeGrpcCoordinatorStub(
    const std::string& address, const ClientSecurity& security) {
  return std::make_shared<GrpcCoordinatorStub>(
      address, MakeCoordinatorChannel(address, security));
}

std::shared_ptr<CoordinatorStub> MakeFallbackStub(
    const std::string& address, const ClientSecurity& security,
    const std::string& job) {
  return std::make_shared<GrpcCoordinatorStub>(
      address, MakeFallbackChannel(address, security, job));
}

}  // namespace coxswain
