#ifndef COXSWAIN_SERVER_RPC_STORE_SERVICE_H_
#define COXSWAIN_SERVER_RPC_STORE_SERVICE_H_

#include "proto/store.grpc.pb.h"
#include "server/generation/fence.h"
#include "server/store/key_value_store.h"

namespace coxswain::server {

// coxswain.v1.Store over gRPC: decodes, validates the fence, calls the store,
// encodes. Waiting calls are stored callbacks; a client that goes away
// withdraws its own. Thread-safe; the pointers must outlive the gRPC server.
class StoreService final : public v1::Store::CallbackService {
 public:
  StoreService(KeyValueStore* store, const FenceValidator* validator);
  ~StoreService() override;

  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context,
                                const v1::SetRequest* request,
                                v1::SetResponse* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const v1::GetRequest* request,
                                v1::GetResponse* response) override;
  grpc::ServerUnaryReactor* Add(grpc::CallbackServerContext* context,
                                const v1::AddRequest* request,
                                v1::AddResponse* response) override;
  grpc::ServerUnaryReactor* CompareSet(
      grpc::CallbackServerContext* context,
      const v1::CompareSetRequest* request,
      v1::CompareSetResponse* response) override;
  grpc::ServerUnaryReactor* Wait(grpc::CallbackServerContext* context,
                                 const v1::WaitRequest* request,
                                 v1::WaitResponse* response) override;
  grpc::ServerUnaryReactor* DeleteKey(grpc::CallbackServerContext* context,
                                      const v1::DeleteKeyRequest* request,
                                      v1::DeleteKeyResponse* response) override;
  grpc::ServerUnaryReactor* CountKeys(grpc::CallbackServerContext* context,
                                      const v1::CountKeysRequest* request,
                                      v1::CountKeysResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchEvent>* Watch(
      grpc::CallbackServerContext* context,
      const v1::WatchRequest* request) override;

 private:
  KeyValueStore* const store_;
  const FenceValidator* const validator_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_STORE_SERVICE_H_
