#ifndef COXSWAIN_SERVER_PARAMETER_PARAMETER_STORE_H_
#define COXSWAIN_SERVER_PARAMETER_PARAMETER_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

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
#include "server/parameter/kept_parameters.h"
#include "server/parameter/outbox.h"
#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

// Holds the tensors that pass through the coordinator: the groups of the
// parameter-server mode, which live in a generation, and the named parameters
// of a job, which the next generation of the job inherits. All of it is in
// memory and bounded by ParameterLimits; nothing is durable.
//
// Called by the Parameter service, with fences that a FenceValidator has
// admitted. Answers run once, without a lock held, possibly before the call has
// returned. When a generation ends, its streams end and its calls fail with
// ABORTED, or with UNAVAILABLE if the coordinator ends. Thread-safe.
class ParameterStore : public GenerationObserver {
 public:
  using CallId = uint64_t;  // names a pull that waits; never 0

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
    Participant(ParameterStore* parameters, const Fence& fence,
                std::string name, int rank,
                std::shared_ptr<CollectiveGroup> group);

    ParameterStore* const parameters_;
    const std::string job_;
    const Generation generation_;
    const std::string name_;
    const int rank_;
    const std::shared_ptr<CollectiveGroup> group_;
  };

  // Errors: as Parameter.Exchange. The store must outlive the participant.
  absl::StatusOr<std::unique_ptr<Participant>> JoinGroup(
      const Fence& fence, absl::string_view group, int rank, int size,
      std::shared_ptr<Outbox> outbox);

  // The named parameters. Errors: as Parameter.Push and Parameter.Pull.
  absl::StatusOr<std::unique_ptr<KeptParameters::Push>> StartPush(
      const Fence& fence, absl::string_view name, int64_t version, int part,
      const TensorSpec& spec);
  CallId Pull(const Fence& fence, absl::string_view name, int64_t version,
              absl::Duration timeout, KeptParameters::PullDone done);
  void Cancel(const Fence& fence, CallId call);
  absl::StatusOr<std::vector<KeptDescription>> List(const Fence& fence);
  absl::StatusOr<bool> Forget(const Fence& fence, absl::string_view name);

  // Ends what has waited too long, and drops what no generation has inherited.
  void Tick(absl::Time now);

  const ParameterLimits& limits() const { return limits_; }

  // The job keeps its parameters.
  void OnGenerationBegan(const GenerationBegin& begin) override;
  void OnGenerationEnded(absl::string_view job, Generation generation,
                         const absl::Status& reason) override;

  // Returns the memory that is held for peers, for the status page and tests.
  int64_t bytes() const { return total_->used(); }

 private:
  struct Job {
    Generation generation;  // the present one, or the last one
    bool ended = false;
    absl::Time ended_at;
    std::shared_ptr<ByteBudget> budget;
    std::shared_ptr<ByteBudget> declared;  // a part of the budget
    std::shared_ptr<KeptParameters> kept;
    std::map<std::string, std::shared_ptr<CollectiveGroup>> groups;
  };

  using Calls = KeptParameters::Calls;

  // Fails with ABORTED if its generation has ended. `calls` are to be run
  // without the lock in any case.
  absl::StatusOr<Job*> FindJobLocked(const Fence& fence, Calls* calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends what the job has of an earlier generation.
  static void Switch(absl::string_view name, Generation generation, Job* job,
                     Calls* calls);
  absl::StatusOr<std::shared_ptr<CollectiveGroup>> Enter(
      const Fence& fence, absl::string_view group, int rank, int size,
      std::shared_ptr<Outbox> outbox, Calls* calls);
  absl::StatusOr<std::shared_ptr<KeptParameters>> KeptOf(const Fence& fence);
  absl::StatusOr<std::shared_ptr<CollectiveGroup>> FindGroupLocked(
      Job* job, absl::string_view name, int size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveGroup(const Participant& participant);

  const ParameterLimits limits_;
  const Clock* const clock_;
  const std::shared_ptr<ByteBudget> total_;

  mutable Mutex mutex_;
  CallId last_call_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Job, std::less<>> jobs_ ABSL_GUARDED_BY(mutex_);
  GenerationGuard ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_PARAMETER_STORE_H_
