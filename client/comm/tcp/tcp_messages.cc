#include "client/comm/tcp/tcp_messages.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/peer_text.h"

namespace coxswain {
namespace {

using Kind = ControlFrame::Kind;

// In the place of a rank: the descriptor that ends the wait.
constexpr uint32_t kWakeMark = 0xffffffffu;

// How long a communicator that goes waits for peers to take its last reason.
constexpr absl::Duration kLastWords = absl::Seconds(1);

}  // namespace

TcpMessages::TcpMessages(std::vector<TcpStream> streams, int rank,
                         std::string name, std::shared_ptr<ByteCounter> sent,
                         PeerEnds* ends)
    : rank_(rank),
      name_(std::move(name)),
      sent_(std::move(sent)),
      ends_(*ends),
      slots_(
          rank, name_,
          [this](int peer, const ControlFrame& frame, const char* bytes,
                 std::shared_ptr<char> memory) {
            SendOfChannel(peer, frame, bytes, std::move(memory));
          },
          [this](int peer, const char* memory, int64_t bytes) {
            MutexLock lock(&mutex_);
            PeerOf(peer).stream.Discard(memory, bytes);
          }) {
  MutexLock lock(&mutex_);
  for (TcpStream& stream : streams) {
    peers_.push_back(std::make_unique<Peer>(std::move(stream)));
  }
}

absl::Status TcpMessages::Start() {
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u32 = kWakeMark;
  if (!epoll_.valid() || !wake_.valid() ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return absl::ResourceExhaustedError("no descriptors are left");
  }
  MutexLock lock(&mutex_);
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    UpdateEvents(static_cast<int>(peer));
  }
  thread_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

TcpMessages::~TcpMessages() {
  wake_.Raise();
  if (thread_.joinable()) thread_.join();
}

void TcpMessages::UpdateEvents(int rank) {
  Peer& peer = PeerOf(rank);
  uint32_t events = 0;
  if (!peer.lost) events = EPOLLIN | (peer.stream.has_output() ? EPOLLOUT : 0u);
  if (events == peer.events || !epoll_.valid()) return;
  epoll_event event = {};
  event.events = events;
  event.data.u32 = static_cast<uint32_t>(rank);
  const int what = events == 0        ? EPOLL_CTL_DEL
                   : peer.events == 0 ? EPOLL_CTL_ADD
                                      : EPOLL_CTL_MOD;
  epoll_ctl(epoll_.get(), what, peer.stream.fd(), &event);
  peer.events = events;
}

void TcpMessages::Watch() {
  std::array<epoll_event, 64> events;
  absl::Time end = absl::InfiniteFuture();
  while (end == absl::InfiniteFuture() ||
         (HasOutput() && Clock::Real()->Now() < end)) {
    const int ready = epoll_wait(
        epoll_.get(), events.data(), static_cast<int>(events.size()),
        end == absl::InfiniteFuture()
            ? -1
            : static_cast<int>(absl::ToInt64Milliseconds(
                  std::max(end - Clock::Real()->Now(), absl::ZeroDuration()))));
    for (int i = 0; i < ready; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.u32 == kWakeMark) {
        wake_.Clear();
        end = Clock::Real()->Now() + kLastWords;
        continue;
      }
      Serve(static_cast<int>(event.data.u32),
            (event.events & ~uint32_t{EPOLLOUT}) != 0
                ? ControlStream::kTurnBytes
                : 0);
    }
  }
}

bool TcpMessages::HasOutput() {
  MutexLock lock(&mutex_);
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return !peer->lost && peer->stream.has_output();
  });
}

void TcpMessages::Serve(int rank, int64_t bytes) {
  bool lost = false;
  {
    MutexLock lock(&mutex_);
    Peer& peer = PeerOf(rank);
    if (peer.lost) return;
    ControlStream::Handlers handlers;
    // They are called by Read, under this lock.
    handlers.place =
        [&](const ControlFrame& frame)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { return Place(rank, frame); };
    handlers.take =
        [&](const ControlFrame& frame)
            ABSL_NO_THREAD_SAFETY_ANALYSIS { return Take(rank, frame); };
    absl::Status read;
    if (bytes > 0) read = peer.stream.Read(handlers, bytes);
    if (!read.ok() && !peer.lost) {
      Lose(rank,
           absl::UnavailableError(
               absl::StrCat("rank ", rank, " is gone: ", read.message())),
           /*announced=*/false);
    }
    lost = peer.lost;
    if (!lost) Flush(rank);
  }
  if (!lost) return;
  LoseChannels(rank);
  ends_.Notify(rank);
}

void TcpMessages::SendFrame(int rank, Kind kind, const Message& message,
                            const char* bytes, int64_t size) {
  ControlFrame frame;
  frame.kind = kind;
  frame.tag = message.tag;
  frame.id = message.id;
  frame.bytes = size;
  frame.header = message.header;
  PeerOf(rank).stream.Queue(frame, bytes);
  Flush(rank);
}

void TcpMessages::SendOfChannel(int rank, const ControlFrame& frame,
                                const char* bytes,
                                std::shared_ptr<char> memory) {
  MutexLock lock(&mutex_);
  if (PeerOf(rank).lost) return;
  PeerOf(rank).stream.Queue(frame, bytes, std::move(memory));
  Flush(rank);
}

void TcpMessages::LoseChannels(int rank) {
  absl::Status why;
  {
    MutexLock lock(&mutex_);
    why = PeerOf(rank).why;
  }
  slots_.Lose(rank, why);
}

void TcpMessages::Flush(int rank) {
  Peer& peer = PeerOf(rank);
  const auto sent = peer.stream.Flush();
  // What is wrong shows where the connection is read.
  if (sent.ok()) sent_->Add(*sent);
  UpdateEvents(rank);
}

TcpMessages::MessagePtr TcpMessages::NewMessage(bool sends, int peer,
                                                uint32_t tag,
                                                const Span& span) {
  auto message = std::make_shared<Message>();
  message->sends = sends;
  message->peer = peer;
  message->tag = tag;
  message->span = span;
  message->header = HeaderOf(CollectiveKind::kMessage, span, ElementOp::kSum,
                             sends ? rank_ : peer);
  return message;
}

TcpMessages::MessagePtr TcpMessages::PostSend(int peer, uint32_t tag,
                                              const Span& span) {
  MessagePtr message = NewMessage(/*sends=*/true, peer, tag, span);
  MutexLock lock(&mutex_);
  if (PeerOf(peer).lost) {
    Finish(message.get(), PeerOf(peer).why);
    return message;
  }
  message->id = PeerOf(peer).next_id++;
  sends_[{peer, message->id}] = message;
  const int64_t bytes = IsLongMessage(span) ? 0 : span.bytes();
  SendFrame(peer, Kind::kAnnounce, *message,
            bytes > 0 ? static_cast<const char*>(span.data) : nullptr, bytes);
  return message;
}

TcpMessages::MessagePtr TcpMessages::PostReceive(int peer, uint32_t tag,
                                                 const Span& span) {
  MessagePtr message = NewMessage(/*sends=*/false, peer, tag, span);
  MutexLock lock(&mutex_);
  channels_[{peer, tag}].receives.push_back(message);
  Match(peer, tag);
  if (PeerOf(peer).lost && !message->done) {
    Forget(message);
    Finish(message.get(), PeerOf(peer).why);
  }
  return message;
}

absl::Status TcpMessages::Await(const MessagePtr& message,
                                absl::Duration timeout) {
  MutexLock lock(&mutex_);
  message->changed.WaitFor(&mutex_, timeout,
                           [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                             return message->done || stopped_;
                           });
  if (message->done) return message->status;
  Forget(message);
  if (stopped_) return absl::AbortedError("stopped");
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", message->peer,
                   message->sends ? " did not receive it within "
                                  : " did not send it within ",
                   absl::FormatDuration(timeout)));
}

void TcpMessages::Finish(Message* message, absl::Status status) {
  message->done = true;
  message->status = std::move(status);
  message->changed.NotifyAll();
}

void TcpMessages::Forget(const MessagePtr& message) {
  const int rank = message->peer;
  Peer& peer = PeerOf(rank);
  if (message->sends) {
    sends_.erase({rank, message->id});
    peer.stream.Drop(message->id);
    return UpdateEvents(rank);
  }
  arriving_.erase({rank, message->id});
  peer.stream.Discard(static_cast<const char*>(message->span.data),
                      message->span.bytes());
  const auto channel = channels_.find({rank, message->tag});
  if (channel == channels_.end()) return;
  auto& receives = channel->second.receives;
  receives.erase(std::remove(receives.begin(), receives.end(), message),
                 receives.end());
}

void TcpMessages::Lose(int rank, const absl::Status& why, bool announced) {
  // Before the messages end: the first that does stops the communicator, and a
  // collective that then looks for the reason finds it.
  ends_.Record(rank, why, announced);
  Peer& peer = PeerOf(rank);
  peer.lost = true;
  peer.why = why;
  UpdateEvents(rank);
  std::vector<MessagePtr> ended;
  for (const auto* const messages : {&sends_, &arriving_}) {
    for (const auto& [key, message] : *messages) {
      if (key.first == rank) ended.push_back(message);
    }
  }
  for (const auto& [key, channel] : channels_) {
    if (key.first != rank) continue;
    ended.insert(ended.end(), channel.receives.begin(), channel.receives.end());
  }
  for (const MessagePtr& message : ended) {
    Forget(message);
    Finish(message.get(), why);
  }
}

void TcpMessages::Stop(absl::string_view why) {
  slots_.Stop(absl::AbortedError(why));
  MutexLock lock(&mutex_);
  if (stopped_) return;
  stopped_ = true;
  const std::string end_text = Shorten(why, ControlFrame::kMaxText);
  for (const auto* const messages : {&sends_, &arriving_}) {
    for (const auto& [key, message] : *messages) message->changed.NotifyAll();
  }
  for (const auto& [key, channel] : channels_) {
    for (const MessagePtr& message : channel.receives) {
      message->changed.NotifyAll();
    }
  }
  ControlFrame frame;
  frame.kind = Kind::kEnd;
  frame.bytes = static_cast<int64_t>(end_text.size());
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (rank == rank_) continue;
    // What was queued before may be what others wait for; the reason waits for
    // none of it.
    Flush(rank);
    PeerOf(rank).stream.EndWith(frame, end_text);
    Flush(rank);
  }
}

}  // namespace coxswain
