#include "tests/conformance/stream_communicator.h"

#include <utility>

#include "absl/time/time.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr absl::Duration kStreamDeadline = absl::Seconds(60);

struct StreamSequence : DeviceSequence {
  StreamSequence(DeviceRuntime* owner, DeviceGraph made)
      : runtime(owner), graph(made) {}
  ~StreamSequence() override { runtime->DestroyGraph(graph); }

  DeviceRuntime* const runtime;
  const DeviceGraph graph;
  int64_t collectives = 0;
  int64_t bytes = 0;
};

// The emulated device's memory is the host's.
Span OnHost(Span span) {
  span.device = Device();
  return span;
}

}  // namespace

StreamCommunicator::StreamCommunicator(std::unique_ptr<Communicator> inner,
                                       EmulatedRuntime& runtime, bool records)
    : Communicator(inner->rank(), inner->size()),
      inner_(std::move(inner)),
      runtime_(runtime),
      records_(records) {
  const auto stream = runtime_.CreateStream();
  COXSWAIN_CHECK(stream.ok());
  stream_ = *stream;
}

StreamCommunicator::~StreamCommunicator() {
  (void)Mark()->Wait(kStreamDeadline);
  runtime_.DestroyStream(stream_);
}

void StreamCommunicator::Abort(absl::string_view reason) {
  inner_->Abort(reason);
}

WorkPtr StreamCommunicator::Mark() {
  ++marks_;
  auto work = std::make_shared<Work>();
  EmulatedRuntime::HostStreamOf(stream_)->Enqueue(
      [work, outcome = outcome_] { work->Complete(outcome->status); });
  return work;
}

absl::StatusOr<std::unique_ptr<DeviceSequence>> StreamCommunicator::Record(
    const std::function<absl::Status()>& enqueue) {
  if (!records_) return absl::UnimplementedError("recording is switched off");
  const int64_t collectives = sequence();
  const int64_t bytes = payload_bytes();
  COXSWAIN_RETURN_IF_ERROR(runtime_.BeginCapture(stream_));
  recording_ = true;
  const absl::Status status = enqueue();
  recording_ = false;
  const absl::StatusOr<DeviceGraph> graph = runtime_.EndCapture(stream_);
  COXSWAIN_RETURN_IF_ERROR(graph.status());
  auto recorded = std::make_unique<StreamSequence>(&runtime_, *graph);
  recorded->collectives = sequence() - collectives;
  recorded->bytes = payload_bytes() - bytes;
  AddToCounts(-recorded->collectives, -recorded->bytes);
  COXSWAIN_RETURN_IF_ERROR(status);
  ++recorded_;
  return recorded;
}

absl::Status StreamCommunicator::Replay(const DeviceSequence& sequence) {
  const auto& recorded = static_cast<const StreamSequence&>(sequence);
  AddToCounts(recorded.collectives, recorded.bytes);
  ++replayed_;
  return runtime_.LaunchGraph(recorded.graph, stream_);
}

WorkPtr StreamCommunicator::Enqueue(
    std::function<WorkPtr(Communicator&)> start) {
  auto work = std::make_shared<Work>();
  EmulatedRuntime::HostStreamOf(stream_)->Enqueue(
      [start = std::move(start), work, inner = inner_, outcome = outcome_] {
        const absl::Status status = start(*inner)->Wait(kStreamDeadline);
        outcome->status.Update(status);
        work->Complete(status);
      });
  return recording_ ? Work::Ended(absl::OkStatus()) : work;
}

WorkPtr StreamCommunicator::DoAllReduce(Span span, ReduceOp op) {
  return Enqueue([span = OnHost(span), op](Communicator& inner) {
    return inner.AllReduce(span, op);
  });
}
WorkPtr StreamCommunicator::DoBroadcast(Span span, int root) {
  return Enqueue([span = OnHost(span), root](Communicator& inner) {
    return inner.Broadcast(span, root);
  });
}
WorkPtr StreamCommunicator::DoAgree(const CollectiveHeader& header) {
  return Enqueue([header](Communicator& inner) { return inner.Agree(header); });
}
WorkPtr StreamCommunicator::DoAllGather(Span input, Span output) {
  return Enqueue(
      [input = OnHost(input), output = OnHost(output)](Communicator& inner) {
        return inner.AllGather(input, output);
      });
}
WorkPtr StreamCommunicator::DoReduceScatter(Span input, Span output,
                                            ReduceOp op) {
  return Enqueue([input = OnHost(input), output = OnHost(output),
                  op](Communicator& inner) {
    return inner.ReduceScatter(input, output, op);
  });
}
WorkPtr StreamCommunicator::DoAllToAll(Span input, Span output) {
  return Enqueue(
      [input = OnHost(input), output = OnHost(output)](Communicator& inner) {
        return inner.AllToAll(input, output);
      });
}

absl::StatusOr<std::unique_ptr<Communicator>> StreamCommunicator::DoSplit(
    const std::vector<int>& ranks) {
  // Splits and collectives of the inner one keep their order.
  COXSWAIN_RETURN_IF_ERROR(Mark()->Wait(kStreamDeadline));
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> inner,
                            inner_->Split(ranks));
  return std::make_unique<StreamCommunicator>(std::move(inner), runtime_,
                                              records_);
}

}  // namespace coxswain
