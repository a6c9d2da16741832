#include "proto/bulk/compression.h"

#include "grpc/compression.h"

namespace coxswain::bulk {

void RefuseCompression(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // A server that compresses says that it takes compressed messages as well.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
}

}  // namespace coxswain::bulk
