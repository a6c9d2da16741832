#include "client/comm/gloo/header_exchange.h"

#include <utility>

#include <gloo/types.h>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

// Those of collectives.cc and peer_watch.cc end at 0x42.
constexpr uint8_t kCollectiveSlotPrefix = 0x43;
constexpr uint8_t kSenderSlotPrefix = 0x44;
constexpr uint8_t kReceiverSlotPrefix = 0x45;

CollectiveHeader MessageHeader(int sender, const Span& span) {
  return HeaderOf(CollectiveKind::kMessage, span, ElementOp::kSum, sender);
}

absl::Status Decode(int peer, const CollectiveHeaderBytes& bytes,
                    std::vector<RankHeader>* headers) {
  const auto header = DecodeCollectiveHeader(bytes);
  if (!header.has_value()) {
    return absl::InternalError(
        absl::StrCat("what rank ", peer,
                     " begins cannot be read: it runs another version of the "
                     "library"));
  }
  headers->push_back({peer, *header});
  return absl::OkStatus();
}

}  // namespace

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
