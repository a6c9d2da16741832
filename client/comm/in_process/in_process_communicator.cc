#include "client/comm/in_process/in_process_communicator.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "client/comm/host_span.h"
#include "client/comm/in_process/in_process_world.h"

namespace coxswain {

InProcessCommunicator::InProcessCommunicator(
    int rank, int size, std::shared_ptr<InProcessWorld> world)
    : Communicator(rank, size),
      world_(std::move(world)),
      ended_(std::make_shared<CancelSignal>()),
      executor_(
          [world = world_, rank, ended = ended_](const absl::Status& why) {
            // In this order: who finds itself gone looks here for the reason.
            ended->Raise(why);
            world->Leave(rank);
          }) {}

void InProcessCommunicator::Abort(absl::string_view reason) {
  executor_.Abort(reason);
}

absl::Status InProcessCommunicator::CheckPlace(const Span& span) const {
  return CheckOnHost(*this, span);
}

WorkPtr InProcessCommunicator::Start(CollectivePart part) {
  part.header.sequence = next_sequence_++;
  return executor_.RunInOrder(
      [this, part] { return world_->Meet(rank(), part); });
}

WorkPtr InProcessCommunicator::Exchange(bool is_send, Span span, int peer,
                                        uint32_t tag) {
  if (span.count == 0) return executor_.Nothing();
  auto message = std::make_shared<std::shared_ptr<InProcessWorld::Message>>();
  return executor_.RunBeside(
      [&] {
        *message = world_->Post(rank(), is_send, span, peer, tag);
        return absl::OkStatus();
      },
      [this, tag, message] { return world_->Await(rank(), tag, *message); });
}

WorkPtr InProcessCommunicator::DoAllReduce(Span span, ReduceOp op) {
  return Start({HeaderOf(CollectiveKind::kAllReduce, span, op), span, {}});
}
WorkPtr InProcessCommunicator::DoBroadcast(Span span, int root) {
  return Start(
      {HeaderOf(CollectiveKind::kBroadcast, span, ReduceOp::kSum, root),
       span,
       {}});
}
WorkPtr InProcessCommunicator::DoAgree(const CollectiveHeader& header) {
  return Start({header, {}, {}});
}
WorkPtr InProcessCommunicator::DoAllGather(Span input, Span output) {
  return Start({HeaderOf(CollectiveKind::kAllGather, input), input, output});
}
WorkPtr InProcessCommunicator::DoReduceScatter(Span input, Span output,
                                               ReduceOp op) {
  return Start(
      {HeaderOf(CollectiveKind::kReduceScatter, input, op), input, output});
}
WorkPtr InProcessCommunicator::DoAllToAll(Span input, Span output) {
  return Start({HeaderOf(CollectiveKind::kAllToAll, input), input, output});
}
WorkPtr InProcessCommunicator::DoSend(Span span, int peer, uint32_t tag) {
  return Exchange(true, span, peer, tag);
}
WorkPtr InProcessCommunicator::DoReceive(Span span, int peer, uint32_t tag) {
  return Exchange(false, span, peer, tag);
}

absl::StatusOr<std::unique_ptr<Communicator>> InProcessCommunicator::DoSplit(
    const std::vector<int>& ranks) {
  auto world = world_->MeetToSplit(rank(), ranks, splits_[ranks]++);
  if (absl::Status why = ended_->status(); !why.ok()) return why;
  COXSWAIN_RETURN_IF_ERROR(world.status());
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  auto child = std::make_unique<InProcessCommunicator>(
      static_cast<int>(self - ranks.begin()), static_cast<int>(ranks.size()),
      *std::move(world));
  child->link_ = std::make_unique<SplitLink>(
      ended_, [executor = &child->executor_](absl::string_view why) {
        executor->Abort(why);
      });
  return child;
}

}  // namespace coxswain
