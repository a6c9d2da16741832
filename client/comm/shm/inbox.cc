#include "client/comm/shm/inbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {

absl::Status Inbox::Take(int peer, const PeerFrame& frame, UniqueFd fd) {
  switch (frame.kind) {
    case PeerFrame::Kind::kSegment:
      return TakeSegment(peer, frame, std::move(fd));
    case PeerFrame::Kind::kMessage:
      return TakeMessage(peer, frame, std::move(fd));
    case PeerFrame::Kind::kForget: {
      MutexLock lock(&mutex_);
      segments_[peer].erase(frame.id);
      return absl::OkStatus();
    }
    case PeerFrame::Kind::kTaken: {
      MutexLock lock(&mutex_);
      taken_.emplace(peer, frame.id);
      changed_.NotifyAll();
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", peer, " sent a message out of place"));
  }
}

absl::Status Inbox::TakeSegment(int peer, const PeerFrame& frame, UniqueFd fd) {
  COXSWAIN_ASSIGN_OR_RETURN(Segment segment,
                            Segment::Map(std::move(fd), frame.bytes));
  segment.CloseFd();
  MutexLock lock(&mutex_);
  auto& segments = segments_[peer];
  if (segments.size() >= kMaxSegments) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", peer, " shares more than ", kMaxSegments, " buffers"));
  }
  segments[frame.id] = std::make_shared<Segment>(std::move(segment));
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status Inbox::TakeMessage(int peer, const PeerFrame& frame, UniqueFd fd) {
  Message message;
  message.id = frame.id;
  message.bytes = frame.bytes;
  COXSWAIN_ASSIGN_OR_RETURN(message.memory,
                            Segment::Map(std::move(fd), frame.bytes));
  message.memory.CloseFd();
  MutexLock lock(&mutex_);
  if (++waiting_[peer] > kMaxMessages) {
    return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxMessages,
                                                     " messages of rank ", peer,
                                                     " wait to be received"));
  }
  Channel& channel = channels_[{peer, frame.tag}];
  channel.waiting[channel.messages++] = std::move(message);
  changed_.NotifyAll();
  return absl::OkStatus();
}

template <typename Condition>
absl::Status Inbox::Await(absl::Duration timeout, Condition condition) {
  const bool there = changed_.WaitFor(
      &mutex_, timeout,
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return condition() || stopped_; });
  if (condition()) return absl::OkStatus();
  if (there) return absl::AbortedError("stopped");
  return absl::DeadlineExceededError(
      absl::StrCat("nothing arrived within ", absl::FormatDuration(timeout)));
}

absl::StatusOr<std::shared_ptr<Segment>> Inbox::AwaitSegment(
    int peer, uint64_t id, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const auto& segments = segments_[peer];
  COXSWAIN_RETURN_IF_ERROR(
      Await(timeout, [&segments, id] { return segments.count(id) > 0; }));
  return segments.at(id);
}

uint64_t Inbox::TakeTicket(int peer, uint32_t tag) {
  MutexLock lock(&mutex_);
  return channels_[{peer, tag}].tickets++;
}

absl::StatusOr<Inbox::Message> Inbox::AwaitMessage(int peer, uint32_t tag,
                                                   uint64_t ticket,
                                                   absl::Duration timeout) {
  MutexLock lock(&mutex_);
  Channel& channel = channels_[{peer, tag}];
  COXSWAIN_RETURN_IF_ERROR(Await(timeout, [&channel, ticket] {
    return channel.waiting.count(ticket) > 0;
  }));
  auto node = channel.waiting.extract(ticket);
  --waiting_[peer];
  return std::move(node.mapped());
}

absl::Status Inbox::AwaitTaken(int peer, uint64_t id, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  const std::pair<int, uint64_t> key(peer, id);
  COXSWAIN_RETURN_IF_ERROR(Await(timeout, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return taken_.count(key) > 0;
  }));
  taken_.erase(key);
  return absl::OkStatus();
}

void Inbox::Stop() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

}  // namespace coxswain
