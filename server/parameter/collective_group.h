#ifndef COXSWAIN_SERVER_PARAMETER_COLLECTIVE_GROUP_H_
#define COXSWAIN_SERVER_PARAMETER_COLLECTIVE_GROUP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "server/parameter/aggregate.h"
#include "server/parameter/collective_operation.h"
#include "server/parameter/outbox.h"
#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

// Runs the collectives of one group of ranks in the parameter-server mode: sums
// the parts that ranks send of a tensor, and sends the result to the ranks that
// asked for it. A tensor exists until all its participants have been sent their
// result, or an error.
//
// A rank is present from Join to Leave. A rank that needs a part of one that
// has left is sent UNAVAILABLE. What waits longer than its own timeout ends
// with DEADLINE_EXCEEDED, by the first Expire after it; the message names the
// ranks that it waited for. End may come at any time, also while a chunk is
// being summed up: what comes later is dropped.
//
// Made by ParameterStore, called by the streams of the ranks. Thread-safe;
// wakes outboxes without a lock held.
class CollectiveGroup {
 public:
  // Returns what a rank costs as long as the group lives, with its share of the
  // group, of which it keeps the name twice.
  static int64_t RankBytes(absl::string_view group) {
    return 2048 + 2 * static_cast<int64_t>(group.size());
  }

  // Chunks and what waits to be sent count against `budget`, what is declared
  // against `declared`.
  CollectiveGroup(const ParameterLimits& limits, int size,
                  std::shared_ptr<ByteBudget> budget,
                  std::shared_ptr<ByteBudget> declared)
      : limits_(limits),
        size_(size),
        budget_(std::move(budget)),
        declared_(std::move(declared)) {}

  int size() const { return size_; }

  // Fails with ALREADY_EXISTS if the rank has joined before. `charge` is of
  // RankBytes.
  absl::Status Join(int rank, std::shared_ptr<Outbox> outbox,
                    BudgetCharge charge);
  // Returns true if no rank is left; then no rank can join again.
  bool Leave(int rank);

  // Returns whether each rank has joined.
  bool AllHaveCome() const;

  // Begins an operation of this rank. Errors are those of the stream: what is
  // wrong with the operation alone goes to the outbox.
  absl::Status Begin(int rank, const CollectiveOperation& operation,
                     absl::Time now);
  // Takes a chunk of the rank's part. One of an operation that has ended
  // meanwhile is dropped.
  absl::Status Append(int rank, uint64_t operation, int64_t offset,
                      std::string bytes, uint32_t crc32c);

  void Expire(absl::Time now);
  // Ends all streams with this, and drops all operations. The first end counts.
  void End(const absl::Status& why);

  size_t tensor_count() const;

 private:
  using Key = std::pair<std::string, int64_t>;  // name, version

  // One rank's request for a result.
  struct Pull {
    std::shared_ptr<Outbox> outbox;  // of the rank; never null
    uint64_t operation = 0;
    PullRange range;
    absl::Time deadline;
    int64_t run = 0;   // that is being sent
    int64_t done = 0;  // bytes of it that were
  };
  // It is in `tensors_` as long as `pending` is not 0. One that is not has no
  // pulls and no aggregate: whatever still refers to it finds nothing to do.
  struct Tensor {
    CollectiveOperation declared;  // as the first rank did
    int first_rank = 0;
    std::shared_ptr<Aggregate> aggregate;  // null once it has failed or is over
    absl::Status failure;
    std::vector<bool> came;  // by rank: has begun its operation
    int came_count = 0;
    std::map<int, Pull> pulls;  // by rank: not answered to the end
    // Ranks that take part, have not left, and are still to be answered.
    int pending = 0;
    BudgetCharge charge;  // of this object and what it holds
  };
  using TensorPtr = std::shared_ptr<Tensor>;
  struct Rank {
    std::shared_ptr<Outbox> outbox;  // null once it has left
    bool has_left = false;
    uint64_t last_operation = 0;
    // The tensors of those that have not been answered, or of whose part chunks
    // are still to come.
    std::map<uint64_t, TensorPtr> operations;
    BudgetCharge charge;
  };
  using Touched = std::set<std::shared_ptr<Outbox>>;

  static Key KeyOf(const CollectiveOperation& operation) {
    return Key(operation.name, operation.version);
  }
  void BeginLocked(int rank, const CollectiveOperation& operation,
                   absl::Time now, Touched* touched)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the tensor that this rank takes part in from now on. It may have
  // failed.
  absl::StatusOr<TensorPtr> AdmitLocked(int rank,
                                        const CollectiveOperation& operation,
                                        Touched* touched)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<TensorPtr> MakeTensorLocked(
      int rank, const CollectiveOperation& operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the number of ranks that take part in a new tensor and have not
  // left.
  int PendingLocked(const CollectiveOperation& operation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the tensor of an operation, or null if its chunks are to be
  // dropped.
  absl::StatusOr<TensorPtr> FindOperationLocked(int rank, uint64_t operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DeliverLocked(const TensorPtr& tensor, Touched* touched)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends what can be sent. Returns true if that was all.
  static bool Advance(const Aggregate& aggregate, Pull* pull);
  // Sends all participants the error, now or when they begin.
  void FailLocked(const TensorPtr& tensor, const absl::Status& why,
                  Touched* touched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes that this rank, which was pending, needs nothing more of the tensor.
  void SettleLocked(const TensorPtr& tensor, int rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the operation, unless chunks of its part are still to come.
  void ForgetLocked(int rank, uint64_t operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether the rank has sent all of its part of a tensor that has not
  // failed.
  static bool HasGiven(const Tensor& tensor, int rank);
  // Returns whether the rank, which has not left, is still to be answered.
  static bool IsPending(const Tensor& tensor, int rank);
  // Returns whether the rank takes part, has not begun its operation and may
  // yet do so.
  bool IsAwaitedLocked(const Tensor& tensor, int rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AwaitsRanksLocked(const Tensor& tensor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns why this tensor cannot be formed any more, or OK.
  absl::Status GoneLocked(const CollectiveOperation& operation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropTensorsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the operation of a pull with an error.
  void RefuseLocked(int rank, const Pull& pull, const absl::Status& why,
                    Touched* touched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the ranks that have not begun the operation, or whose parts are not
  // complete.
  std::vector<int> MissingLocked(const Tensor& tensor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ParameterLimits limits_;
  const int size_;
  const std::shared_ptr<ByteBudget> budget_;
  const std::shared_ptr<ByteBudget> declared_;

  mutable Mutex mutex_;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);  // OK: it has not
  std::map<int, Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  int present_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, TensorPtr> tensors_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_COLLECTIVE_GROUP_H_
