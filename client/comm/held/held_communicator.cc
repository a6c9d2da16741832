#include "client/comm/held/held_communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain {

HeldCommunicator::HeldCommunicator(std::unique_ptr<Communicator> inner)
    : Communicator(inner->rank(), inner->size()), inner_(std::move(inner)) {}

HeldCommunicator::~HeldCommunicator() {
  Stop("the communicator was destroyed");
}

void HeldCommunicator::Release(int64_t operations) {
  {
    MutexLock lock(&mutex_);
    permits_ += operations;
  }
  Drain();
}

void HeldCommunicator::Open() {
  {
    MutexLock lock(&mutex_);
    open_ = true;
  }
  Drain();
}

void HeldCommunicator::Fail(int64_t index, absl::Status status) {
  MutexLock lock(&mutex_);
  failures_[index] = std::move(status);
}

std::vector<HeldCommunicator::Launch> HeldCommunicator::launches() const {
  MutexLock lock(&mutex_);
  return launches_;
}

bool HeldCommunicator::AwaitLaunches(size_t count, absl::Duration timeout) {
  MutexLock lock(&mutex_);
  return launched_.WaitFor(&mutex_, timeout,
                           [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                             return launches_.size() >= count;
                           });
}

int64_t HeldCommunicator::held() const {
  MutexLock lock(&mutex_);
  return static_cast<int64_t>(held_.size());
}

absl::StatusOr<std::unique_ptr<BufferOwner>> HeldCommunicator::AllocateBuffer(
    int64_t count, DType dtype) {
  return inner_->AllocateBuffer(count, dtype);
}

void HeldCommunicator::Abort(absl::string_view reason) { Stop(reason); }

void HeldCommunicator::Stop(absl::string_view reason) {
  std::deque<Held> dropped;
  {
    MutexLock lock(&mutex_);
    if (stopped_.ok()) stopped_ = absl::AbortedError(reason);
    dropped.swap(held_);
  }
  inner_->Abort(reason);
  for (const Held& held : dropped) {
    held.work->Complete(absl::AbortedError(reason));
  }
  ended_->Raise(absl::AbortedError(reason));
}

absl::StatusOr<std::unique_ptr<Communicator>> HeldCommunicator::DoSplit(
    const std::vector<int>& ranks) {
  auto inner = inner_->Split(ranks);
  if (!inner.ok()) return inner.status();
  auto child = std::make_unique<HeldCommunicator>(*std::move(inner));
  {
    MutexLock lock(&mutex_);
    if (open_) child->Open();
  }
  child->link_ = std::make_unique<SplitLink>(
      ended_, [self = child.get()](absl::string_view why) { self->Stop(why); });
  return child;
}

WorkPtr HeldCommunicator::Hold(absl::string_view kind, const Span& span,
                               std::function<WorkPtr()> start) {
  auto work = std::make_shared<Work>();
  {
    MutexLock lock(&mutex_);
    const auto index = static_cast<int64_t>(launches_.size());
    launches_.push_back({std::string(kind), span.count, span.dtype});
    launched_.NotifyAll();
    if (!stopped_.ok()) return Work::Ended(stopped_);
    held_.push_back({index, std::move(start), work});
  }
  Drain();
  return work;
}

bool HeldCommunicator::NextLocked(Held* held) {
  if (held_.empty() || (!open_ && permits_ == 0)) return false;
  if (!open_) --permits_;
  *held = std::move(held_.front());
  held_.pop_front();
  return true;
}

void HeldCommunicator::Drain() {
  {
    MutexLock lock(&mutex_);
    if (draining_) return;  // that thread sees what is new
    draining_ = true;
  }
  for (;;) {
    Held held;
    absl::Status failure;
    {
      MutexLock lock(&mutex_);
      if (!NextLocked(&held)) {
        draining_ = false;
        return;
      }
      const auto found = failures_.find(held.index);
      if (found != failures_.end()) failure = found->second;
    }
    if (!failure.ok()) {
      held.work->Complete(failure);
      Abort(absl::StrCat("an earlier operation failed: ", failure.message()));
      continue;
    }
    held.start()->OnDone([work = held.work](const absl::Status& status) {
      work->Complete(status);
    });
  }
}

WorkPtr HeldCommunicator::DoAllReduce(Span span, ReduceOp op) {
  return Hold("all-reduce", span, [=] { return inner_->AllReduce(span, op); });
}
WorkPtr HeldCommunicator::DoBroadcast(Span span, int root) {
  return Hold("broadcast", span, [=] { return inner_->Broadcast(span, root); });
}
WorkPtr HeldCommunicator::DoAgree(const CollectiveHeader& header) {
  Span span;
  span.count = header.count;
  span.dtype = header.dtype;
  return Hold(NameOf(header.kind), span, [=] { return inner_->Agree(header); });
}
WorkPtr HeldCommunicator::DoAllGather(Span input, Span output) {
  return Hold("all-gather", input,
              [=] { return inner_->AllGather(input, output); });
}
WorkPtr HeldCommunicator::DoReduceScatter(Span input, Span output,
                                          ReduceOp op) {
  return Hold("reduce-scatter", input,
              [=] { return inner_->ReduceScatter(input, output, op); });
}
WorkPtr HeldCommunicator::DoAllToAll(Span input, Span output) {
  return Hold("all-to-all", input,
              [=] { return inner_->AllToAll(input, output); });
}
WorkPtr HeldCommunicator::DoAllReduceMean(std::vector<Span> parts,
                                          const Span& all) {
  return Hold("mean", all, [this, parts = std::move(parts)] {
    return inner_->AllReduceMean(parts);
  });
}
WorkPtr HeldCommunicator::DoSend(Span span, int peer, uint32_t tag) {
  return Hold("send", span, [=] { return inner_->Send(span, peer, tag); });
}
WorkPtr HeldCommunicator::DoReceive(Span span, int peer, uint32_t tag) {
  return Hold("receive", span,
              [=] { return inner_->Receive(span, peer, tag); });
}

}  // namespace coxswain
