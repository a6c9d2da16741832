#ifndef COXSWAIN_CLIENT_COMM_TCP_DATA_PATHS_H_
#define COXSWAIN_CLIENT_COMM_TCP_DATA_PATHS_H_

#include <poll.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/comm/back_end.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/comm/tcp/tcp_stream.h"

namespace coxswain {

// The data connections of a group: streams of bytes to and from each peer, in
// one or several stripes, which the thread that runs a collective reads and
// writes itself. A peer that is gone shows by the end of its streams, behind
// all that it has sent, so a rank that has left cleanly takes nothing
// from the others.
//
// Waiting: where it is set to a short spin, as peers are about to send on
// processors of their own (none where the ranks of the host may run on fewer),
// then sleep.
//
// Threading: one thread at a time; Stop is for any thread.
class DataPaths {
 public:
  // Returns why a peer has ended, given the error of its connection. May wait a
  // little.
  using Explainer = std::function<absl::Status(int peer, absl::Status)>;

  // By rank and stripe; none for this rank. `sent` counts.
  DataPaths(std::vector<std::vector<TcpStream>> streams, int ranks_here,
            std::shared_ptr<ByteCounter> sent, Explainer explain);

  int size() const { return static_cast<int>(streams_.size()); }
  int stripes(int peer) const {
    return static_cast<int>(streams_[static_cast<size_t>(peer)].size());
  }
  int fd(int peer, int stripe) const {
    return streams_[static_cast<size_t>(peer)][static_cast<size_t>(stripe)]
        .fd();
  }

  // As TcpStream; an error is to be explained by WhyLost.
  absl::StatusOr<int64_t> Send(int peer, int stripe, const iovec* parts,
                               int count);
  absl::StatusOr<int64_t> Receive(int peer, int stripe, void* data,
                                  int64_t bytes);
  // Bytes of stripe 0 that were received too early; they are received again,
  // before all others.
  void PutBack(int peer, absl::string_view bytes);
  bool has_put_back(int peer) const {
    return !put_back_[static_cast<size_t>(peer)].empty();
  }

  // Returns the error of an operation that a connection has failed.
  absl::Status WhyLost(int peer, const absl::Status& status) const {
    return explain_(peer, status);
  }
  // The same where a wait has shown that the peer has ended its side.
  absl::Status WhyEnded(int peer) const {
    return explain_(peer, absl::UnavailableError("it closed the connection"));
  }

  enum class Outcome { kReady, kLate, kStopped };
  // Waits until an entry is ready, `until` (by Clock::Real()), or Stop.
  Outcome Await(std::vector<pollfd>* entries, absl::Time until);
  // Whether waits spin from now on.
  void SetSpins(bool spins) { spins_ = spins; }

  // Ends every wait, now and later, and notifies the peers that nothing more
  // will come.
  void Stop();
  bool stopped() const { return stopped_.load(); }

 private:
  TcpStream& stream(int peer, int stripe) {
    return streams_[static_cast<size_t>(peer)][static_cast<size_t>(stripe)];
  }

  std::vector<std::vector<TcpStream>> streams_;
  const absl::Duration spin_;
  const std::shared_ptr<ByteCounter> sent_;
  const Explainer explain_;
  bool spins_ = true;
  std::vector<std::string> put_back_;
  const WakeFd wake_;
  std::atomic<bool> stopped_{false};
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_DATA_PATHS_H_
