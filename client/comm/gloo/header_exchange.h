#ifndef COXSWAIN_CLIENT_COMM_GLOO_HEADER_EXCHANGE_H_
#define COXSWAIN_CLIENT_COMM_GLOO_HEADER_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gloo/transport/unbound_buffer.h>

#include "absl/status/status.h"
#include "client/comm/collective_header.h"
#include "client/comm/gloo/collectives.h"

// How the ranks of a gloo context announce what they begin. Gloo compares
// nothing itself: where a message is longer than the buffer posted for it, gloo
// throws on its own thread, which ends the process, and where it is shorter the
// rest of the buffer is left as it was. Headers have one size and slots of
// their own, and data moves only between ranks whose headers are equal, so
// neither can happen.

namespace coxswain {

// The headers of collectives: each rank sends its own to all others, so that a
// rank that does not come is known by all.
//
// Threading: Compare is called by one thread at a time.
class GlooHeaderExchange {
 public:
  // `where` names the communicator in errors.
  GlooHeaderExchange(GlooContext context, std::string where);

  // Blocks until the headers of all ranks are here, which have all begun a
  // collective then, and returns CompareHeaders of them. Throws what gloo
  // throws.
  absl::Status Compare(const CollectiveHeader& own);

 private:
  using UnboundBuffer = ::gloo::transport::UnboundBuffer;

  // Of one peer, so that the loss of another does not end the wait for it.
  struct Peer {
    int rank = 0;
    CollectiveHeaderBytes arriving;
    std::unique_ptr<UnboundBuffer> from;
    std::unique_ptr<UnboundBuffer> to;
  };
  void MakePeers();

  const GlooContext context_;
  const std::string where_;
  CollectiveHeaderBytes own_;
  std::vector<std::unique_ptr<Peer>> peers_;  // made by the first collective
};

// A message: both ends announce what they send and expect.
class GlooMessageHeaders {
 public:
  // Posts this end's header, and a receive for the other's. `number` counts the
  // messages of this sender, receiver and tag; at most 256 are under way.
  GlooMessageHeaders(const GlooContext& context, bool is_sender, int peer,
                     uint32_t tag, uint8_t number, const Span& span);

  // Blocks until the other end's is here. As GlooHeaderExchange::Compare.
  absl::Status Compare(const std::string& where);

 private:
  using UnboundBuffer = ::gloo::transport::UnboundBuffer;

  const CollectiveHeader header_;
  const int rank_;
  const int peer_;
  CollectiveHeaderBytes own_;
  CollectiveHeaderBytes arriving_;
  std::unique_ptr<UnboundBuffer> from_;
  std::unique_ptr<UnboundBuffer> to_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GLOO_HEADER_EXCHANGE_H_
