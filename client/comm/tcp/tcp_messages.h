#ifndef COXSWAIN_CLIENT_COMM_TCP_TCP_MESSAGES_H_
#define COXSWAIN_CLIENT_COMM_TCP_TCP_MESSAGES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/comm/back_end.h"
#include "client/comm/collective_header.h"
#include "client/comm/tcp/control_stream.h"
#include "client/comm/tcp/peer_ends.h"
#include "client/comm/tcp/tcp_channels.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/comm/tcp/tcp_stream.h"
#include "client/device/tensor.h"

namespace coxswain {

// Messages between two ranks, over the control connections, which channels use
// too, and how peers end.
//
// A message is announced with its header. A short one comes with the
// announcement; another is sent once the receiver has named its place, into
// that place, so a peer without receives takes little memory here: at
// most kMaxAnnounced announcements, of at most ControlFrame::kMaxInline bytes.
// It has ended when its receiver has confirmed it.
//
// Threading: thread-safe. One thread of this object waits for all connections.
class TcpMessages {
 public:
  // A message on its way. Its user waits for it, and reads nothing of it.
  struct Message {
    bool sends = false;
    int peer = 0;
    uint32_t tag = 0;
    uint64_t id = 0;  // of one that is sent; of one received once it has come
    Span span;
    CollectiveHeader header;
    bool cleared = false;  // of one that is sent: the peer has a place for it
    bool done = false;
    absl::Status status;
    CondVar changed;
  };
  using MessagePtr = std::shared_ptr<Message>;
  static constexpr int kMaxAnnounced = 256;  // of one peer, not yet received
  // Of one peer, which it has not read.
  static constexpr int kMaxAnswers = 1 << 16;
  // Of the back end's own messages; users have all others.
  static constexpr uint32_t kOwnTag = 0xffffffffu;

  // Streams by rank; none for this one. `name` is of the communicator. `ends`
  // outlives this object, and is notified of how peers end.
  TcpMessages(std::vector<TcpStream> streams, int rank, std::string name,
              std::shared_ptr<ByteCounter> sent, PeerEnds* ends);
  ~TcpMessages();

  // Begins to wait for the peers.
  absl::Status Start();

  // Messages of one (peer, tag) pair up in the order in which they are posted.
  MessagePtr PostSend(int peer, uint32_t tag, const Span& span);
  MessagePtr PostReceive(int peer, uint32_t tag, const Span& span);
  // Waits for its end. The memory is not used any more then. ABORTED after
  // Stop, UNAVAILABLE if the peer has ended, DEADLINE_EXCEEDED,
  // INVALID_ARGUMENT where the ends differ.
  absl::Status Await(const MessagePtr& message, absl::Duration timeout);

  // Takes what a peer has sent already, on the calling thread, up to
  // kLookBytes: what it sent before it closed another connection is known after
  // that.
  void Look(int peer) { Serve(peer, kLookBytes); }
  // More than a system keeps of one connection.
  static constexpr int64_t kLookBytes = 64 << 20;

  // Ends all waits, now and later, those of channels too, and sends the peers
  // the reason, ahead of messages that have not begun.
  void Stop(absl::string_view why);

  TcpChannels& channels() { return slots_; }

 private:
  using Key = std::pair<int, uint64_t>;  // of a message, by its sender
  struct Announced {
    uint64_t id = 0;
    CollectiveHeader header;
    std::string data;
  };
  struct Channel {  // of a (peer, tag)
    std::deque<MessagePtr> receives;
    std::deque<Announced> announced;
  };
  struct Peer {
    explicit Peer(TcpStream opened) : stream(std::move(opened)) {}
    ControlStream stream;
    bool lost = false;
    absl::Status why;
    int announced = 0;
    std::string text;  // that is being received
    uint64_t next_id = 1;
    uint32_t events = 0;  // waited for
  };

  MessagePtr NewMessage(bool sends, int peer, uint32_t tag, const Span& span);
  void Watch();
  // Reads so many bytes at most, and writes what is due.
  void Serve(int peer, int64_t bytes);
  bool HasOutput();
  absl::StatusOr<char*> Place(int peer, const ControlFrame& frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Take(int peer, const ControlFrame& frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeAnnounced(int peer, const ControlFrame& frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Pairs up what can be.
  void Match(int peer, uint32_t tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Receive(const MessagePtr& message, const Announced& announced)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendFrame(int peer, ControlFrame::Kind kind, const Message& message,
                 const char* bytes = nullptr, int64_t size = 0)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendOfChannel(int peer, const ControlFrame& frame, const char* bytes,
                     std::shared_ptr<char> memory);
  // Ends the channels of a peer that is lost.
  void LoseChannels(int peer);
  void Flush(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(Message* message, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Compare(const Message& message, const CollectiveHeader& theirs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends all messages of a peer; PeerEnds::Notify is due once the lock is free.
  // `announced` as for PeerEnds::Record.
  void Lose(int peer, const absl::Status& why, bool announced)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives a message up.
  void Forget(const MessagePtr& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateEvents(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Peer& PeerOf(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return *peers_[static_cast<size_t>(rank)];
  }

  const int rank_;
  const std::string name_;
  const std::shared_ptr<ByteCounter> sent_;
  PeerEnds& ends_;
  const WakeFd wake_;
  UniqueFd epoll_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Peer>> peers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<int, uint32_t>, Channel> channels_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, MessagePtr> sends_ ABSL_GUARDED_BY(mutex_);  // by receiver
  std::map<Key, MessagePtr> arriving_ ABSL_GUARDED_BY(mutex_);
  TcpChannels slots_;
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_TCP_MESSAGES_H_
