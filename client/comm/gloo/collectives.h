#ifndef COXSWAIN_CLIENT_COMM_GLOO_COLLECTIVES_H_
#define COXSWAIN_CLIENT_COMM_GLOO_COLLECTIVES_H_

#include <cstdint>
#include <memory>

#include <gloo/context.h>

#include "client/comm/communicator.h"
#include "client/device/tensor.h"

// The collectives of a connected gloo context. They block, throw what gloo
// throws, and need a `tag` that no other running collective has. Spans are not
// empty, and equal in what header_exchange.h compares. The context may have one
// rank.

namespace coxswain {

using GlooContext = std::shared_ptr<::gloo::Context>;

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

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GLOO_COLLECTIVES_H_
