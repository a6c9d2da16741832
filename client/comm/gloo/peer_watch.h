#ifndef COXSWAIN_CLIENT_COMM_GLOO_PEER_WATCH_H_
#define COXSWAIN_CLIENT_COMM_GLOO_PEER_WATCH_H_

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/common/logging.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "client/comm/gloo/transport_control.h"

namespace coxswain {

// Tells `control` of each peer whose connection breaks.
//
// Gloo tells of that only those who wait for a message of which nothing has
// arrived. So each peer is asked, once, for messages that never come; a thread
// waits for the first of these to fail, and from then on looks at the others
// several times a second.
//
// All peers are connected when it is made, and nothing has been received yet
// over `context`: who asks before it receives can rely on it that a peer that
// has sent something has read the question, and so can close softly. `control`
// was interrupted or has failed when it goes.
class PeerWatch {
 public:
  // `context` outlives it.
  PeerWatch(::gloo::transport::Context* context,
            std::shared_ptr<TransportControl> control);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  using UnboundBuffer = ::gloo::transport::UnboundBuffer;

  void Ask(int peer, ::gloo::transport::Context* context);
  void Run();
  // Whether it is broken.
  void LookAt(int peer);

  const std::shared_ptr<TransportControl> control_;
  // Waits for a message of any peer.
  std::unique_ptr<UnboundBuffer> bell_;
  // Each waits for one of one peer; null: lost already, or this rank.
  std::vector<std::unique_ptr<UnboundBuffer>> questions_;
  std::thread thread_;
};

// The message of what gloo's `function` throws, if it throws.
template <typename Function>
std::optional<std::string> ErrorOf(const Function& function) {
  try {
    function();
    return std::nullopt;
  } catch (const ::gloo::Exception& error) {
    return MessageOf(error);
  } catch (const ::gloo::EnforceNotMet& error) {
    return MessageOf(error);
  }
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GLOO_PEER_WATCH_H_
