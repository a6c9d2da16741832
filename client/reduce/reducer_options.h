#ifndef COXSWAIN_CLIENT_REDUCE_REDUCER_OPTIONS_H_
#define COXSWAIN_CLIENT_REDUCE_REDUCER_OPTIONS_H_

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "client/comm/communicator.h"
#include "client/device/launch.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_layout.h"
#include "client/reduce/step_report.h"
#include "schedule/plan.h"
#include "schedule/step_gate.h"

namespace coxswain {

// Hybrid sharding: the ranks whose gradients are averaged are rows of `shard`
// ranks each, the replicas; a rank's own place in its row is that in all rows.
struct HybridGroups {
  Communicator* shard = nullptr;     // of this rank's replica
  Communicator* replicas = nullptr;  // of those in the same place as this rank
};

struct ReducerOptions {
  BucketPlanOptions buckets;
  // After the first step, buckets are divided again by the order in which its
  // gradients became ready on rank 0. Otherwise, and if the hook needs a frozen
  // layout from the start, reversed registration order stays.
  bool rebuild = true;
  // Fills in unused_everywhere, at the cost of one small all-reduce a step.
  bool find_unused_parameters = false;
  // Ranks may have different weights, and run out of data: see BeginStep. Costs
  // one small all-reduce a step, while the first gradients are computed.
  bool uneven_inputs = false;
  // With uneven_inputs: once a rank has no data for a step, the step is `empty`
  // for all, as if all weights were 0.
  bool end_at_first = false;
  // Fills StepReport's norm and non_finite: a pass over each bucket by the
  // exchange thread, or none if it copies the averages out anyway.
  bool statistics = false;
  // Finds this rank's own gradients that are not finite, before they are
  // averaged (Reducer::own_non_finite): all ranks see such averages, and this
  // one is where they come from. A pass over each bucket by the exchange
  // thread. In the CPU's memory; each rank's own affair.
  bool finds_non_finite = false;
  // Above 0: gradients whose norm is larger are scaled down to it, by Finish.
  // Implies `statistics`. Gradients that are not finite stay as they are.
  double max_norm = 0;
  // Each rank keeps the averages of its own slice of each bucket only
  // (client/reduce/bucket_slices.h), by Hook::PrepareSlice: for an optimizer
  // that is sharded over the ranks. Once the step is finished, the other
  // elements of the views are undefined. `statistics` and max_norm are those of
  // all slices, at the cost of one small all-reduce a step; only the own slices
  // are clipped. Buckets are not divided again after the first step. Without
  // MarkOptions::copy_back, and not with a hook that needs an averager.
  bool slices = false;
  // With `slices`: a bucket has memory only from its first gradient on until
  // the own slice's averages have been taken from it, to where OwnSlice returns
  // them. Gradients are copied from the caller's, which it may free once they
  // are marked: views have no memory. In the CPU's memory. Each rank's own
  // affair.
  bool release_buckets = false;
  // With release_buckets, what bounds memory where gradients come faster than
  // they are exchanged: how long a call of MarkReady may wait while two
  // buckets, or as much memory, are in use and the exchange is at work on them,
  // so that with the caller's own gradient there are three at most. It does not
  // wait while the exchange itself waits for a gradient of this rank. 0: never,
  // and so as many buckets have memory as need it.
  absl::Duration bucket_wait;
  // With slices, and both of them or none: the slices are those of the ranks of
  // hybrid.shard. Gradients are reduce-scattered exactly among these, and the
  // hook averages each rank's slice over hybrid.replicas
  // (client/reduce/hybrid_hook.h). The reducer's own communicator has the ranks
  // of both, numbered replica by replica, and what is small goes over it. Its
  // abort is theirs too. In a mesh: MeshGroups' shard and dp, and data. In the
  // CPU's memory.
  HybridGroups hybrid;
  // With slices, and a gate that takes votes: the norm for max_norm and
  // `statistics` comes with the decision, without a collective; see
  // Reducer::Decide. Where the coordinator is of a version that does not sum
  // up, one small all-reduce follows the decision, and in later steps the last
  // bucket. Not with on_average.
  bool norm_by_vote = false;
  // Set where the ranks that vote together do not all average the same
  // gradients, as those of a pipeline's stages, or along tp, do not: the norm
  // for max_norm and `statistics` is then that of all, by votes (norm_by_vote),
  // and
  // max_norm needs these. True on one of the ranks that have the same averages,
  // whose vote has them; false on the others. With slices each rank counts its
  // own, whatever this is. BucketPlanOptions::uncounted_parameters are those of
  // which another one of these ranks counts a copy. Unset: this reducer's ranks
  // have all there is.
  std::optional<bool> counts_in_norm;
  // Called by the exchange thread as soon as a bucket's averages are complete,
  // for an optimizer step while other buckets are still exchanged. The step
  // cannot be undone then: contradicts max_norm and find_unused_parameters, and
  // its user calls Commit, not Rollback. With a gate, the exchange waits for
  // the decision before the first call; there is none in a step that is
  // skipped.
  std::function<absl::Status(const Bucket&)> on_average;
  // Called at the end of Finish, by its thread.
  std::function<void(const StepReport&)> on_step;
  // The gate at which each step is announced and decided; null: none. Outlives
  // the reducer.
  schedule::StepGate* gate = nullptr;
  // The version of the plan that the job begins with; 0: none.
  int64_t plan_version = 0;
  // Whether ranks compare parameters, hook and options first: see Reducer.
  bool verify = true;
  // Further settings that must be equal on all ranks.
  std::map<std::string, std::string> settings;
  // Returns the stream on which the caller has enqueued a gradient that it
  // marks; called on the thread that marks, for parameters on a GPU. Null: the
  // device's default stream. Its error ends the step.
  std::function<absl::StatusOr<DeviceStream>()> caller_stream;
  // The longest that one collective, or Finish, may take. The communicator has
  // a bound of its own, SessionOptions::collective_timeout: the shorter one
  // counts, so raise both for slow exchanges. Finish also allows for the time
  // that the gate may wait for other ranks.
  absl::Duration timeout = absl::Minutes(5);
  Clock* clock = Clock::Real();  // for BucketTiming

  // Returns whether the averages' norm is needed.
  bool measures() const { return statistics || max_norm > 0; }
  // Returns how long to wait, after an abort, for operations that still use
  // memory.
  absl::Duration after_abort() const {
    return std::max(timeout, absl::Seconds(10));
  }
};

// Sets uneven_inputs, end_at_first, norm_by_vote and plan_version as the plan
// wants them.
void FollowPlan(const schedule::Plan& plan, int world_size,
                ReducerOptions* options);

// Returns the options that must be equal on all ranks, as text, with
// `settings`.
std::map<std::string, std::string> ReducerSettings(
    const ReducerOptions& options);

// Fails with INVALID_ARGUMENT, naming options that contradict each other.
absl::Status CheckReducerOptions(const ReducerOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_REDUCER_OPTIONS_H_
