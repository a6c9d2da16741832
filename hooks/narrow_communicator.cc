#include "hooks/narrow_communicator.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "hooks/narrow.h"

namespace coxswain {

NarrowCommunicator::NarrowCommunicator(Communicator& inner, DType dtype,
                                       ScratchPool& scratch)
    : Communicator(inner.rank(), inner.size()),
      inner_(inner),
      dtype_(dtype),
      scratch_(scratch) {
  COXSWAIN_CHECK(dtype == DType::kFloat16 || dtype == DType::kBFloat16);
}

NarrowCommunicator::NarrowCommunicator(std::unique_ptr<Communicator> inner,
                                       DType dtype, ScratchPool& scratch)
    : Communicator(inner->rank(), inner->size()),
      owned_(std::move(inner)),
      inner_(*owned_),
      dtype_(dtype),
      scratch_(scratch) {}

absl::StatusOr<std::unique_ptr<BufferOwner>> NarrowCommunicator::AllocateBuffer(
    int64_t count, DType dtype) {
  return inner_.AllocateBuffer(count, dtype);
}

WorkPtr NarrowCommunicator::DoAllReduce(Span span, ReduceOp op) {
  if (!IsWide(span.dtype) || span.device.kind != Device::Kind::kCpu) {
    return inner_.AllReduce(span, op);
  }
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

WorkPtr NarrowCommunicator::DoBroadcast(Span span, int root) {
  return inner_.Broadcast(span, root);
}
WorkPtr NarrowCommunicator::DoBarrier() { return inner_.Barrier(); }
WorkPtr NarrowCommunicator::DoAllGather(Span input, Span output) {
  return inner_.AllGather(input, output);
}
WorkPtr NarrowCommunicator::DoReduceScatter(Span input, Span output,
                                            ReduceOp op) {
  return inner_.ReduceScatter(input, output, op);
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
                                              scratch_);
}

}  // namespace coxswain
