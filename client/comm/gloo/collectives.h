#ifndef COXSWAIN_CLIENT_COMM_GLOO_COLLECTIVES_H_
#define COXSWAIN_CLIENT_COMM_GLOO_COLLECTIVES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "absl/status/status.h"
#include "client/comm/collective_header.h"
#include "client/comm/communicator.h"
#include "client/device/tensor.h"

namespace coxswain {

using GlooContext = std::shared_ptr<::gloo::Context>;

// The collectives of a connected gloo context. They block, throw what gloo
// throws, and need a `tag` that no other running collective has. Spans are not
// empty, and equal in what GlooHeaderExchange compares. The context may have
// one rank.

// Rings: every element is reduced on one rank and copied to the others, so
// all have the same bits. A rank sends 2 (n - 1) / n of the span. A long span
// takes threads of its own while it lasts.
void GlooAllReduce(const GlooContext& context, uint32_t tag, Span span,
                   ReduceOp op);
void GlooBroadcast(const GlooContext& context, uint32_t tag, Span span,
                   int root);
void GlooAllGather(const GlooContext& context, uint32_t tag, Span input,
                   Span output);
// A ring; a rank sends (n - 1) / n of the input.
void GlooReduceScatter(const GlooContext& context, uint32_t tag, Span input,
                       Span output, ReduceOp op);
void GlooAllToAll(const GlooContext& context, uint32_t tag, Span input,
                  Span output);

// The slot that the data of a message between two ranks travels in; apart from
// those of gloo's collectives. `number` is that of the message with this tag.
uint64_t MessageSlot(uint32_t tag, uint8_t number);

// How the ranks of a gloo context announce what they begin. Gloo compares
// nothing itself: where a message is longer than the buffer posted for it, gloo
// throws on its own thread, which ends the process, and where it is shorter the
// rest of the buffer is left as it was. Headers have one size and slots of
// their own, and data moves only between ranks whose headers are equal, so
// neither can happen.

// Exchanges the headers of collectives: each rank sends its own to all others,
// so that all know of a rank that does not arrive.
//
// Threading: Compare is called by one thread at a time.
class GlooHeaderExchange {
 public:
  // `where` names the communicator in errors.
  GlooHeaderExchange(GlooContext context, std::string where);

  // Blocks until the headers of all ranks have arrived, each of which has begun
  // a collective then, and returns CompareHeaders of them. Throws what gloo
  // throws.
  absl::Status Compare(const CollectiveHeader& own);

 private:
  using UnboundBuffer = ::gloo::transport::UnboundBuffer;

  // The exchange with one peer; the loss of another does not end the wait for
  // it.
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

// Exchanges the headers of a message: both ends announce what they send and
// expect.
class GlooMessageHeaders {
 public:
  // Posts this end's header, and a receive for the other's. `number` counts the
  // messages of this sender, receiver and tag; at most 256 are in flight.
  GlooMessageHeaders(const GlooContext& context, bool is_sender, int peer,
                     uint32_t tag, uint8_t number, const Span& span);

  // Blocks until the other end's header has arrived. As
  // GlooHeaderExchange::Compare.
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

#endif  // COXSWAIN_CLIENT_COMM_GLOO_COLLECTIVES_H_
