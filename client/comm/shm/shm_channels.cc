#include "client/comm/shm/shm_channels.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/processors.h"
#include "base/status_macros.h"
#include "client/comm/shm/doorbell.h"

namespace coxswain {
namespace {

using Kind = PeerFrame::Kind;

// As long as handing over a few kilobytes takes.
constexpr absl::Duration kSpin = absl::Microseconds(20);
constexpr int64_t kLine = 64;

absl::Time Now() { return Clock::Real()->Now(); }

bool IsValid(int64_t slots, int64_t slot_bytes) {
  return slots >= 1 && slots <= kMaxChannelSlots && slot_bytes >= 1 &&
         slot_bytes <= kMaxChannelBytes / slots;
}

}  // namespace

// A channel's memory.
class ShmChannels::Slots {
 public:
  struct Counts {
    // Blocks from the first one on; the one written by the sender, the other by
    // the receiver.
    alignas(kLine) std::atomic<uint64_t> sent;
    alignas(kLine) std::atomic<uint64_t> taken;
    alignas(kLine) Doorbell sender;
    alignas(kLine) Doorbell receiver;
  };
  // In front of a slot's bytes.
  struct BlockHead {
    int64_t count = 0;
    uint32_t dtype = 0;
  };

  static int64_t BytesFor(int64_t slots, int64_t slot_bytes) {
    return static_cast<int64_t>(sizeof(Counts)) + slots * Stride(slot_bytes);
  }

  Slots(Segment segment, int64_t slots, int64_t slot_bytes)
      : segment_(std::move(segment)), slots_(slots), slot_bytes_(slot_bytes) {}

  Counts& counts() const { return *reinterpret_cast<Counts*>(segment_.data()); }
  Doorbell& door(bool of_sender) const {
    return of_sender ? counts().sender : counts().receiver;
  }
  int fd() const { return segment_.fd(); }
  void CloseFd() { segment_.CloseFd(); }

  void Write(uint64_t block, const Span& span) const {
    char* const slot = At(block);
    const BlockHead head = {span.count, static_cast<uint32_t>(span.dtype)};
    std::memcpy(slot, &head, sizeof(head));
    std::memcpy(slot + kLine, span.data, static_cast<size_t>(span.bytes()));
  }
  // Returns a copy, which the sender cannot change any more.
  BlockHead HeadOf(uint64_t block) const {
    BlockHead head;
    std::memcpy(&head, At(block), sizeof(head));
    return head;
  }
  void Read(uint64_t block, const Span& span) const {
    std::memcpy(span.data, At(block) + kLine,
                static_cast<size_t>(span.bytes()));
  }

 private:
  static int64_t Stride(int64_t slot_bytes) {
    return kLine + (slot_bytes + kLine - 1) / kLine * kLine;
  }
  char* At(uint64_t block) const {
    const auto slot =
        static_cast<int64_t>(block % static_cast<uint64_t>(slots_));
    return segment_.data() + sizeof(Counts) + slot * Stride(slot_bytes_);
  }

  Segment segment_;
  const int64_t slots_;
  const int64_t slot_bytes_;
};

struct ShmChannels::End : ChannelEnd {
  std::shared_ptr<Slots> memory;  // of a receiver, once the peer has opened it
  CondVar changed;
  // Of the thread that uses it: blocks that this side has sent, or taken.
  uint64_t done = 0;

  static Kind Opens(bool sends) {
    return sends ? Kind::kOpenSender : Kind::kOpenReceiver;
  }
  static Kind Closes(bool sends) {
    return sends ? Kind::kCloseSender : Kind::kCloseReceiver;
  }
};

ShmChannels::ShmChannels(int rank, int size, std::string name, SendFrame send,
                         std::shared_ptr<ByteCounter> moved)
    : send_(std::move(send)),
      moved_(std::move(moved)),
      spin_(static_cast<int>(ProcessorsOfThread().count()) >= size
                ? kSpin
                : absl::ZeroDuration()),
      book_(rank, std::move(name), [] { return std::make_unique<End>(); }) {}

absl::StatusOr<std::unique_ptr<ChannelSender>> ShmChannels::OpenSender(
    const ChannelOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(End* const end, Open(options, /*sends=*/true));
  return std::make_unique<BookedSender<ShmChannels, End>>(this, end);
}

absl::StatusOr<std::unique_ptr<ChannelReceiver>> ShmChannels::OpenReceiver(
    const ChannelOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(End* const end, Open(options, /*sends=*/false));
  return std::make_unique<BookedReceiver<ShmChannels, End>>(this, end);
}

absl::StatusOr<ShmChannels::End*> ShmChannels::Open(
    const ChannelOptions& options, bool sends) {
  std::shared_ptr<Slots> memory;
  if (sends) {
    COXSWAIN_ASSIGN_OR_RETURN(
        Segment segment,
        Segment::Create(Slots::BytesFor(options.slots, options.slot_bytes)));
    memory = std::make_shared<Slots>(std::move(segment), options.slots,
                                     options.slot_bytes);
  }
  End* end = nullptr;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(ChannelEnd* const opened,
                              book_.Open(options, sends));
    end = static_cast<End*>(opened);
    if (sends) end->memory = memory;
    end->changed.NotifyAll();
  }
  PeerFrame frame;
  frame.kind = End::Opens(sends);
  frame.tag = options.tag;
  frame.id = static_cast<uint64_t>(options.slots);
  frame.bytes = options.slot_bytes;
  const absl::Status sent =
      send_(options.peer, frame, sends ? memory->fd() : -1);
  if (sends) memory->CloseFd();
  // A peer that is gone ends the first wait.
  if (sent.ok() || absl::IsUnavailable(sent)) return end;
  // What it knows of the end is not known: so nothing goes through it.
  MutexLock lock(&mutex_);
  end->closed = true;
  end->memory.reset();
  end->ended = sent;
  return sent;
}

absl::StatusOr<std::shared_ptr<ShmChannels::Slots>> ShmChannels::MapSlots(
    const PeerFrame& frame, UniqueFd fd) {
  const auto slots = static_cast<int64_t>(frame.id);
  COXSWAIN_ASSIGN_OR_RETURN(
      Segment segment,
      Segment::Map(std::move(fd), Slots::BytesFor(slots, frame.bytes)));
  segment.CloseFd();
  return std::make_shared<Slots>(std::move(segment), slots, frame.bytes);
}

bool ShmChannels::Takes(Kind kind) {
  return kind >= Kind::kOpenSender && kind <= Kind::kCloseReceiver;
}

absl::Status ShmChannels::Take(int peer, const PeerFrame& frame, UniqueFd fd) {
  // What is a sender there is a receiver here.
  const bool sends =
      frame.kind == Kind::kOpenReceiver || frame.kind == Kind::kCloseReceiver;
  if (frame.kind == End::Closes(!sends)) {
    MutexLock lock(&mutex_);
    ChannelEnd* const end = book_.Find(peer, frame.tag, sends);
    if (end == nullptr || !end->answered) return ChannelBook::OutOfPlace();
    if (end->ended.ok()) {
      end->ended = absl::UnavailableError(
          absl::StrCat("rank ", peer, " has closed its end"));
    }
    Wake(peer);
    return absl::OkStatus();
  }
  if (!IsValid(static_cast<int64_t>(frame.id), frame.bytes)) {
    return ChannelBook::OutOfPlace();
  }
  std::shared_ptr<Slots> memory;
  if (!sends) {
    COXSWAIN_ASSIGN_OR_RETURN(memory, MapSlots(frame, std::move(fd)));
  }
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(
      ChannelEnd* const answered,
      book_.Answer(peer, frame.tag, sends, static_cast<int64_t>(frame.id),
                   frame.bytes));
  End* const end = static_cast<End*>(answered);
  if (!sends && !end->closed) end->memory = std::move(memory);
  Wake(peer);
  return absl::OkStatus();
}

void ShmChannels::Lose(int peer, const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (book_.Lose(peer, why)) Wake(peer);
}

void ShmChannels::Stop(const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (book_.Stop(why)) Wake(/*peer=*/-1);
}

void ShmChannels::Wake(int peer) {
  book_.ForEach(peer, [](ChannelEnd& each) {
    auto& end = static_cast<End&>(each);
    end.changed.NotifyAll();
    if (end.memory != nullptr) Ring(end.memory->door(end.sends));
  });
}

absl::StatusOr<std::shared_ptr<ShmChannels::Slots>> ShmChannels::AwaitOpened(
    End* end, absl::Time until, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  std::optional<absl::Status> outcome;
  const auto opened = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    outcome = book_.Outcome(*end, end->matches());
    return outcome.has_value();
  };
  if (!opened()) {
    end->changed.WaitFor(&mutex_, std::max(until - Now(), absl::ZeroDuration()),
                         opened);
  }
  if (!outcome.has_value()) return book_.Late(*end, "", timeout);
  COXSWAIN_RETURN_IF_ERROR(*outcome);
  return end->memory;
}

template <typename Ready>
absl::Status ShmChannels::Await(End* end, Slots* memory, absl::Time until,
                                absl::Duration timeout, const char* late,
                                Ready ready) {
  std::optional<absl::Status> outcome;
  const auto look = [&] {
    const bool is_ready = ready();
    MutexLock lock(&mutex_);
    // What was written before the peer's end is there.
    outcome = book_.Outcome(*end, is_ready || (!end->ended.ok() && ready()));
    return outcome.has_value();
  };
  if (look()) return *outcome;
  if (spin_ > absl::ZeroDuration()) {
    SpinUntil(std::min(until, Now() + spin_), ready);
  }
  if (SleepUntil(memory->door(end->sends), until, look)) return *outcome;
  MutexLock lock(&mutex_);
  return book_.Late(*end, late, timeout);
}

absl::Status ShmChannels::Send(End* end, const Span& block,
                               absl::Duration timeout) {
  const absl::Time until = Now() + timeout;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(book_.CheckFits(*end, block));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::shared_ptr<Slots> memory,
                            AwaitOpened(end, until, timeout));
  const auto slots = static_cast<uint64_t>(end->slots);
  const auto ahead = [&] { return end->done - memory->counts().taken.load(); };
  COXSWAIN_RETURN_IF_ERROR(Await(end, memory.get(), until, timeout,
                                 " did not take a block",
                                 [&] { return ahead() != slots; }));
  if (ahead() > slots) return Break(end);
  {
    // Nothing is sent to an end that is closed, though a slot be free.
    MutexLock lock(&mutex_);
    if (!end->ended.ok()) return *book_.Outcome(*end, /*ready=*/false);
  }
  memory->Write(end->done, block);
  memory->counts().sent.store(++end->done);
  RingIfAsleep(memory->counts().receiver);
  moved_->Add(block.bytes());
  return absl::OkStatus();
}

absl::Status ShmChannels::Drain(End* end, absl::Duration timeout) {
  const absl::Time until = Now() + timeout;
  COXSWAIN_ASSIGN_OR_RETURN(const std::shared_ptr<Slots> memory,
                            AwaitOpened(end, until, timeout));
  const auto ahead = [&] { return end->done - memory->counts().taken.load(); };
  COXSWAIN_RETURN_IF_ERROR(
      Await(end, memory.get(), until, timeout, " did not take all blocks", [&] {
        return ahead() == 0 || ahead() > static_cast<uint64_t>(end->slots);
      }));
  return ahead() == 0 ? absl::OkStatus() : Break(end);
}

absl::Status ShmChannels::Receive(End* end, const Span& block,
                                  absl::Duration timeout) {
  const absl::Time until = Now() + timeout;
  COXSWAIN_ASSIGN_OR_RETURN(const std::shared_ptr<Slots> memory,
                            AwaitOpened(end, until, timeout));
  const auto there = [&] { return memory->counts().sent.load() - end->done; };
  COXSWAIN_RETURN_IF_ERROR(Await(end, memory.get(), until, timeout,
                                 " did not send a block",
                                 [&] { return there() != 0; }));
  const Slots::BlockHead head = memory->HeadOf(end->done);
  const auto dtype = static_cast<DType>(head.dtype);
  if (there() > static_cast<uint64_t>(end->slots) ||
      head.dtype > static_cast<uint32_t>(DType::kUInt8) || head.count <= 0 ||
      head.count > end->slot_bytes / static_cast<int64_t>(SizeOf(dtype))) {
    return Break(end);
  }
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(book_.CheckIs(*end, block, head.count, dtype));
  }
  memory->Read(end->done, block);
  memory->counts().taken.store(++end->done);
  RingIfAsleep(memory->counts().sender);
  return absl::OkStatus();
}

absl::Status ShmChannels::Break(End* end) {
  MutexLock lock(&mutex_);
  if (end->ended.ok()) {
    end->ended = absl::InternalError(
        absl::StrCat("rank ", end->peer, " has overwritten its memory"));
  }
  return *book_.Outcome(*end, /*ready=*/false);
}

void ShmChannels::Close(End* end) {
  PeerFrame frame;
  std::shared_ptr<Slots> memory;  // unmapped without the lock
  {
    MutexLock lock(&mutex_);
    end->closed = true;
    memory.swap(end->memory);
    frame.kind = End::Closes(end->sends);
    frame.tag = end->tag;
  }
  // A peer that is gone needs no word.
  send_(end->peer, frame, -1).IgnoreError();
}

}  // namespace coxswain
