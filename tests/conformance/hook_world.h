#ifndef COXSWAIN_TESTS_CONFORMANCE_HOOK_WORLD_H_
#define COXSWAIN_TESTS_CONFORMANCE_HOOK_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/device/emulated/emulated_runtime.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/hook.h"

namespace coxswain {

// The values of all parameters' gradients, by registration index.
using Gradients = std::vector<std::vector<double>>;

// Returns parameters of one type with the unusual shapes that a model may have:
// scalar, vector, empty, n x 1, wide, tall, four-dimensional.
std::vector<ParameterSpec> OddParameters(DType dtype);

// Returns nearly normal gradients of mean 0 and variance 1, no larger than 3.5:
// a pure function of (stream, rank, step).
Gradients NormalGradients(const std::vector<ParameterSpec>& parameters,
                          uint64_t stream, int rank, int64_t step);

// Adds scale * a to the sum, element by element.
void AddTo(Gradients& sum, const Gradients& a, double scale = 1);
// Returns |a - b| / |b| over all elements, Euclidean; |a - b| if b is zero.
double RelativeDifference(const Gradients& a, const Gradients& b);

// Returns the mean over `local`.
Gradients MeanOver(const std::vector<Gradients>& local);
// Returns what a merged state holds back, as a mean over the ranks: the errors
// that error feedback will send later; zero where there is none. `size` ranks
// saved it.
Gradients MeanError(const HookState& state,
                    const std::vector<ParameterSpec>& parameters, int size);
// Returns the values of a floating-point tensor of a state.
std::vector<double> ValuesOf(const StateTensor& tensor);

// The ranks of one job in this process, each with its own instance of a hook,
// and what a reducer does with them, driven by the calling thread. A failure
// fails the test.
//
// Where the parameters are on a GPU each rank has an emulated one: its buckets
// are there, stay where they are from step to step, and are filled by another
// stream than the communicator's, which bucket.ready signals.
class HookWorld {
 public:
  // Which parameters each bucket has, in order; those of one bucket have one
  // type.
  using Buckets = std::vector<std::vector<int>>;
  using Maker = std::function<std::unique_ptr<Hook>()>;

  // Returns one bucket per two parameters, from the last parameter to the
  // first.
  static Buckets DefaultBuckets(const std::vector<ParameterSpec>& parameters);

  HookWorld(const std::string& spec, std::vector<ParameterSpec> parameters,
            int size, Buckets buckets = {});
  HookWorld(const Maker& make, std::vector<ParameterSpec> parameters, int size,
            Buckets buckets = {});

  // Checks that the hooks and communicators leave nothing on emulated GPUs.
  ~HookWorld();
  HookWorld(HookWorld&&) = default;

  // Called with a rank before each call of that rank's hook or exchange.
  void BeforeEachRank(std::function<void(int rank)> call);

  int size() const { return static_cast<int>(hooks_.size()); }
  Hook& hook(int rank) { return *hooks_[static_cast<size_t>(rank)]; }
  Communicator& communicator(int rank) {
    return *communicators_[static_cast<size_t>(rank)];
  }
  // Returns the payload bytes of all ranks' communicators; they must be equal.
  int64_t payload_bytes() const;
  // Returns how many collectives each rank has started; they must be equal.
  int64_t collectives() const;

  // Sets new buckets and configures the hooks again.
  void Rebucket(Buckets buckets);
  // Sets other parameters in their default buckets, and configures the hooks
  // again.
  void Reconfigure(std::vector<ParameterSpec> parameters);

  // Has each rank keep the averages of its own slice of each bucket only, from
  // the next step on (Hook::PrepareSlice), or those of the whole bucket again.
  // The results are then put together from the slices of their owners, and are
  // the same for all ranks.
  void KeepSlices(bool keep) { slices_ = keep; }
  // Returns the same of results by rank: of each slice those of its owner.
  Gradients OwnSlices(const std::vector<Gradients>& by_rank) const;
  // Returns the slices of the buckets.
  std::vector<BucketSlices> Slices() const;

  // Exchanges all buckets of a step without ending it. `local[r]` are rank
  // r's gradients. Checks that all ranks hold the same bits, and returns them.
  Gradients Exchange(const std::vector<Gradients>& local);
  // Exchanges without the check, and returns the results by rank.
  std::vector<Gradients> ExchangeApart(const std::vector<Gradients>& local);
  // Exchanges with all buckets in flight at a time, advanced in the order of
  // the reducer, and returns the results by rank.
  std::vector<Gradients> ExchangeInFlight(const std::vector<Gradients>& local);
  // Begins a step and gives it up, as after a failure: the first bucket is
  // exchanged, the second one's exchange is dropped after `advances` calls. For
  // two buckets or more.
  void GiveUp(const std::vector<Gradients>& local, int advances);
  void Commit();
  void Rollback();
  // Exchanges and commits.
  Gradients Step(const std::vector<Gradients>& local);

  // Returns a rank's GPU, where the parameters are on one.
  EmulatedRuntime& runtime(int rank) {
    return *devices_[static_cast<size_t>(rank)].runtime;
  }

  // Returns the report of the hooks on the step exchanged last. Checks that all
  // ranks report the same.
  std::vector<NonFiniteGradient> NonFinite();

  // Returns all shards, through their bytes, merged.
  HookState Save();
  // Returns what a rank saves when it is asked as the only rank of a job: its
  // own error in place of the mean.
  HookState SaveAlone(int rank);
  absl::Status Load(const HookState& state);
  // Returns a rank's Hook::SaveOwn, through its bytes; without `errors`, the
  // part that all ranks have alike.
  HookState SaveOwn(int rank, bool errors = true);

 private:
  // A rank's emulated GPU.
  struct RankDevice {
    std::unique_ptr<EmulatedRuntime> runtime;
    DeviceStream stream = nullptr;  // what fills the buckets
    DeviceEvent ready = nullptr;
    std::vector<std::string> memory;  // of each bucket
  };

  bool on_device() const;
  // Moves a rank's bucket to its GPU, from memory that stays as it is.
  void MoveToDevice(int rank, Bucket& bucket);
  // Waits until nothing is left on the communicators' streams.
  void AwaitDevices();
  struct Flight;
  // Prepares a bucket on all ranks; returns false if a hook refuses it.
  bool Begin(size_t index, const std::vector<Gradients>& local, Flight& flight);
  // Waits for what it began the last time and advances all ranks; false if
  // they have ended.
  bool Advance(Flight& flight);
  // Adds to the results by rank; returns whether the bits are the same on all.
  bool End(const Flight& flight, std::vector<Gradients>& results);
  // The same where each rank keeps its slice.
  void EndSlices(const Flight& flight, std::vector<Gradients>& results);
  // Begins, advances and ends one bucket, in `advances` calls of Advance at
  // most.
  bool ExchangeBucket(size_t index, const std::vector<Gradients>& local,
                      int advances, std::vector<Gradients>& results);
  // Exchanges all buckets; returns the results by rank, and whether all bits
  // are the same.
  std::pair<std::vector<Gradients>, bool> ExchangeAll(
      const std::vector<Gradients>& local);

  std::vector<ParameterSpec> parameters_;
  Buckets buckets_;
  std::vector<RankDevice> devices_;  // outlive the others
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<Hook>> hooks_;
  std::function<void(int)> before_each_rank_ = [](int) {};
  bool slices_ = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_HOOK_WORLD_H_
