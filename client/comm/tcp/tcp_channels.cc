#include "client/comm/tcp/tcp_channels.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/host_memory.h"
#include "base/status_macros.h"

namespace coxswain {
TcpChannels::TcpChannels(int rank, std::string name, SendFrame send,
                         Discard discard)
    : rank_(rank),
      send_(std::move(send)),
      discard_(std::move(discard)),
      book_(rank, std::move(name), [] { return std::make_unique<End>(); }) {}

absl::StatusOr<std::unique_ptr<ChannelSender>> TcpChannels::OpenSender(
    const ChannelOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(End* const end, Open(options, /*sends=*/true));
  return std::make_unique<BookedSender<TcpChannels, End>>(this, end);
}

absl::StatusOr<std::unique_ptr<ChannelReceiver>> TcpChannels::OpenReceiver(
    const ChannelOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(End* const end, Open(options, /*sends=*/false));
  return std::make_unique<BookedReceiver<TcpChannels, End>>(this, end);
}

absl::StatusOr<TcpChannels::End*> TcpChannels::Open(
    const ChannelOptions& options, bool sends) {
  HostMemory memory = AllocateHostMemory(
      static_cast<size_t>(options.slot_bytes * options.slots));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", options.slots, " slots of ",
                     options.slot_bytes, " bytes"));
  }
  End* end = nullptr;
  ControlFrame frame;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(ChannelEnd* const opened,
                              book_.Open(options, sends));
    end = static_cast<End*>(opened);
    end->memory = std::shared_ptr<char>(static_cast<char*>(memory.release()),
                                        FreeHostMemory());
    if (!sends) end->headers.resize(static_cast<size_t>(options.slots));
    frame = FrameOf(*end, ControlFrame::Kind::kOpen);
    frame.id = static_cast<uint64_t>(end->slots);
    frame.header.count = end->slot_bytes;
  }
  send_(options.peer, frame, nullptr, nullptr);
  return end;
}

template <typename Ready>
absl::Status TcpChannels::Await(End* end, absl::Duration timeout,
                                const char* late, Ready ready) {
  std::optional<absl::Status> outcome;
  end->changed.WaitFor(&mutex_, timeout, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    outcome = book_.Outcome(*end, ready());
    return outcome.has_value();
  });
  return outcome.has_value() ? *outcome : book_.Late(*end, late, timeout);
}

absl::Status TcpChannels::Send(End* end, const Span& block,
                               absl::Duration timeout) {
  ControlFrame frame;
  char* slot = nullptr;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(book_.CheckFits(*end, block));
    COXSWAIN_RETURN_IF_ERROR(Await(end, timeout, " did not take a block", [&] {
      return end->ended.ok() && end->answered && !end->full();
    }));
    frame = FrameOf(*end, ControlFrame::Kind::kSlot);
    frame.id = end->ahead;
    frame.bytes = block.bytes();
    frame.header.dtype = block.dtype;
    frame.header.count = block.count;
    slot = end->slot(end->ahead++);
  }
  // Free, so used by this thread alone.
  std::memcpy(slot, block.data, static_cast<size_t>(block.bytes()));
  send_(end->peer, frame, slot,
        std::shared_ptr<char>(
            slot, [memory = end->memory, written = end->written](char*) {
              written->fetch_add(1);
            }));
  return absl::OkStatus();
}

absl::Status TcpChannels::Drain(End* end, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  return Await(end, timeout, " did not take all blocks",
               [&] { return end->ahead == end->behind; });
}

absl::Status TcpChannels::Receive(End* end, const Span& block,
                                  absl::Duration timeout) {
  CollectiveHeader header;
  char* slot = nullptr;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(Await(end, timeout, " did not send a block",
                                   [&] { return end->ahead > end->behind; }));
    header = end->headers[end->SlotOf(end->behind)];
    COXSWAIN_RETURN_IF_ERROR(
        book_.CheckIs(*end, block, header.count, header.dtype));
    slot = end->slot(end->behind);
  }
  // Full, so used by this thread alone.
  std::memcpy(block.data, slot, static_cast<size_t>(block.bytes()));
  ControlFrame frame;
  {
    MutexLock lock(&mutex_);
    frame = FrameOf(*end, ControlFrame::Kind::kFreed);
    frame.id = ++end->behind;
  }
  send_(end->peer, frame, nullptr, nullptr);
  return absl::OkStatus();
}

void TcpChannels::Close(End* end) {
  {
    MutexLock lock(&mutex_);
    end->closed = true;
  }
  // None of it is read into from then on.
  discard_(end->peer, end->memory.get(), end->slot_bytes * end->slots);
  send_(end->peer, FrameOf(*end, ControlFrame::Kind::kClose), nullptr, nullptr);
  MutexLock lock(&mutex_);
  end->memory.reset();
  end->headers = {};
}

TcpChannels::End* TcpChannels::Find(int peer, const ControlFrame& frame) {
  // The header names the sender.
  return static_cast<End*>(
      book_.Find(peer, frame.tag, frame.header.root == rank_));
}

bool TcpChannels::IsBlock(const End& end, const ControlFrame& frame) {
  const CollectiveHeader& header = frame.header;
  return end.opened && !end.sends && !end.full() && frame.id == end.ahead &&
         frame.bytes > 0 && frame.bytes <= end.slot_bytes &&
         header.count <= frame.bytes &&
         header.count * static_cast<int64_t>(SizeOf(header.dtype)) ==
             frame.bytes;
}

absl::StatusOr<char*> TcpChannels::Place(int peer, const ControlFrame& frame) {
  MutexLock lock(&mutex_);
  const End* const end = Find(peer, frame);
  if (end == nullptr || !IsBlock(*end, frame)) return ChannelBook::OutOfPlace();
  return end->closed ? nullptr : end->slot(end->ahead);
}

absl::Status TcpChannels::Take(int peer, const ControlFrame& frame) {
  MutexLock lock(&mutex_);
  if (frame.kind == ControlFrame::Kind::kOpen) return TakeOpen(peer, frame);
  End* const end = Find(peer, frame);
  if (end == nullptr || !end->answered) return ChannelBook::OutOfPlace();
  switch (frame.kind) {
    case ControlFrame::Kind::kSlot:
      if (!IsBlock(*end, frame)) return ChannelBook::OutOfPlace();
      // More are on their way to one that was closed; no more than its slots.
      if (!end->closed) end->headers[end->SlotOf(end->ahead)] = frame.header;
      ++end->ahead;
      break;
    case ControlFrame::Kind::kFreed:
      // Of one that is still being written, the slot is read.
      if (!end->sends || frame.id <= end->behind ||
          frame.id > end->written->load()) {
        return ChannelBook::OutOfPlace();
      }
      end->behind = frame.id;
      break;
    case ControlFrame::Kind::kClose:
      if (end->ended.ok()) {
        end->ended = absl::UnavailableError(
            absl::StrCat("rank ", peer, " has closed its end"));
      }
      break;
    default:
      return ChannelBook::OutOfPlace();
  }
  end->changed.NotifyAll();
  return absl::OkStatus();
}

absl::Status TcpChannels::TakeOpen(int peer, const ControlFrame& frame) {
  const int sender = frame.header.root;
  if (frame.bytes != 0 || (sender != peer && sender != rank_)) {
    return ChannelBook::OutOfPlace();
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      ChannelEnd* const end,
      book_.Answer(peer, frame.tag, /*sends=*/sender == rank_,
                   static_cast<int64_t>(frame.id), frame.header.count));
  static_cast<End*>(end)->changed.NotifyAll();
  return absl::OkStatus();
}

void TcpChannels::Lose(int peer, const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (book_.Lose(peer, why)) Wake(peer);
}

void TcpChannels::Stop(const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (book_.Stop(why)) Wake(/*peer=*/-1);
}

void TcpChannels::Wake(int peer) {
  book_.ForEach(peer, [](ChannelEnd& end) {
    static_cast<End&>(end).changed.NotifyAll();
  });
}

ControlFrame TcpChannels::FrameOf(const End& end,
                                  ControlFrame::Kind kind) const {
  ControlFrame frame;
  frame.kind = kind;
  frame.tag = end.tag;
  frame.header.kind = CollectiveKind::kMessage;
  frame.header.root = end.sends ? rank_ : end.peer;
  return frame;
}

}  // namespace coxswain
