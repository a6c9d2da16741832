#ifndef COXSWAIN_CLIENT_REDUCE_REDUCER_H_
#define COXSWAIN_CLIENT_REDUCE_REDUCER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_plan.h"
#include "client/reduce/hook.h"

namespace coxswain {

struct ReducerOptions {
  BucketPlanOptions buckets;
  // The longest that one collective, or Finish, may take. The communicator has
  // a bound of its own, SessionOptions::collective_timeout: the shorter one
  // counts, so raise both for slow exchanges.
  absl::Duration timeout = absl::Minutes(5);
  Clock* clock = Clock::Real();  // for BucketTiming
};

// When the steps of one bucket's exchange happened, by the injected clock.
struct BucketTiming {
  absl::Time ready;     // the last gradient was marked
  absl::Time launched;  // the hook's exchange was begun
  absl::Time done;      // the average stood in the bucket
};

// Averages the gradients of a step over the ranks, through a hook, while the
// backward pass that yields them still runs. Knows no framework.
//
//   BeginStep, MarkReady for each gradient, Finish, then Commit or Rollback.
//
// Order of collectives: buckets are begun strictly in index order, whichever
// is ready first, by one exchange thread that works in rounds. Round r waits
// until bucket r is ready, begins it (Prepare and the first Advance), and then
// advances each earlier bucket that is still in flight by one, the latest
// first. So a hook computes on bucket r-1 while bucket r's collective runs,
// and the order depends only on how often each exchange advances, which is the
// same on all ranks; never on when something became ready or ended.
//
// Missing gradients: a parameter that has not been marked when Finish is
// called contributes zeros, and receives the average like all others.
//
// Errors: any error in a step (of the hook, of a collective, of the caller)
// aborts the communicator, which also ends the waiting of its peers (over gloo
// with UNAVAILABLE, as for any broken connection), and rolls the hook back. The
// reducer is broken from then on: everything returns the first error, which
// names rank, step and bucket. The contents of the buckets are then undefined.
//
// Threading: BeginStep, Finish, Commit, Rollback, BroadcastFromRoot are for
// one thread at a time. MarkReady is safe from any thread between BeginStep
// and Finish, Abort at any time. The hook is called by the exchange thread
// within a step, and by the callers of Commit and Rollback.
class Reducer {
 public:
  // Plans the buckets, takes their memory from the communicator and
  // configures the hook. No collective. Hook, communicator and clock outlive
  // the reducer. INVALID_ARGUMENT names what is wrong with the parameters;
  // UNIMPLEMENTED: gradients that are not in host memory.
  static absl::StatusOr<std::unique_ptr<Reducer>> Create(
      const ReducerOptions& options, std::vector<ParameterSpec> parameters,
      Hook* hook, Communicator* communicator);

  // Never waits for peers: a step in flight is aborted.
  ~Reducer();

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }

  // Where parameter's gradient lies in its bucket. The caller may write there
  // until it marks the gradient, and from the end of Finish until the next
  // step's marking.
  Span GradientView(int parameter) const;

  // Begins a step. All ranks begin the same steps. FAILED_PRECONDITION if the
  // last one has been neither committed nor rolled back.
  absl::Status BeginStep();

  // The gradient stands in GradientView(parameter).
  absl::Status MarkReady(int parameter);
  // Copies it there first: same count and type as the parameter.
  absl::Status MarkReady(int parameter, Span gradient);

  // Parameters that have not been marked in this step.
  std::vector<int> Unmarked() const;

  // Waits until all buckets hold averages; afterwards the caller ends the step
  // with Commit or Rollback. DEADLINE_EXCEEDED after options.timeout.
  absl::Status Finish();

  // Makes what the hook staged in a finished step current.
  absl::Status Commit();
  // Ends a finished step as if it had not been, for the hook. In an unfinished
  // step, of which peers may have seen buckets, it is Abort. Otherwise
  // nothing.
  void Rollback();

  // Breaks the reducer and the communicator, with this error unless they are
  // broken already. Returns at once.
  void Abort(const absl::Status& reason);

  // The first error, if there was one.
  absl::Status status() const;

  // The hook's count of committed steps when the step was begun.
  int64_t step() const;

  // Of the current step, or else of the last one; by bucket.
  std::vector<BucketTiming> timings() const;

  // Copies rank 0's data to all ranks, small spans packed together. Between
  // steps. All ranks pass spans of the same sizes in the same order. An error
  // is returned once nothing uses the spans any more, or, where the aborted
  // communicator does not end, another options.timeout later.
  absl::Status BroadcastFromRoot(const std::vector<Span>& spans);

 private:
  enum class State { kIdle, kCollecting, kExchanged };
  struct Place {  // of a parameter's gradient
    int bucket = 0;
    Span view;
  };
  struct InFlight {
    int bucket = 0;
    std::unique_ptr<Exchange> exchange;
    WorkPtr work;
  };

  Reducer(const ReducerOptions& options, std::vector<ParameterSpec> parameters,
          Hook* hook, Communicator* communicator);
  absl::Status Allocate();

  // The exchange thread.
  void Run();
  absl::Status Exchanges(std::vector<InFlight>* in_flight);
  absl::Status WaitUntilReady(int bucket);
  absl::Status Begin(int bucket, std::vector<InFlight>* in_flight);
  // One phase; resets `flight.exchange` when the average stands.
  absl::Status Advance(InFlight* flight);

  absl::Status Claim(int parameter);
  void CountDown(int parameter);
  // Keeps the first error, and aborts the communicator with it.
  absl::Status Fail(absl::Status status);
  absl::Status InBucket(int bucket, const absl::Status& status) const;
  bool WaitForExchangeThread(absl::Duration timeout);
  absl::Status BroadcastPacked(const std::vector<Span>& spans,
                               std::shared_ptr<BufferOwner> buffer);
  // Rank 0's bytes to all ranks. `memory`, if any, lives until the collective
  // has ended, even past a timeout.
  absl::Status Broadcast(Span span, std::shared_ptr<BufferOwner> memory);

  const ReducerOptions options_;
  const std::vector<ParameterSpec> parameters_;
  Hook* const hook_;
  Communicator* const communicator_;
  std::vector<Bucket> buckets_;
  std::vector<std::unique_ptr<BufferOwner>> memory_;  // by bucket
  std::vector<Place> places_;                         // by parameter

  mutable Mutex mutex_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kIdle;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  // The exchange thread is at work on a step.
  bool exchanging_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<bool> marked_ ABSL_GUARDED_BY(mutex_);  // by parameter
  std::vector<int> pending_ ABSL_GUARDED_BY(mutex_);  // gradients, by bucket
  std::vector<BucketTiming> timings_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_REDUCER_H_
