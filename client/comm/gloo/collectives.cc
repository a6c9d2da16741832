#include "client/comm/gloo/collectives.h"

#include <cstring>
#include <future>
#include <utility>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/types.h>

#include "absl/strings/str_cat.h"
#include "base/reduce_elements.h"

namespace coxswain {
namespace {

// Gloo's own prefixes end at 8.
constexpr uint8_t kReduceScatterSlotPrefix = 0x40;
constexpr uint8_t kMessageSlotPrefix = 0x41;
// transport.cc has 0x42.
constexpr uint8_t kCollectiveSlotPrefix = 0x43;
constexpr uint8_t kSenderSlotPrefix = 0x44;
constexpr uint8_t kReceiverSlotPrefix = 0x45;

char* Bytes(const Span& span) { return static_cast<char*>(span.data); }

void Copy(const Span& from, const Span& to) {
  if (from.data != to.data) std::memmove(to.data, from.data, from.bytes());
}

// Calls `function` with a null pointer to an unsigned integer as wide as
// `dtype`'s elements, since gloo's options want a type of that size.
template <typename Function>
void WithWidth(DType dtype, const Function& function) {
  switch (SizeOf(dtype)) {
    case 1:
      return function(static_cast<uint8_t*>(nullptr));
    case 2:
      return function(static_cast<uint16_t*>(nullptr));
    case 4:
      return function(static_cast<uint32_t*>(nullptr));
    default:
      return function(static_cast<uint64_t*>(nullptr));
  }
}

// A long all-reduce travels as several at once: while one of them waits for its
// peer or adds up, another one keeps the connection busy.
constexpr int64_t kLongBytes = 4 << 20;
constexpr uint32_t kParts = 4;
// Short enough that what has arrived is still in the cache when it is added.
constexpr size_t kSegmentBytes = 256 << 10;

// A ring, on the calling thread.
void RingAllReduce(const GlooContext& context, uint32_t tag, Span span,
                   ReduceOp op) {
  ::gloo::AllreduceOptions options(context);
  // The other algorithm sums in an order that differs between ranks.
  options.setAlgorithm(::gloo::AllreduceOptions::Algorithm::RING);
  WithWidth(span.dtype, [&](auto* width) {
    using T = std::remove_pointer_t<decltype(width)>;
    options.setOutput<T>(static_cast<T*>(span.data),
                         static_cast<size_t>(span.count));
  });
  options.setReduceFunction([dtype = span.dtype, op](void* out, const void* a,
                                                     const void* b, size_t n) {
    ReduceElements(dtype, op, out, a, b, n);
  });
  options.setTag(tag);
  options.setMaxSegmentSize(kSegmentBytes);
  ::gloo::allreduce(options);
}

CollectiveHeader MessageHeader(int sender, const Span& span) {
  return HeaderOf(CollectiveKind::kMessage, span, ElementOp::kSum, sender);
}

absl::Status Decode(int peer, const CollectiveHeaderBytes& bytes,
                    std::vector<RankHeader>* headers) {
  const auto header = DecodeCollectiveHeader(bytes);
  if (!header.has_value()) {
    return absl::InternalError(absl::StrCat(
        "the operation that rank ", peer,
        " begins cannot be read: that rank runs another version of the "
        "library"));
  }
  headers->push_back({peer, *header});
  return absl::OkStatus();
}

}  // namespace

void GlooAllReduce(const GlooContext& context, uint32_t tag, Span span,
                   ReduceOp op) {
  if (context->size == 1) return;
  // Each part has a tag of its own, also where there is only one.
  const uint32_t first_tag = tag * kParts;
  if (span.bytes() < kLongBytes) {
    return RingAllReduce(context, first_tag, span, op);
  }
  // A future waits for its thread when it goes, also past an exception.
  std::vector<std::future<void>> others;
  const int64_t count = span.count / kParts;
  for (uint32_t part = 0; part + 1 < kParts; ++part) {
    others.push_back(std::async(std::launch::async, [=, &context] {
      RingAllReduce(context, first_tag + part, span.Slice(part * count, count),
                    op);
    }));
  }
  const int64_t done = (kParts - 1) * count;
  RingAllReduce(context, first_tag + kParts - 1,
                span.Slice(done, span.count - done), op);
  for (auto& other : others) other.get();
}

void GlooBroadcast(const GlooContext& context, uint32_t tag, Span span,
                   int root) {
  if (context->size == 1) return;
  ::gloo::BroadcastOptions options(context);
  options.setOutput(Bytes(span), static_cast<size_t>(span.bytes()));
  options.setRoot(root);
  options.setTag(tag);
  ::gloo::broadcast(options);
}

void GlooAllGather(const GlooContext& context, uint32_t tag, Span input,
                   Span output) {
  if (context->size == 1) return Copy(input, output);
  ::gloo::AllgatherOptions options(context);
  options.setInput(Bytes(input), static_cast<size_t>(input.bytes()));
  options.setOutput(Bytes(output), static_cast<size_t>(output.bytes()));
  options.setTag(tag);
  ::gloo::allgather(options);
}

void GlooReduceScatter(const GlooContext& context, uint32_t tag, Span input,
                       Span output, ReduceOp op) {
  const int size = context->size;
  const int rank = context->rank;
  if (size == 1) return Copy(input, output);
  const auto slice = [&](int index) {
    return input.Slice(((index % size + size) % size) * output.count,
                       output.count);
  };
  const int next = (rank + 1) % size;
  const int previous = (rank + size - 1) % size;
  const auto slot = ::gloo::Slot::build(kReduceScatterSlotPrefix, tag);
  const auto bytes = static_cast<size_t>(output.bytes());

  // The partial sum of slice s starts at rank s + 1, gains a rank's part at
  // each step and arrives at rank s last.
  std::vector<char> sum(bytes);
  std::vector<char> arriving(bytes);
  std::memcpy(sum.data(), slice(rank - 1).data, bytes);
  for (int step = 1; step < size; ++step) {
    auto to_next = context->createUnboundBuffer(sum.data(), bytes);
    auto from_previous = context->createUnboundBuffer(arriving.data(), bytes);
    from_previous->recv(previous, slot);
    to_next->send(next, slot);
    from_previous->waitRecv();
    to_next->waitSend();
    const Span own = slice(rank - 1 - step);
    void* out = step + 1 == size ? output.data : sum.data();
    ReduceElements(own.dtype, op, out, arriving.data(), own.data,
                   static_cast<size_t>(own.count));
  }
}

void GlooAllToAll(const GlooContext& context, uint32_t tag, Span input,
                  Span output) {
  if (context->size == 1) return Copy(input, output);
  ::gloo::AlltoallOptions options(context);
  options.setInput(Bytes(input), static_cast<size_t>(input.bytes()));
  options.setOutput(Bytes(output), static_cast<size_t>(output.bytes()));
  options.setTag(tag);
  ::gloo::alltoall(options);
}

uint64_t MessageSlot(uint32_t tag, uint8_t number) {
  return ::gloo::Slot::build(kMessageSlotPrefix, tag) + number;
}

GlooHeaderExchange::GlooHeaderExchange(GlooContext context, std::string where)
    : context_(std::move(context)), where_(std::move(where)) {}

// Not before: the first buffer begins the watch of the peers.
void GlooHeaderExchange::MakePeers() {
  for (int rank = 0; rank < context_->size; ++rank) {
    if (rank == context_->rank) continue;
    auto peer = std::make_unique<Peer>();
    peer->rank = rank;
    peer->from = context_->createUnboundBuffer(peer->arriving.data(),
                                               peer->arriving.size());
    peer->to = context_->createUnboundBuffer(own_.data(), own_.size());
    peers_.push_back(std::move(peer));
  }
}

absl::Status GlooHeaderExchange::Compare(const CollectiveHeader& own) {
  if (peers_.empty()) MakePeers();
  own_ = Encode(own);
  const uint64_t slot = ::gloo::Slot::build(
      kCollectiveSlotPrefix, static_cast<uint32_t>(own.sequence));
  // All receives first: a peer that has this rank's header has read all that
  // this rank wrote before it, so it can close without losing any.
  for (const auto& peer : peers_) peer->from->recv(peer->rank, slot);
  for (const auto& peer : peers_) peer->to->send(peer->rank, slot);
  for (const auto& peer : peers_) peer->from->waitRecv();
  for (const auto& peer : peers_) peer->to->waitSend();
  std::vector<RankHeader> headers = {{context_->rank, own}};
  bool equal = !own.refused;
  for (const auto& peer : peers_) equal = equal && peer->arriving == own_;
  if (equal) return absl::OkStatus();
  for (const auto& peer : peers_) {
    absl::Status status = Decode(peer->rank, peer->arriving, &headers);
    if (!status.ok()) return status;
  }
  return CompareHeaders(where_, headers);
}

GlooMessageHeaders::GlooMessageHeaders(const GlooContext& context,
                                       bool is_sender, int peer, uint32_t tag,
                                       uint8_t number, const Span& span)
    : header_(MessageHeader(is_sender ? context->rank : peer, span)),
      rank_(context->rank),
      peer_(peer),
      own_(Encode(header_)),
      from_(context->createUnboundBuffer(arriving_.data(), arriving_.size())),
      to_(context->createUnboundBuffer(own_.data(), own_.size())) {
  const uint64_t to_receiver =
      ::gloo::Slot::build(kSenderSlotPrefix, tag) + number;
  const uint64_t to_sender =
      ::gloo::Slot::build(kReceiverSlotPrefix, tag) + number;
  from_->recv(peer, is_sender ? to_sender : to_receiver);
  to_->send(peer, is_sender ? to_receiver : to_sender);
}

absl::Status GlooMessageHeaders::Compare(const std::string& where) {
  from_->waitRecv();
  to_->waitSend();
  std::vector<RankHeader> headers = {{rank_, header_}};
  absl::Status status = Decode(peer_, arriving_, &headers);
  if (!status.ok()) return status;
  return CompareHeaders(where, headers);
}

}  // namespace coxswain
