#include "server/parameter/aggregate.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/tensor_chunk.h"

namespace coxswain::server {
namespace {

bool Reduces(Reduction reduction) {
  return reduction == Reduction::kSum || reduction == Reduction::kMin ||
         reduction == Reduction::kMax;
}

ElementOp OpOf(Reduction reduction) {
  if (reduction == Reduction::kMin) return ElementOp::kMin;
  if (reduction == Reduction::kMax) return ElementOp::kMax;
  return ElementOp::kSum;
}

}  // namespace

absl::string_view NameOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSet:
      return "set";
    case Reduction::kSum:
      return "sum";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
    case Reduction::kConcat:
      return "concat";
  }
  return "unknown reduction";
}

absl::Status TensorSpec::Check(const ParameterLimits& limits) const {
  const std::optional<ElementType> type = ElementTypeFromName(dtype);
  if (!type.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no element type '", dtype, "'"));
  }
  if (parts < 1 || (reduction == Reduction::kSet && parts != 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a tensor of ", NameOf(reduction), " cannot have ", parts, " parts"));
  }
  if (bytes < 0 || bytes % static_cast<int64_t>(SizeOf(*type)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes are no number of ", dtype, " elements"));
  }
  const int64_t copies = reduction == Reduction::kConcat ? parts : 1;
  if (bytes > limits.max_tensor_bytes / copies) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a tensor of ", copies, " times ", bytes,
                     " bytes is larger than max_tensor_bytes, which is ",
                     limits.max_tensor_bytes));
  }
  return absl::OkStatus();
}

absl::Status TensorSpec::CheckChunk(int part, int64_t received, int64_t offset,
                                    int64_t size) const {
  const int64_t expected = std::min(kTensorChunkBytes, bytes - received);
  if (offset == received && size == expected && size > 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("part ", part, ": a chunk of ", size, " bytes at ", offset,
                   " came where one of ", expected, " bytes at ", received,
                   " should follow"));
}

absl::StatusOr<std::shared_ptr<Aggregate>> Aggregate::Make(
    const TensorSpec& spec, std::shared_ptr<ByteBudget> budget) {
  const auto bytes =
      static_cast<int64_t>(sizeof(Aggregate)) + kAllocationBytes +
      ArrayBytes(spec.parts * static_cast<int64_t>(sizeof(int64_t))) +
      BytesOf(spec.dtype);
  COXSWAIN_ASSIGN_OR_RETURN(BudgetCharge charge,
                            BudgetCharge::Take(std::move(budget), bytes));
  return std::shared_ptr<Aggregate>(new Aggregate(spec, std::move(charge)));
}

Aggregate::Aggregate(const TensorSpec& spec, BudgetCharge charge)
    : charge_(std::move(charge)),
      spec_(spec),
      type_(*ElementTypeFromName(spec.dtype)),
      received_(static_cast<size_t>(spec.parts), 0) {}

int64_t Aggregate::ChunksOfAPart() const {
  return (spec_.bytes + kTensorChunkBytes - 1) / kTensorChunkBytes;
}

int64_t Aggregate::chunk_count() const {
  return ChunksOfAPart() *
         (spec_.reduction == Reduction::kConcat ? spec_.parts : 1);
}

Aggregate::Place Aggregate::PlaceOf(int64_t offset) const {
  COXSWAIN_CHECK(spec_.bytes > 0);
  const int64_t part = offset / spec_.bytes;
  const int64_t chunk = offset % spec_.bytes / kTensorChunkBytes;
  return {part * ChunksOfAPart() + chunk,
          part * spec_.bytes + chunk * kTensorChunkBytes};
}

Aggregate::Cell& Aggregate::CellLocked(int part, int64_t chunk) {
  const int64_t first =
      spec_.reduction == Reduction::kConcat ? part * ChunksOfAPart() : 0;
  return cells_[first + chunk];
}

bool Aggregate::DoneLocked(const Cell& cell) const {
  return cell.next == (Reduces(spec_.reduction) ? spec_.parts : 1);
}

absl::Status Aggregate::Append(int part, int64_t offset,
                               std::shared_ptr<ChunkBuffer> chunk) {
  Cell* cell = nullptr;
  {
    MutexLock lock(&mutex_);
    int64_t& received = received_[static_cast<size_t>(part)];
    const auto size = static_cast<int64_t>(chunk->bytes.size());
    absl::Status follows = spec_.CheckChunk(part, received, offset, size);
    if (!follows.ok()) return follows;
    received += size;
    cell = &CellLocked(part, offset / kTensorChunkBytes);
    const int place = Reduces(spec_.reduction) ? part : 0;
    cell->held.emplace(place, std::move(chunk));
    if (cell->busy) return absl::OkStatus();
    cell->busy = true;
  }
  Reduce(cell);
  return absl::OkStatus();
}

void Aggregate::Reduce(Cell* cell) {
  std::shared_ptr<ChunkBuffer> result;
  bool last = false;
  while (true) {
    std::shared_ptr<ChunkBuffer> next;
    {
      MutexLock lock(&mutex_);
      if (last) ++done_;
      const auto it = cell->held.find(cell->next);
      if (last || it == cell->held.end()) {
        if (result != nullptr) cell->result = std::move(result);
        cell->busy = false;
        return;
      }
      next = std::move(it->second);
      cell->held.erase(it);
      if (result == nullptr) result = cell->result;
      ++cell->next;
      last = DoneLocked(*cell);
    }
    if (result == nullptr) {
      result = std::move(next);
      continue;
    }
    ReduceElements(type_, OpOf(spec_.reduction), result->bytes.data(),
                   result->bytes.data(), next->bytes.data(),
                   next->bytes.size() / SizeOf(type_));
    if (last) result->crc32c = Crc32c(result->bytes);
  }
}

bool Aggregate::complete() const {
  MutexLock lock(&mutex_);
  return done_ == chunk_count();
}

bool Aggregate::PartComplete(int part) const {
  MutexLock lock(&mutex_);
  return received_[static_cast<size_t>(part)] == spec_.bytes;
}

ChunkPtr Aggregate::Chunk(int64_t index) const {
  MutexLock lock(&mutex_);
  const auto cell = cells_.find(index);
  if (cell == cells_.end()) return nullptr;
  const bool done = DoneLocked(cell->second) && !cell->second.busy;
  return done ? cell->second.result : nullptr;
}

}  // namespace coxswain::server
