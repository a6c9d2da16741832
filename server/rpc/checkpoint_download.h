#ifndef COXSWAIN_SERVER_RPC_CHECKPOINT_DOWNLOAD_H_
#define COXSWAIN_SERVER_RPC_CHECKPOINT_DOWNLOAD_H_

#include "grpcpp/grpcpp.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/options/options.h"
#include "server/rpc/disk_threads.h"

namespace coxswain::server {

// Serves one Download: chunks go from the disk's memory to gRPC without a
// copy. While one is written the next is read, so that a stream holds two.
// gRPC owns what is returned.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartDownload(
    const RpcOptions& options, CheckpointStore* store, DiskThreads* disk,
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_CHECKPOINT_DOWNLOAD_H_
