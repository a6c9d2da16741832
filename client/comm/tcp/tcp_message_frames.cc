#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/peer_text.h"
#include "client/comm/tcp/tcp_messages.h"

// What the frames of a peer do to messages.

namespace coxswain {

absl::StatusOr<char*> TcpMessages::Place(int rank, const ControlFrame& frame) {
  Peer& peer = PeerOf(rank);
  switch (frame.kind) {
    case ControlFrame::Kind::kEnd:
    case ControlFrame::Kind::kAnnounce: {
      const int64_t limit = frame.kind == ControlFrame::Kind::kEnd
                                ? ControlFrame::kMaxText
                                : ControlFrame::kMaxInline;
      if (frame.bytes > limit) break;
      peer.text.resize(static_cast<size_t>(frame.bytes));
      return peer.text.data();
    }
    case ControlFrame::Kind::kData: {
      const auto found = arriving_.find({rank, frame.id});
      if (found == arriving_.end() ||
          found->second->span.bytes() != frame.bytes) {
        break;
      }
      return static_cast<char*>(found->second->span.data);
    }
    case ControlFrame::Kind::kSlot:
      return slots_.Place(rank, frame);
    default:
      break;
  }
  return absl::InvalidArgumentError("it sent more than it may");
}

absl::Status TcpMessages::Take(int rank, const ControlFrame& frame) {
  if (PeerOf(rank).stream.answers() > kMaxAnswers) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "it sends, and has not read ", kMaxAnswers, " answers to it"));
  }
  switch (frame.kind) {
    case ControlFrame::Kind::kAnnounce:
      return TakeAnnounced(rank, frame);
    case ControlFrame::Kind::kEnd:
      Lose(rank,
           absl::UnavailableError(absl::StrCat(
               "rank ", rank, " gave up: ", OneLine(PeerOf(rank).text))),
           /*announced=*/true);
      return absl::OkStatus();
    case ControlFrame::Kind::kData: {
      // Place has compared those that have some.
      if (frame.bytes == 0) break;
      auto node = arriving_.extract(Key(rank, frame.id));
      if (node.empty()) return absl::OkStatus();
      SendFrame(rank, ControlFrame::Kind::kTaken, *node.mapped());
      Finish(node.mapped().get(), absl::OkStatus());
      return absl::OkStatus();
    }
    case ControlFrame::Kind::kClear: {
      const auto found = sends_.find({rank, frame.id});
      // Given up, or taken with its announcement.
      if (found == sends_.end()) return absl::OkStatus();
      const Span& span = found->second->span;
      if (!IsLongMessage(span) || found->second->cleared) break;
      found->second->cleared = true;
      SendFrame(rank, ControlFrame::Kind::kData, *found->second,
                static_cast<const char*>(span.data), span.bytes());
      return absl::OkStatus();
    }
    case ControlFrame::Kind::kTaken:
    case ControlFrame::Kind::kRefused: {
      const auto found = sends_.find({rank, frame.id});
      if (found == sends_.end()) return absl::OkStatus();
      const MessagePtr message = found->second;
      const bool taken = frame.kind == ControlFrame::Kind::kTaken;
      // Its memory is still read, or the peer has never asked for it.
      if (PeerOf(rank).stream.IsWriting(frame.id) ||
          (taken && IsLongMessage(message->span) && !message->cleared)) {
        break;
      }
      const absl::Status equal = Compare(*message, frame.header);
      if (!taken && equal.ok()) break;
      sends_.erase(found);
      Finish(message.get(), taken ? absl::OkStatus() : equal);
      return absl::OkStatus();
    }
    case ControlFrame::Kind::kOpen:
    case ControlFrame::Kind::kSlot:
    case ControlFrame::Kind::kFreed:
    case ControlFrame::Kind::kClose:
      return slots_.Take(rank, frame);
  }
  return absl::InvalidArgumentError("it sent a frame out of place");
}

absl::Status TcpMessages::TakeAnnounced(int rank, const ControlFrame& frame) {
  Peer& peer = PeerOf(rank);
  const int64_t bytes =
      frame.header.count > ControlFrame::kMaxInline
          ? frame.header.count
          : frame.header.count *
                static_cast<int64_t>(SizeOf(frame.header.dtype));
  const int64_t expected = bytes > ControlFrame::kMaxInline ? 0 : bytes;
  if (frame.header.kind != CollectiveKind::kMessage ||
      frame.bytes != expected) {
    return absl::InvalidArgumentError("it announced what is no message");
  }
  if (++peer.announced > kMaxAnnounced) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "more than ", kMaxAnnounced, " of its messages wait to be received"));
  }
  Announced announced = {frame.id, frame.header, {}};
  if (frame.bytes > 0) announced.data = std::move(peer.text);
  channels_[{rank, frame.tag}].announced.push_back(std::move(announced));
  Match(rank, frame.tag);
  return absl::OkStatus();
}

void TcpMessages::Match(int rank, uint32_t tag) {
  const auto found = channels_.find({rank, tag});
  Channel& channel = found->second;
  while (!channel.receives.empty() && !channel.announced.empty()) {
    const MessagePtr message = std::move(channel.receives.front());
    const Announced announced = std::move(channel.announced.front());
    channel.receives.pop_front();
    channel.announced.pop_front();
    --PeerOf(rank).announced;
    message->id = announced.id;
    Receive(message, announced);
  }
  if (channel.receives.empty() && channel.announced.empty()) {
    channels_.erase(found);
  }
}

void TcpMessages::Receive(const MessagePtr& message,
                          const Announced& announced) {
  absl::Status equal = Compare(*message, announced.header);
  if (!equal.ok()) {
    SendFrame(message->peer, ControlFrame::Kind::kRefused, *message);
    return Finish(message.get(), std::move(equal));
  }
  if (IsLongMessage(message->span)) {
    arriving_[{message->peer, announced.id}] = message;
    return SendFrame(message->peer, ControlFrame::Kind::kClear, *message);
  }
  std::memcpy(message->span.data, announced.data.data(), announced.data.size());
  SendFrame(message->peer, ControlFrame::Kind::kTaken, *message);
  Finish(message.get(), absl::OkStatus());
}

absl::Status TcpMessages::Compare(const Message& message,
                                  const CollectiveHeader& theirs) {
  return CompareHeaders(absl::StrCat(name_, ", tag ", message.tag),
                        {{rank_, message.header}, {message.peer, theirs}});
}

}  // namespace coxswain
