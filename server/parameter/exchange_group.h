#ifndef COXSWAIN_SERVER_PARAMETER_EXCHANGE_GROUP_H_
#define COXSWAIN_SERVER_PARAMETER_EXCHANGE_GROUP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "server/parameter/aggregate.h"
#include "server/parameter/exchange_operation.h"
#include "server/parameter/outbox.h"
#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

// The collectives of one group of ranks in the parameter-server mode: what each
// rank gives to a tensor, and who is sent what of it. A tensor is there until
// all who take part in it have been sent what they want, or an error.
//
// A rank is present from Join to Leave. Whoever needs a part of a rank that has
// left is told so with UNAVAILABLE. What waits longer than its own timeout ends
// with DEADLINE_EXCEEDED, by the first Expire after it; the message says whom
// it waited for.
//
// Made by ParameterRoom, called by the streams of the ranks. Thread-safe; wakes
// outboxes without a lock held.
class ExchangeGroup {
 public:
  ExchangeGroup(const ParameterLimits& limits, int size,
                std::shared_ptr<ByteBudget> budget)
      : limits_(limits), size_(size), budget_(std::move(budget)) {}

  int size() const { return size_; }

  // ALREADY_EXISTS if the rank is here, or was.
  absl::Status Join(int rank, std::shared_ptr<Outbox> outbox);
  // True if no rank is left; then nobody can join again.
  bool Leave(int rank);

  // Whether each rank is here, or was.
  bool AllHaveCome() const;

  // Begins an operation of this rank. Errors are those of the stream: what is
  // wrong with the operation alone goes to the outbox.
  absl::Status Begin(int rank, const ExchangeOperation& operation,
                     absl::Time now);
  // A chunk of the rank's part. One of an operation that has failed meanwhile
  // is dropped.
  absl::Status Append(int rank, uint64_t operation, int64_t offset,
                      std::string bytes, uint32_t crc32c);

  void Expire(absl::Time now);
  // Ends all streams with this.
  void End(const absl::Status& why);

  size_t tensor_count() const;

 private:
  using Key = std::pair<std::string, int64_t>;  // name, version

  // One rank's wish to be sent something.
  struct Pull {
    uint64_t operation = 0;
    PullRange range;
    absl::Time deadline;
    int64_t run = 0;   // that is being sent
    int64_t done = 0;  // bytes of it that were
  };
  struct Tensor {
    ExchangeOperation declared;  // as the first rank did
    int first_rank = 0;
    std::shared_ptr<Aggregate> aggregate;  // null once it has failed
    absl::Status failure;
    std::set<int> came;         // ranks that have begun their operation
    std::map<int, Pull> pulls;  // by rank: not answered to the end
    std::set<int> pending;      // ranks that are still to be answered
  };
  using TensorPtr = std::shared_ptr<Tensor>;
  struct Operation {
    Key key;
    TensorPtr tensor;
  };
  struct Rank {
    std::shared_ptr<Outbox> outbox;
    bool gone = false;
    uint64_t last_operation = 0;
    // Those whose tensor still has this rank among `pending`, or of whose part
    // chunks are still to come.
    std::map<uint64_t, Operation> operations;
  };
  using Touched = std::set<std::shared_ptr<Outbox>>;

  void BeginLocked(int rank, const ExchangeOperation& operation, absl::Time now,
                   Touched* touched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The tensor that this rank is to take part in.
  absl::StatusOr<TensorPtr> AdmitLocked(int rank,
                                        const ExchangeOperation& operation,
                                        Touched* touched)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<TensorPtr> FindTensorLocked(int rank,
                                             const ExchangeOperation& operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The operation, or nullptr if its chunks are to be dropped.
  absl::StatusOr<Operation*> FindOperationLocked(int rank, uint64_t operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DeliverLocked(const Key& key, Tensor* tensor, Touched* touched)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends what can be sent; true if that was all.
  static bool Advance(const Aggregate& aggregate, Pull* pull, Outbox* outbox);
  // Everybody who takes part is told, now or when they come.
  void FailLocked(const Key& key, Tensor* tensor, const absl::Status& why,
                  Touched* touched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // This rank needs nothing more of the tensor.
  void SettleLocked(const Key& key, Tensor* tensor, int rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the operation, unless chunks of its part are still to come.
  void ForgetLocked(int rank, uint64_t operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether all that the rank has to give to the tensor is there.
  static bool HasGiven(const Tensor& tensor, int rank);
  // Why this tensor cannot be formed any more, or OK.
  absl::Status GoneLocked(const ExchangeOperation& operation) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RefuseLocked(int rank, uint64_t operation, const absl::Status& why,
                    Touched* touched) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ranks whose parts are not complete.
  std::string Missing(const Tensor& tensor) const;

  const ParameterLimits limits_;
  const int size_;
  const std::shared_ptr<ByteBudget> budget_;

  mutable Mutex mutex_;
  std::map<int, Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  int present_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Key, TensorPtr> tensors_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_EXCHANGE_GROUP_H_
