#ifndef COXSWAIN_SERVER_PARAMETER_PARAMETER_STORE_H_
#define COXSWAIN_SERVER_PARAMETER_PARAMETER_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "server/generation/fence.h"
#include "server/generation/generation_guard.h"
#include "server/parameter/collective_group.h"
#include "server/parameter/outbox.h"
#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

// Holds the tensors that pass through the coordinator: the groups of the
// parameter-server mode, which live in a generation. All of it is in memory and
// bounded by ParameterLimits; nothing is durable.
//
// Called by the Parameter service, with fences that a FenceValidator has
// admitted. When a generation ends, its streams end with ABORTED, or with
// UNAVAILABLE if the coordinator ends. Thread-safe.
class ParameterStore : public GenerationObserver {
 public:
  // `clock` must outlive the store.
  ParameterStore(const ParameterLimits& limits, const Clock* clock);
  ~ParameterStore() override;

  // One rank in one group, from the first message to the end of its stream. One
  // thread at a time.
  class Participant {
   public:
    ~Participant();  // leaves the group
    Participant(const Participant&) = delete;
    Participant& operator=(const Participant&) = delete;
    // Both: errors are those of the stream; see CollectiveGroup.
    absl::Status Begin(const CollectiveOperation& operation);
    absl::Status Append(uint64_t operation, int64_t offset, std::string bytes,
                        uint32_t crc32c);

   private:
    friend class ParameterStore;
    Participant(ParameterStore* parameters, Generation generation,
                std::string name, int rank,
                std::shared_ptr<CollectiveGroup> group);

    ParameterStore* const parameters_;
    const Generation generation_;
    const std::string name_;
    const int rank_;
    const std::shared_ptr<CollectiveGroup> group_;
  };

  // Errors: as Parameter.Exchange. The store must outlive the participant.
  absl::StatusOr<std::unique_ptr<Participant>> JoinGroup(
      const Fence& fence, absl::string_view group, int rank, int size,
      std::shared_ptr<Outbox> outbox);

  // Ends what has waited too long.
  void Tick(absl::Time now);

  const ParameterLimits& limits() const { return limits_; }

  void OnGenerationEnded(absl::string_view job, Generation generation,
                         const absl::Status& reason) override;

  // Returns the memory that is held for peers.
  int64_t bytes() const { return total_->used(); }

 private:
  // What a job may hold, in all of its generations: streams of one that has
  // ended hold some until they end. Gone with the last that holds any.
  struct JobBudgets {
    std::weak_ptr<ByteBudget> bytes;
    std::weak_ptr<ByteBudget> declared;  // which holds `bytes`
  };
  // What a generation has.
  struct Scope {
    std::shared_ptr<ByteBudget> budget;    // the job's
    std::shared_ptr<ByteBudget> declared;  // the same, a part of the budget
    std::map<std::string, std::shared_ptr<CollectiveGroup>> groups;
  };

  // Fails with ABORTED if the generation has ended.
  absl::StatusOr<Scope*> FindScopeLocked(const Fence& fence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives a scope the budgets of its job.
  void TakeBudgetsLocked(const std::string& job, Scope* scope)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<CollectiveGroup>> FindGroupLocked(
      Scope* scope, absl::string_view name, int size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveGroup(const Participant& participant);

  const ParameterLimits limits_;
  const Clock* const clock_;
  const std::shared_ptr<ByteBudget> total_;

  mutable Mutex mutex_;
  std::map<Generation, Scope> scopes_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, JobBudgets> jobs_ ABSL_GUARDED_BY(mutex_);
  GenerationGuard ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_PARAMETER_STORE_H_
