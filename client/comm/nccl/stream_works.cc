#include "client/comm/nccl/stream_works.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/device/runtime.h"

namespace coxswain {
namespace {

// Between two looks at an event: a share of how long it has taken so far.
constexpr absl::Duration kShortestPause = absl::Microseconds(10);
constexpr absl::Duration kLongestPause = absl::Microseconds(500);
constexpr int kPauseShare = 16;
// With nothing in flight.
constexpr absl::Duration kIdlePause = absl::Milliseconds(500);
// Looks between two questions whether something is wrong.
constexpr int64_t kLooksPerCheck = 16;
// For kernels to leave the stream after they were severed.
constexpr absl::Duration kDrainTimeout = absl::Seconds(10);

void WarnIfStuck(const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status)) return;
  LogWarning("device_stream_does_not_end", {{"status", status.message()}});
}

}  // namespace

StreamWorks::StreamWorks(DeviceRuntime* runtime, DeviceStream stream,
                         absl::Duration timeout, Clock* clock, Links links)
    : runtime_(runtime),
      stream_(stream),
      timeout_(timeout),
      clock_(clock),
      links_(std::move(links)),
      thread_([this] { Serve(); }) {}

StreamWorks::~StreamWorks() {
  Close("the communicator was destroyed");
  MutexLock lock(&mutex_);
  for (DeviceEvent const event : spare_) runtime_->DestroyEvent(event);
}

absl::StatusOr<DeviceEvent> StreamWorks::Mark() {
  DeviceEvent event = nullptr;
  {
    MutexLock lock(&mutex_);
    if (!spare_.empty()) {
      event = spare_.back();
      spare_.pop_back();
    }
  }
  if (event == nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(event, runtime_->CreateEvent());
  }
  const absl::Status recorded = runtime_->Record(event, stream_);
  if (recorded.ok()) return event;
  MutexLock lock(&mutex_);
  spare_.push_back(event);
  return recorded;
}

WorkPtr StreamWorks::Add(std::string what, std::function<void()> finish) {
  absl::StatusOr<DeviceEvent> event = Mark();
  if (!event.ok()) {
    return AddFailed(WithPrefix(absl::StrCat(what, ": "), event.status()));
  }
  Pending pending;
  pending.work = std::make_shared<Work>();
  pending.event = *event;
  pending.what = std::move(what);
  pending.finish = std::move(finish);
  const WorkPtr work = pending.work;
  {
    MutexLock lock(&mutex_);
    pending.late = !ended_.ok();
    if (!drained_) {
      if (pending_.empty()) {
        since_ = clock_->Now();
        woken_ = true;
        changed_.NotifyAll();
      }
      pending_.push_back(std::move(pending));
      return work;
    }
  }
  WarnIfStuck(AwaitEvent(runtime_, *event, kDrainTimeout));
  MutexLock lock(&mutex_);
  spare_.push_back(*event);
  return Work::Ended(ended_);
}

WorkPtr StreamWorks::AddFailed(const absl::Status& why) {
  Pending pending;
  pending.work = std::make_shared<Work>();
  const WorkPtr work = pending.work;
  absl::Status over;
  {
    MutexLock lock(&mutex_);
    over = ended_;
    if (ended_.ok()) {
      if (pending_.empty()) since_ = clock_->Now();
      pending_.push_back(std::move(pending));
    }
  }
  if (!over.ok()) return Work::Ended(over);
  Fail(why, work);
  return work;
}

absl::Status StreamWorks::ended() const {
  MutexLock lock(&mutex_);
  return ended_.ok() ? closed_ : ended_;
}

bool StreamWorks::idle() const {
  MutexLock lock(&mutex_);
  return pending_.empty();
}

bool StreamWorks::End(const absl::Status& ended, const absl::Status& cause,
                      WorkPtr culprit) {
  {
    MutexLock lock(&mutex_);
    if (!ended_.ok()) return false;
    ended_ = ended;
    cause_ = cause;
    culprit_ = std::move(culprit);
    woken_ = true;
    changed_.NotifyAll();
  }
  links_.on_end(ended);
  return true;
}

void StreamWorks::Fail(const absl::Status& cause, WorkPtr culprit) {
  End(absl::AbortedError(
          absl::StrCat("an earlier operation failed: ", cause.message())),
      cause, std::move(culprit));
}

void StreamWorks::Abort(absl::string_view reason) {
  const absl::Status why = absl::AbortedError(reason);
  End(why, why, nullptr);
}

bool StreamWorks::Close(absl::string_view reason) {
  const absl::Status why = absl::AbortedError(reason);
  {
    MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = why;
    woken_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  // Where the thread found nothing to end.
  End(why, why, nullptr);
  EndAll();
  return !severed_;
}

absl::Duration StreamWorks::Pause() const {
  if (pending_.empty()) return kIdlePause;
  return std::clamp((clock_->Now() - since_) / kPauseShare, kShortestPause,
                    kLongestPause);
}

void StreamWorks::Serve() {
  const auto woken = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return woken_; };
  while (Look()) {
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, Pause(), woken);
    woken_ = false;
  }
}

bool StreamWorks::Look() {
  while (EndFirst()) {
  }
  absl::Status failure = CheckDeadline();
  if (failure.ok() && (idle() || ++looks_ % kLooksPerCheck == 0)) {
    failure = links_.check();
  }
  if (!failure.ok()) Fail(failure, nullptr);
  absl::Status closed;
  {
    MutexLock lock(&mutex_);
    closed = closed_;
    if (ended_.ok() && closed_.ok()) return true;
    if (ended_.ok() && pending_.empty()) return false;
  }
  End(closed, closed, nullptr);
  severed_ = true;
  links_.sever();
  Drain();
  EndAll();
  return false;
}

absl::Status StreamWorks::HasFirstPassed(bool* passed) {
  *passed = false;
  DeviceEvent event = nullptr;
  {
    MutexLock lock(&mutex_);
    if (pending_.empty() || pending_[0].event == nullptr || !ended_.ok()) {
      return absl::OkStatus();
    }
    event = pending_[0].event;
  }
  // Without the lock, as the device may let it wait. It stays the first, as
  // only this thread removes it.
  absl::StatusOr<bool> has = runtime_->HasPassed(event);
  if (!has.ok()) {
    MutexLock lock(&mutex_);
    return WithPrefix(absl::StrCat(pending_[0].what, ": "), has.status());
  }
  *passed = *has;
  return absl::OkStatus();
}

bool StreamWorks::EndFirst() {
  bool passed = false;
  const absl::Status status = HasFirstPassed(&passed);
  if (!status.ok()) Fail(status, nullptr);
  if (!passed) return false;
  Pending first;
  {
    MutexLock lock(&mutex_);
    first = std::move(pending_.front());
    pending_.pop_front();
    spare_.push_back(first.event);
    since_ = clock_->Now();
  }
  if (first.finish != nullptr) first.finish();
  first.work->Complete(absl::OkStatus());
  return true;
}

absl::Status StreamWorks::CheckDeadline() const {
  MutexLock lock(&mutex_);
  if (pending_.empty() || !ended_.ok()) return absl::OkStatus();
  if (clock_->Now() - since_ < timeout_) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(pending_[0].what, " has not ended within ",
                   absl::FormatDuration(timeout_),
                   "; a peer has not started it, or has ended"));
}

absl::Status StreamWorks::AwaitStream(absl::Duration timeout) {
  // Of its own, as there may be more on the stream than Works are of.
  absl::StatusOr<DeviceEvent> event = Mark();
  if (event.ok()) {
    const absl::Status status = AwaitEvent(runtime_, *event, timeout);
    MutexLock lock(&mutex_);
    spare_.push_back(*event);
    return status;
  }
  // It is being captured, or the device has failed.
  DeviceEvent last = nullptr;
  {
    MutexLock lock(&mutex_);
    for (const Pending& one : pending_) {
      if (one.event != nullptr) last = one.event;
    }
  }
  if (last == nullptr) return absl::OkStatus();
  return AwaitEvent(runtime_, last, timeout);
}

void StreamWorks::Drain() {
  const absl::Time end = Clock::Real()->Now() + kDrainTimeout;
  size_t awaited = 0;
  absl::Status status;
  while (status.ok()) {
    {
      MutexLock lock(&mutex_);
      awaited = pending_.size();
    }
    status = AwaitStream(end - Clock::Real()->Now());
    MutexLock lock(&mutex_);
    // Unless some came meanwhile.
    if (pending_.size() == awaited) drained_ = true;
    if (drained_) break;
  }
  WarnIfStuck(status);
}

void StreamWorks::EndAll() {
  std::deque<Pending> pending;
  absl::Status ended;
  absl::Status cause;
  WorkPtr culprit;
  {
    MutexLock lock(&mutex_);
    drained_ = true;
    pending.swap(pending_);
    ended = ended_;
    cause = cause_;
    culprit = std::move(culprit_);
    for (const Pending& one : pending) {
      if (one.event != nullptr) spare_.push_back(one.event);
    }
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    const bool guilty = culprit == nullptr ? i == 0 && !pending[i].late
                                           : pending[i].work == culprit;
    pending[i].work->Complete(guilty ? cause : ended);
  }
}

absl::Status RecordedGraph::Launch(DeviceStream stream) {
  MutexLock lock(&mutex_);
  if (graph_ == nullptr) {
    return absl::AbortedError(
        "the communicator that recorded this sequence has ended");
  }
  return runtime_->LaunchGraph(graph_, stream);
}

void RecordedGraph::Destroy() {
  MutexLock lock(&mutex_);
  if (graph_ != nullptr) runtime_->DestroyGraph(graph_);
  graph_ = nullptr;
}

std::shared_ptr<RecordedGraph> RecordedGraphs::Add(DeviceGraph graph) {
  auto added = std::make_shared<RecordedGraph>(runtime_, graph);
  MutexLock lock(&mutex_);
  if (over_) added->Destroy();
  graphs_.erase(std::remove_if(graphs_.begin(), graphs_.end(),
                               [](const auto& one) { return one.expired(); }),
                graphs_.end());
  graphs_.push_back(added);
  return added;
}

void RecordedGraphs::DestroyAll() {
  MutexLock lock(&mutex_);
  over_ = true;
  for (const auto& graph : graphs_) {
    if (const auto held = graph.lock(); held != nullptr) held->Destroy();
  }
}

}  // namespace coxswain
