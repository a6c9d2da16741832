#ifndef COXSWAIN_SERVER_RPC_PARAMETER_SERVICE_H_
#define COXSWAIN_SERVER_RPC_PARAMETER_SERVICE_H_

#include "proto/parameter.grpc.pb.h"
#include "server/generation/fence.h"
#include "server/options/options.h"
#include "server/parameter/parameter_store.h"

namespace coxswain::server {

// coxswain.v1.Parameter over gRPC. The Exchange stream sees messages as they
// lie in gRPC's buffers (transport/chunk_codec), and lends it the chunks that
// it sends to many ranks. Sums are formed on gRPC's callback threads.
// Thread-safe; the pointers must outlive the gRPC server.
class ParameterService final
    : public v1::Parameter::WithRawCallbackMethod_Exchange<
          v1::Parameter::Service> {
 public:
  ParameterService(const RpcOptions& options, ParameterStore* parameters,
                   const FenceValidator* validator);
  ~ParameterService() override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override;

 private:
  const RpcOptions options_;
  ParameterStore* const parameters_;
  const FenceValidator* const validator_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_PARAMETER_SERVICE_H_
