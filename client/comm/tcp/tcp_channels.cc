#include "client/comm/tcp/tcp_channels.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/host_memory.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"

namespace coxswain {
namespace {

absl::Status OutOfPlace() {
  return absl::InvalidArgumentError(
      "it sent a frame of a channel out of place");
}

}  // namespace

class TcpChannels::Sender : public ChannelSender {
 public:
  Sender(TcpChannels* channels, End* end) : channels_(*channels), end_(end) {}
  ~Sender() override { channels_.Close(end_); }

  absl::Status Send(const Span& block, absl::Duration timeout) override {
    return channels_.Send(end_, block, timeout);
  }
  absl::Status Drain(absl::Duration timeout) override {
    return channels_.Drain(end_, timeout);
  }

 private:
  TcpChannels& channels_;
  End* const end_;
};

class TcpChannels::Receiver : public ChannelReceiver {
 public:
  Receiver(TcpChannels* channels, End* end) : channels_(*channels), end_(end) {}
  ~Receiver() override { channels_.Close(end_); }

  absl::Status Receive(const Span& block, absl::Duration timeout) override {
    return channels_.Receive(end_, block, timeout);
  }

 private:
  TcpChannels& channels_;
  End* const end_;
};

TcpChannels::TcpChannels(int rank, std::string name, SendFrame send,
                         Discard discard)
    : rank_(rank),
      name_(std::move(name)),
      send_(std::move(send)),
      discard_(std::move(discard)) {}

absl::StatusOr<std::unique_ptr<ChannelSender>> TcpChannels::OpenSender(
    const ChannelOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(End* const end, Open(options, /*sends=*/true));
  return std::make_unique<Sender>(this, end);
}

absl::StatusOr<std::unique_ptr<ChannelReceiver>> TcpChannels::OpenReceiver(
    const ChannelOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(End* const end, Open(options, /*sends=*/false));
  return std::make_unique<Receiver>(this, end);
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
    if (!stopped_.ok()) return stopped_;
    const auto lost = lost_.find(options.peer);
    if (lost == lost_.end() &&
        ends_.count({options.peer, options.tag, sends}) == 0) {
      // The peer would end the connection.
      if (unheard_[options.peer] >= kMaxUnopenedChannels) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "rank ", options.peer, " has not opened ", kMaxUnopenedChannels,
            " channels of ", name_, " that rank ", rank_,
            " has; open some of them there first"));
      }
      ++unheard_[options.peer];
    }
    end = &EndOf(options.peer, options.tag, sends);
    if (end->opened) {
      return absl::InvalidArgumentError(absl::StrCat(
          NameOf(*end), ": it has been opened before; take another tag"));
    }
    if (lost != lost_.end()) end->ended = lost->second;
    end->opened = true;
    end->slot_bytes = options.slot_bytes;
    end->slots = options.slots;
    end->memory = std::shared_ptr<char>(static_cast<char*>(memory.release()),
                                        FreeHostMemory());
    if (!sends) end->headers.resize(static_cast<size_t>(options.slots));
    if (end->answered) --unanswered_[options.peer];
    Match(end);
    frame = FrameOf(*end, ControlFrame::Kind::kOpen);
    frame.id = static_cast<uint64_t>(end->slots);
    frame.header.count = end->slot_bytes;
  }
  send_(options.peer, frame, nullptr, nullptr);
  return end;
}

TcpChannels::End& TcpChannels::EndOf(int peer, uint32_t tag, bool sends) {
  auto& place = ends_[{peer, tag, sends}];
  if (place == nullptr) {
    place = std::make_unique<End>();
    place->peer = peer;
    place->tag = tag;
    place->sends = sends;
  }
  return *place;
}

void TcpChannels::Match(End* end) {
  if (!end->opened || !end->answered) return;
  if (end->their_slots != end->slots || end->their_bytes != end->slot_bytes) {
    end->ended = absl::InvalidArgumentError(absl::StrCat(
        "rank ", end->peer, " has opened it with ", end->their_slots,
        " slots of ", end->their_bytes, " bytes, and rank ", rank_, " with ",
        end->slots, " of ", end->slot_bytes));
  }
  end->changed.NotifyAll();
}

template <typename Ready>
absl::Status TcpChannels::Await(End* end, absl::Duration timeout,
                                const char* late, Ready ready) {
  end->changed.WaitFor(&mutex_, timeout, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return ready() || !end->ended.ok() || !stopped_.ok();
  });
  if (!stopped_.ok()) return WithPrefix(NameOf(*end) + ": ", stopped_);
  if (ready()) return absl::OkStatus();
  if (!end->ended.ok()) return WithPrefix(NameOf(*end) + ": ", end->ended);
  return absl::DeadlineExceededError(
      absl::StrCat(NameOf(*end), ": rank ", end->peer,
                   end->answered ? late : " did not open it", " within ",
                   absl::FormatDuration(timeout)));
}

absl::Status TcpChannels::Send(End* end, const Span& block,
                               absl::Duration timeout) {
  ControlFrame frame;
  char* slot = nullptr;
  {
    MutexLock lock(&mutex_);
    if (block.count <= 0 || block.count > end->slot_bytes ||
        block.bytes() > end->slot_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(NameOf(*end), ": a block of ", block.count, " x ",
                       coxswain::NameOf(block.dtype),
                       " is empty or does not fit into a slot of ",
                       end->slot_bytes, " bytes"));
    }
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
    if (header.dtype != block.dtype || header.count != block.count) {
      return absl::InvalidArgumentError(absl::StrCat(
          NameOf(*end), ": rank ", end->peer, " sends ", header.count, " x ",
          coxswain::NameOf(header.dtype), ", and ", block.count, " x ",
          coxswain::NameOf(block.dtype), " are to be received"));
    }
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
  const auto found = ends_.find({peer, frame.tag, frame.header.root == rank_});
  return found == ends_.end() ? nullptr : found->second.get();
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
  if (end == nullptr || !IsBlock(*end, frame)) return OutOfPlace();
  return end->closed ? nullptr : end->slot(end->ahead);
}

absl::Status TcpChannels::Take(int peer, const ControlFrame& frame) {
  MutexLock lock(&mutex_);
  if (frame.kind == ControlFrame::Kind::kOpen) return TakeOpen(peer, frame);
  End* const end = Find(peer, frame);
  if (end == nullptr || !end->answered) return OutOfPlace();
  switch (frame.kind) {
    case ControlFrame::Kind::kSlot:
      if (!IsBlock(*end, frame)) return OutOfPlace();
      // More are on their way to one that was closed; no more than its slots.
      if (!end->closed) end->headers[end->SlotOf(end->ahead)] = frame.header;
      ++end->ahead;
      break;
    case ControlFrame::Kind::kFreed:
      // Of one that is still being written, the slot is read.
      if (!end->sends || frame.id <= end->behind ||
          frame.id > end->written->load()) {
        return OutOfPlace();
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
      return OutOfPlace();
  }
  end->changed.NotifyAll();
  return absl::OkStatus();
}

absl::Status TcpChannels::TakeOpen(int peer, const ControlFrame& frame) {
  const int sender = frame.header.root;
  if (frame.bytes != 0 || (sender != peer && sender != rank_)) {
    return OutOfPlace();
  }
  const End* const known = Find(peer, frame);
  if (known != nullptr && known->answered) return OutOfPlace();
  if (known == nullptr && ++unanswered_[peer] > kMaxUnopenedChannels) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxUnopenedChannels,
                     " of its channels wait to be opened"));
  }
  End& end = EndOf(peer, frame.tag, /*sends=*/sender == rank_);
  end.answered = true;
  if (end.opened) --unheard_[peer];
  end.their_slots = static_cast<int64_t>(frame.id);
  end.their_bytes = frame.header.count;
  Match(&end);
  return absl::OkStatus();
}

void TcpChannels::Lose(int peer, const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (!lost_.emplace(peer, why).second) return;
  for (const auto& [key, end] : ends_) {
    if (end->peer != peer || !end->ended.ok()) continue;
    end->ended = why;
    end->changed.NotifyAll();
  }
}

void TcpChannels::Stop(const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (!stopped_.ok()) return;
  stopped_ = why;
  for (const auto& [key, end] : ends_) end->changed.NotifyAll();
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

std::string TcpChannels::NameOf(const End& end) const {
  return absl::StrCat("channel of ", name_, " from rank ",
                      end.sends ? rank_ : end.peer, " to rank ",
                      end.sends ? end.peer : rank_, ", tag ", end.tag);
}

}  // namespace coxswain
