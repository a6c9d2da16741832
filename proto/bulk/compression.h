#ifndef COXSWAIN_PROTO_BULK_COMPRESSION_H_
#define COXSWAIN_PROTO_BULK_COMPRESSION_H_

#include "grpcpp/server_builder.h"

namespace coxswain::bulk {

// Makes a server take no compressed messages: gRPC decompresses a message
// before it looks at its size, and a thousand bytes may become a million. With
// this it decompresses nothing and compresses no answers, and ends each call
// that names an encoding with UNIMPLEMENTED, before its message is read. A
// message with the compressed flag of a call that names none is what gRPC takes
// it for: not compressed.
//
// Every server of this project calls it.
void RefuseCompression(grpc::ServerBuilder* builder);

}  // namespace coxswain::bulk

#endif  // COXSWAIN_PROTO_BULK_COMPRESSION_H_
