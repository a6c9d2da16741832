#ifndef COXSWAIN_TRANSPORT_BULK_CHANNEL_H_
#define COXSWAIN_TRANSPORT_BULK_CHANNEL_H_

#include "grpcpp/support/channel_arguments.h"

// How HTTP/2 carries bulk streams, the same on both ends. What a sender may
// have under way is what its receiver said, so both say it.
namespace coxswain::bulk {

// What a receiver lets come of a stream before anybody reads it: the next chunk
// while one is being dealt with, and a little more for what frames it. Fixed,
// because gRPC's own guess grows to several MiB for each stream, and this is
// what a coordinator holds for every upload.
inline constexpr int kWindowBytes = (1 << 20) + (64 << 10);

// A chunk in one frame, instead of 64. Other streams of the connection wait for
// the end of a frame: a millisecond at 1 GB/s.
inline constexpr int kFrameBytes = (1 << 20) + (1 << 10);

// Says both through `set(name, value)`: ServerBuilder::AddChannelArgument or
// ChannelArguments::SetInt.
template <typename Set>
void ConfigureBulkChannel(const Set& set) {
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
}

}  // namespace coxswain::bulk

#endif  // COXSWAIN_TRANSPORT_BULK_CHANNEL_H_
