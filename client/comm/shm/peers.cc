#include "client/comm/shm/peers.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "client/comm/shm/unix_socket.h"

namespace coxswain {
namespace {

// A frame's fixed part, as it travels between processes of one machine.
struct WireFrame {
  uint32_t kind;
  uint32_t tag;
  uint64_t id;
  int64_t bytes;
};
constexpr size_t kMaxWire = sizeof(WireFrame) + PeerFrame::kMaxText;
// How long a wait for a peer goes on before it looks whether it was cancelled.
constexpr absl::Duration kLook = absl::Milliseconds(5);

std::string Encode(const PeerFrame& frame) {
  const WireFrame wire = {static_cast<uint32_t>(frame.kind), frame.tag,
                          frame.id, frame.bytes};
  std::string bytes(sizeof(wire), '\0');
  std::memcpy(bytes.data(), &wire, sizeof(wire));
  return bytes + frame.text.substr(0, PeerFrame::kMaxText);
}

absl::StatusOr<PeerFrame> Decode(absl::string_view bytes) {
  WireFrame wire;
  if (bytes.size() < sizeof(wire)) {
    return absl::InvalidArgumentError("its message was cut off");
  }
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.kind > static_cast<uint32_t>(PeerFrame::Kind::kCloseReceiver) ||
      wire.bytes < 0) {
    return absl::InvalidArgumentError("its message is malformed");
  }
  PeerFrame frame;
  frame.kind = static_cast<PeerFrame::Kind>(wire.kind);
  frame.tag = wire.tag;
  frame.id = wire.id;
  frame.bytes = wire.bytes;
  frame.text = std::string(bytes.substr(sizeof(wire)));
  return frame;
}

absl::Duration ConnectTimeout(const CommunicatorOptions& options) {
  return std::min(options.timeout, options.connect_timeout);
}

std::string Key(const CommunicatorOptions& options, int rank) {
  return absl::StrCat("shm/", options.id, "/", rank);
}

// What is left of the time to connect, or why it is over.
class Deadline {
 public:
  Deadline(const CommunicatorOptions& options, absl::Time end)
      : cancel_(options.cancel), end_(end) {}

  absl::StatusOr<absl::Duration> Left() const {
    if (cancel_ != nullptr) COXSWAIN_RETURN_IF_ERROR(cancel_->status());
    return std::max(end_ - Clock::Real()->Now(), absl::ZeroDuration());
  }

 private:
  CancelSignal* const cancel_;
  const absl::Time end_;
};

absl::StatusOr<std::string> Lookup(const CommunicatorOptions& options, int peer,
                                   const Deadline& deadline) {
  while (true) {
    COXSWAIN_ASSIGN_OR_RETURN(const absl::Duration left, deadline.Left());
    auto value = options.store->Get(Key(options, peer),
                                    std::min(left, absl::Seconds(1)));
    if (value.ok() || !absl::IsDeadlineExceeded(value.status())) return value;
    if (left > absl::ZeroDuration()) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", peer, " did not arrive within ",
                     absl::FormatDuration(ConnectTimeout(options))));
  }
}

// Receives a message of a process that may have stopped, or be hostile.
absl::StatusOr<LocalMessage> Receive(const UniqueFd& socket,
                                     const Deadline& deadline) {
  while (true) {
    COXSWAIN_ASSIGN_OR_RETURN(const absl::Duration left, deadline.Left());
    auto message = ReceiveMessage(socket, kMaxWire, std::min(left, kLook));
    if (message.ok() || !absl::IsDeadlineExceeded(message.status()) ||
        left == absl::ZeroDuration()) {
      return message;
    }
  }
}

// A connection with the rank at its other end.
struct Accepted {
  int peer = 0;
  UniqueFd socket;
};

absl::StatusOr<Accepted> Accept(const CommunicatorOptions& options,
                                const UniqueFd& listener,
                                const Deadline& deadline) {
  while (true) {
    COXSWAIN_ASSIGN_OR_RETURN(const absl::Duration left, deadline.Left());
    auto socket = AcceptLocally(listener, std::min(left, kLook));
    if (!socket.ok()) {
      if (absl::IsDeadlineExceeded(socket.status()) &&
          left > absl::ZeroDuration()) {
        continue;
      }
      return socket.status();
    }
    // A connection of another user is dropped; those of the job will come.
    if (!CheckSameUser(*socket).ok()) continue;
    const auto hello = Receive(*socket, deadline);
    if (!hello.ok()) continue;
    const auto frame = Decode(hello->bytes);
    if (!frame.ok() || frame->kind != PeerFrame::Kind::kHello ||
        frame->id >= static_cast<uint64_t>(options.size)) {
      continue;
    }
    return Accepted{static_cast<int>(frame->id), *std::move(socket)};
  }
}

absl::Status OfPeer(int peer, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("rank ", peer, ": ", status.message()));
}

// Connects to a peer, and sends this rank.
absl::StatusOr<UniqueFd> Call(int self, const std::string& address) {
  COXSWAIN_ASSIGN_OR_RETURN(UniqueFd socket, ConnectLocally(address));
  COXSWAIN_RETURN_IF_ERROR(CheckSameUser(socket));
  PeerFrame hello;
  hello.id = static_cast<uint64_t>(self);
  COXSWAIN_RETURN_IF_ERROR(SendMessage(socket, Encode(hello), -1));
  return socket;
}

}  // namespace

Peers::Peers(const CommunicatorOptions& options)
    : rank_(options.rank),
      connected_by_(Clock::Real()->Now() + ConnectTimeout(options)),
      sockets_(static_cast<size_t>(options.size)),
      wake_(eventfd(0, EFD_CLOEXEC)) {}

absl::StatusOr<std::unique_ptr<Peers>> Peers::Connect(
    const CommunicatorOptions& options) {
  std::unique_ptr<Peers> peers(new Peers(options));
  if (!peers->wake_.valid()) {
    return absl::ResourceExhaustedError("no descriptors are left");
  }
  const absl::Status status = peers->Meet(options);
  if (status.ok()) return peers;
  return absl::Status(
      status.code(),
      absl::StrCat("connecting rank ", options.rank, " of ", options.size,
                   " of communicator '", options.id,
                   "' on this host: ", status.message()));
}

absl::Status Peers::Meet(const CommunicatorOptions& options) {
  const Deadline deadline(options, connected_by_);
  RandomSource* const random = RandomSource::System();
  const std::string name = absl::StrCat("coxswain-", absl::Hex(random->Next()),
                                        absl::Hex(random->Next()));
  COXSWAIN_ASSIGN_OR_RETURN(const UniqueFd listener, ListenLocally(name));
  COXSWAIN_RETURN_IF_ERROR(options.store->Set(Key(options, rank_), name));
  // Lower ranks are called, higher ones call.
  for (int peer = 0; peer < rank_; ++peer) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::string address,
                              Lookup(options, peer, deadline));
    absl::StatusOr<UniqueFd> socket = Call(rank_, address);
    if (!socket.ok()) return OfPeer(peer, socket.status());
    sockets_[static_cast<size_t>(peer)] = *std::move(socket);
  }
  for (int missing = options.size - 1 - rank_; missing > 0;) {
    absl::StatusOr<Accepted> accepted = Accept(options, listener, deadline);
    if (absl::IsDeadlineExceeded(accepted.status())) {
      std::vector<int> late;
      for (int peer = rank_ + 1; peer < options.size; ++peer) {
        if (!sockets_[static_cast<size_t>(peer)].valid()) late.push_back(peer);
      }
      return absl::DeadlineExceededError(
          absl::StrCat("not all ranks arrived within ",
                       absl::FormatDuration(ConnectTimeout(options)),
                       "; missing: rank ", absl::StrJoin(late, ", rank ")));
    }
    COXSWAIN_RETURN_IF_ERROR(accepted.status());
    UniqueFd& socket = sockets_[static_cast<size_t>(accepted->peer)];
    if (accepted->peer <= rank_ || socket.valid()) continue;
    socket = std::move(accepted->socket);
    --missing;
  }
  return absl::OkStatus();
}

absl::StatusOr<Peers::Received> Peers::ReceiveFirst(
    const CommunicatorOptions& options, int peer) {
  auto message = Receive(sockets_[static_cast<size_t>(peer)],
                         Deadline(options, connected_by_));
  if (!message.ok()) return OfPeer(peer, message.status());
  COXSWAIN_ASSIGN_OR_RETURN(PeerFrame frame, Decode(message->bytes));
  return Received{std::move(frame), std::move(message->fd)};
}

void Peers::Start(Handlers handlers) {
  handlers_ = std::move(handlers);
  thread_ = std::thread([this] { Watch(); });
}

Peers::~Peers() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

absl::Status Peers::Send(int peer, const PeerFrame& frame, int fd) {
  return OfPeer(peer, SendMessage(sockets_[static_cast<size_t>(peer)],
                                  Encode(frame), fd));
}

void Peers::AnnounceEnd(absl::string_view why) {
  PeerFrame frame;
  frame.kind = PeerFrame::Kind::kAbort;
  frame.text = std::string(why);
  for (const UniqueFd& socket : sockets_) {
    if (!socket.valid()) continue;
    // A peer that does not read it sees the end of the connection.
    SendMessageNow(socket, Encode(frame)).IgnoreError();
    EndSending(socket);
  }
}

void Peers::Watch() {
  std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
  std::vector<int> ranks = {rank_};
  for (size_t peer = 0; peer < sockets_.size(); ++peer) {
    if (!sockets_[peer].valid()) continue;
    entries.push_back({sockets_[peer].get(), POLLIN, 0});
    ranks.push_back(static_cast<int>(peer));
  }
  while (true) {
    if (poll(entries.data(), entries.size(), -1) < 0) continue;  // EINTR
    if (entries[0].revents != 0) return;
    for (size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      // A negative descriptor is passed over from then on.
      if (!Read(ranks[i])) entries[i].fd = -1;
    }
  }
}

bool Peers::Read(int peer) {
  auto message = ReceiveMessage(sockets_[static_cast<size_t>(peer)], kMaxWire,
                                absl::ZeroDuration());
  absl::StatusOr<PeerFrame> frame =
      message.ok() ? Decode(message->bytes)
                   : absl::StatusOr<PeerFrame>(message.status());
  if (frame.ok()) {
    handlers_.on_frame(peer, *frame, std::move(message->fd));
    return true;
  }
  handlers_.on_lost(peer, absl::UnavailableError(absl::StrCat(
                              "the connection to rank ", peer,
                              " was lost: ", frame.status().message())));
  return false;
}

}  // namespace coxswain
