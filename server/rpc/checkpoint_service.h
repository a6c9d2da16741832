#ifndef COXSWAIN_SERVER_RPC_CHECKPOINT_SERVICE_H_
#define COXSWAIN_SERVER_RPC_CHECKPOINT_SERVICE_H_

#include "proto/checkpoint.grpc.pb.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/generation/fence.h"
#include "server/options/options.h"
#include "server/rpc/disk_threads.h"

namespace coxswain::server {

// coxswain.v1.Checkpoint over gRPC. All that waits for the disk runs on threads
// of its own, so that a slow one slows checkpoints alone. The two streams see
// messages as they lie in gRPC's buffers (transport/chunk_codec), the other
// calls see protobuf's. Thread-safe; the pointers must outlive the gRPC server,
// and this object must.
class CheckpointService final
    : public v1::Checkpoint::WithRawCallbackMethod_Upload<
          v1::Checkpoint::WithRawCallbackMethod_Download<
              v1::Checkpoint::CallbackService>> {
 public:
  CheckpointService(const RpcOptions& options, CheckpointStore* store,
                    const FenceValidator* validator);
  ~CheckpointService() override;

  // Enough for shards that sync side by side, which disks like.
  static constexpr int kDiskThreads = 4;

  grpc::ServerUnaryReactor* Begin(grpc::CallbackServerContext* context,
                                  const v1::BeginRequest* request,
                                  v1::BeginResponse* response) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(
      grpc::CallbackServerContext* context,
      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Commit(grpc::CallbackServerContext* context,
                                   const v1::CommitRequest* request,
                                   v1::CommitResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListRequest* request,
                                 v1::ListResponse* response) override;
  grpc::ServerUnaryReactor* Show(grpc::CallbackServerContext* context,
                                 const v1::ShowRequest* request,
                                 v1::ShowResponse* response) override;
  grpc::ServerWriteReactor<v1::VerifyProgress>* Verify(
      grpc::CallbackServerContext* context,
      const v1::VerifyRequest* request) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Download(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteResponse* response) override;

 private:
  const RpcOptions options_;
  CheckpointStore* const store_;
  const FenceValidator* const validator_;
  DiskThreads disk_{kDiskThreads};
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_CHECKPOINT_SERVICE_H_
