#ifndef COXSWAIN_SERVER_RPC_CHECKPOINT_OPERATIONS_H_
#define COXSWAIN_SERVER_RPC_CHECKPOINT_OPERATIONS_H_

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "proto/checkpoint.pb.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/checkpoint/manifest.h"
#include "server/generation/fence.h"
#include "server/options/options.h"
#include "server/rpc/disk_threads.h"

namespace coxswain::server {

// What operators do with checkpoints, for CheckpointService.

// Whether the fence is that of an operator, who is no member.
inline bool IsOperator(const Fence& fence) {
  return fence.generation == Generation(0) &&
         fence.incarnation == Incarnation(0);
}

// Who may write checkpoints of the fence's job: a member, or an operator.
absl::Status AdmitWriter(const FenceGate& gate, const Fence& fence);

v1::CheckpointInfo InfoOf(const CheckpointRecord& record);
v1::ShowResponse ShowOf(const CheckpointRecord& record);

// Serves one Verify: reads the shards one after the other on the disk threads,
// a few megabytes at a time, so that it does not hold up what else waits for
// the disk; goes on once its progress has been taken. gRPC owns what is
// returned.
grpc::ServerWriteReactor<v1::VerifyProgress>* StartVerify(
    const RpcOptions& options, CheckpointStore* store, DiskThreads* disk,
    grpc::CallbackServerContext* context, const v1::VerifyRequest& request);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_CHECKPOINT_OPERATIONS_H_
