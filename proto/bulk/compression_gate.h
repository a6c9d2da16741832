#ifndef COXSWAIN_PROTO_BULK_COMPRESSION_GATE_H_
#define COXSWAIN_PROTO_BULK_COMPRESSION_GATE_H_

#include <memory>

#include "grpcpp/server_builder.h"
#include "grpcpp/support/server_interceptor.h"

namespace coxswain::bulk {

// Makes a server take no compressed messages: gRPC decompresses a message
// before it looks at its size, and a thousand bytes may become a million. With
// this it decompresses nothing and compresses no answers, and the gate that is
// returned, which must be one of the server's interceptors, ends each call that
// sends a message with the compressed flag, whatever encoding the call names,
// with UNIMPLEMENTED. Of that message the service sees an empty one.
//
// Every server of this project begins with it. The gate looks at messages
// before the gates that stand in front of it among the interceptors.
[[nodiscard]] std::unique_ptr<
    grpc::experimental::ServerInterceptorFactoryInterface>
RefuseCompression(grpc::ServerBuilder* builder);

}  // namespace coxswain::bulk

#endif  // COXSWAIN_PROTO_BULK_COMPRESSION_GATE_H_
