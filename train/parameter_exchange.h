#ifndef COXSWAIN_TRAIN_PARAMETER_EXCHANGE_H_
#define COXSWAIN_TRAIN_PARAMETER_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/host_memory.h"
#include "client/accumulate/accumulator.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer.h"
#include "client/reduce/reducer_options.h"
#include "schedule/plan.h"
#include "schedule/ticket.h"
#include "train/train.h"

namespace coxswain {

// Data-parallel steps of parameters in a program's memory, by a job's plan:
//
//   Begin, Ready for each gradient, End; and where the micro-batch has sync,
//   StepOptimizer.
//
// Gradients are summed up in the reducer's buckets; once a window has been
// exchanged, the program's gradients are the averages.
//
// Errors: the first one is kept, and breaks the communicator. Threading: one
// thread.
class ParameterExchange {
 public:
  struct Options {
    // Its gate decides on each exchange.
    ReducerOptions reducer;
    bool skip_non_finite = false;
    // The job's, of which hook and averager are made.
    schedule::Plan plan;
    // All ranks hold the same values already, which is not checked.
    bool same_at_start = false;
    // Fails for a hook that the caller refuses, on all ranks. May be null.
    std::function<absl::Status(const Hook&)> check_hook;
    std::function<absl::Status()> step_optimizer;
  };

  // Copies rank 0's values to all ranks, unless options.same_at_start: all
  // ranks call it. The communicator outlives it. INVALID_ARGUMENT: a plan that
  // does not go with the options.
  static absl::StatusOr<std::unique_ptr<ParameterExchange>> Create(
      const Options& options, const std::vector<TrainedParameter>& parameters,
      Communicator* communicator);

  // Begins the next micro-batch. Fails as Accumulator::BeginMicroBatch, and
  // with FAILED_PRECONDITION within one.
  absl::StatusOr<MicroBatch> Begin(const Accumulator::Begin& begin);
  // The gradient of this parameter stands. Once in a micro-batch.
  absl::Status Ready(int parameter);
  // All gradients stand: exchanges them, if this micro-batch is one that
  // exchanges, and waits for the decision.
  absl::Status End();

  // Ends a window that the end of the data has cut short: true, if
  // StepOptimizer is next. As DistributedDataParallel::Flush and
  // StepWithoutData.
  absl::StatusOr<bool> Flush();
  absl::StatusOr<bool> StepWithoutData();

  // Ends a window: takes the optimizer's step and commits the hook's, unless it
  // was skipped or the epoch has ended, and follows a new plan. Fails if the
  // optimizer does; an error of what follows its step, such as a change of plan
  // that a peer's end cuts short, comes back from the next call.
  absl::Status StepOptimizer();

  // Returns the first error.
  const absl::Status& status() const { return status_; }

  // Ends the exchange, and returns its hook: a step that was not committed is
  // rolled back.
  static std::unique_ptr<Hook> TakeHook(
      std::unique_ptr<ParameterExchange> exchange);

  // Brings the values of all ranks together, if an averager lets them go apart.
  absl::Status AverageParameters();

  // Of the last window.
  bool taken() const { return taken_; }
  bool ended() const { return ended_; }
  const schedule::Decision& decision() const { return decision_; }
  bool going() const {
    return decision_.stop.empty() && !accumulator_.finished();
  }

  int64_t decided() const { return decided_; }
  const schedule::Plan& plan() const { return accumulator_.plan(); }
  Accumulator& accumulator() { return accumulator_; }
  Hook& hook() { return *hook_; }
  Averager* averager() { return averager_.get(); }
  const std::vector<ParameterSpec>& parameters() const {
    return reducer_->parameters();
  }

 private:
  ParameterExchange(const Options& options, Accumulator accumulator,
                    Communicator* communicator)
      : options_(options),
        accumulator_(std::move(accumulator)),
        communicator_(*communicator) {}

  absl::Status Connect(const std::vector<TrainedParameter>& parameters);
  absl::Status CheckPlan(const schedule::Plan& plan, const Hook& hook,
                         const Averager* averager) const;

  // Announces the exchange of this sum.
  absl::Status BeginExchange(const WindowSum& sum);
  uint64_t Checksum() const;
  // Adds the micro-batch's gradient to the window's.
  void Add(size_t parameter);
  absl::Status Mark(int parameter);
  absl::Status FinishExchange();
  schedule::Vote VoteOfAverages() const;
  std::string NonFinite() const;
  // For the hook.
  absl::Status EndExchange(const schedule::Decision& decision);
  absl::Status SkipLocal(const std::string& why, schedule::Decision* decision);
  // For the window, whose decision follows from those of its exchanges.
  void NoteDecision(const schedule::Decision& decision);
  // sync_each_batch: adds the averages up.
  absl::Status AddAverages();
  void HandOverAverages();
  // What follows the optimizer's.
  absl::Status AfterStep();

  absl::Status FollowNextPlan();
  absl::Status FollowPlan(const schedule::Plan& next);
  absl::Status FollowHook(const schedule::Plan& next);
  absl::Status ReplaceHook(std::unique_ptr<Hook> hook,
                           std::unique_ptr<Averager> averager, bool carry);
  absl::Status ConfigureAverager();

  // Keeps the first error, and lets the peers know. Returns the one kept.
  absl::Status Keep(const absl::Status& status);

  const Options options_;
  std::unique_ptr<Hook> hook_;
  std::unique_ptr<Averager> averager_;
  // What the reducer calls in place of a hook that has an averager.
  std::unique_ptr<Hook> paired_hook_;
  Accumulator accumulator_;
  Communicator& communicator_;
  std::vector<Span> values_;
  std::vector<Span> gradients_;
  std::vector<HostMemory> sums_;  // of averages, with sync_each_batch
  std::unique_ptr<Reducer> reducer_;
  absl::Status status_;  // the first error

  MicroBatch micro_;
  bool in_micro_ = false;
  bool in_window_ = false;
  bool announced_ = false;  // the micro-batch's exchange
  std::vector<bool> ready_;
  WindowSum sum_;       // of the exchange begun last
  bool local_ = false;  // its step: see IsLocalStep
  schedule::Decision decision_;
  int64_t decided_ = 0;
  std::optional<schedule::Plan> next_plan_;
  bool ended_ = false;
  bool step_due_ = false;  // of the optimizer, and the hook's commit
  bool taken_ = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_TRAIN_PARAMETER_EXCHANGE_H_
