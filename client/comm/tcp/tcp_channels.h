#ifndef COXSWAIN_CLIENT_COMM_TCP_TCP_CHANNELS_H_
#define COXSWAIN_CLIENT_COMM_TCP_TCP_CHANNELS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/comm/channel.h"
#include "client/comm/channel_book.h"
#include "client/comm/collective_header.h"
#include "client/comm/tcp/control_stream.h"

namespace coxswain {

// The ends of channels that this rank has opened, or a peer for it, over the
// control connections.
//
// Each end sends kOpen with its slots once, and no block travels before both
// have: a sender knows then that the receiver has as many slots free as itself.
// Block i of a channel goes into slot i modulo their number, on both ends. The
// receiver sends how many blocks it has taken in all (kFreed), where one that
// is not written yet gives way to the next, and the sender is never further
// ahead than there are slots; a count of blocks that are still being written is
// refused. kClose ends it from either end. tests/simulation/slots.pml has this
// as a model that is checked exhaustively.
//
// Threading: thread-safe. What TcpMessages calls may hold the lock of its
// connections; this class sends without its own.
class TcpChannels {
 public:
  // Sends a frame, and `bytes`, which `memory` keeps. It is released once they
  // are written, or not read any more, in the order of the frames, and before
  // Take gets what the peer answers.
  using SendFrame =
      std::function<void(int peer, const ControlFrame& frame, const char* bytes,
                         std::shared_ptr<char> memory)>;
  // What still comes for this memory is thrown away.
  using Discard =
      std::function<void(int peer, const char* memory, int64_t bytes)>;

  // `name` is of the communicator.
  TcpChannels(int rank, std::string name, SendFrame send, Discard discard);

  // Do not wait for the peer. The options are valid. RESOURCE_EXHAUSTED if
  // there is no memory, or the peer has not opened kMaxUnopenedChannels others;
  // INVALID_ARGUMENT for a tag that was used.
  absl::StatusOr<std::unique_ptr<ChannelSender>> OpenSender(
      const ChannelOptions& options);
  absl::StatusOr<std::unique_ptr<ChannelReceiver>> OpenReceiver(
      const ChannelOptions& options);

  // Returns where the bytes of a kSlot go, as ControlStream::Handlers::place;
  // null for those of an end that was closed.
  absl::StatusOr<char*> Place(int peer, const ControlFrame& frame);
  // Takes kOpen, kSlot, kFreed and kClose.
  absl::Status Take(int peer, const ControlFrame& frame);
  // A peer has ended: so have its channels.
  void Lose(int peer, const absl::Status& why);
  // Ends all waits, now and later.
  void Stop(const absl::Status& why);

 private:
  template <typename Channels, typename End>
  friend class BookedSender;
  template <typename Channels, typename End>
  friend class BookedReceiver;
  // Blocks are counted from the first one on. Of a sender, `ahead` is how many
  // it has sent, and `behind` how many the receiver has taken; of a receiver,
  // how many have come and how many it has taken.
  struct End : ChannelEnd {
    std::shared_ptr<char> memory;
    std::vector<CollectiveHeader> headers;  // by slot, of a receiver
    uint64_t ahead = 0;
    uint64_t behind = 0;
    // Of a sender: blocks whose slots are not read any more.
    std::shared_ptr<std::atomic<uint64_t>> written =
        std::make_shared<std::atomic<uint64_t>>(0);
    CondVar changed;

    char* slot(uint64_t block) const {
      return memory.get() + static_cast<int64_t>(SlotOf(block)) * slot_bytes;
    }
    size_t SlotOf(uint64_t block) const {
      return static_cast<size_t>(block % static_cast<uint64_t>(slots));
    }
    bool full() const { return ahead - behind >= static_cast<uint64_t>(slots); }
  };

  absl::StatusOr<End*> Open(const ChannelOptions& options, bool sends);
  absl::Status Send(End* end, const Span& block, absl::Duration timeout);
  absl::Status Drain(End* end, absl::Duration timeout);
  absl::Status Receive(End* end, const Span& block, absl::Duration timeout);
  void Close(End* end);
  // Waits for `ready`, or the end's; OK only if it is ready.
  template <typename Ready>
  absl::Status Await(End* end, absl::Duration timeout, const char* late,
                     Ready ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeOpen(int peer, const ControlFrame& frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes the waits of a peer's ends; of all if it is negative.
  void Wake(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the end that a frame is for; null if there is none.
  End* Find(int peer, const ControlFrame& frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool IsBlock(const End& end, const ControlFrame& frame);
  ControlFrame FrameOf(const End& end, ControlFrame::Kind kind) const;

  const int rank_;
  const SendFrame send_;
  const Discard discard_;
  Mutex mutex_;
  ChannelBook book_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_TCP_CHANNELS_H_
