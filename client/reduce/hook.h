#ifndef COXSWAIN_CLIENT_REDUCE_HOOK_H_
#define COXSWAIN_CLIENT_REDUCE_HOOK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/hook_state.h"

namespace coxswain {

// One bucket's exchange in flight.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // Continues until a collective has been started whose result is needed, and
  // returns its handle; the caller calls again once that has ended with OK.
  // Returns nullptr when the averaged gradient is in the bucket. An error ends
  // the exchange; the caller then aborts the communicator and rolls the step
  // back. The number of calls is the same on all ranks, because the caller
  // interleaves the exchanges of several buckets in an order that all ranks
  // must share: what it depends on, such as whether the hook has started or a
  // value is not finite, must be known alike on all of them.
  virtual absl::StatusOr<WorkPtr> Advance() = 0;
};

// A gradient that was infinite or not a number.
struct NonFiniteGradient {
  int rank = 0;
  std::string parameter;
};

// Which ranks' gradients a step averages.
enum class GradientReach {
  kAll,    // those of all ranks, which then hold the same
  kGroup,  // those of a part of the ranks
  kOwn,    // its own: nothing travels
};

// A communication hook: turns each rank's gradients into their average over the
// ranks. The interface that hooks/ and users' own hooks implement.
//
// A step is a transaction. Prepare, or PrepareSlice, may be called for any
// number of buckets, in index order, each index at most once per step; it
// stages what the hook will remember (error feedback, factors, step count).
// Commit makes it current, Rollback forgets it: after Rollback the hook is as
// it was before the first Prepare of the step.
//
// Life-cycle: Configure, then steps; Configure again when the parameters'
// buckets, the world size or the generation change (between steps only). State
// is kept by parameter name and shape, and survives that.
//
// Threading: one thread at a time; the reducer calls it from its exchange
// thread. Exchanges do not outlive the hook, nor the step.
//
// All ranks compute the same bits: no reduction whose order may vary.
//
// Sizes: a bucket has at least one gradient, all of one type. A gradient may
// have no elements, and so may a bucket of such ones.
//
// Values: gradients may be infinite or NaN. Where the step averages those of
// all ranks, the average then is infinite or NaN on all of them, in these
// elements or in more of the bucket, so that all see it. None of that enters
// what the hook remembers, also if the step is committed.
class Hook {
 public:
  virtual ~Hook() = default;

  // Returns the canonical spec: parsing it gives an equal hook.
  virtual std::string spec() const = 0;

  // Sets the model's parameters, by registration index, and the number of
  // ranks.
  virtual absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                                 int world_size) = 0;

  // Begins the exchange of one bucket, which holds this rank's gradients (the
  // sum over its micro-batches), and in the end their average. The bucket, the
  // memory of its spans and the communicator are the caller's, and stay valid
  // until the exchange is destroyed. In the next step gradients may lie
  // elsewhere: keep what is remembered in memory of the hook, by parameter.
  // Memory of the hook that a collective uses stays until its Work has ended.
  virtual absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) = 0;

  // Begins the exchange of one bucket of which each rank keeps the averages in
  // its own slice only: that of its number in the communicator, among
  // BucketSlices::Of(bucket.data, communicator.size()), which `slices` is. In
  // the end the averages stand in this rank's slice; the other elements of the
  // bucket are undefined. Its memory has space for the slices' padding, which
  // is undefined too and may be written. No gradient lies outside. Otherwise as
  // Prepare, in place of which it may be called for all buckets of a step; a
  // step is of one of the two, on all ranks.
  //
  // What is not finite is so in the averages of the slices that have these
  // elements at least, so a rank alone may not see it: the caller asks all
  // owners. What the hook knows alike on all ranks, as non_finite(), stays so.
  //
  // By default the bucket is exchanged in full, which every hook can. Override
  // it to send less, or to compute the own slice only. A hook that is a wrapper
  // has to, for the hook within to be asked for slices.
  virtual absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) {
    static_cast<void>(slices);
    return Prepare(bucket, communicator);
  }

  // Makes what the step staged current, and ends the step.
  virtual absl::Status Commit() = 0;
  virtual void Rollback() = 0;

  // Returns the number of committed steps.
  virtual int64_t step() const = 0;
  // Returns whether the next step runs as the spec asks for; false while a hook
  // waits for its start_step and averages plainly.
  virtual bool started() const { return true; }

  // Returns whether the next step's result depends on how gradients are divided
  // into buckets, or on what earlier steps left behind. The reducer then
  // freezes the layout before that step. False for what acts on each element
  // alone.
  virtual bool needs_frozen_layout() const { return false; }

  // Returns whether the hook lets the ranks' parameters diverge from some step
  // on, and relies on an Averager of the same spec to bring them together.
  // Without one the ranks would train separate models, so the reducer refuses.
  virtual bool needs_averager() const { return false; }

  // Returns what the next step averages, until its Commit: the same on all
  // ranks. Where it is not kAll, the ranks need not meet in the step.
  virtual GradientReach reach() const {
    return needs_averager() ? GradientReach::kGroup : GradientReach::kAll;
  }

  // Returns whether the hook applies Bucket::share. If it does not, gradients
  // of a rank with a weight are multiplied by their share and the number of
  // ranks before Prepare, in their own type: 16-bit ones may overflow.
  virtual bool applies_share() const { return false; }

  // Returns whether a bucket's gradients may lie outside it
  // (GradientSlot::outside) where the communicator has a mean, in the CPU's
  // memory and without shares. The hook then reads them, and writes their
  // averages, by Bucket::Parts.
  virtual bool takes_parts() const { return false; }

  // Returns the gradients because of which the step exchanged last came out as
  // NaN, the first one of each rank and bucket; the same on all ranks. Empty if
  // that step was finite, and from hooks that do not look: the default.
  virtual std::vector<NonFiniteGradient> non_finite() const { return {}; }

  // Returns this rank's own state, between steps: its errors, and what all
  // ranks have in common. Not collective. For a change of hooks, and of the
  // members of a running job, where each survivor keeps its own. LoadOwn takes
  // it over on the same rank or another, after Configure, its errors multiplied
  // by `error_scale`: W'/W where W' ranks continue with what W had left unsent,
  // so that what the survivors did not send keeps its weight in the mean; 0 on
  // a newcomer. LoadOwn fails as LoadState does; both fail with UNIMPLEMENTED
  // in a hook without them.
  virtual absl::StatusOr<HookState> SaveOwn() const {
    HookState state;
    state.spec = spec();
    state.step = step();
    return state;
  }
  virtual absl::Status LoadOwn(const HookState& state, double error_scale) {
    static_cast<void>(state);
    static_cast<void>(error_scale);
    return absl::UnimplementedError("this hook cannot take over a state");
  }
  // Returns the 2-norm of this rank's errors, over all parameters; 0 without
  // any.
  virtual double ErrorNorm() const { return 0; }

  // Returns this rank's shard of the state, between steps: all shards together
  // are the whole, as MergeHookStates joins them. Each has the spec and the
  // step, and each tensor is in one of them, whichever: rank 0's may have all.
  // What differs by rank, such as errors, is there as a mean over the ranks, so
  // that any number of ranks can go on with it, or under a kind for each rank.
  // Collective: all ranks of `communicator` call it. A hook without state
  // returns a shard without tensors.
  virtual absl::StatusOr<HookState> SaveState(Communicator& communicator) = 0;

  // Takes over a merged state, saved on any world size, after Configure. Fails
  // with FAILED_PRECONDITION if it is another hook's or another model's; the
  // message names what differs, and the hook stays as it was.
  virtual absl::Status LoadState(const HookState& state, int rank,
                                 int world_size) = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_HOOK_H_
