#ifndef COXSWAIN_HOOKS_LOW_RANK_DEVICE_POWERSGD_H_
#define COXSWAIN_HOOKS_LOW_RANK_DEVICE_POWERSGD_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "hooks/device/device_scratch.h"
#include "hooks/low_rank/device_bucket.h"
#include "hooks/low_rank/low_rank_exchange.h"
#include "hooks/low_rank/low_rank_tensor.h"

namespace coxswain {

// `powersgd` for buckets in a GPU's memory: the formulas of powersgd.h, by
// kernels (hooks/kernels/cuda) and collectives that are all enqueued before the
// host waits once. Results are those of the CPU but for rounding, and the same
// bits on all ranks; checkpoints are the same.
//
// The host does what the CPU's hook does, with tensors that are behind what the
// device has until Fetch is called (device_bucket.h). Steps that are not finite
// are judged on the host, from two flags: whose gradients it was is found from
// a copy of them.
//
// Cost in memory as on the CPU, in the GPU's; in addition partial sums, about
// r/128 numbers per element of the matrices of a bucket, and 40 bytes or so for
// each piece of a matrix that a block of threads takes.
//
// Threading: as the hook that has it.
class DevicePowerSgd {
 public:
  // Returns the exchange of a bucket, whose tensors are given; three calls of
  // Advance. INVALID_ARGUMENT if the communicator has no queue on the bucket's
  // device; RESOURCE_EXHAUSTED if its memory is out. The tensors stay until
  // Forget.
  template <typename T>
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, std::vector<LowRankTensor<T>*> tensors,
      Communicator& communicator, const LowRankStep& step);

  // Brings all tensors' `now` up to date. Blocks.
  absl::Status Fetch() const;
  // From now on the tensors' `now` is what counts; others may come.
  void Forget();
  // As Hook's Commit and Rollback.
  void EndStep(bool commit);

 private:
  template <typename T>
  absl::StatusOr<DeviceBucket<T>*> BucketFor(
      const Bucket& bucket, DeviceRuntime& runtime,
      std::vector<LowRankTensor<T>*> tensors, const LowRankConfig& config);
  // Fetches and forgets those that have a parameter of `key`.
  absl::Status Dissolve(const DeviceBucketKey& key);

  DeviceScratch scratch_;  // of 16-bit gradients on their way
  std::vector<std::unique_ptr<DeviceBucketBase>> buckets_;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_DEVICE_POWERSGD_H_
