#ifndef COXSWAIN_CLIENT_COMM_CHANNEL_BOOK_H_
#define COXSWAIN_CLIENT_COMM_CHANNEL_BOOK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/channel.h"
#include "client/device/tensor.h"

namespace coxswain {

// One end of a channel, as this rank and its peer have opened it.
struct ChannelEnd {
  virtual ~ChannelEnd() = default;

  int peer = 0;
  uint32_t tag = 0;
  bool sends = false;
  bool opened = false;    // here
  bool answered = false;  // the peer has opened its end
  bool closed = false;    // here
  int64_t slots = 0;
  int64_t slot_bytes = 0;
  // What the peer has.
  int64_t their_slots = 0;
  int64_t their_bytes = 0;
  absl::Status ended;  // why nothing more comes, or can be sent

  bool matches() const {
    return answered && their_slots == slots && their_bytes == slot_bytes;
  }
};

// The ends of channels that this rank has opened, or a peer for it: what back
// ends with channels have in common. Keeps the promises of
// client/comm/channel.h about tags and unopened ends.
//
// Threading: none; its user has a lock.
class ChannelBook {
 public:
  using Make = std::function<std::unique_ptr<ChannelEnd>()>;

  // `name` is of the communicator; `make` returns an end of the user's type.
  ChannelBook(int rank, std::string name, Make make);

  // Opens an end here. Fails as Communicator::OpenSender, and once it has been
  // stopped; then nothing has changed.
  absl::StatusOr<ChannelEnd*> Open(const ChannelOptions& options, bool sends);
  // Notes that the peer has opened the other end. Fails with INVALID_ARGUMENT
  // if it had, and with RESOURCE_EXHAUSTED if more than kMaxUnopenedChannels of
  // its ends are not open here: the peer counts as broken then.
  absl::StatusOr<ChannelEnd*> Answer(int peer, uint32_t tag, bool sends,
                                     int64_t slots, int64_t slot_bytes);
  // Returns null if there is none.
  ChannelEnd* Find(int peer, uint32_t tag, bool sends) const;

  // A peer has ended: so have its channels. Returns false if it was known.
  bool Lose(int peer, const absl::Status& why);
  // Returns false if it was stopped before; the first reason stays.
  bool Stop(const absl::Status& why);
  const absl::Status& stopped() const { return stopped_; }

  // Returns what a wait at this end comes to: OK if it is `ready`, an error of
  // its end or the communicator's otherwise; nothing while it may go on.
  std::optional<absl::Status> Outcome(const ChannelEnd& end, bool ready) const;
  // The error of a wait that was too long; `late` is what the peer did not do.
  absl::Status Late(const ChannelEnd& end, const char* late,
                    absl::Duration timeout) const;
  // The error of a block that does not fit the end's slots; OK for others.
  absl::Status CheckFits(const ChannelEnd& end, const Span& block) const;
  // The error of a receive that states another block than `count` x `dtype`.
  absl::Status CheckIs(const ChannelEnd& end, const Span& block, int64_t count,
                       DType dtype) const;
  std::string NameOf(const ChannelEnd& end) const;

  // The error of a frame that a peer that works does not send.
  static absl::Status OutOfPlace();

  // Calls `visit` with each end of the peer; of all if that is negative.
  template <typename Visit>
  void ForEach(int peer, Visit visit) const {
    for (const auto& [key, end] : ends_) {
      if (peer < 0 || end->peer == peer) visit(*end);
    }
  }

 private:
  using Key = std::tuple<int, uint32_t, bool>;  // peer, tag, whether it sends

  ChannelEnd& EndOf(int peer, uint32_t tag, bool sends);
  // Compares what both have opened.
  void Match(ChannelEnd* end) const;

  const int rank_;
  const std::string name_;
  const Make make_;
  absl::Status stopped_;
  std::map<int, absl::Status> lost_;
  // Ends of a peer that this rank has not opened.
  std::map<int, int> unanswered_;
  // Ends of this rank that a peer has not opened, as far as it has sent.
  std::map<int, int> unheard_;
  std::map<Key, std::unique_ptr<ChannelEnd>> ends_;
};

// The ends as a back end gives them out. `Channels` has Send, Drain, Receive
// and Close of its type `End`, and outlives them.
template <typename Channels, typename End>
class BookedSender : public ChannelSender {
 public:
  BookedSender(Channels* channels, End* end)
      : channels_(*channels), end_(end) {}
  ~BookedSender() override { channels_.Close(end_); }

  absl::Status Send(const Span& block, absl::Duration timeout) override {
    return channels_.Send(end_, block, timeout);
  }
  absl::Status Drain(absl::Duration timeout) override {
    return channels_.Drain(end_, timeout);
  }

 private:
  Channels& channels_;
  End* const end_;
};

template <typename Channels, typename End>
class BookedReceiver : public ChannelReceiver {
 public:
  BookedReceiver(Channels* channels, End* end)
      : channels_(*channels), end_(end) {}
  ~BookedReceiver() override { channels_.Close(end_); }

  absl::Status Receive(const Span& block, absl::Duration timeout) override {
    return channels_.Receive(end_, block, timeout);
  }

 private:
  Channels& channels_;
  End* const end_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_CHANNEL_BOOK_H_
