#ifndef COXSWAIN_CLIENT_REDUCE_HYBRID_HOOK_H_
#define COXSWAIN_CLIENT_REDUCE_HYBRID_HOOK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"

namespace coxswain {

// A run of a parameter's elements that a hook takes for a parameter of its own.
struct HookPiece {
  std::string parameter;  // whose elements these are, row-major
  int64_t begin = 0;
  int64_t end = 0;
  ParameterSpec spec;  // what the hook is configured with
};

// Returns what lies of a bucket's elements [begin, end), in their order: of a
// matrix that is cut a block of its whole rows, and what is left of the rows
// before and after that as vectors. What is not cut keeps its name; the others
// have their elements in it, "fc.weight[12:48]".
std::vector<HookPiece> CutForHook(const std::vector<ParameterSpec>& parameters,
                                  const Bucket& bucket, int64_t begin,
                                  int64_t end);

// Whose state a HybridHook's own state (SaveOwn) is: this slice's of so many.
struct HybridSlice {
  int slice = 0;
  int slices = 0;  // 0: it is another hook's state, or that of all slices
};
HybridSlice HybridSliceOf(const HookState& state);
// Returns the key under which such a state, or another hook's, has an option of
// the hook that compresses.
std::string OptionKeyIn(const HookState& state, absl::string_view option);

// Hybrid sharding: the ranks that share the state of one replica (`shard`)
// reduce-scatter their gradients exactly, and another hook, the inner one,
// averages each rank's slice with the same slice of the other replicas
// (`replicas`). So what is within a host is exact, what travels between hosts
// is compressed, and the inner hook's errors are those of a slice.
//
// To the inner hook the elements of this rank's slices are the model: its
// parameters are the pieces that CutForHook returns of them, its ranks those of
// `replicas`. It never applies shares: gradients are weighted before they are
// summed up over the shard group, in their own type.
//
// State: a state has the inner states of all slices. It is taken over by any
// number of replicas. Where the slices are others than those that saved it
// (another number of ranks in a shard group, other buckets), the inner hook
// begins at the saved step without errors, which is logged
// ("hybrid_errors_reset"). LoadOwn takes the state of a rank with the same
// slices only.
//
// Made by the reducer (ReducerOptions::hybrid). The hook and the communicators
// outlive it.
class HybridHook : public Hook {
 public:
  // Makes of another hook like the inner one a hook like this one.
  using Copier = std::function<std::unique_ptr<Hook>(std::unique_ptr<Hook>)>;

  HybridHook(Hook* inner, Communicator* shard, Communicator* replicas);

  // Returns the copier for a copy of the state that is saved in another thread:
  // what it makes exchanges nothing, has the slices that this hook has now, and
  // saves among the ranks of the communicator that SaveState is given, which
  // has all of both groups. It does not refer to this hook.
  Copier MakeCopier() const;

  // Sets the buckets that the next call of Configure cuts.
  void SetBuckets(const std::vector<Bucket>& buckets) { buckets_ = buckets; }

  std::string spec() const override { return inner_.spec(); }
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override;
  // Fails: slices only.
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override;
  // `communicator` is the shard group's.
  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket& bucket, const BucketSlices& slices,
      Communicator& communicator) override;
  absl::Status Commit() override { return inner_.Commit(); }
  void Rollback() override { inner_.Rollback(); }
  int64_t step() const override { return inner_.step(); }
  bool started() const override { return inner_.started(); }
  bool needs_frozen_layout() const override {
    return inner_.needs_frozen_layout();
  }
  bool needs_averager() const override { return inner_.needs_averager(); }
  GradientReach reach() const override { return inner_.reach(); }
  absl::StatusOr<HookState> SaveOwn() const override;
  absl::Status LoadOwn(const HookState& state, double error_scale) override;
  double ErrorNorm() const override { return inner_.ErrorNorm(); }
  absl::StatusOr<HookState> SaveState(Communicator& communicator) override;
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override;

 private:
  // This rank in its groups, and how many ranks they have.
  struct Place {
    int slice = 0;
    int slices = 1;
    int replica = 0;
    int replicas = 1;
  };

  HybridHook(std::unique_ptr<Hook> inner, const Place& place,
             std::vector<Bucket> buckets);

  absl::StatusOr<HookState> SaveAmong(Communicator& replicas);
  // Puts the inner hook's options under names of this slice's own.
  HookState Pack(HookState inner, bool describes) const;
  // Returns the inner hook's state of this rank's slices; false: the state has
  // others.
  bool Unpack(const HookState& state, HookState* own) const;

  const std::unique_ptr<Hook> owned_;  // a copy's inner hook
  Hook& inner_;
  const Place place_;
  Communicator* const shard_ = nullptr;  // null: this is a copy
  Communicator* const replicas_ = nullptr;
  std::vector<Bucket> buckets_;
  // By bucket: this rank's slice, as the inner hook's bucket, without memory.
  std::vector<Bucket> cut_;
  std::string pieces_;  // of all of them, a line each
  std::vector<std::string> names_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_HYBRID_HOOK_H_
