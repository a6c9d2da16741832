#ifndef COXSWAIN_CLIENT_COMM_SHM_SHM_CHANNELS_H_
#define COXSWAIN_CLIENT_COMM_SHM_SHM_CHANNELS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "client/comm/back_end.h"
#include "client/comm/channel.h"
#include "client/comm/channel_book.h"
#include "client/comm/shm/peers.h"
#include "client/comm/shm/segment.h"
#include "client/device/tensor.h"

namespace coxswain {

// The ends of channels between ranks of one host. A channel's slots lie in a
// segment that its sender makes when it opens its end, and that stays mapped on
// both sides; block i goes into slot i modulo their number. How many blocks
// have been sent, and how many taken, are counted in the segment, each by one
// side. A side that waits for the other's count spins for a moment, where this
// process may run on as many processors as there are ranks, and sleeps at a
// doorbell then; so a block
// costs two copies and no message. Only that an end opens or closes is sent as
// a message (PeerFrame::kOpenSender to kCloseReceiver).
//
// A peer is a process of the same user, and may be broken: what it counts and
// what it states of a block is checked before it is used.
//
// Threading: thread-safe.
class ShmChannels {
 public:
  using SendFrame =
      std::function<absl::Status(int peer, const PeerFrame& frame, int fd)>;

  // `name` is of the communicator, which has `size` ranks; `moved` counts the
  // blocks' bytes.
  ShmChannels(int rank, int size, std::string name, SendFrame send,
              std::shared_ptr<ByteCounter> moved);

  // As Communicator::OpenSender; the options are valid.
  absl::StatusOr<std::unique_ptr<ChannelSender>> OpenSender(
      const ChannelOptions& options);
  absl::StatusOr<std::unique_ptr<ChannelReceiver>> OpenReceiver(
      const ChannelOptions& options);

  static bool Takes(PeerFrame::Kind kind);
  // Takes a frame of such a kind. Fails if it is not valid: the peer counts as
  // broken then.
  absl::Status Take(int peer, const PeerFrame& frame, UniqueFd fd);
  // A peer has ended: so have its channels.
  void Lose(int peer, const absl::Status& why);
  // Ends all waits, now and later.
  void Stop(const absl::Status& why);

 private:
  class Slots;
  template <typename Channels, typename End>
  friend class BookedSender;
  template <typename Channels, typename End>
  friend class BookedReceiver;
  struct End;

  absl::StatusOr<End*> Open(const ChannelOptions& options, bool sends);
  // Maps what the peer's sender offers.
  static absl::StatusOr<std::shared_ptr<Slots>> MapSlots(const PeerFrame& frame,
                                                         UniqueFd fd);
  absl::Status Send(End* end, const Span& block, absl::Duration timeout);
  absl::Status Drain(End* end, absl::Duration timeout);
  absl::Status Receive(End* end, const Span& block, absl::Duration timeout);
  void Close(End* end);
  // Waits until both have opened it alike; returns what they share.
  absl::StatusOr<std::shared_ptr<Slots>> AwaitOpened(End* end, absl::Time until,
                                                     absl::Duration timeout);
  // Waits for `ready`, which reads it; OK only if it is.
  template <typename Ready>
  absl::Status Await(End* end, Slots* memory, absl::Time until,
                     absl::Duration timeout, const char* late, Ready ready);
  // Wakes the waits of a peer's ends; of all if it is negative.
  void Wake(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a channel in whose memory the peer has written what cannot be.
  absl::Status Break(End* end);

  const SendFrame send_;
  const std::shared_ptr<ByteCounter> moved_;
  const absl::Duration spin_;
  Mutex mutex_;
  ChannelBook book_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_SHM_CHANNELS_H_
