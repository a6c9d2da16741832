#ifndef COXSWAIN_CLIENT_RPC_COORDINATOR_STUB_H_
#define COXSWAIN_CLIENT_RPC_COORDINATOR_STUB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "google/protobuf/message_lite.h"
#include "proto/checkpoint.pb.h"
#include "proto/group.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/schedule.pb.h"
#include "proto/store.pb.h"

namespace coxswain {

// How one call is made.
struct CallOptions {
  // DEADLINE_EXCEEDED after this long, retries included.
  absl::Duration timeout = absl::Seconds(30);
  // Ends the call with the signal's status. May be null; outlives the call.
  CancelSignal* cancel = nullptr;
  // Whether a stub that retries may repeat the call.
  bool retry = true;
  // Returned by Finish of an UploadStream, DownloadStream or VerifyStream.
  std::function<void(const absl::Status&)> on_stream_end;
};

// A stream of events from the coordinator. Destroying it ends it; no callback
// is called after that, so it must not be destroyed from within one.
class EventStream {
 public:
  virtual ~EventStream() = default;
};

// The callbacks of a stream, called one at a time, on a thread of the library:
// any number of events, then the end.
template <typename Event>
struct StreamCallbacks {
  std::function<void(const Event&)> on_event;
  std::function<void(const absl::Status&)> on_end;
};

// The Attach stream, to which requests are written as well.
class AttachStream : public EventStream {
 public:
  // Queues a request. Returns false if it was not taken: the stream has ended,
  // or too many requests wait.
  virtual bool Send(const v1::AttachRequest& request) = 0;
};

class UploadStream {
 public:
  virtual ~UploadStream() = default;
  // Blocks while the coordinator is slow. Returns false if the stream has
  // broken: Finish returns why.
  virtual bool Write(const v1::UploadRequest& request) = 0;
  // Writes a chunk, whose bytes are not copied if `owner` keeps them alive and
  // unchanged: it may be released later than the stream.
  virtual bool WriteChunk(int64_t offset, absl::string_view data,
                          uint32_t crc32c,
                          const std::shared_ptr<const void>& owner) {
    static_cast<void>(owner);
    v1::UploadRequest request;
    request.mutable_chunk()->set_offset(offset);
    request.mutable_chunk()->set_data(data.data(), data.size());
    request.mutable_chunk()->set_crc32c(crc32c);
    return Write(request);
  }
  virtual absl::Status Finish() = 0;
};

class DownloadStream {
 public:
  virtual ~DownloadStream() = default;
  // Blocks for the next message. Returns false at the end, whose status Finish
  // returns.
  virtual bool Read(v1::DownloadChunk* message) = 0;
  // Reads the bytes of a chunk as they were received, in pieces that live until
  // the next call. The message may hold them, too.
  virtual bool ReadPieces(v1::DownloadChunk* message,
                          std::vector<absl::string_view>* data) {
    if (!Read(message)) return false;
    *data = {message->chunk().data()};
    return true;
  }
  virtual absl::Status Finish() = 0;
};

class VerifyStream {
 public:
  virtual ~VerifyStream() = default;
  // As those of DownloadStream.
  virtual bool Read(v1::VerifyProgress* progress) = 0;
  virtual absl::Status Finish() = 0;
};

// The rpcs of the coordinator, free of gRPC's types: used by the components of
// the client and the command line, and replaced by tests. The statuses of each
// call are those of proto/*.proto.
//
// Unary calls block. Implementations are thread-safe and provide the virtual
// functions only; the typed calls are defined once, here.
class CoordinatorStub {
 public:
  virtual ~CoordinatorStub() = default;

#define COXSWAIN_CALL(Name, Service, Method)                                  \
  absl::StatusOr<v1::Method##Response> Name(                                  \
      const v1::Method##Request& request, const CallOptions& options) {       \
    v1::Method##Response response;                                            \
    absl::Status status = Call("/coxswain.v1." #Service "/" #Method, request, \
                               &response, options);                           \
    if (!status.ok()) return status;                                          \
    return response;                                                          \
  }
  COXSWAIN_CALL(Join, Rendezvous, Join)
  COXSWAIN_CALL(Leave, Rendezvous, Leave)
  COXSWAIN_CALL(ReportExit, Rendezvous, ReportExit)
  COXSWAIN_CALL(Members, Rendezvous, Members)
  COXSWAIN_CALL(Describe, Rendezvous, Describe)
  COXSWAIN_CALL(CreateGroup, Group, CreateGroup)
  COXSWAIN_CALL(CreateMesh, Group, CreateMesh)
  COXSWAIN_CALL(Barrier, Group, Barrier)
  COXSWAIN_CALL(GetPlan, Schedule, GetPlan)
  COXSWAIN_CALL(ProposePlan, Schedule, ProposePlan)
  COXSWAIN_CALL(RequestCheckpoint, Schedule, RequestCheckpoint)
  COXSWAIN_CALL(Why, Schedule, Why)
  COXSWAIN_CALL(BeginCheckpoint, Checkpoint, Begin)
  COXSWAIN_CALL(CommitCheckpoint, Checkpoint, Commit)
  COXSWAIN_CALL(ListCheckpoints, Checkpoint, List)
  COXSWAIN_CALL(ShowCheckpoint, Checkpoint, Show)
  COXSWAIN_CALL(DeleteCheckpoint, Checkpoint, Delete)
  COXSWAIN_CALL(StoreSet, Store, Set)
  COXSWAIN_CALL(StoreGet, Store, Get)
  COXSWAIN_CALL(StoreAdd, Store, Add)
  COXSWAIN_CALL(StoreCompareSet, Store, CompareSet)
  COXSWAIN_CALL(StoreWait, Store, Wait)
  COXSWAIN_CALL(StoreDeleteKey, Store, DeleteKey)
  COXSWAIN_CALL(StoreCountKeys, Store, CountKeys)
#undef COXSWAIN_CALL

  // Opens the stream and returns at once; the callbacks may already run.
  virtual std::unique_ptr<AttachStream> Attach(
      StreamCallbacks<v1::AttachEvent> callbacks) = 0;
  // A raised `cancel` (may be null) ends the stream with its status.
  virtual std::unique_ptr<EventStream> Watch(
      const v1::WatchRequest& request, CancelSignal* cancel,
      StreamCallbacks<v1::WatchEvent> callbacks) = 0;

  // `options.timeout` bounds the whole stream; never retried.
  virtual std::unique_ptr<UploadStream> Upload(const CallOptions& options) = 0;
  virtual std::unique_ptr<DownloadStream> Download(
      const v1::DownloadRequest& request, const CallOptions& options) = 0;
  virtual std::unique_ptr<VerifyStream> Verify(const v1::VerifyRequest& request,
                                               const CallOptions& options) = 0;

  // Returns whether it is connected now.
  virtual bool Connected() const = 0;

  // Returns the coordinator's address, for messages.
  virtual std::string address() const = 0;

  // Makes the unary call named "/coxswain.v1.<Service>/<Method>".
  virtual absl::Status Call(absl::string_view method,
                            const google::protobuf::MessageLite& request,
                            google::protobuf::MessageLite* response,
                            const CallOptions& options) = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_COORDINATOR_STUB_H_
