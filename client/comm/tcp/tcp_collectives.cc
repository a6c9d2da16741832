#include "client/comm/tcp/tcp_collectives.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/shm/reduce_many.h"

namespace coxswain {
namespace {

constexpr int64_t kCacheLine = 64;

void CopyBytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) {
    std::memmove(to, from, static_cast<size_t>(bytes));
  }
}

char* DataOf(const Span& span) { return static_cast<char*>(span.data); }

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

bool HasSlicesFor(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllToAll;
}

}  // namespace

TcpCollectives::TcpCollectives(DataPaths* paths, RingRanks ring, int rank,
                               std::string name, absl::Duration timeout,
                               const TcpTuning& tuning)
    : paths_(*paths),
      ring_(std::move(ring)),
      rank_(rank),
      size_(paths->size()),
      name_(std::move(name)),
      timeout_(timeout),
      tuning_(tuning),
      small_bytes_(std::min(tuning.small_bytes,
                            tuning.small_total / std::max(size_ - 1, 1))),
      opening_(paths, rank, name_, small_bytes_) {}

bool TcpCollectives::IsSmall(const Operation& operation) const {
  const int64_t bytes = operation.input.bytes();
  return size_ == 1 ||
         (HasSlicesFor(operation.header.kind) ? bytes / size_ : bytes) <=
             small_bytes_;
}

int64_t TcpCollectives::BytesWithOpening(const Operation& operation,
                                         int from) const {
  const Span& input = operation.input;
  if (input.data == nullptr || !IsSmall(operation)) return 0;
  if (operation.header.kind == CollectiveKind::kBroadcast) {
    return from == operation.header.root ? input.bytes() : 0;
  }
  return HasSlicesFor(operation.header.kind) ? input.bytes() / size_
                                             : input.bytes();
}

void TcpCollectives::Begin(const Operation& operation) {
  deadline_ = Clock::Real()->Now() + timeout_;
  paths_.SetSpins(operation.input.bytes() <= tuning_.spin_bytes);
  CollectiveHeader header = operation.header;
  header.sequence = turn_++;
  const int64_t bytes = BytesWithOpening(operation, rank_);
  std::vector<Piece> data;
  std::vector<int64_t> expected;
  small_ = bytes > 0 ? Pack(operation) : nullptr;
  has_memory_ = bytes == 0 || small_ != nullptr;
  if (!has_memory_) return;
  for (int peer = 0; peer < size_; ++peer) {
    const bool sliced = HasSlicesFor(operation.header.kind) && bytes > 0;
    data.push_back({sliced ? small_ + peer * bytes : small_, bytes});
    expected.push_back(BytesWithOpening(operation, peer));
  }
  opening_.Begin(header, std::move(data), std::move(expected));
}

std::optional<absl::Status> TcpCollectives::TryOpen(const Operation& operation,
                                                    absl::Time until) {
  if (!has_memory_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", rank_, " of ", name_, " has no memory for the ",
                     operation.input.bytes(), " bytes of a mean"));
  }
  std::optional<absl::Status> status = opening_.TryFinish(until, deadline_);
  if (status.has_value()) status = Named(operation, *status);
  return status;
}

std::optional<absl::Status> TcpCollectives::TryFinish(
    const Operation& operation, absl::Time until) {
  std::optional<absl::Status> status = TryOpen(operation, until);
  if (status.has_value() && status->ok()) Finish(operation);
  return status;
}

absl::Status TcpCollectives::Run(const Operation& operation) {
  Begin(operation);
  const absl::Status opened = TryOpen(operation, absl::InfiniteFuture())
                                  .value_or(absl::InternalError("no end"));
  COXSWAIN_RETURN_IF_ERROR(opened);
  if (IsSmall(operation)) {
    Finish(operation);
    return absl::OkStatus();
  }
  return Named(operation, RunLarge(operation));
}

absl::Status TcpCollectives::Named(const Operation& operation,
                                   const absl::Status& status) const {
  if (!absl::IsDeadlineExceeded(status) && !absl::IsUnavailable(status)) {
    return status;
  }
  std::string text = absl::StrCat(Describe(operation.header), " of rank ",
                                  rank_, " of ", name_, ": ", status.message());
  if (absl::IsDeadlineExceeded(status)) {
    absl::StrAppend(&text, " within ", absl::FormatDuration(timeout_));
  }
  return absl::Status(status.code(), text);
}

void TcpCollectives::Finish(const Operation& operation) {
  const Span& input = operation.input;
  const Span& output = operation.output;
  if (input.data == nullptr) return;
  const int64_t slice = input.bytes() / size_;
  switch (operation.header.kind) {
    case CollectiveKind::kBarrier:
    case CollectiveKind::kMessage:
      return;
    case CollectiveKind::kAllReduce:
      return ReduceArrived(operation, DataOf(input));
    case CollectiveKind::kMean:
      if (size_ == 1) return;
      ReduceArrived(operation, small_);
      return Unpack(operation);
    case CollectiveKind::kReduceScatter:
      return ReduceArrived(operation, DataOf(input) + rank_ * slice);
    case CollectiveKind::kBroadcast:
      if (rank_ == operation.header.root) return;
      return CopyBytes(output.data, opening_.data(operation.header.root),
                       output.bytes());
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      break;
  }
  const bool gathers = operation.header.kind == CollectiveKind::kAllGather;
  const int64_t each = gathers ? input.bytes() : slice;
  for (int peer = 0; peer < size_; ++peer) {
    const char* const own = DataOf(input) + (gathers ? 0 : rank_ * slice);
    CopyBytes(DataOf(output) + peer * each,
              peer == rank_ ? own : opening_.data(peer), each);
  }
}

char* TcpCollectives::Pack(const Operation& operation) {
  if (operation.runs == nullptr || size_ == 1) return DataOf(operation.input);
  char* const packed = packed_.Get(operation.input.bytes());
  if (packed == nullptr) return nullptr;
  char* to = packed;
  for (const MemoryRun& run : operation.runs->all()) {
    CopyBytes(to, run.data, run.bytes);
    to += run.bytes;
  }
  return packed;
}

void TcpCollectives::Unpack(const Operation& operation) const {
  if (operation.runs == nullptr) return;
  const char* from = small_;
  for (const MemoryRun& run : operation.runs->all()) {
    CopyBytes(run.data, from, run.bytes);
    from += run.bytes;
  }
}

void TcpCollectives::ReduceArrived(const Operation& operation,
                                   const char* own) {
  const Span& output = operation.output;
  if (size_ == 1) return CopyBytes(output.data, own, output.bytes());
  std::vector<const char*> inputs;
  for (int peer = 0; peer < size_; ++peer) {
    inputs.push_back(peer == rank_ ? own : opening_.data(peer));
  }
  char* const result = operation.runs == nullptr ? DataOf(output) : small_;
  ReduceMany(output.dtype, operation.header.op, inputs, {result}, output.count,
             DivisorOf(operation));
}

bool TcpCollectives::UsesRing(DType dtype, int64_t bytes) const {
  const bool many = size_ > tuning_.direct_ranks ||
                    (size_ > 2 && bytes > tuning_.direct_bytes);
  return many && dtype != DType::kFloat16 && dtype != DType::kBFloat16;
}

int64_t TcpCollectives::ChunkBytes(int64_t slice_bytes) const {
  const int64_t half = RoundUp(std::max<int64_t>(slice_bytes / 2, 1), 4096);
  return std::min(tuning_.chunk_bytes, half);
}

std::vector<Chunked> TcpCollectives::Shares(const Span& span,
                                            const Runs* runs) const {
  const auto width = static_cast<int64_t>(SizeOf(span.dtype));
  const int64_t each = RoundUp(span.count / size_ + 1, kCacheLine) * width;
  std::vector<Chunked> slices;
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t begin = std::min(span.bytes(), each * rank);
    slices.push_back({DataOf(span) + begin,
                      std::min(each, span.bytes() - begin), ChunkBytes(each)});
    if (runs == nullptr || slices.back().bytes == 0) continue;
    slices.back().data = runs->From(begin).data;
    slices.back().runs = runs;
    slices.back().begin = begin;
  }
  return slices;
}

std::vector<Chunked> TcpCollectives::EqualSlices(const Span& span) const {
  const int64_t each = span.bytes() / size_;
  std::vector<Chunked> slices;
  for (int rank = 0; rank < size_; ++rank) {
    slices.push_back({DataOf(span) + rank * each, each, ChunkBytes(each)});
  }
  return slices;
}

absl::Status TcpCollectives::RunLarge(const Operation& operation) {
  const Span& input = operation.input;
  switch (operation.header.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kMean:
      return Reduce(operation, Shares(input, operation.runs.get()),
                    /*gathers=*/true);
    case CollectiveKind::kReduceScatter:
      return Reduce(operation, EqualSlices(input), /*gathers=*/false);
    case CollectiveKind::kBroadcast:
      return RunChain(&paths_, ring_, rank_, operation.header.root,
                      InChunks(input, tuning_.chunk_bytes), deadline_);
    case CollectiveKind::kAllGather:
      return Gather(operation);
    default:
      return Transpose(operation);
  }
}

absl::Status TcpCollectives::Reduce(const Operation& operation,
                                    const std::vector<Chunked>& slices,
                                    bool gathers) {
  const Span& output = operation.output;
  const Chunked& own = slices[static_cast<size_t>(rank_)];
  const Chunked result =
      gathers ? own : Chunked{DataOf(output), own.bytes, own.chunk_bytes};
  if (UsesRing(output.dtype, operation.input.bytes())) {
    RingPlan plan;
    plan.ring = &ring_;
    plan.rank = rank_;
    plan.dtype = output.dtype;
    plan.op = operation.header.op;
    plan.divisor = DivisorOf(operation);
    plan.input = slices;
    plan.result = result;
    plan.in_place = gathers;
    if (gathers) plan.gathered = slices;
    return RunRingPlan(&paths_, plan, &scratch_, deadline_);
  }
  DirectPlan plan;
  plan.rank = rank_;
  plan.dtype = output.dtype;
  plan.op = operation.header.op;
  plan.divisor = DivisorOf(operation);
  plan.to = slices;
  plan.result = result;
  if (gathers) plan.gathered = slices;
  return RunDirectPlan(&paths_, plan, &scratch_, deadline_);
}

absl::Status TcpCollectives::Gather(const Operation& operation) {
  const std::vector<Chunked> slices = EqualSlices(operation.output);
  CopyBytes(slices[static_cast<size_t>(rank_)].data, operation.input.data,
            operation.input.bytes());
  if (UsesRing(DType::kUInt8, operation.output.bytes())) {
    RingPlan plan;
    plan.ring = &ring_;
    plan.rank = rank_;
    plan.gathered = slices;
    return RunRingPlan(&paths_, plan, &scratch_, deadline_);
  }
  DirectPlan plan;
  plan.rank = rank_;
  plan.gathered = slices;
  return RunDirectPlan(&paths_, plan, &scratch_, deadline_);
}

absl::Status TcpCollectives::Transpose(const Operation& operation) {
  DirectPlan plan;
  plan.rank = rank_;
  plan.to = EqualSlices(operation.input);
  plan.from = EqualSlices(operation.output);
  const auto own = static_cast<size_t>(rank_);
  CopyBytes(plan.from[own].data, plan.to[own].data, plan.to[own].bytes);
  return RunDirectPlan(&paths_, plan, &scratch_, deadline_);
}

}  // namespace coxswain
