#ifndef COXSWAIN_CLIENT_COMM_SHM_PEERS_H_
#define COXSWAIN_CLIENT_COMM_SHM_PEERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "client/comm/communicator.h"

namespace coxswain {

// The messages among ranks of one host beside the shared memory. Some carry a
// descriptor of a segment.
struct PeerFrame {
  enum class Kind : uint32_t {
    kHello,    // the first one; `id` is the sender's rank
    kSegment,  // a segment of `bytes`, known as `id` from now on
    kForget,   // the segment `id` has ended
    kMessage,  // `bytes` for a receive with this `tag`; the message is `id`
    kTaken,    // the message `id` has been received
    kAbort,    // the sender aborts; `text` has the reason
    // Of the channel with this `tag`: an end has been opened, with `id` slots
    // of `bytes` (and of a sender the segment that they lie in), or closed.
    kOpenSender,
    kOpenReceiver,
    kCloseSender,
    kCloseReceiver,
  };
  Kind kind = Kind::kHello;
  uint32_t tag = 0;
  uint64_t id = 0;
  int64_t bytes = 0;
  std::string text;  // at most kMaxText, cut off beyond
  static constexpr size_t kMaxText = 1024;
};

// A connection from each rank of a host to each other one: over Unix sockets
// without a name in any file system, and only between processes of one user,
// which the kernel verifies. Their names are random, but no secret: the job's
// store has them, and the kernel lists them. Passes descriptors, and reports at
// once that a process has ended.
//
// Threading: Send is thread-safe. The handlers run on one thread of this
// object, and must not block for long.
class Peers {
 public:
  struct Handlers {
    std::function<void(int peer, const PeerFrame& frame, UniqueFd fd)> on_frame;
    // The peer's process has ended or closed the connection; the status has the
    // reason. Once per peer.
    std::function<void(int peer, const absl::Status& why)> on_lost;
  };

  // Connects all ranks of options.id; errors as ConnectTcp's.
  static absl::StatusOr<std::unique_ptr<Peers>> Connect(
      const CommunicatorOptions& options);
  // Closes the connections; no handler is called after it.
  ~Peers();

  // The first frame of a peer, which has a descriptor. Received before Start,
  // as a part of connecting: with its deadline and its options.cancel.
  struct Received {
    PeerFrame frame;
    UniqueFd fd;
  };
  absl::StatusOr<Received> ReceiveFirst(const CommunicatorOptions& options,
                                        int peer);

  // Begins to call the handlers. Frames that arrived earlier wait until then.
  void Start(Handlers handlers);

  // Fails with UNAVAILABLE if the peer has ended.
  absl::Status Send(int peer, const PeerFrame& frame, int fd = -1);
  // Notifies all peers that this rank aborts, without waiting; calling it once
  // is enough.
  void AnnounceEnd(absl::string_view why);

 private:
  explicit Peers(const CommunicatorOptions& options);
  absl::Status Meet(const CommunicatorOptions& options);
  void Watch();
  // Returns false once the peer has ended.
  bool Read(int peer);

  const int rank_;
  const absl::Time connected_by_;
  std::vector<UniqueFd> sockets_;  // by rank; none for this one
  UniqueFd wake_;                  // raised when it shall end
  Handlers handlers_;
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_PEERS_H_
