#ifndef COXSWAIN_TESTS_BENCH_MODEL_H_
#define COXSWAIN_TESTS_BENCH_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"

namespace coxswain::bench {

// A model's gradients and the ranks that average them, all in this process:
// what a Reducer does with a hook, without its threads and its waiting for a
// backward pass. One rank uses the loopback communicator, several the
// in-process one.
//
// Threading: one thread at a time.
class Model {
 public:
  // Plans the buckets as the reducer does by default, and configures a hook per
  // rank. Fails as MakeHook, PlanBuckets and Hook::Configure.
  static absl::StatusOr<std::unique_ptr<Model>> Create(
      const std::string& spec, std::vector<ParameterSpec> parameters,
      int world_size);

  int world_size() const { return static_cast<int>(ranks_.size()); }
  // Returns the buckets, the same on all ranks; `data` is null.
  const std::vector<Bucket>& buckets() const { return buckets_; }

  // Sets where a rank's gradients of a bucket lie. The memory is the caller's,
  // and outlives the model or the next call.
  void SetMemory(int rank, size_t bucket, void* data);

  // Exchanges all buckets in the reducer's order of calls, and then commits
  // the step or rolls it back.
  absl::Status Step(bool commit);

  // Returns the bytes that rank 0 has handed to collectives.
  int64_t payload_bytes() const;

 private:
  struct Rank {
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<Hook> hook;
    std::vector<Bucket> buckets;
  };
  struct Flight {  // of one bucket, on all ranks
    std::vector<std::unique_ptr<Exchange>> exchanges;
    std::vector<WorkPtr> works;
    bool done = false;
  };

  absl::Status Begin(size_t bucket, Flight& flight);
  absl::Status Advance(Flight& flight);
  absl::Status ExchangeAll();

  std::vector<Bucket> buckets_;
  std::vector<Rank> ranks_;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_MODEL_H_
