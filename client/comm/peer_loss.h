#ifndef COXSWAIN_CLIENT_COMM_PEER_LOSS_H_
#define COXSWAIN_CLIENT_COMM_PEER_LOSS_H_

#include <functional>

namespace coxswain {

// Implemented by a communicator whose back end notices by itself that a peer is
// gone. Found by dynamic_cast: most of those who hold a communicator need none
// of this.
class PeerLossSource {
 public:
  using OnLost = std::function<void(int peer)>;

  virtual ~PeerLossSource() = default;

  // Tells `on_lost` of each peer, by its rank in the communicator, whose
  // connection has broken or breaks before the communicator itself has ended;
  // each at least once. On threads of the back end, which it must not block, or
  // the caller's; none once the communicator is destroyed. Call it once.
  virtual void TellPeerLosses(OnLost on_lost) = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_PEER_LOSS_H_
