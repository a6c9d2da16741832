#include "hooks/narrow_communicator.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "hooks/device/device_exchange.h"
#include "hooks/kernels/cuda/elementwise.h"
#include "hooks/narrow.h"

namespace coxswain {

NarrowCommunicator::NarrowCommunicator(Communicator& inner, DType dtype,
                                       ScratchPool& scratch,
                                       DeviceScratch* device)
    : Communicator(inner.rank(), inner.size()),
      inner_(inner),
      dtype_(dtype),
      scratch_(scratch),
      device_scratch_(device),
      queue_(inner.device_queue()) {
  COXSWAIN_CHECK(dtype == DType::kFloat16 || dtype == DType::kBFloat16);
}

NarrowCommunicator::NarrowCommunicator(std::unique_ptr<Communicator> inner,
                                       DType dtype, ScratchPool& scratch,
                                       DeviceScratch* device)
    : Communicator(inner->rank(), inner->size()),
      owned_(std::move(inner)),
      inner_(*owned_),
      dtype_(dtype),
      scratch_(scratch),
      device_scratch_(device),
      queue_(inner_.device_queue()) {}

DeviceQueue* NarrowCommunicator::device_queue() {
  return inner_.device_queue() == nullptr ? nullptr : &queue_;
}

absl::StatusOr<std::unique_ptr<DeviceSequence>>
NarrowCommunicator::Queue::Record(const std::function<absl::Status()>&) {
  return absl::UnimplementedError(
      "collectives that are narrowed on their way are not recorded");
}

absl::Status NarrowCommunicator::Queue::Replay(const DeviceSequence&) {
  return absl::UnimplementedError(
      "collectives that are narrowed on their way are not recorded");
}

absl::StatusOr<std::unique_ptr<BufferOwner>> NarrowCommunicator::AllocateBuffer(
    int64_t count, DType dtype) {
  return inner_.AllocateBuffer(count, dtype);
}

WorkPtr NarrowCommunicator::DoAllReduce(Span span, ReduceOp op) {
  if (!IsWide(span.dtype)) return inner_.AllReduce(span, op);
  if (NarrowsOnDevice(span)) {
    return ReduceOnDevice(span, span, {[&](const Span& travelling) {
                            return inner_.AllReduce(travelling, op);
                          }});
  }
  // Without a queue, the inner communicator returns what is wrong.
  if (span.device.kind != Device::Kind::kCpu) return inner_.AllReduce(span, op);
  auto narrow = scratch_.Take<uint16_t>(static_cast<size_t>(span.count));
  NarrowSpan(span, dtype_, narrow.get());
  auto widened = std::make_shared<Work>();
  inner_.AllReduce(Span{narrow.get(), span.count, dtype_, span.device}, op)
      ->OnDone(
          [narrow, span, widened, dtype = dtype_](const absl::Status& status) {
            if (status.ok()) WidenSpan(narrow.get(), dtype, span);
            widened->Complete(status);
          });
  return widened;
}

WorkPtr NarrowCommunicator::ReduceOnDevice(const Span& input,
                                           const Span& output,
                                           const Reduction& reduction) {
  DeviceQueue& queue = *inner_.device_queue();
  Span travelling{nullptr, input.count, dtype_, input.device};
  const absl::StatusOr<std::shared_ptr<void>> memory =
      device_scratch_->Take(queue, travelling.bytes());
  if (!memory.ok()) return Work::Ended(memory.status());
  travelling.data = memory->get();
  absl::Status status =
      EnqueueReduce(input, output, travelling, reduction, queue);
  status.Update(device_scratch_->Seal(queue));
  return status.ok() ? queue.Mark() : Work::Ended(status);
}

absl::Status NarrowCommunicator::EnqueueReduce(const Span& input,
                                               const Span& output,
                                               const Span& travelling,
                                               const Reduction& reduction,
                                               DeviceQueue& queue) {
  auto* const narrow = static_cast<uint16_t*>(travelling.data);
  LaunchTarget target = queue.runtime().Target(queue.stream());
  EnqueueNarrow(&target, input.dtype, input.data, dtype_, narrow, input.count);
  COXSWAIN_RETURN_IF_ERROR(queue.runtime().StatusOf(target));
  COXSWAIN_RETURN_IF_ERROR(Begun(reduction.begin(travelling)));
  EnqueueWiden(&target, dtype_, narrow + reduction.first, output.dtype,
               output.data, output.count);
  return queue.runtime().StatusOf(target);
}

WorkPtr NarrowCommunicator::DoBroadcast(Span span, int root) {
  return inner_.Broadcast(span, root);
}
WorkPtr NarrowCommunicator::DoAgree(const CollectiveHeader& header) {
  return inner_.Agree(header);
}
WorkPtr NarrowCommunicator::DoAllGather(Span input, Span output) {
  return inner_.AllGather(input, output);
}
WorkPtr NarrowCommunicator::DoReduceScatter(Span input, Span output,
                                            ReduceOp op) {
  const int64_t first = rank() * output.count;
  if (IsWide(input.dtype) && NarrowsOnDevice(input)) {
    return ReduceOnDevice(input, output,
                          {[&](const Span& travelling) {
                             return inner_.ReduceScatter(
                                 travelling,
                                 travelling.Slice(first, output.count), op);
                           },
                           first});
  }
  if (!IsWide(input.dtype) || input.device.kind != Device::Kind::kCpu) {
    return inner_.ReduceScatter(input, output, op);
  }
  auto narrow = scratch_.Take<uint16_t>(static_cast<size_t>(input.count));
  NarrowSpan(input, dtype_, narrow.get());
  const Span travelling{narrow.get(), input.count, dtype_, input.device};
  const Span own = travelling.Slice(first, output.count);
  auto widened = std::make_shared<Work>();
  inner_.ReduceScatter(travelling, own, op)
      ->OnDone([narrow, own, output, widened,
                dtype = dtype_](const absl::Status& status) {
        if (status.ok()) {
          WidenSpan(static_cast<const uint16_t*>(own.data), dtype, output);
        }
        widened->Complete(status);
      });
  return widened;
}
WorkPtr NarrowCommunicator::DoAllToAll(Span input, Span output) {
  return inner_.AllToAll(input, output);
}
WorkPtr NarrowCommunicator::DoSend(Span span, int peer, uint32_t tag) {
  return inner_.Send(span, peer, tag);
}
WorkPtr NarrowCommunicator::DoReceive(Span span, int peer, uint32_t tag) {
  return inner_.Receive(span, peer, tag);
}

absl::StatusOr<std::unique_ptr<Communicator>> NarrowCommunicator::DoSplit(
    const std::vector<int>& ranks) {
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> inner,
                            inner_.Split(ranks));
  return std::make_unique<NarrowCommunicator>(std::move(inner), dtype_,
                                              scratch_, device_scratch_);
}

}  // namespace coxswain
