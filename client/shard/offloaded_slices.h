#ifndef COXSWAIN_CLIENT_SHARD_OFFLOADED_SLICES_H_
#define COXSWAIN_CLIENT_SHARD_OFFLOADED_SLICES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/device/buffer.h"
#include "client/device/runtime.h"
#include "client/device/tensor.h"

namespace coxswain {

// A rank's slices of a model's parameters, which lie on a GPU, in the host's
// memory too, for an optimizer that keeps its state there and takes its steps
// on the CPU; and what goes up and down between them. Independent of any
// framework. Used by ShardedOptimizer (client/torch/shard).
//
//   gradients down   0 1   2   3
//   step on the CPU    0   1   2   3
//   values up              0   1   2   3
//
// While slice i is stepped, the gradient of slice i + 1 comes down, and the
// values of those before it go up, on two streams of its own. Both follow what
// the caller's stream had been given; what it is given afterwards comes after
// the new values.
//
// Memory: the values, once, in the host's pageable memory; and four blocks of
// pinned memory of the largest slice's size, two for each way. By slice, a step
// moves the gradient down once, and the values up once.
//
// The values here count: changes of those on the GPU that are not by Step and
// Send are seen by Fetch only.
//
// Errors: RESOURCE_EXHAUSTED for lack of memory, DEADLINE_EXCEEDED if the
// device does not get to a copy in time, UNAVAILABLE if it has failed, and
// those of the caller's functions; each names the slice. After an error nothing
// is being copied any more, as far as the device can be waited for; some slices
// may have been stepped, here and on the GPU, and others not. Life-cycle: the
// runtime and the memory of the GPU outlive it. Threading: one thread at a
// time.
class OffloadedSlices {
 public:
  struct Options {
    // Returns the stream on which the calling thread has enqueued its work;
    // null: the device's default stream.
    std::function<absl::StatusOr<DeviceStream>()> caller_stream;
    // The longest that a copy may take, with what it waits for.
    absl::Duration timeout = absl::Minutes(5);
  };
  // Steps the values of a slice by its gradient, both in the host's memory. The
  // gradient is valid until it returns.
  using StepSlice =
      std::function<absl::Status(int slice, const Span& gradient)>;

  // Takes the memory, and fetches the values. `places` are the slices' values
  // on the GPU, by bucket; some may be empty.
  static absl::StatusOr<std::unique_ptr<OffloadedSlices>> Create(
      DeviceRuntime* runtime, std::vector<Span> places, const Options& options);
  // Waits for its copies.
  ~OffloadedSlices();
  OffloadedSlices(const OffloadedSlices&) = delete;
  OffloadedSlices& operator=(const OffloadedSlices&) = delete;

  // Returns the values of a slice in the host's memory, where they stay; the
  // caller may change them between the other calls, and within StepSlice.
  const Span& values(int slice) const {
    return values_[static_cast<size_t>(slice)];
  }

  // Copies all values from the GPU, or to it.
  absl::Status Fetch();
  absl::Status Send();
  // Calls `step` for each slice that has elements, in order, with its gradient
  // of those on the GPU, and copies what it made of the values there. Fails
  // with INVALID_ARGUMENT for gradients that are not like the slices.
  absl::Status Step(const std::vector<Span>& gradients, const StepSlice& step);

  // Returns the bytes of the host's memory that are pinned, and that are not.
  int64_t pinned_bytes() const { return 4 * block_bytes_; }
  int64_t host_bytes() const { return host_bytes_; }

 private:
  // Pinned memory on its way, and the end of the last copy from or to it.
  struct Block {
    PinnedBuffer memory;
    DeviceEvent copied = nullptr;
  };
  // One way: a stream, and the two blocks that take turns on it.
  struct Way {
    DeviceStream stream = nullptr;
    std::array<Block, 2> blocks;
  };
  struct FreeHost {
    void operator()(char* memory) const;
  };

  OffloadedSlices(DeviceRuntime* runtime, std::vector<Span> places,
                  const Options& options);
  absl::Status Allocate();
  absl::Status Open(Way* way);
  void Close(Way* way);

  // Runs `work` between the caller's stream and what follows on it. After an
  // error, waits for what is being copied.
  absl::Status Between(const std::function<absl::Status()>& work);
  absl::StatusOr<DeviceStream> Caller() const;
  // Copies the spans down one after the other, each while the one before it is
  // with `take`.
  absl::Status Down(const std::vector<Span>& from, const StepSlice& take);
  absl::Status EnqueueDown(const Span& from, Block* block);
  // Puts the values in a block, once it is free, and on their way up.
  absl::Status EnqueueUp(int slice, Block* block);
  absl::Status Quiesce();
  absl::Status OfSlice(int slice, const absl::Status& status) const;
  // Where slice number i of those with elements takes its turn.
  static Block* Turn(Way* way, size_t i) { return &way->blocks[i % 2]; }

  DeviceRuntime& runtime_;
  const std::vector<Span> places_;
  const Options options_;
  std::vector<int> filled_;  // the slices that have elements
  int64_t block_bytes_ = 0;
  int64_t host_bytes_ = 0;
  std::unique_ptr<char, FreeHost> host_;
  std::vector<Span> values_;  // by bucket
  Way down_;
  Way up_;
  DeviceEvent turn_ = nullptr;  // between the caller's stream and these
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SHARD_OFFLOADED_SLICES_H_
