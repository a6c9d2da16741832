#ifndef COXSWAIN_SERVER_RPC_CHECKPOINT_SERVICE_H_
#define COXSWAIN_SERVER_RPC_CHECKPOINT_SERVICE_H_

#include "proto/checkpoint.grpc.pb.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/membership/fence.h"
#include "server/options.h"

namespace coxswain::server {

// coxswain.v1.Checkpoint over gRPC. Disk work runs in gRPC's callback threads,
// one chunk (at most 1 MiB) at a time per stream: a slow disk slows all rpcs
// by that much and no more, which spares a thread pool and its queue. Commit
// and Begin sync the disk there too. Thread-safe; the pointers must outlive
// the gRPC server.
class CheckpointService final : public v1::Checkpoint::CallbackService {
 public:
  CheckpointService(const RpcOptions& options, CheckpointStore* store,
                    const FenceGate* gate)
      : options_(options), store_(store), gate_(gate) {}

  grpc::ServerUnaryReactor* Begin(grpc::CallbackServerContext* context,
                                  const v1::BeginRequest* request,
                                  v1::BeginResponse* response) override;
  grpc::ServerReadReactor<v1::UploadRequest>* Upload(
      grpc::CallbackServerContext* context,
      v1::UploadResponse* response) override;
  grpc::ServerUnaryReactor* Commit(grpc::CallbackServerContext* context,
                                   const v1::CommitRequest* request,
                                   v1::CommitResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListRequest* request,
                                 v1::ListResponse* response) override;
  grpc::ServerWriteReactor<v1::DownloadChunk>* Download(
      grpc::CallbackServerContext* context,
      const v1::DownloadRequest* request) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteResponse* response) override;

 private:
  const RpcOptions options_;
  CheckpointStore* const store_;
  const FenceGate* const gate_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_CHECKPOINT_SERVICE_H_
