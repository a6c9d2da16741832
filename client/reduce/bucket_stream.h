#ifndef COXSWAIN_CLIENT_REDUCE_BUCKET_STREAM_H_
#define COXSWAIN_CLIENT_REDUCE_BUCKET_STREAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/reduce/agreement.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_flights.h"
#include "client/reduce/hook.h"
#include "client/reduce/hook_state.h"
#include "schedule/plan.h"
#include "schedule/step_gate.h"

namespace coxswain {

// Averages gradients over the ranks through the plan's hook, for a framework
// that divides them into buckets itself, and hands these over one after the
// other without announcing how many there are. The reducer is for all others.
//
//   Follow, Add for each bucket, Wait, then End.
//
// Buckets are exchanged by a thread in the order of BucketFlights, while later
// ones are still computed.
//
// Errors: any error in a step aborts the communicator and breaks the stream:
// everything returns the first error from then on. A bucket's contents are then
// undefined.
//
// Threading: all methods are for one thread at a time, but for Abort and Wait.
class BucketStream {
 public:
  struct Options {
    Communicator* communicator = nullptr;  // these outlive the stream
    Clock* clock = nullptr;
    schedule::StepGate* gate = nullptr;  // for reports; may be null
    // Of each collective, and between two buckets of a step.
    absl::Duration timeout;
    // Makes the hook of a plan, not yet configured.
    std::function<absl::StatusOr<std::unique_ptr<Hook>>(const schedule::Plan&)>
        make_hook;
    // Returns the error to show for one of a collective. Called by the thread
    // that exchanges; may wait. May be null.
    std::function<absl::Status(const absl::Status&)> explain;
  };

  // Makes and configures the hook of the plan. No collective. Fails with
  // INVALID_ARGUMENT for a hook that needs an averager, and as Hook::Configure.
  static absl::StatusOr<std::unique_ptr<BucketStream>> Create(
      Options options, std::vector<ParameterSpec> parameters,
      const schedule::Plan& plan);

  // Never waits for peers: a step in flight is aborted.
  ~BucketStream();

  // Follows another plan from the next step on: if it has another hook, the
  // ranks change over to that before the step's first bucket, each with its
  // state unless the plan resets it. Where they cannot, the step fails.
  absl::Status Follow(const schedule::Plan& plan);

  // Changes the parameters, between steps and on all ranks: the hook keeps its
  // state for those that stay, by name and shape.
  absl::Status ChangeParameters(std::vector<ParameterSpec> parameters);

  // Hands over the next bucket of a step: they have the indices 0, 1, ..., and
  // all ranks hand over the same. Does not wait. The memory is the stream's
  // until Wait has returned. Fails with INVALID_ARGUMENT if the bucket does not
  // fit the parameters, which breaks the stream; FAILED_PRECONDITION: the step
  // before has not been ended.
  absl::Status Add(Bucket bucket);

  // Waits, `slice` at most, until all buckets hold averages; nullopt: they do
  // not yet. Fails with FAILED_PRECONDITION if no bucket was handed over, or
  // the last one is missing, which breaks the stream.
  std::optional<absl::Status> Wait(absl::Duration slice);

  // Ends the step: the hook's becomes current, or is undone. Does nothing if no
  // bucket was handed over since the last one. The hook is configured for other
  // buckets than before here, after the first step that had them: it has no
  // notice of them in that step itself.
  absl::Status End(bool commit);
  // Fails with FAILED_PRECONDITION if a step has begun that was not waited for.
  absl::Status CheckExchanged() const;

  // Returns what ranks must have in common of what was exchanged before: a hash
  // of the last step's buckets, and one of all steps and the hook's state.
  uint64_t layout() const;
  uint64_t digest() const;

  // Between steps, collective: return this rank's shard of the hook's state, or
  // all of it, as Hook::SaveState and GatherHookState.
  absl::StatusOr<HookState> SaveShard();
  absl::StatusOr<HookState> SaveWhole();
  // Takes over a merged state, between steps; not collective. As
  // Hook::LoadState.
  absl::Status LoadState(const HookState& state);
  // Between steps: returns the hook, for its state; the plan that it is of, and
  // the parameters that it is configured with.
  absl::StatusOr<Hook*> hook();
  const schedule::Plan& plan() const { return plan_; }
  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  // Breaks the stream with this error, ends a step that was not ended, and
  // returns what the hook remembers then (Hook::SaveOwn). Fails with
  // DEADLINE_EXCEEDED if an exchange does not end within `limit`.
  absl::StatusOr<HookState> Release(bool commit, const absl::Status& reason,
                                    absl::Duration limit);

  // Breaks the stream and the communicator with this error, unless they are
  // broken. Returns at once. Wait returns once no bucket's memory is used.
  void Abort(const absl::Status& reason);

 private:
  enum class State { kIdle, kOpen, kExchanged };

  BucketStream(Options options, std::vector<ParameterSpec> parameters,
               const schedule::Plan& plan);

  absl::Status CheckBucket(const Bucket& bucket) const;
  // Fails if a step has begun and its last bucket is missing.
  absl::Status CheckComplete() const;
  // Fails within a step, or with the first error.
  absl::Status CheckIdle() const;

  // ---- the thread ----
  void Run();
  absl::Status ExchangeStep(BucketFlights& flights);
  // Returns the step's next bucket, once it has been handed over. Fails with
  // DEADLINE_EXCEEDED if it is not in time.
  absl::StatusOr<std::shared_ptr<const Bucket>> Next();
  // Changes over to the hook of the plan that is followed.
  absl::Status ChangeHook();
  void EndExchange(const BucketFlights& flights, const absl::Status& status);

  // Keeps the first error, and returns it.
  absl::Status Keep(const absl::Status& status);
  // Keeps the first error and aborts the communicator with it. Returns it.
  absl::Status Fail(const absl::Status& status);
  int64_t elements() const;

  const Options options_;

  // These belong to the thread within a step, and to the callers of the other
  // methods between steps.
  std::vector<ParameterSpec> parameters_;
  schedule::Plan plan_;  // whose hook it is
  std::unique_ptr<Hook> hook_;
  int64_t collectives_ = 0;  // of the step
  StepDigest steps_;
  uint64_t layout_ = 0;      // of the last step's buckets
  uint64_t configured_ = 0;  // that the hook was configured for

  mutable Mutex mutex_;
  CondVar changed_;
  schedule::Plan next_plan_ ABSL_GUARDED_BY(mutex_);
  State state_ ABSL_GUARDED_BY(mutex_) = State::kIdle;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool exchanging_ ABSL_GUARDED_BY(mutex_) = false;  // the thread is at it
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  // Of the step: all buckets, and how many the thread has taken.
  std::vector<std::shared_ptr<const Bucket>> buckets_ ABSL_GUARDED_BY(mutex_);
  size_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration waited_ ABSL_GUARDED_BY(mutex_);  // by Wait
  bool noted_ ABSL_GUARDED_BY(mutex_) = false;     // by the gate

  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_BUCKET_STREAM_H_
