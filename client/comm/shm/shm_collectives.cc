#include "client/comm/shm/shm_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/shm/reduce_many.h"

namespace coxswain {
namespace {

// What each rank may have to read where every rank reads all slots.
constexpr int64_t kSmallTotal = 128 << 10;

absl::Time RealNow() { return Clock::Real()->Now(); }

int64_t Width(const Span& span) {
  return static_cast<int64_t>(SizeOf(span.dtype));
}

char* At(const Span& span, int64_t element) {
  return static_cast<char*>(span.data) + element * Width(span);
}

void Copy(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

// A rank's share of `count` elements: whole cache lines but for the last.
struct Slice {
  int64_t begin = 0;
  int64_t count = 0;
};
Slice SliceOf(int64_t count, int rank, int size) {
  constexpr int64_t kAlign = 64;
  const int64_t each = (count / size + kAlign) / kAlign * kAlign;
  const int64_t begin = std::min(count, each * rank);
  return {begin, std::min(count, begin + each) - begin};
}

// Returns whether the rank that forms a slice of the result gives it to all.
bool IsReducedForAll(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kMean;
}

// Returns whether the input consists of a slice for each rank.
bool HasSlices(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllToAll;
}

std::vector<const char*> Shift(const std::vector<char*>& memory,
                               int64_t bytes) {
  std::vector<const char*> shifted;
  for (char* const base : memory) shifted.push_back(base + bytes);
  return shifted;
}

}  // namespace

ShmCollectives::ShmCollectives(const SharedArea& area, Phases* phases, int rank,
                               int size, std::string name,
                               absl::Duration timeout, Resolver resolver,
                               std::shared_ptr<ByteCounter> moved)
    : area_(area),
      phases_(*phases),
      rank_(rank),
      size_(size),
      name_(std::move(name)),
      timeout_(timeout),
      resolver_(std::move(resolver)),
      moved_(std::move(moved)) {}

bool ShmCollectives::IsSmall(const Operation& operation) const {
  const int64_t bytes = operation.input.bytes();
  return bytes <= SharedArea::kSlotBytes && bytes * size_ <= kSmallTotal;
}

void ShmCollectives::Begin(const Operation& operation) {
  deadline_ = RealNow() + timeout_;
  ++turn_;
  CollectiveHeader header = operation.header;
  header.sequence = turn_;
  refused_ = header.refused;
  Post& post = area_.post(rank_, turn_);
  post.header = Encode(header);
  post.segment = operation.segment;
  post.offset = operation.offset;
  if (IsSmall(operation) && operation.input.count > 0) {
    CopyIn(operation, 0, operation.input.bytes(), area_.slot(rank_, turn_));
  }
  phases_.Arrive();
}

void ShmCollectives::CopyIn(const Operation& operation, int64_t at,
                            int64_t bytes, char* to) {
  if (operation.runs == nullptr) {
    const char* const from = static_cast<const char*>(operation.input.data);
    return Copy(to, from + at, bytes);
  }
  operation.runs->ForEach(at, bytes, [&](const MemoryRun& run, int64_t begin) {
    Copy(to + begin, run.data, run.bytes);
  });
}

void ShmCollectives::CopyOut(const Operation& operation, int64_t at,
                             int64_t bytes, const char* from) {
  if (operation.runs == nullptr) {
    return Copy(static_cast<char*>(operation.output.data) + at, from, bytes);
  }
  operation.runs->ForEach(at, bytes, [&](const MemoryRun& run, int64_t begin) {
    Copy(run.data, from + begin, run.bytes);
  });
}

std::optional<absl::Status> ShmCollectives::TryFinish(
    const Operation& operation, absl::Time until) {
  switch (phases_.Await(std::min(until, deadline_))) {
    case Phases::Outcome::kStopped:
      return absl::AbortedError("stopped");
    case Phases::Outcome::kLate:
      if (RealNow() < deadline_) return std::nullopt;
      return Late();
    case Phases::Outcome::kMet:
      break;
  }
  absl::Status status = CompareHeaders();
  if (status.ok()) ReadSlots(operation);
  return status;
}

absl::Status ShmCollectives::Run(const Operation& operation) {
  Begin(operation);
  if (IsSmall(operation)) {
    return TryFinish(operation, deadline_).value_or(Late());
  }
  COXSWAIN_RETURN_IF_ERROR(Meet());
  COXSWAIN_RETURN_IF_ERROR(CompareHeaders());
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<std::shared_ptr<char>> mapped,
                            DirectInputs(operation));
  if (mapped.empty()) return RunInPieces(operation);
  std::vector<char*> inputs;
  for (const auto& input : mapped) inputs.push_back(input.get());
  return RunDirect(operation, inputs);
}

absl::Status ShmCollectives::Meet() {
  switch (phases_.Await(deadline_)) {
    case Phases::Outcome::kMet:
      return absl::OkStatus();
    case Phases::Outcome::kStopped:
      return absl::AbortedError("stopped");
    default:
      return Late();
  }
}

absl::Status ShmCollectives::Late() const {
  const auto own = DecodeCollectiveHeader(area_.post(rank_, turn_).header);
  return absl::DeadlineExceededError(absl::StrCat(
      own.has_value() ? Describe(*own) : "operation", " of ", name_, ": rank ",
      phases_.Missing(), " did not begin it within ",
      absl::FormatDuration(timeout_)));
}

absl::Status ShmCollectives::CompareHeaders() const {
  const Post& own = area_.post(rank_, turn_);
  bool equal = !refused_;
  for (int peer = 0; peer < size_ && equal; ++peer) {
    equal = area_.post(peer, turn_).header == own.header;
  }
  if (equal) return absl::OkStatus();
  std::vector<RankHeader> headers;
  for (int peer = 0; peer < size_; ++peer) {
    const auto header = DecodeCollectiveHeader(area_.post(peer, turn_).header);
    if (!header.has_value()) {
      return absl::InternalError(absl::StrCat(
          "the operation that rank ", peer, " of ", name_,
          " begins cannot be read: that rank runs another version of the "
          "library; give all ranks the same one"));
    }
    headers.push_back({peer, *header});
  }
  return coxswain::CompareHeaders(name_, headers);
}

void ShmCollectives::ReadSlots(const Operation& operation) {
  if (operation.input.data == nullptr) return;
  std::vector<char*> slots;
  for (int peer = 0; peer < size_; ++peer) {
    slots.push_back(area_.slot(peer, turn_));
  }
  const Span& output = operation.output;
  const int64_t slice = operation.input.bytes() / size_;
  switch (operation.header.kind) {
    case CollectiveKind::kBarrier:
    case CollectiveKind::kMessage:
      return;
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kMean: {
      const auto reduce = [&](const MemoryRun& run, int64_t begin) {
        ReduceMany(output.dtype, operation.header.op, Shift(slots, begin),
                   {run.data}, run.bytes / Width(output), DivisorOf(operation));
      };
      if (operation.runs == nullptr) {
        reduce({At(output, 0), output.bytes()}, 0);
      } else {
        operation.runs->ForEach(0, output.bytes(), reduce);
      }
      break;
    }
    case CollectiveKind::kBroadcast:
      if (rank_ != operation.header.root) {
        Copy(At(output, 0), slots[static_cast<size_t>(operation.header.root)],
             output.bytes());
      }
      break;
    case CollectiveKind::kAllGather:
      for (int peer = 0; peer < size_; ++peer) {
        Copy(At(output, peer * operation.input.count),
             slots[static_cast<size_t>(peer)], operation.input.bytes());
      }
      break;
    case CollectiveKind::kReduceScatter:
      ReduceMany(output.dtype, operation.header.op, Shift(slots, rank_ * slice),
                 {At(output, 0)}, output.count);
      break;
    case CollectiveKind::kAllToAll:
      for (int peer = 0; peer < size_; ++peer) {
        Copy(At(output, peer * (output.count / size_)),
             slots[static_cast<size_t>(peer)] + rank_ * slice, slice);
      }
      break;
  }
  moved_->Add((size_ - 1) * operation.input.bytes());
}

absl::StatusOr<std::vector<std::shared_ptr<char>>> ShmCollectives::DirectInputs(
    const Operation& operation) {
  std::vector<int> sources;
  for (int peer = 0; peer < size_; ++peer) {
    const bool broadcast = operation.header.kind == CollectiveKind::kBroadcast;
    if (!broadcast || peer == operation.header.root) sources.push_back(peer);
  }
  std::vector<std::shared_ptr<char>> inputs;
  for (const int peer : sources) {
    if (area_.post(peer, turn_).segment == 0) return inputs;
  }
  inputs.resize(static_cast<size_t>(size_));
  for (const int peer : sources) {
    std::shared_ptr<char>& input = inputs[static_cast<size_t>(peer)];
    if (peer == rank_) {
      // The caller owns it.
      input = std::shared_ptr<char>(std::shared_ptr<void>(),
                                    At(operation.input, 0));
      continue;
    }
    const Post& post = area_.post(peer, turn_);
    COXSWAIN_ASSIGN_OR_RETURN(input, resolver_(peer, post.segment, post.offset,
                                               operation.input.bytes()));
  }
  return inputs;
}

absl::Status ShmCollectives::RunDirect(const Operation& operation,
                                       const std::vector<char*>& inputs) {
  const Span& input = operation.input;
  const Span& output = operation.output;
  const int64_t width = Width(input);
  const int64_t slice = input.count / size_;
  switch (operation.header.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kMean: {
      const Slice own = SliceOf(input.count, rank_, size_);
      std::vector<char*> outputs = inputs;
      for (char*& memory : outputs) memory += own.begin * width;
      ReduceMany(input.dtype, operation.header.op,
                 Shift(inputs, own.begin * width), outputs, own.count,
                 DivisorOf(operation));
      moved_->Add(2 * (size_ - 1) * own.count * width);
      break;
    }
    case CollectiveKind::kReduceScatter:
      ReduceMany(input.dtype, operation.header.op,
                 Shift(inputs, rank_ * slice * width), {At(output, 0)},
                 output.count);
      moved_->Add((size_ - 1) * output.bytes());
      break;
    case CollectiveKind::kBroadcast:
      if (rank_ == operation.header.root) break;
      Copy(At(output, 0), inputs[static_cast<size_t>(operation.header.root)],
           output.bytes());
      moved_->Add(output.bytes());
      break;
    default: {  // all-gather, all-to-all
      const bool sliced = HasSlices(operation.header.kind);
      const int64_t each = sliced ? slice : input.count;
      for (int peer = 0; peer < size_; ++peer) {
        Copy(At(output, peer * each),
             inputs[static_cast<size_t>(peer)] +
                 (sliced ? rank_ * slice * width : 0),
             each * width);
      }
      moved_->Add((size_ - 1) * each * width);
    }
  }
  phases_.Arrive();
  return Meet();
}

absl::Status ShmCollectives::RunInPieces(const Operation& operation) {
  const bool sliced = HasSlices(operation.header.kind);
  const int64_t total =
      sliced ? operation.input.count / size_ : operation.input.count;
  const int64_t room = SharedArea::kPieceBytes / Width(operation.input);
  const int64_t piece = sliced ? room / size_ : room;
  for (int64_t begin = 0; begin < total; begin += piece) {
    const int64_t count = std::min(piece, total - begin);
    CopyPieceIn(operation, begin, count);
    phases_.Arrive();
    COXSWAIN_RETURN_IF_ERROR(Meet());
    UsePiece(operation, begin, count);
    phases_.Arrive();
    COXSWAIN_RETURN_IF_ERROR(Meet());
    CopyPieceOut(operation, begin, count);
  }
  return absl::OkStatus();
}

void ShmCollectives::CopyPieceIn(const Operation& operation, int64_t begin,
                                 int64_t count) {
  const Span& input = operation.input;
  const int64_t bytes = count * Width(input);
  if (operation.header.kind == CollectiveKind::kBroadcast &&
      operation.header.root != rank_) {
    return;
  }
  if (!HasSlices(operation.header.kind)) {
    return CopyIn(operation, begin * Width(input), bytes, area_.input(rank_));
  }
  for (int peer = 0; peer < size_; ++peer) {
    Copy(area_.input(rank_) + peer * bytes,
         At(input, peer * (input.count / size_) + begin), bytes);
  }
}

void ShmCollectives::UsePiece(const Operation& operation, int64_t begin,
                              int64_t count) {
  const Span& output = operation.output;
  const int64_t width = Width(output);
  const int64_t bytes = count * width;
  std::vector<char*> inputs;
  for (int peer = 0; peer < size_; ++peer) inputs.push_back(area_.input(peer));
  switch (operation.header.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kMean: {
      const Slice own = SliceOf(count, rank_, size_);
      ReduceMany(output.dtype, operation.header.op,
                 Shift(inputs, own.begin * width),
                 {area_.output(rank_) + own.begin * width}, own.count,
                 DivisorOf(operation));
      moved_->Add((size_ - 1) * own.count * width);
      return;
    }
    case CollectiveKind::kReduceScatter:
      ReduceMany(output.dtype, operation.header.op,
                 Shift(inputs, rank_ * bytes), {At(output, begin)}, count);
      break;
    case CollectiveKind::kBroadcast:
      if (rank_ == operation.header.root) break;
      Copy(At(output, begin), area_.input(operation.header.root), bytes);
      break;
    case CollectiveKind::kAllGather:
      for (int peer = 0; peer < size_; ++peer) {
        Copy(At(output, peer * operation.input.count + begin),
             area_.input(peer), bytes);
      }
      break;
    default:  // all-to-all
      for (int peer = 0; peer < size_; ++peer) {
        Copy(At(output, peer * (output.count / size_) + begin),
             area_.input(peer) + rank_ * bytes, bytes);
      }
  }
  moved_->Add((size_ - 1) * bytes);
}

// All other collectives have written their results. The next piece does not
// overwrite these before all have met again.
void ShmCollectives::CopyPieceOut(const Operation& operation, int64_t begin,
                                  int64_t count) {
  if (!IsReducedForAll(operation.header.kind)) return;
  const int64_t width = Width(operation.output);
  for (int peer = 0; peer < size_; ++peer) {
    const Slice slice = SliceOf(count, peer, size_);
    CopyOut(operation, (begin + slice.begin) * width, slice.count * width,
            area_.output(peer) + slice.begin * width);
    if (peer != rank_) moved_->Add(slice.count * width);
  }
}

}  // namespace coxswain
