#include "client/comm/communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/host_memory.h"

namespace coxswain {
namespace {

class HostBuffer : public BufferOwner {
 public:
  HostBuffer(ZeroedMemory memory, int64_t count, DType dtype)
      : memory_(std::move(memory)) {
    span_.data = memory_.get();
    span_.count = count;
    span_.dtype = dtype;
  }
  Span span() const override { return span_; }

 private:
  const ZeroedMemory memory_;
  Span span_;
};

WorkPtr Fail(absl::Status status) { return Work::Ended(std::move(status)); }

absl::Status CheckSpan(const Span& span) {
  if (span.count < 0 || (span.count > 0 && span.data == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a span of ", span.count, " elements has no memory"));
  }
  return absl::OkStatus();
}

absl::Status CheckRank(absl::string_view what, int rank, int size) {
  if (rank >= 0 && rank < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", rank, " is not a rank of a group of ", size));
}

absl::Status CheckPeer(int peer, int rank, int size) {
  if (peer != rank) return CheckRank("peer", peer, size);
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", rank, " cannot exchange messages with itself"));
}

// `large` must be `size` slices of `small`'s size and type.
absl::Status CheckSlices(const Span& small, const Span& large, int size) {
  if (auto status = CheckSpan(small); !status.ok()) return status;
  if (auto status = CheckSpan(large); !status.ok()) return status;
  if (large.count == small.count * size && large.dtype == small.dtype) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected ", size, " slices of ", small.count, " x ", NameOf(small.dtype),
      ", got ", large.count, " x ", NameOf(large.dtype)));
}

bool HasMean(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
         dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

absl::Status CheckPart(const Span& part, const Span& first) {
  if (auto status = CheckSpan(part); !status.ok()) return status;
  if (part.dtype != first.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("parts of a mean are of one type, got ",
                     NameOf(first.dtype), " and ", NameOf(part.dtype)));
  }
  if (HasMean(part.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "only floating-point elements have a mean, got ", NameOf(part.dtype)));
}

absl::Status Without(const Communicator& comm, absl::string_view ability) {
  return absl::UnimplementedError(
      absl::StrCat("the ", comm.backend(), " back end has no ", ability));
}

// Returns the end of a channel in one that checks what it is given.
template <typename CheckedEnd, typename End>
absl::StatusOr<std::unique_ptr<End>> Checked(
    Communicator* comm, absl::StatusOr<std::unique_ptr<End>> end) {
  if (!end.ok()) return end;
  return std::make_unique<CheckedEnd>(comm, *std::move(end));
}

WorkPtr Lacks(const Communicator& comm, absl::string_view ability) {
  return Fail(Without(comm, ability));
}

}  // namespace

void Communicator::Count(int64_t bytes) {
  sequence_.fetch_add(1);
  CountPayload(bytes);
}

void Communicator::AddToCounts(int64_t collectives, int64_t bytes) {
  sequence_.fetch_add(collectives);
  CountPayload(bytes);
}

void Communicator::CountPayload(int64_t bytes) {
  for (Payload* all = payload_.get(); all != nullptr; all = all->parent.get()) {
    all->bytes.fetch_add(bytes);
  }
}

WorkPtr Communicator::Started(WorkPtr work) const {
  if (waits_ != nullptr) work->CountWaitsIn(waits_);
  return work;
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Split(
    const std::vector<int>& ranks) {
  std::vector<bool> listed(static_cast<size_t>(size_), false);
  for (const int rank : ranks) {
    if (auto status = CheckRank("member", rank, size_); !status.ok()) {
      return status;
    }
    if (listed[static_cast<size_t>(rank)]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", rank, " is listed twice among the ranks to split off"));
    }
    listed[static_cast<size_t>(rank)] = true;
  }
  if (!listed[static_cast<size_t>(rank_)]) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank_, " splits off a communicator of ",
                     ranks.size(), " ranks without being one of them"));
  }
  absl::StatusOr<std::unique_ptr<Communicator>> child = DoSplit(ranks);
  if (!child.ok()) return child;
  (*child)->payload_->parent = payload_;
  (*child)->waits_ = waits_;
  return child;
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::DoSplit(
    const std::vector<int>&) {
  return absl::UnimplementedError(
      absl::StrCat("the ", backend(), " back end cannot be split"));
}

absl::Status Communicator::CheckPlace(const Span&) const {
  return absl::OkStatus();
}

absl::Status Communicator::CheckPlaces(absl::Status found, const Span& input,
                                       const Span& output) const {
  if (found.ok()) found = CheckPlace(input);
  if (found.ok()) found = CheckPlace(output);
  return found;
}

WorkPtr Communicator::Refuse(CollectiveKind kind, absl::Status why) {
  CollectiveHeader header;
  header.kind = kind;
  header.refused = true;
  // The peers learn of it in its place; the caller does at once.
  DoAgree(header);
  return Fail(std::move(why));
}

WorkPtr Communicator::AllReduce(Span span, ReduceOp op) {
  constexpr auto kKind = CollectiveKind::kAllReduce;
  const absl::Status status = CheckPlaces(CheckSpan(span), span, span);
  if (!status.ok()) return Refuse(kKind, status);
  Count(span.bytes());
  if (span.count == 0) return Started(DoAgree(HeaderOf(kKind, span, op)));
  return Started(DoAllReduce(span, op));
}

WorkPtr Communicator::Broadcast(Span span, int root) {
  constexpr auto kKind = CollectiveKind::kBroadcast;
  absl::Status status = CheckPlaces(CheckSpan(span), span, span);
  if (status.ok()) status = CheckRank("root", root, size_);
  if (!status.ok()) return Refuse(kKind, status);
  Count(root == rank_ ? span.bytes() : 0);
  if (span.count == 0) {
    return Started(DoAgree(HeaderOf(kKind, span, ReduceOp::kSum, root)));
  }
  return Started(DoBroadcast(span, root));
}

WorkPtr Communicator::Barrier() {
  Count(0);
  return Started(DoAgree(CollectiveHeader()));
}

WorkPtr Communicator::Agree(const CollectiveHeader& header) {
  Count(0);
  return Started(DoAgree(header));
}

WorkPtr Communicator::AllGather(Span input, Span output) {
  constexpr auto kKind = CollectiveKind::kAllGather;
  const absl::Status status =
      CheckPlaces(CheckSlices(input, output, size_), input, output);
  if (!status.ok()) return Refuse(kKind, status);
  Count(input.bytes());
  if (input.count == 0) return Started(DoAgree(HeaderOf(kKind, input)));
  return Started(DoAllGather(input, output));
}

WorkPtr Communicator::ReduceScatter(Span input, Span output, ReduceOp op) {
  constexpr auto kKind = CollectiveKind::kReduceScatter;
  const absl::Status status =
      CheckPlaces(CheckSlices(output, input, size_), input, output);
  if (!status.ok()) return Refuse(kKind, status);
  Count(input.bytes());
  if (input.count == 0) return Started(DoAgree(HeaderOf(kKind, input, op)));
  return Started(DoReduceScatter(input, output, op));
}

WorkPtr Communicator::AllReduceMean(const std::vector<Span>& parts) {
  constexpr auto kKind = CollectiveKind::kMean;
  std::vector<Span> filled;
  Span all;
  for (const Span& part : parts) {
    const absl::Status status =
        CheckPlaces(CheckPart(part, parts[0]), part, part);
    if (!status.ok()) return Refuse(kKind, status);
    all.dtype = part.dtype;
    all.count += part.count;
    if (part.count > 0) filled.push_back(part);
  }
  Count(all.bytes());
  if (all.count == 0) return Started(DoAgree(HeaderOf(kKind, all)));
  return Started(DoAllReduceMean(std::move(filled), all));
}

WorkPtr Communicator::AllToAll(Span input, Span output) {
  constexpr auto kKind = CollectiveKind::kAllToAll;
  absl::Status status = CheckSpan(input);
  if (status.ok() && input.count % size_ != 0) {
    status = absl::InvalidArgumentError(absl::StrCat(
        input.count, " elements do not split into ", size_, " slices"));
  }
  if (status.ok()) {
    status = CheckSlices(input.Slice(0, input.count / size_), output, size_);
  }
  status = CheckPlaces(std::move(status), input, output);
  if (!status.ok()) return Refuse(kKind, status);
  Count(input.bytes());
  if (input.count == 0) return Started(DoAgree(HeaderOf(kKind, input)));
  return Started(DoAllToAll(input, output));
}

WorkPtr Communicator::Send(Span span, int peer, uint32_t tag) {
  absl::Status status = CheckPlaces(CheckSpan(span), span, span);
  if (status.ok()) status = CheckPeer(peer, rank_, size_);
  if (!status.ok()) return Fail(status);
  CountPayload(span.bytes());
  return Started(DoSend(span, peer, tag));
}

WorkPtr Communicator::Receive(Span span, int peer, uint32_t tag) {
  absl::Status status = CheckPlaces(CheckSpan(span), span, span);
  if (status.ok()) status = CheckPeer(peer, rank_, size_);
  if (!status.ok()) return Fail(status);
  return Started(DoReceive(span, peer, tag));
}

class Communicator::CheckedSender : public ChannelSender {
 public:
  CheckedSender(Communicator* comm, std::unique_ptr<ChannelSender> sender)
      : comm_(*comm), sender_(std::move(sender)) {}

  absl::Status Send(const Span& block, absl::Duration timeout) override {
    WaitCount::Scope waits(comm_.waits_.get());
    absl::Status status = comm_.CheckPlaces(CheckSpan(block), block, block);
    if (status.ok()) status = sender_->Send(block, timeout);
    if (absl::IsDeadlineExceeded(status)) waits.GoesOn();
    if (status.ok()) comm_.CountPayload(block.bytes());
    return status;
  }
  absl::Status Drain(absl::Duration timeout) override {
    const WaitCount::Scope waits(comm_.waits_.get());
    return sender_->Drain(timeout);
  }

 private:
  Communicator& comm_;
  const std::unique_ptr<ChannelSender> sender_;
};

class Communicator::CheckedReceiver : public ChannelReceiver {
 public:
  CheckedReceiver(Communicator* comm, std::unique_ptr<ChannelReceiver> receiver)
      : comm_(*comm), receiver_(std::move(receiver)) {}

  absl::Status Receive(const Span& block, absl::Duration timeout) override {
    WaitCount::Scope waits(comm_.waits_.get());
    absl::Status status = comm_.CheckPlaces(CheckSpan(block), block, block);
    if (status.ok()) status = receiver_->Receive(block, timeout);
    if (absl::IsDeadlineExceeded(status)) waits.GoesOn();
    return status;
  }

 private:
  Communicator& comm_;
  const std::unique_ptr<ChannelReceiver> receiver_;
};

absl::Status Communicator::CheckChannel(const ChannelOptions& options) const {
  if (auto status = CheckPeer(options.peer, rank_, size_); !status.ok()) {
    return status;
  }
  if (options.slots >= 1 && options.slots <= kMaxChannelSlots &&
      options.slot_bytes >= 1 &&
      options.slot_bytes <= kMaxChannelBytes / options.slots) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a channel of ", options.slots, " slots of ",
                   options.slot_bytes, " bytes: it has 1 to ", kMaxChannelSlots,
                   " slots, of ", kMaxChannelBytes, " bytes in all at most"));
}

absl::StatusOr<std::unique_ptr<ChannelSender>> Communicator::OpenSender(
    const ChannelOptions& options) {
  if (auto status = CheckChannel(options); !status.ok()) return status;
  return Checked<CheckedSender>(this, DoOpenSender(options));
}

absl::StatusOr<std::unique_ptr<ChannelReceiver>> Communicator::OpenReceiver(
    const ChannelOptions& options) {
  if (auto status = CheckChannel(options); !status.ok()) return status;
  return Checked<CheckedReceiver>(this, DoOpenReceiver(options));
}

absl::StatusOr<std::unique_ptr<BufferOwner>> Communicator::AllocateBuffer(
    int64_t count, DType dtype) {
  if (count < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot allocate ", count, " elements"));
  }
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  ZeroedMemory memory = AllocateZeroedMemory(bytes);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a buffer of ", bytes, " bytes"));
  }
  return std::make_unique<HostBuffer>(std::move(memory), count, dtype);
}

WorkPtr Communicator::DoAllGather(Span, Span) {
  return Lacks(*this, "all-gather");
}
WorkPtr Communicator::DoReduceScatter(Span, Span, ReduceOp) {
  return Lacks(*this, "reduce-scatter");
}
// Back ends keep the spans.
WorkPtr Communicator::DoAllReduceMean(std::vector<Span>,  // NOLINT
                                      const Span&) {
  return Lacks(*this, "mean");
}
WorkPtr Communicator::DoAllToAll(Span, Span) {
  return Lacks(*this, "all-to-all");
}
WorkPtr Communicator::DoSend(Span, int, uint32_t) {
  return Lacks(*this, "send");
}
WorkPtr Communicator::DoReceive(Span, int, uint32_t) {
  return Lacks(*this, "receive");
}

absl::StatusOr<std::unique_ptr<ChannelSender>> Communicator::DoOpenSender(
    const ChannelOptions&) {
  return Without(*this, "channels");
}
absl::StatusOr<std::unique_ptr<ChannelReceiver>> Communicator::DoOpenReceiver(
    const ChannelOptions&) {
  return Without(*this, "channels");
}

absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateHostBuffer(
    Communicator& communicator, int64_t count, DType dtype) {
  if (communicator.device_queue() == nullptr) {
    return communicator.AllocateBuffer(count, dtype);
  }
  return communicator.Communicator::AllocateBuffer(count, dtype);
}

}  // namespace coxswain
