#include "client/comm/host_communicator.h"

#include "client/comm/back_end.h"

namespace coxswain {

absl::Status HostCommunicator::CheckPlace(const Span& span) const {
  return CheckOnHost(*this, span);
}

WorkPtr HostCommunicator::DoAllReduce(Span span, ReduceOp op) {
  return Start({HeaderOf(CollectiveKind::kAllReduce, span, op), span, span});
}

WorkPtr HostCommunicator::DoBroadcast(Span span, int root) {
  return Start(
      {HeaderOf(CollectiveKind::kBroadcast, span, ReduceOp::kSum, root), span,
       span});
}

WorkPtr HostCommunicator::DoAgree(const CollectiveHeader& header) {
  return Start({header, {}, {}});
}

WorkPtr HostCommunicator::DoAllGather(Span input, Span output) {
  return Start({HeaderOf(CollectiveKind::kAllGather, input), input, output});
}

WorkPtr HostCommunicator::DoReduceScatter(Span input, Span output,
                                          ReduceOp op) {
  return Start(
      {HeaderOf(CollectiveKind::kReduceScatter, input, op), input, output});
}

WorkPtr HostCommunicator::DoAllReduceMean(std::vector<Span> parts,
                                          const Span& all) {
  Span first = parts[0];
  first.count = all.count;
  return Start(
      {HeaderOf(CollectiveKind::kMean, all), first, first,
       parts.size() == 1 ? nullptr : std::make_shared<const Runs>(parts)});
}

WorkPtr HostCommunicator::DoAllToAll(Span input, Span output) {
  return Start({HeaderOf(CollectiveKind::kAllToAll, input), input, output});
}

}  // namespace coxswain
