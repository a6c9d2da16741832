#ifndef COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_TYPES_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_TYPES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "schedule/plan.h"
#include "schedule/step_agreement.h"
#include "server/membership/liveness.h"
#include "server/membership/member.h"

namespace coxswain::server {

// The requests to the membership, and its answers.

struct JoinRequest {
  std::string job;
  WorkerIdentity identity;
  Incarnation incarnation;
  uint64_t launcher_id = 0;  // 0: without a launcher
  std::string host;
  std::string address;
  std::vector<std::string> topology;
  Manifest manifest;
  absl::Duration timeout;
  Generation after_generation;  // 0: none
  int64_t attempt = 0;
  // Where it takes the state of the members while it waits; empty: it does not.
  std::string catch_up_address;
  uint64_t catch_up_secret = 0;
  // Called before the answer where the request is refused, at once or after the
  // commit of a generation, and not where its worker has waited in a round. May
  // be null; without any lock held.
  std::function<void(const absl::Status&)> on_refused;
};

struct JoinResult {
  std::string cluster_id;
  Term term;
  Generation generation;
  int rank = 0;
  std::shared_ptr<const std::vector<Member>> members;  // by rank
  int unreachable = -1;  // see MemberTable::unreachable
  schedule::Plan plan;
  absl::Duration heartbeat_interval;
  absl::Duration lease;
  Generation previous;  // 0: none is known
  int previous_world_size = 0;
  std::shared_ptr<const std::vector<LostMember>> lost;  // may be null
  int lost_count = 0;  // of all, named in `lost` or not
  std::string reason;
  // Secret: see JoinResponse. Null: it was lost.
  std::shared_ptr<const std::string> data_key;
};

using JoinCallback = std::function<void(absl::StatusOr<JoinResult>)>;

// An event of an attached worker's generation. kClosed is the last: events that
// another thread caused a moment before may still follow, and are to be
// ignored.
struct MembershipEvent {
  enum class Kind {
    kAbort,       // the generation has ended; `member` was lost, if any
    kMemberLeft,  // `member` left cleanly
    kFallback,    // `rank` is the fallback coordinator, at `address`
    kClosed,      // the stream ends with `status`
  };
  Kind kind = Kind::kClosed;
  std::string reason;
  std::optional<Member> member;
  // kAbort: also carries an ErrorDetail, if there is one.
  absl::Status status;
  int rank = 0;  // kFallback
  std::string address;
};

// What is sent to an attached worker: events, and the schedule's messages as
// they are.
using AttachEvent = std::variant<schedule::Message, MembershipEvent>;
using EventSink = std::function<void(const AttachEvent&)>;

// The rank that an attachment belongs to.
struct AttachedRank {
  std::string job;
  Generation generation;
  int rank = 0;
  // Later ones are higher; 0: none.
  uint64_t attachment = 0;
};

struct LeaveNotice {
  std::string reason;
  bool failed = false;  // the others must stop as well
  bool rejoin = false;  // it joins the next generation, and keeps its rank
};

struct ExitReport {
  std::string job;
  uint64_t launcher_id = 0;
  WorkerIdentity identity;
  Incarnation incarnation;
  int exit_code = 0;
  int signal = 0;  // 0: it was not killed by one
};

// Why a generation has ended that did not end well, and the member at fault, if
// there is one.
struct GenerationEnd {
  std::string reason;
  std::optional<Member> lost;
};

struct MemberDescription {
  Member member;
  MemberState state = MemberState::kJoined;
  Progress progress;
  absl::Duration silence;   // since the last sign of life
  absl::Duration idle;      // since its progress changed
  absl::Time last_contact;  // the last sign of life; of a waiter: never
  absl::Time progressed;    // its progress changed
  // No heartbeat came from it since this coordinator began: the step is that of
  // its departure (0: not known), and the last contact the infinite past.
  bool restored = false;
  std::string departure;  // how it has left or was lost, shortened
};

enum class JobState { kForming, kRunning, kEnded };
absl::string_view ToString(JobState state);

struct JobDescription {
  std::string job;
  JobState state = JobState::kForming;
  Generation generation;
  int world_size = 0;
  schedule::Plan plan;
  std::vector<MemberDescription> members;
  std::string last_event;
  int min_world_size = 0;
  std::vector<MemberDescription> spares;
  int64_t attempt = 0;
  int64_t step = 0;  // the highest that a member reported
  // When last_event was, and since then; the infinite past: not known.
  absl::Time last_event_at = absl::InfinitePast();
  absl::Duration last_event_age;
  std::string forming;  // while it is: what the next generation waits for
  // Of the generation, without a free axis; while one forms, as it was asked
  // for. Empty: none, or it is not known any more.
  std::string mesh;
  std::string placement;  // a hint; see PlacementHint
};

// A job without its members: cheap, for frequent requests.
struct JobSummary {
  std::string job;
  JobState state = JobState::kForming;
  Generation generation;
  int world_size = 0;
  int min_world_size = 0;
  int64_t attempt = 0;
  int64_t plan_version = 0;  // 0: none yet
  std::string hook;
  std::string last_event;
  int joined = 0, attached = 0, detached = 0, left = 0, lost = 0;
  int waiting = 0;   // for a generation: spares, while one runs
  int64_t step = 0;  // the highest that a member reported
  // Since the progress of one of its attached members changed last; unset:
  // there are none.
  std::optional<absl::Duration> idle;

  int live() const { return joined + attached + detached; }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_TYPES_H_
