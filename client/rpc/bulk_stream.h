#ifndef COXSWAIN_CLIENT_RPC_BULK_STREAM_H_
#define COXSWAIN_CLIENT_RPC_BULK_STREAM_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/rpc/call_context.h"
#include "client/rpc/coordinator_stub.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace coxswain {

// One call, of whatever kind of streaming, whose messages are gRPC's own
// buffers (transport/chunk_codec.h). Every function blocks until gRPC has done
// its part, at most until the deadline of the call, and does gRPC's work on
// the calling thread meanwhile. One thread at a time. Destroying it cancels
// what has not finished.
class BulkStream {
 public:
  // `method` is "/coxswain.v1.SERVICE/METHOD".
  BulkStream(const std::shared_ptr<grpc::Channel>& channel,
             const std::string& method, const CallOptions& options);
  ~BulkStream();
  BulkStream(const BulkStream&) = delete;
  BulkStream& operator=(const BulkStream&) = delete;

  // Returns false if the stream has broken or the peer has ended it: Finish
  // returns why.
  bool Write(const grpc::ByteBuffer& message);
  // Ends the writing side.
  bool WritesDone();
  // Returns false at the end, whose status Finish returns.
  bool Read(grpc::ByteBuffer* message);
  // Returns how the call ended, or the status of the raised cancel signal.
  // Called once, last.
  absl::Status Finish();

 private:
  // Waits for the operation in progress; returns whether it succeeded.
  bool Await();

  const ContextPtr context_;
  const CancelLink link_;
  const std::function<void(const absl::Status&)> on_end_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  const std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool finished_ = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_BULK_STREAM_H_
