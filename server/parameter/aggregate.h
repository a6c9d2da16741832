#ifndef COXSWAIN_SERVER_PARAMETER_AGGREGATE_H_
#define COXSWAIN_SERVER_PARAMETER_AGGREGATE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/element_names.h"
#include "base/mutex.h"
#include "base/reduce_elements.h"
#include "server/parameter/byte_budget.h"
#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

enum class Reduction { kSet, kSum, kMin, kMax, kConcat };
absl::string_view NameOf(Reduction reduction);

// How a tensor is formed.
struct TensorSpec {
  Reduction reduction = Reduction::kSet;
  std::string dtype = "float32";
  int64_t bytes = 0;  // of each part
  int parts = 1;

  // Returns the bytes of the whole.
  int64_t total_bytes() const {
    return reduction == Reduction::kConcat ? bytes * parts : bytes;
  }
  // Fails with INVALID_ARGUMENT, naming what makes no sense, or with
  // RESOURCE_EXHAUSTED, naming the limit.
  absl::Status Check(const ParameterLimits& limits) const;
  // Fails with DATA_LOSS unless this is the next chunk of a part of which
  // `received` bytes are there.
  absl::Status CheckChunk(int part, int64_t received, int64_t offset,
                          int64_t size) const;
};

// One tensor while it is formed from its parts, and afterwards. Reductions are
// done chunk by chunk, in the order of the parts: early chunks are held, and
// the result has the same bits whatever the order of arrival. The arithmetic is
// done without the lock, by the thread that brought what was missing.
// Thread-safe.
class Aggregate {
 public:
  // `spec` has been checked. What the tensor costs without its chunks is taken
  // of the budget first, and given back with it; fails with RESOURCE_EXHAUSTED
  // if that does not fit. Chunks bring what the cells of their own cost.
  static absl::StatusOr<std::shared_ptr<Aggregate>> Make(
      const TensorSpec& spec, std::shared_ptr<ByteBudget> budget);

  const TensorSpec& spec() const { return spec_; }

  // Takes the next chunk of a part. Fails with DATA_LOSS if it does not follow
  // the one before, or has another size than it should.
  absl::Status Append(int part, int64_t offset,
                      std::shared_ptr<ChunkBuffer> chunk);

  // Returns whether all chunks of all parts are there. (A part of no bytes
  // always is.)
  bool complete() const;
  bool PartComplete(int part) const;

  // Returns the number of the tensor's chunks, of which the last one, or the
  // last one of each part where parts are concatenated, is shorter than the
  // others.
  int64_t chunk_count() const;
  // Which of them has this byte of the tensor, and where that chunk begins.
  struct Place {
    int64_t chunk = 0;
    int64_t begin = 0;
  };
  Place PlaceOf(int64_t offset) const;
  // Returns null until it is complete.
  ChunkPtr Chunk(int64_t index) const;

 private:
  struct Cell {
    int next = 0;       // the part that is to be reduced next
    bool busy = false;  // some thread reduces
    std::map<int, std::shared_ptr<ChunkBuffer>> held;  // by part
    std::shared_ptr<ChunkBuffer> result;
  };

  Aggregate(const TensorSpec& spec, BudgetCharge charge);

  int64_t ChunksOfAPart() const;
  // Returns the cell of a chunk of this part.
  Cell& CellLocked(int part, int64_t chunk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool DoneLocked(const Cell& cell) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reduces the chunks that can be. Without the lock.
  void Reduce(Cell* cell);

  const BudgetCharge charge_;
  const TensorSpec spec_;
  const ElementType type_;

  mutable Mutex mutex_;
  std::vector<int64_t> received_ ABSL_GUARDED_BY(mutex_);  // bytes, by part
  // By the number of the chunk; made by the first chunk that comes for one.
  std::map<int64_t, Cell> cells_ ABSL_GUARDED_BY(mutex_);
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;  // cells
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_AGGREGATE_H_
