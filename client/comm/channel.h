#ifndef COXSWAIN_CLIENT_COMM_CHANNEL_H_
#define COXSWAIN_CLIENT_COMM_CHANNEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/device/tensor.h"

namespace coxswain {

// A channel leads from one rank of a communicator to another and stays, for a
// sequence of blocks, as a pipeline's stages pass them on. It has a ring of
// slots with a stated capacity, which a back end allocates when an end is
// opened, at both ends or, in memory that both see, at the sender's: a peer can
// make this rank hold no more than that, and a sender that is ahead of its
// receiver by so many blocks waits.
//
// Blocks arrive once, in the order in which they were sent. They may be of
// different types and sizes, up to that of a slot; the receiver states what it
// expects of each.
//
// An end is used by one thread at a time, and destroyed before its
// communicator; the abort, failure or end of that ends all waits. Ends of
// several channels, and both directions between two ranks, are independent.
//
// Errors of both ends:
//   INVALID_ARGUMENT    the ends were opened with different slots; or, of one
//                       call, a block that is not valid or not the one that
//                       comes. Then the call has done nothing.
//   DEADLINE_EXCEEDED   nothing became free, or arrived, within the timeout;
//                       the call has done nothing and may be repeated
//   UNAVAILABLE         the peer has closed its end, or has ended
//   ABORTED             the communicator has ended
//   INTERNAL            the peer's end does not keep to the protocol
// None of them ends the communicator.

struct ChannelOptions {
  int peer = 0;
  // A tag is used once between two ranks in each direction, for as long as the
  // communicator lives; tags of messages are others.
  uint32_t tag = 0;
  int64_t slot_bytes = 0;
  int slots = 0;
};
constexpr int kMaxChannelSlots = 1024;
constexpr int64_t kMaxChannelBytes = int64_t{1} << 30;  // of all slots
// Ends that a rank has opened and a peer has not, those included that it has
// closed: at most so many.
constexpr int kMaxUnopenedChannels = 256;

class ChannelSender {
 public:
  virtual ~ChannelSender() = default;

  // Copies the block into a slot; waits while all are full, which they are for
  // as long as the receiver has not taken their blocks.
  virtual absl::Status Send(const Span& block, absl::Duration timeout) = 0;

  // Waits until the receiver has taken all blocks. Without that, blocks may be
  // lost when the communicator ends.
  virtual absl::Status Drain(absl::Duration timeout) = 0;
};

class ChannelReceiver {
 public:
  virtual ~ChannelReceiver() = default;

  // Waits for the next block and copies it to `block`, which must be of its
  // type and size. Blocks that had arrived when the sender closed its end, or
  // ended, are received before the error.
  virtual absl::Status Receive(const Span& block, absl::Duration timeout) = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_CHANNEL_H_
