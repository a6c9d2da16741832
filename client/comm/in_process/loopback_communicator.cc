#include "client/comm/in_process/loopback_communicator.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/comm/back_end.h"

namespace coxswain {

LoopbackCommunicator::~LoopbackCommunicator() {
  Stop("the communicator was destroyed");
}

void LoopbackCommunicator::Abort(absl::string_view reason) { Stop(reason); }

void LoopbackCommunicator::Stop(absl::string_view reason) {
  const absl::Status why = absl::AbortedError(reason);
  {
    MutexLock lock(&mutex_);
    if (stopped_.ok()) stopped_ = why;
  }
  ended_->Raise(why);
}

absl::StatusOr<std::unique_ptr<Communicator>> LoopbackCommunicator::DoSplit(
    const std::vector<int>&) {
  if (absl::Status why = ended_->status(); !why.ok()) return why;
  auto child = std::make_unique<LoopbackCommunicator>();
  child->link_ = std::make_unique<SplitLink>(
      ended_, [self = child.get()](absl::string_view why) { self->Stop(why); });
  return child;
}

absl::Status LoopbackCommunicator::CheckPlace(const Span& span) const {
  return CheckOnHost(*this, span);
}

WorkPtr LoopbackCommunicator::Copy(const Span& input, const Span& output) {
  MutexLock lock(&mutex_);
  if (stopped_.ok() && input.count > 0) {
    std::memmove(output.data, input.data, input.bytes());
  }
  return Work::Ended(stopped_);
}

WorkPtr LoopbackCommunicator::DoAllReduce(Span span, ReduceOp) {
  return Copy(span, span);
}
WorkPtr LoopbackCommunicator::DoBroadcast(Span span, int) {
  return Copy(span, span);
}
WorkPtr LoopbackCommunicator::DoAgree(const CollectiveHeader&) {
  return Copy({}, {});
}
WorkPtr LoopbackCommunicator::DoAllGather(Span input, Span output) {
  return Copy(input, output);
}
WorkPtr LoopbackCommunicator::DoReduceScatter(Span input, Span output,
                                              ReduceOp) {
  return Copy(input, output);
}
WorkPtr LoopbackCommunicator::DoAllToAll(Span input, Span output) {
  return Copy(input, output);
}

absl::StatusOr<std::unique_ptr<Communicator>> ConnectLoopback(
    const CommunicatorOptions& options) {
  if (options.size == 1 && options.rank == 0) {
    return std::make_unique<LoopbackCommunicator>();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("communicator '", options.id,
                   "': the loopback back end is for rank 0 of a group of 1, "
                   "not for rank ",
                   options.rank, " of ", options.size));
}

}  // namespace coxswain
