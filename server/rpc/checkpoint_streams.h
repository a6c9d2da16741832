#ifndef COXSWAIN_SERVER_RPC_CHECKPOINT_STREAMS_H_
#define COXSWAIN_SERVER_RPC_CHECKPOINT_STREAMS_H_

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "proto/checkpoint.pb.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/generation/fence.h"
#include "server/options/options.h"
#include "server/rpc/disk_threads.h"

namespace coxswain::server {

// The streams of CheckpointService.

// Returns whether the fence is that of an operator, who is no member.
inline bool IsOperator(const Fence& fence) {
  return fence.generation == Generation(0) &&
         fence.incarnation == Incarnation(0);
}

// Who may write checkpoints of the fence's job: a member, or an operator.
absl::Status AdmitWriter(const FenceValidator& validator, const Fence& fence);

// Serves one Upload: messages as they lie in gRPC's buffers, from which chunks
// go to the disk without a copy. One message is taken at a time, and the next
// is asked for when the disk has this one: a stream holds one message and, on
// its way, what HTTP/2's window lets in. gRPC owns what is returned.
grpc::ServerReadReactor<grpc::ByteBuffer>* StartUpload(
    const RpcOptions& options, CheckpointStore* store,
    const FenceValidator* validator, DiskThreads* disk,
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response);

// Serves one Download: chunks go from the disk's memory to gRPC without a
// copy. While one is written the next is read, so that a stream holds two.
// gRPC owns what is returned.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartDownload(
    const RpcOptions& options, CheckpointStore* store, DiskThreads* disk,
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);

// Serves one Verify: reads the shards one after the other on the disk threads,
// a few megabytes at a time, so that it does not hold up what else waits for
// the disk; goes on once its progress has been taken. gRPC owns what is
// returned.
grpc::ServerWriteReactor<v1::VerifyProgress>* StartVerify(
    const RpcOptions& options, CheckpointStore* store, DiskThreads* disk,
    grpc::CallbackServerContext* context, const v1::VerifyRequest& request);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_CHECKPOINT_STREAMS_H_
