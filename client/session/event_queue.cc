#include "client/session/event_queue.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace coxswain {

void EventQueue::Put(SessionEvent event) {
  event.generation = generation_;
  event.at = clock_->WallTime();
  MutexLock lock(&mutex_);
  if (closed_) return;
  // The last event is how it ended.
  closed_ = event.kind == SessionEvent::Kind::kGenerationEnded;
  if (events_.size() >= kMaxQueued) {
    events_.pop_front();
    ++dropped_;
  }
  events_.push_back(std::move(event));
  changed_.NotifyAll();
}

void EventQueue::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

absl::StatusOr<SessionEvent> EventQueue::Next(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, timeout, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return closed_ || !events_.empty();
  });
  if (!events_.empty()) {
    SessionEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  if (closed_) {
    return absl::OutOfRangeError(absl::StrCat(
        "generation ", generation_, " of this session has no more events"));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "no event of this session within ", absl::FormatDuration(timeout)));
}

int64_t EventQueue::dropped() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

absl::string_view ToString(SessionEvent::Kind kind) {
  switch (kind) {
    case SessionEvent::Kind::kJoined:
      return "joined";
    case SessionEvent::Kind::kCoordinatorLost:
      return "coordinator_lost";
    case SessionEvent::Kind::kReattached:
      return "reattached";
    case SessionEvent::Kind::kMemberLeft:
      return "member_left";
    case SessionEvent::Kind::kPlanChanged:
      return "plan_changed";
    case SessionEvent::Kind::kRegroup:
      return "regroup";
    case SessionEvent::Kind::kWarning:
      return "warning";
    case SessionEvent::Kind::kGenerationEnded:
      return "generation_ended";
  }
  return "unknown";
}

}  // namespace coxswain
