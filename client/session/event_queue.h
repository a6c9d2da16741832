#ifndef COXSWAIN_CLIENT_SESSION_EVENT_QUEUE_H_
#define COXSWAIN_CLIENT_SESSION_EVENT_QUEUE_H_

#include <cstdint>
#include <deque>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/session/session_events.h"

namespace coxswain {

// Holds the events of one session until they are read. A part of Session.
// Thread-safe; Put never blocks.
class EventQueue : public SessionEvents {
 public:
  EventQueue(int64_t generation, const Clock* clock)
      : generation_(generation), clock_(clock) {}

  // Adds an event, with the generation and the time. Does nothing after Close.
  void Put(SessionEvent event);
  // Ends the events; those that wait can still be read.
  void Close();

  absl::StatusOr<SessionEvent> Next(absl::Duration timeout) override;
  int64_t dropped() const override;

 private:
  const int64_t generation_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<SessionEvent> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_EVENT_QUEUE_H_
