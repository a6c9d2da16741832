#ifndef COXSWAIN_CLIENT_REDUCE_BUCKET_POOL_H_
#define COXSWAIN_CLIENT_REDUCE_BUCKET_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/step_report.h"

namespace coxswain {

// The memory of buckets that have some only while gradients are in them: taken
// for a bucket's first gradient, given back once its averages were taken out.
// What is given back serves later buckets, in this step or the next ones. The
// pool grows rather than waits for ever: a bucket that is not full may be the
// one that all others wait for.
//
// What it holds, in use or not, is at most what buckets needed at a time, in
// this step or the one before it, or kKept times the largest bucket, whichever
// is more; beyond that only by blocks that are in use and up to twice as large
// as needed.
//
// Owned by the reducer. Thread-safe. The communicator outlives it; its
// AllocateBuffer is called by any thread.
class BucketPool {
 public:
  static constexpr int64_t kKept = 3;

  // `wait`: see ReducerOptions::bucket_wait.
  explicit BucketPool(Communicator* communicator,
                      absl::Duration wait = absl::ZeroDuration())
      : communicator_(*communicator), wait_(wait) {}

  // Sets the buckets of the next steps, between steps. Frees all memory.
  void SetBuckets(const std::vector<Bucket>& buckets);

  // Begins a step. Until EndExchange buckets are being exchanged, or awaited.
  void BeginStep();
  // For the marking threads: Take is about to be called for this bucket, to
  // copy a gradient there that is as large as it at most. Waits while the
  // memory in use would be, with both, more than kKept buckets', up to `wait`,
  // and no longer than the exchange thread has something to do.
  void AwaitSpace(int bucket);
  // A gradient of the bucket is ready.
  void NoteGradient(int bucket);
  // For the exchange thread: it needs this bucket next; -1: it has what it
  // needs.
  void SetAwaited(int bucket);
  void EndExchange();

  // Returns the bucket's memory, which has space behind it for the padding of
  // its slices; the contents are undefined when the bucket had none. It stays
  // until GiveBack. Fails with the errors of Communicator::AllocateBuffer.
  absl::StatusOr<Span> Take(int bucket);
  // Nothing uses the bucket's memory any more, if it had any.
  void GiveBack(int bucket);
  // Ends a step: no bucket has memory.
  void EndStep();

  BucketMemoryUse use() const;

 private:
  struct Block {
    std::unique_ptr<BufferOwner> owner;
    int64_t bytes = 0;
  };
  struct Entry {
    Span data;             // of the bucket, without memory
    int64_t elements = 0;  // with padding
    int64_t bytes = 0;     // of these
    Block block;           // null owner: none
    size_t gradients = 0;
    size_t pending = 0;  // of these, not ready in this step
  };

  // Returns whether the exchange cannot go on until a gradient is ready.
  bool starved() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !exchanging_ ||
           (awaited_ >= 0 &&
            entries_[static_cast<size_t>(awaited_)].pending > 0);
  }
  absl::StatusOr<Block> Allocate(const Entry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutBack(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees what is not in use until what is held, with `more` bytes, is within
  // bounds.
  void Trim(int64_t more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Communicator& communicator_;
  const absl::Duration wait_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool exchanging_ ABSL_GUARDED_BY(mutex_) = false;
  int awaited_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by bucket
  std::vector<Block> free_ ABSL_GUARDED_BY(mutex_);
  int64_t largest_ ABSL_GUARDED_BY(mutex_) = 0;  // bucket, in bytes
  int64_t needed_ ABSL_GUARDED_BY(mutex_) = 0;   // by buckets, now
  // The most that was needed at a time, in this step and the one before it.
  int64_t most_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t most_before_ ABSL_GUARDED_BY(mutex_) = 0;
  BucketMemoryUse use_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_BUCKET_POOL_H_
