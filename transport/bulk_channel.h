#ifndef COXSWAIN_TRANSPORT_BULK_CHANNEL_H_
#define COXSWAIN_TRANSPORT_BULK_CHANNEL_H_

#include "grpcpp/support/channel_arguments.h"

// The settings of HTTP/2 for bulk streams, the same on both ends. What a sender
// may have in flight is what its receiver has announced, so both set it.
namespace coxswain::bulk {

// What a receiver buffers of a stream before it is read: the next chunk while
// one is being handled, and a little more for its framing. Fixed, because
// gRPC's own estimate grows to several MiB for each stream, and a coordinator
// holds this for every upload.
inline constexpr int kWindowBytes = (1 << 20) + (64 << 10);

// A chunk in one frame, instead of 64. Other streams of the connection wait for
// the end of a frame: a millisecond at 1 GB/s.
inline constexpr int kFrameBytes = (1 << 20) + (1 << 10);

// Sets both by `set(name, value)`: ServerBuilder::AddChannelArgument or
// ChannelArguments::SetInt.
template <typename Set>
void ConfigureBulkChannel(const Set& set) {
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
}

}  // namespace coxswain::bulk

#endif  // COXSWAIN_TRANSPORT_BULK_CHANNEL_H_
