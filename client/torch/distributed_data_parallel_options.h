#ifndef COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_OPTIONS_H_
#define COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_OPTIONS_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/reduce/averager.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer_options.h"
#include "client/session/job.h"
#include "schedule/plan.h"
#include "schedule/terms.h"

namespace coxswain {

class ProcessGroup;
class Session;

}  // namespace coxswain

namespace coxswain::torch {

struct DistributedDataParallelOptions {
  // Includes find_unused_parameters, statistics, max_norm, caller_stream (on a
  // GPU; by default the current one: see CurrentStream), and the gate, where
  // steps are announced and decided. on_average and settings are set by this
  // class; what a plan decides is taken from it. counts_in_norm is set by
  // FollowSession where the job has a mesh, whatever it is; `hybrid`, with zero
  // only, where the mesh has dp and shard above 1: elsewhere it may have groups
  // of the program's own, which last as long as the wrapper.
  ReducerOptions reducer;
  // What FollowSession has set reducer.hybrid to, and replaces with the next
  // session: other groups are the program's own.
  HybridGroups session_groups;
  // Those, which may outlive their session here: else groups that the program
  // makes later may have their addresses.
  std::vector<std::shared_ptr<const ProcessGroup>> held_groups;

  // The schedule that the program asks for. DescribeJob puts it into the
  // manifest. reducer.uneven_inputs asks for uneven_data=wait_for_all. A
  // setting that has its default asks for nothing.
  int accumulation_steps = 1;
  schedule::Terms terms;
  // The schedule that the job's ranks have agreed on, which counts instead: see
  // FollowSession. Create fails with INVALID_ARGUMENT if the program asks for
  // something else, unless an operator has changed that.
  std::optional<schedule::Plan> plan;
  // The settings of the plan that an operator has changed: "accumulation", and
  // the names of settings. Set by FollowSession.
  std::set<std::string> changed_by_operator;
  // Make the hook and the averager of a later plan, such as MakePlannedHook and
  // MakePlannedAverager; null: the hook stays until the next generation.
  std::function<absl::StatusOr<std::unique_ptr<Hook>>(const schedule::Plan&)>
      make_hook;
  std::function<absl::StatusOr<std::unique_ptr<Averager>>(
      const schedule::Plan&)>
      make_averager;
  // Called for each micro-batch that is declared, as a sign of progress.
  std::function<void()> on_micro_batch;

  // Makes all ranks skip a step whose average is infinite or not a number: with
  // the plan's commit_vote by vote, otherwise because they all have the same
  // average. Implies reducer.statistics.
  bool skip_non_finite = false;
  // Makes Backward refuse a loss whose forward ran before the micro-batch was
  // declared (or, without declarations, before the NoSync scope was opened).
  // Cleared by programs that run several forwards before the first backward.
  bool forward_in_scope = true;

  // Makes each .grad a view into its bucket: saves memory, and a copy of the
  // gradients where they are not exchanged in place (docs/reducer.md). They
  // must not be detached or replaced while they hold local sums. After this
  // object's end they are tensors of their own again.
  bool gradient_as_bucket_view = false;
  // The same parameters are used, equally often, in each pass that exchanges,
  // also if parts are computed again in the backward pass and give a parameter
  // several gradients. Learned in the first such pass, which exchanges
  // everything at its end; a later pass that differs is an error.
  bool static_graph = false;
  // After each step that brought all ranks together, which local steps and the
  // hook noop do not, all ranks copy the module's buffers (running means) from
  // rank 0, or from the first rank that still has data. At the start they
  // always do, but for same_at_start. Between two UpdateParameters buffers keep
  // their types and shapes: FAILED_PRECONDITION otherwise.
  bool broadcast_buffers = true;
  // All ranks hold the same parameters and buffers already, which is not
  // checked: Create copies none of them from rank 0.
  bool same_at_start = false;
  // The hook's step is committed by StepOptimizer or AfterOptimizerStep, once
  // the optimizer has taken its own, and a change of plan follows after both:
  // an error in between leaves the hook as it was, as it leaves the parameters.
  // With sync_each_batch this holds for the last exchange of a window; those
  // before it are committed at once.
  bool commit_with_optimizer = false;
  // Makes an optimizer of its own for each parameter, which takes its step as
  // soon as the parameter's average is complete, while other buckets are still
  // exchanged; its .grad is then as after zero_grad. The caller has no
  // optimizer. May be empty. INVALID_ARGUMENT together with what needs the
  // whole step first: max_norm, find_unused_parameters, an averager,
  // sync_each_batch, commit_vote and skip_non_finite; FinishStep(false) is an
  // error. Called by Create and UpdateParameters; the optimizers step in the
  // exchange thread.
  std::function<std::unique_ptr<::torch::optim::Optimizer>(
      const ::torch::Tensor&)>
      overlapped_optimizer;
  // This rank in words, for reasons of votes: "rank 5 (pp 1, dp 0, tp 1)". Set
  // by FollowSession where the wrapper's ranks are not those of the job; empty:
  // its communicator's.
  std::string rank_name;
  // Names of the trainable parameters that ranks along tp have whole, each of
  // them: what other ranks than this wrapper's have, too, and the same bits.
  // Their checksum is a ticket's replicated_checksum. Empty: there are none
  // such. The buckets' separate_parameters are to have them, too.
  std::set<std::string> replicated_parameters;
  // ZeRO: what each rank keeps of its slices of the buckets only. 0: nothing;
  // 1: the optimizer's state; 2: gradients, too. Above 0 the window's step is
  // ShardedOptimizer's (client/torch/shard), and .grad is undefined once it has
  // been exchanged: a rank has the averages of its slices alone, and clips by
  // reducer.max_norm. Slices are those of all ranks, or with reducer.hybrid of
  // the shard group's. Buckets and parameters stay as they are. Of a module on
  // a GPU 1 only, without reducer.hybrid. INVALID_ARGUMENT together with
  // overlapped_optimizer, and with hooks that let the ranks' parameters
  // diverge.
  int zero = 0;
  // Lets windows that are declared as a whole (DeclareWindow) run with zero=2,
  // though their gradients are summed up whole on each rank until their last
  // passes: otherwise that is refused, as it saves nothing there.
  bool force_zero = false;
  // With zero, of a module on a GPU: the optimizer's state is in the host's
  // memory, and its steps are taken on the CPU, while gradients come down and
  // parameters go up. Of a module in the CPU's memory, where all of it is
  // anyway, this changes nothing. Each rank's own affair.
  bool offload = false;
  // Where the plan has a pipeline: the program runs its stages, by windows that
  // it declares as a whole, as Pipeline does, which sets this. Otherwise such a
  // plan is FAILED_PRECONDITION, in DescribeJob, FollowSession and Create: each
  // rank would train the whole model, on data that others have as well.
  bool runs_pipeline = false;
  // If set: whether a gradient of a declared window's last passes may leave the
  // rank. That of Pipeline is false once an exchange along tp has failed in the
  // pass, whose gradients are zeros from then on: none takes them for this
  // rank's.
  std::function<bool()> may_leave;
  // If not empty, each rank writes a trace of its steps: see TraceFile.
  std::string trace_file;
};

// Returns what the workers that train `module` must have in common, for
// Session::Join: its parameters, the hook spec as it is given (for a user's
// spec, pass the result of CanonicalSpec of hooks/registry/registry.h), and the
// options that decide the order of collectives. Fails with INVALID_ARGUMENT,
// naming a parameter of an unsupported type, and with FAILED_PRECONDITION:
// options.runs_pipeline.
absl::StatusOr<JobManifest> DescribeJob(
    const ::torch::nn::Module& module, const std::string& hook_spec,
    const DistributedDataParallelOptions& options = {});
// Of a job whose ranks hold parts of a model with these parameters.
JobManifest DescribeJob(std::vector<ParameterSpec> parameters,
                        const std::string& hook_spec,
                        const DistributedDataParallelOptions& options);

// Makes a DistributedDataParallel follow the job's plan (options->plan, of
// which its hook is to be made, and what an operator has changed of it), have
// its steps decided by the coordinator, and report its progress there; and,
// with options->zero, share its state as the job's mesh has it: where dp and
// shard are above 1, within groups along `shard` (reducer.hybrid), which this
// call connects on all ranks. The wrapper's communicator is that of all ranks;
// where the mesh has stages (pp), or divides layers (tp), MeshGroups::data, of
// those with the same part of the model: max_norm is then by the votes of
// all. The session outlives it. One
// wrapper at a time for each session: a second one on the same stream would mix
// its rounds with the first's. Set make_hook as well for plans that change the
// hook, and trace_file from SessionOptions. Fails as ScheduleClient::Gate and
// Session::GroupsOf, with INVALID_ARGUMENT if reducer.hybrid has groups of the
// program's own where the mesh has others, and with FAILED_PRECONDITION:
// options->runs_pipeline.
//
// Options may be used again with the session of the next generation: what they
// have of this one, session_groups and held_groups among it, is replaced.
absl::Status FollowSession(Session& session,
                           DistributedDataParallelOptions* options);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DISTRIBUTED_DATA_PARALLEL_OPTIONS_H_
