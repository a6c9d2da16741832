#ifndef COXSWAIN_CLIENT_REDUCE_REDUCER_H_
#define COXSWAIN_CLIENT_REDUCE_REDUCER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/reduce/agreement.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_layout.h"
#include "client/reduce/bucket_pool.h"
#include "client/reduce/gradient_marks.h"
#include "client/reduce/gradient_memory.h"
#include "client/reduce/hook.h"
#include "client/reduce/hybrid_hook.h"
#include "client/reduce/own_slices.h"
#include "client/reduce/reducer_options.h"
#include "client/reduce/step_exchange.h"
#include "client/reduce/step_report.h"
#include "schedule/step_gate.h"

namespace coxswain {

// Averages the gradients of a step over the ranks, through a hook, while the
// backward pass that yields them still runs. Independent of any framework.
//
//   BeginStep, MarkReady for each gradient, Finish, then Commit or Rollback.
//
// Collectives are started by one exchange thread, in the order of StepExchange,
// which all ranks share. No lock is held while one runs.
//
// Agreement: before the first gradient or broadcast travels, and again after
// each change of parameters, buckets or hook, the ranks compare all that must
// be equal. FAILED_PRECONDITION, on all ranks, shows what differs.
//
// Layout: see ReducerOptions::rebuild. It is frozen after the first step, and
// before the first step of a hook that needs it frozen. When it changes, in
// Commit, Rollback and the Change methods, the contents of the views are
// carried over, and layout_version() rises; with release_buckets the own slices
// are zeros then, as without it are sums of averages.
//
// Missing gradients: a parameter that has not been marked when Finish is
// called contributes zeros, and receives the average like all others.
//
// Uneven inputs: a hook that applies shares gets w / sum(w) with each bucket, w
// being BeginStep's weight, and multiplies by that in the type it computes in.
// For other hooks gradients are multiplied by w W / sum(w) in their own type
// first, W being the world size, and the hook divides by W. Either way errors
// that a hook keeps back are never weighted.
//
// Errors: any error in a step (of the hook, of a collective, of the caller)
// aborts the communicator, which also ends the waits of its peers (over tcp
// with UNAVAILABLE, as for any broken connection), and rolls the hook back. The
// reducer is broken from then on: everything returns the first error, which
// names rank, step and bucket. The contents of the buckets are then undefined.
//
// On a GPU: gradients are computed on the caller's stream, which
// ReducerOptions::caller_stream returns on the thread that marks them, and
// marking does not wait for it. What the caller enqueues on that stream once
// Finish has returned reads the averages.
//
// Threading: all methods are for one thread at a time, except that MarkReady is
// safe from any thread between BeginStep and Finish, and Abort, status, step,
// report and totals at any time. The hook is called by the exchange thread
// within a step, and by the callers of the other methods.
class Reducer {
 public:
  struct MarkOptions {
    // False: the rank's backward pass does not reach the parameter. Its
    // gradient is part of the average all the same.
    bool used = true;
    // MarkReady(parameter, gradient, ...) only: the average (clipped with
    // max_norm) is copied to `gradient` before Finish returns, unless the
    // parameter is unused everywhere; the memory stays valid until then.
    bool copy_back = false;
    // The same, and the memory is this gradient's alone and the exchange may
    // work in it until then, instead of in a copy: the view is then not
    // written, and after an error the contents are undefined. Done where it
    // saves time: see docs/reducer.md.
    bool in_place = false;
  };

  // Plans the buckets, takes their memory from the communicator and configures
  // the hook. No collective. Hook, communicator and clock outlive the reducer.
  // Fails with INVALID_ARGUMENT, naming the parameters or options that are not
  // valid: the parameters are not on one device, or not on the one whose memory
  // the communicator moves.
  static absl::StatusOr<std::unique_ptr<Reducer>> Create(
      const ReducerOptions& options, std::vector<ParameterSpec> parameters,
      Hook* hook, Communicator* communicator);

  // Never waits for peers: a step in flight is aborted. On a GPU, waits for
  // what is on the caller's stream, which may read the views.
  ~Reducer();
  // Ends all work on the buckets, as the first half of the destructor. After
  // this only the views may be used.
  void Stop();

  // Returns the hook, whose state, with ReducerOptions::hybrid, is that of all
  // slices; between steps. Others than this one's are not to be asked then.
  Hook& hook() { return *hook_; }
  // Returns what makes of a hook like the one that was given to the reducer one
  // like hook(), for a copy of its state; null: it is one.
  HybridHook::Copier HookCopier() const {
    return hybrid_ != nullptr ? hybrid_->MakeCopier() : nullptr;
  }

  // Returns the options as they count now; between steps.
  const ReducerOptions& options() const { return options_; }

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return layout_->buckets(); }

  // Returns where the parameter's gradient lies in its bucket, row-major. The
  // caller may write there until it marks the gradient, and from the end of
  // Finish until the next step's marking. With release_buckets it has no
  // memory, and `data` is null.
  Span GradientView(int parameter) const { return Place(parameter).view; }
  const GradientPlace& Place(int parameter) const;
  // Returns the number of changes of the layout.
  int64_t layout_version() const { return layout_version_; }
  bool layout_frozen() const { return frozen_; }

  // Begins a step. All ranks begin the same steps. With
  // ReducerOptions::uneven_inputs `weight` is the weight of this rank's
  // gradients; with 0 it has no data: all its gradients are zeros, already
  // marked, and its views are overwritten. If all weights are 0, nothing is
  // exchanged and the report is `empty`. Fails with INVALID_ARGUMENT if a
  // weight is negative or not finite, or is not 1 without that option, and with
  // FAILED_PRECONDITION if the last step has been neither committed nor rolled
  // back.
  absl::Status BeginStep(double weight = 1);
  // Begins a step of several micro-batches, announced at the options' gate: the
  // average is the sum over the ranks of divisor * gradients, over the sum of
  // ticket.weight (without uneven_inputs: the mean over the ranks, and neither
  // counts). Gradients of micro-batches whose weights are all 0 are marked as
  // usual, and replaced by zeros. The reducer fills in the ticket's hook,
  // layout, digest and plan version. A `local` step, in which the ranks
  // exchange nothing, is not announced: every rank commits its own.
  absl::Status BeginStep(const schedule::Ticket& ticket, double divisor,
                         bool local = false);

  // Marks a gradient that is in GradientView(parameter). UNIMPLEMENTED with
  // release_buckets.
  absl::Status MarkReady(int parameter);
  absl::Status MarkReady(int parameter, const MarkOptions& mark);
  // Copies the gradient there first, but for MarkOptions::in_place: same count
  // and type as the parameter, row-major.
  absl::Status MarkReady(int parameter, Span gradient);
  absl::Status MarkReady(int parameter, Span gradient, const MarkOptions& mark);
  // Writes zeros there, for a parameter that the rank's backward pass does not
  // reach.
  absl::Status MarkZeros(int parameter);

  // Returns the parameters that have not been marked in this step.
  std::vector<int> Unmarked() const;

  // Waits until all buckets hold averages; afterwards the caller ends the step
  // with Commit or Rollback. Fails with DEADLINE_EXCEEDED after
  // options.timeout.
  absl::Status Finish();

  // With find_unused_parameters: returns whether, in the step finished last, no
  // rank's backward pass reached the parameter; or, if the hook left each rank
  // with its own gradients, not this rank's. Valid until the next step begins.
  bool unused_everywhere(int parameter) const;

  // Returns what all ranks do with the finished step: waits for the gate's
  // decision; without a gate the decision is the vote. Asks once a step; later
  // calls return the same. With ReducerOptions::on_average the exchange has
  // asked before, with a vote to commit, and this vote does not count. Every
  // step that was announced is decided on, also an empty one, which is then
  // rolled back. A vote against the step that is `unanimous`, because it
  // follows from the averages, has it skipped even where votes do not count. An
  // error (ABORTED: the ranks did different things) breaks the reducer.
  //
  // With ReducerOptions::norm_by_vote the vote carries what this rank's slices
  // add to the norm, and this call clips them: until then they are as the hook
  // left them, and the report has no norm, and of non_finite this rank's alone.
  // The same holds for whole averages with ReducerOptions::counts_in_norm: they
  // are clipped in the views; to where MarkOptions::copy_back has them copied,
  // they come before, as the hook left them. Where a coordinator of a version
  // that does not sum up answers, the norm of several stages is not known:
  // FAILED_PRECONDITION with max_norm.
  absl::StatusOr<schedule::Decision> Decide(const schedule::Vote& vote = {},
                                            bool unanimous = false);

  // Makes what the hook staged in a finished step current. Fails with
  // FAILED_PRECONDITION if Decide has returned to skip the step or, with a
  // gate, has not returned.
  absl::Status Commit();
  // Undoes a finished step for the hook. Aborts an unfinished step, of which
  // peers may have received buckets; with a gate also one on which Decide has
  // not been called, or has returned that the others commit. Otherwise does
  // nothing.
  void Rollback();

  // The following are called between steps, on all ranks alike.

  // Changes the bucket sizes; which parameters are late or not counted stays.
  absl::Status ChangeBuckets(const BucketPlanOptions& buckets);
  // Changes the parameters: groups added or frozen later. The hook keeps its
  // state for those that stay, by name and shape. `settings`, if given, replace
  // ReducerOptions::settings.
  absl::Status ChangeParameters(
      std::vector<ParameterSpec> parameters,
      std::optional<std::map<std::string, std::string>> settings = {});
  // Fails with INVALID_ARGUMENT for a hook whose averages cannot be kept in
  // slices, where the options have these.
  absl::Status CheckHook(const Hook& hook) const {
    return options_.slices ? CheckSlicing(hook) : absl::OkStatus();
  }
  // Changes to another hook, which outlives the reducer; collective. See
  // ChangeOver.
  absl::Status ChangeHook(Hook* hook, bool carry_state);

  // Takes over the plan's header exchange, and its version, from the next step
  // on. The layout stays.
  absl::Status ChangePlan(const schedule::Plan& plan);

  // Copies root's data to all ranks; see BroadcastSpans. Also after Finish,
  // before the step is committed or rolled back.
  absl::Status BroadcastFromRoot(const std::vector<Span>& spans, int root = 0);

  // With ReducerOptions::slices: returns the communicator of the ranks that
  // share them, each with the slice of its own rank there.
  Communicator& slicing() const {
    return options_.hybrid.shard != nullptr ? *options_.hybrid.shard
                                            : *communicator_;
  }
  // With ReducerOptions::slices: returns this rank's slice of a bucket, which
  // holds its averages once the step is finished; after a step whose ticket has
  // a `micro` above 0, their sum over the steps since the one with 0
  // (sync_each_batch). After Rollback it is undefined until such a one.
  Span OwnSlice(const Bucket& bucket) const;
  // Copies each rank's slices to all: `wholes` has memory like each bucket,
  // with space for the slices' padding, in which the own slice is complete. In
  // place: for parameters that lie as their gradients do, after the own ones
  // have taken their step. All ranks call it, between steps or after Finish.
  // Fails with INVALID_ARGUMENT for other memory than the buckets', and
  // otherwise breaks the reducer.
  absl::Status GatherSlices(const std::vector<Span>& wholes);

  // Breaks the reducer and the communicator, with this error unless they are
  // broken already. Returns at once.
  void Abort(const absl::Status& reason);

  // Returns the first error, if there was one.
  absl::Status status() const;

  // Returns the hook's number of committed steps when the step was begun.
  int64_t step() const;

  // Returns the report of the step finished last.
  StepReport report() const;
  bool finds_non_finite() const { return options_.finds_non_finite; }
  // With finds_non_finite: returns the parameters of which this rank's own
  // gradients were not finite in that step. On the training thread.
  std::vector<int> own_non_finite() const;
  ReducerTotals totals() const;

 private:
  enum class State { kIdle, kCollecting, kExchanged };

  Reducer(const ReducerOptions& options, Hook* hook,
          Communicator* communicator);

  // Returns what stands in for this hook; null: it does itself.
  std::unique_ptr<HybridHook> Wrap(Hook* hook) const;
  // INVALID_ARGUMENT if a hook's averages cannot be kept in slices.
  static absl::Status CheckSlicing(const Hook& hook);
  absl::Status CheckGather(const std::vector<Span>& wholes) const;
  // Divides the buckets by this order, carries their contents over, and
  // configures the hook.
  absl::Status ApplyLayout(const BucketPlanOptions& buckets,
                           std::vector<ParameterSpec> parameters,
                           const std::vector<int>& order);
  // Fills it with the contents of the layout before, if there is one.
  absl::Status FillLayout(BucketLayout& layout,
                          const std::vector<ParameterSpec>& parameters);
  // Counts its buckets' memory.
  void NoteMemory(const BucketLayout& layout);
  absl::Status Rebuild();
  // Fails with FAILED_PRECONDITION in a step, or with the first error.
  absl::Status CheckIdle(absl::string_view what) const;
  absl::Status CheckTicket(const schedule::Ticket& ticket,
                           double divisor) const;
  // Fills in the fields that the caller of BeginStep does not know.
  schedule::Ticket Complete(const schedule::Ticket& ticket) const;
  void MakeExchange(const schedule::Ticket& ticket, double divisor);
  // Returns whether the step's averages are, or may have to be, added up.
  bool NeedsSums(const schedule::Ticket& ticket) const;
  // Makes memory for that, if need be.
  absl::Status KeepSums(const schedule::Ticket& ticket);
  // Returns whether large gradients can be exchanged where they are, in a step.
  bool CanExchangeInPlace() const;
  absl::Status Announce(const schedule::Ticket& ticket);
  bool local() const {
    MutexLock lock(&mutex_);
    return local_;
  }
  // The exchange thread's part of a step.
  absl::Status Exchange();
  // Asks the gate once a step.
  absl::StatusOr<schedule::Decision> DecideOnce(const schedule::Vote& vote,
                                                bool unanimous = false);
  absl::StatusOr<schedule::Decision> AskGate(const schedule::Vote& vote,
                                             bool unanimous);

  absl::Status BeginMarks();
  absl::Status Claim(int parameter, const GradientMarks::Mark& mark);
  absl::Status MarkedTwice(int parameter) const;
  // How a gradient of zeros is handed over.
  GradientMarks::Mark Zeros() const;
  // The gradient is ready, or will be when the caller's stream gets there.
  absl::Status CountDown(int parameter);
  absl::Status ClearAndCount(int parameter);
  // Returns the view, or takes memory for it.
  absl::StatusOr<Span> Memory(int parameter);
  void MarkMissing();
  const Bucket& BucketOf(int parameter) const;
  // Clips, and copies the averages that have not been copied outside yet.
  absl::Status Deliver(StepReport& report);
  void NoteStatistics(const GradientStatistics& statistics,
                      StepReport* report) const;
  // Copies the averages to where they are to be, unless that has been done.
  absl::Status DeliverWholes(double factor);
  // Clips the own slices, or all averages, where they are.
  absl::Status Clip(double factor);
  // Whether the norm of the step that was finished comes with its decision.
  bool NormByVote() const;
  // Adds to a vote what this rank counts.
  schedule::Vote WithSums(const schedule::Vote& vote) const;
  bool Counts() const;
  // Clips by the sums in the decision, or else by one collective.
  absl::Status TakeNorm(const schedule::Decision& decision);
  void Publish(const StepReport& report);
  absl::Status CheckCommit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails if the other ranks commit the step, or have not decided on it.
  absl::Status CheckRollback() const;
  // Rolls the hook back if there was a step. Returns false if there was none,
  // or it broke the reducer.
  bool EndStep();

  // Compares Description over the ranks, once.
  absl::Status EnsureAgreement();
  std::vector<std::string> Description() const;
  // Keeps the first error; returns whether it is this one.
  bool Keep(const absl::Status& status);
  // Keeps the first error and aborts the communicator with it. Returns it.
  absl::Status Fail(const absl::Status& status);
  bool WaitForExchangeThread(absl::Duration timeout);
  void Run();  // the exchange thread

  ReducerOptions options_;
  Hook* hook_;
  std::unique_ptr<HybridHook> hybrid_;  // that hook_ is, if any
  Communicator* const communicator_;

  // These belong to the exchange thread within a step, and to the callers of
  // the other methods between steps.
  std::vector<ParameterSpec> parameters_;
  std::unique_ptr<GradientMemory> memory_;
  std::unique_ptr<BucketLayout> layout_;
  // Of the layout's buckets; null without release_buckets.
  const std::unique_ptr<BucketPool> pool_;
  // Null without release_buckets until averages are added up.
  std::unique_ptr<OwnSlices> own_;
  std::vector<int> order_;  // that the layout was made by; empty: the first one
  int64_t layout_version_ = 0;
  bool frozen_ = false;
  bool agreed_ = false;
  bool without_data_ = false;  // in the step begun last
  bool in_place_ = false;      // CanExchangeInPlace, in the step begun last
  bool norm_due_ = false;      // the step that was finished waits for its norm
  bool votes_sum_ = true;      // until a decision has come without the sums
  uint64_t layout_hash_ = 0;
  StepDigest digest_;
  // The hook was still running when its step was aborted.
  bool rollback_due_ = false;
  std::unique_ptr<StepExchange> exchange_;  // of the step begun last

  GradientMarks marks_;

  mutable Mutex mutex_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kIdle;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  // The exchange thread is at work on a step.
  bool exchanging_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  StepReport report_ ABSL_GUARDED_BY(mutex_);
  // Of the step begun last.
  bool local_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<schedule::Decision> decision_ ABSL_GUARDED_BY(mutex_);
  ReducerTotals totals_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_REDUCER_H_
