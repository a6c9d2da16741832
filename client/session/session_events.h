#ifndef COXSWAIN_CLIENT_SESSION_SESSION_EVENTS_H_
#define COXSWAIN_CLIENT_SESSION_SESSION_EVENTS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain {

// An event of a session, for a program or a person that watches it.
struct SessionEvent {
  enum class Kind {
    kJoined,           // `text`: why the round closed
    kCoordinatorLost,  // training continues meanwhile
    kReattached,       // `term`: of the current coordinator
    kMemberLeft,       // `rank`, cleanly
    kPlanChanged,
    kRegroup,          // the generation ends after this step
    kWarning,          // a possible problem; the generation continues
    kGenerationEnded,  // `rank`: the lost one, or -1. The last event
  };
  Kind kind = Kind::kWarning;
  int64_t generation = 0;
  int64_t term = 0;
  int rank = -1;
  std::string text;  // a sentence, for display
  absl::Time at;
};

absl::string_view ToString(SessionEvent::Kind kind);

// The events of one session, in order: see Session::events(). One reader, which
// may be slow: the oldest events are dropped then, and counted. Thread-safe.
class SessionEvents {
 public:
  static constexpr size_t kMaxQueued = 256;

  virtual ~SessionEvents() = default;

  // Returns the next event. Fails with DEADLINE_EXCEEDED if none comes within
  // `timeout`, and with OUT_OF_RANGE once the last one was read, or the session
  // was left.
  virtual absl::StatusOr<SessionEvent> Next(absl::Duration timeout) = 0;

  // Returns how many were dropped because they were not read.
  virtual int64_t dropped() const = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_SESSION_EVENTS_H_
