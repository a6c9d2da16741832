#ifndef COXSWAIN_CLIENT_REDUCE_DEVICE_WORLD_FOR_TEST_H_
#define COXSWAIN_CLIENT_REDUCE_DEVICE_WORLD_FOR_TEST_H_

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/communicator.h"
#include "client/comm/device_queue.h"
#include "client/comm/memory_store.h"
#include "client/comm/nccl/emulated/emulated_nccl.h"
#include "client/comm/nccl/nccl_communicator.h"
#include "client/device/arithmetic.h"
#include "client/device/await_for_test.h"
#include "client/device/buffer.h"
#include "client/device/emulated/emulated_runtime.h"
#include "client/reduce/hook.h"
#include "client/reduce/reducer_test_support.h"

namespace coxswain {

// What the reducer's tests on an emulated GPU share.

// A rank's GPU, and a framework that works on one stream of it.
struct Gpu {
  explicit Gpu(int index = 0)
      : runtime(index), stream(runtime.CreateStream().value()) {}
  ~Gpu() { runtime.DestroyStream(stream); }

  // Enqueues them; the values outlive the copies.
  void Write(const Span& span, std::vector<float> values,
             DeviceStream on = nullptr) {
    kept.push_back(std::move(values));
    ASSERT_EQ(static_cast<int64_t>(kept.back().size()), span.count);
    ASSERT_OK(runtime.Copy(span.data, kept.back().data(), span.bytes(),
                           on == nullptr ? stream : on));
  }
  std::vector<float> Read(const Span& span) {
    std::vector<float> values(static_cast<size_t>(span.count));
    EXPECT_OK(runtime.Copy(values.data(), span.data, span.bytes(), stream));
    EXPECT_OK(AwaitStream(&runtime, stream));
    return values;
  }
  // A tensor of the framework's own.
  Span Tensor(int64_t count) {
    Span span;
    span.count = count;
    span.device = runtime.device();
    tensors.push_back(DeviceBuffer::Make(&runtime, span.bytes()).value());
    span.data = tensors.back().data();
    return span;
  }

  EmulatedRuntime runtime;
  DeviceStream stream;
  std::deque<std::vector<float>> kept;
  std::vector<DeviceBuffer> tensors;
};

inline ReducerOptions OnStreamOf(const Gpu& gpu, ReducerOptions options) {
  options.caller_stream = [stream = gpu.stream] { return stream; };
  return options;
}

inline std::vector<ParameterSpec> OnDevice(
    std::vector<ParameterSpec> parameters, int index = 0) {
  for (ParameterSpec& parameter : parameters) {
    parameter.device.kind = Device::Kind::kCuda;
    parameter.device.index = index;
  }
  return parameters;
}

// Returns the NCCL back end over emulated GPUs: rank `rank` of `size`, which
// meet in `store`.
inline std::unique_ptr<Communicator> ConnectGpu(
    EmulatedRuntime* runtime, int rank, int size,
    const std::shared_ptr<RendezvousStore>& store) {
  // Outlives the streams' threads, which are within it.
  static auto* const nccl = new EmulatedNccl();
  CommunicatorOptions options;
  options.id = "reducer";
  options.rank = rank;
  options.size = size;
  options.device = runtime->device();
  options.store = store;
  options.timeout = kSoon;
  auto connected = MakeNcclCommunicator(options, nccl, runtime);
  EXPECT_OK(connected);
  return connected.ok() ? *std::move(connected) : nullptr;
}
inline std::unique_ptr<Communicator> ConnectGpu(EmulatedRuntime* runtime) {
  return ConnectGpu(runtime, 0, 1, std::make_shared<MemoryStore>());
}

// Averages over a number of ranks that is a power of two, without the host
// waiting in between.
class DeviceAverageHook : public AverageHook {
 public:
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    return std::make_unique<Average>(bucket, &communicator, &log());
  }

 private:
  class Average : public Exchange {
   public:
    Average(const Bucket& bucket, Communicator* communicator, Log* log)
        : bucket_(bucket), communicator_(*communicator), log_(*log) {}
    absl::StatusOr<WorkPtr> Advance() override {
      if (std::exchange(begun_, true)) return WorkPtr();
      DeviceQueue& queue = *communicator_.device_queue();
      const Span& data = bucket_.data;
      COXSWAIN_RETURN_IF_ERROR(
          queue.runtime().StreamWait(queue.stream(), bucket_.ready));
      (void)communicator_.AllReduce(data);
      LaunchTarget target = queue.runtime().Target(queue.stream());
      ScaleOnDevice(&target, data.dtype, data.data, data.data, data.count,
                    1.0 / communicator_.size());
      COXSWAIN_RETURN_IF_ERROR(queue.runtime().StatusOf(target));
      const WorkPtr mark = queue.Mark();
      log_.Add(absl::StrCat("enqueued ", bucket_.index));
      return mark;
    }

   private:
    const Bucket bucket_;
    Communicator& communicator_;
    Log& log_;
    bool begun_ = false;
  };
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_DEVICE_WORLD_FOR_TEST_H_
