#ifndef COXSWAIN_HOOKS_NARROW_COMMUNICATOR_H_
#define COXSWAIN_HOOKS_NARROW_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/comm/communicator.h"
#include "client/comm/device_queue.h"
#include "hooks/device/device_scratch.h"
#include "hooks/scratch.h"

namespace coxswain {

// A view of a communicator whose all-reduces and reduce-scatters of float32 and
// float64 travel in 16 bits: the span is rounded, reduced by the communicator
// beneath (whose payload counts the 16-bit bytes), and widened again before the
// Work ends. Everything else passes through as it is.
//
// Nothing is scaled: in float16 what exceeds 65504 in a contribution or in
// the sum becomes an infinity. The hooks of this library hand over
// contributions that they have divided by the number of ranks, so the sums
// are averages and fit where these fit.
//
// What is split off it is such a view of what is split off the communicator
// beneath, and belongs to that one: it stays of use when the view has gone.
//
// Spans on a GPU are rounded and widened by kernels on the queue of the
// communicator beneath, without the host between. The view's own queue is that
// one, but records nothing.
//
// Lives as long as one exchange; the communicator and the memory outlive it.
// Works may end after it is gone. Threading as any communicator's.
class NarrowCommunicator : public Communicator {
 public:
  // `dtype` is kFloat16 or kBFloat16. The values lie in `scratch` while they
  // travel, or in `device` where they are on a GPU; if that is null, such spans
  // travel as they are.
  NarrowCommunicator(Communicator& inner, DType dtype, ScratchPool& scratch,
                     DeviceScratch* device = nullptr);
  // Owns what it is a view of.
  NarrowCommunicator(std::unique_ptr<Communicator> inner, DType dtype,
                     ScratchPool& scratch, DeviceScratch* device = nullptr);

  absl::string_view backend() const override { return inner_.backend(); }
  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override;
  DeviceQueue* device_queue() override;
  void Abort(absl::string_view reason) override { inner_.Abort(reason); }
  int64_t wire_bytes() const override { return inner_.wire_bytes(); }

 protected:
  WorkPtr DoAllReduce(Span span, ReduceOp op) override;
  WorkPtr DoBroadcast(Span span, int root) override;
  WorkPtr DoAgree(const CollectiveHeader& header) override;
  WorkPtr DoAllGather(Span input, Span output) override;
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override;
  WorkPtr DoAllToAll(Span input, Span output) override;
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override;
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override;
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override;

 private:
  // The queue beneath, but for recording: the reductions here take memory as
  // they are started.
  class Queue : public DeviceQueue {
   public:
    explicit Queue(DeviceQueue* inner) : inner_(inner) {}
    DeviceRuntime& runtime() override { return inner_->runtime(); }
    DeviceStream stream() override { return inner_->stream(); }
    WorkPtr Mark() override { return inner_->Mark(); }
    absl::StatusOr<std::unique_ptr<DeviceSequence>> Record(
        const std::function<absl::Status()>& enqueue) override;
    absl::Status Replay(const DeviceSequence& sequence) override;

   private:
    DeviceQueue* const inner_;
  };

  // A reduction of the 16-bit span, which it is given, and where its result is
  // in there.
  struct Reduction {
    std::function<WorkPtr(const Span& travelling)> begin;
    int64_t first = 0;
  };

  // Returns whether spans like this one are narrowed on a GPU.
  bool NarrowsOnDevice(const Span& span) const {
    return span.device.kind != Device::Kind::kCpu &&
           inner_.device_queue() != nullptr && device_scratch_ != nullptr;
  }
  WorkPtr ReduceOnDevice(const Span& input, const Span& output,
                         const Reduction& reduction);
  // By way of `travelling`, which is of the 16-bit type.
  absl::Status EnqueueReduce(const Span& input, const Span& output,
                             const Span& travelling, const Reduction& reduction,
                             DeviceQueue& queue);

  const std::unique_ptr<Communicator> owned_;  // or null
  Communicator& inner_;
  const DType dtype_;
  ScratchPool& scratch_;
  DeviceScratch* const device_scratch_;  // or null
  Queue queue_;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_NARROW_COMMUNICATOR_H_
