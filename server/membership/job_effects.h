#ifndef COXSWAIN_SERVER_MEMBERSHIP_JOB_EFFECTS_H_
#define COXSWAIN_SERVER_MEMBERSHIP_JOB_EFFECTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "schedule/step_agreement.h"
#include "schedule/ticket.h"
#include "server/generation/fence.h"
#include "server/membership/membership_types.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// The inputs of a JobMembership, and the effects that it returns.

using StatusCallback = std::function<void(const absl::Status&)>;

struct RunCommit;

// What waits for its turn while a generation of the job is being committed.
namespace job_input {

// CheckJoin() has passed, and NormaliseManifest() was called. The id is one
// that no other Join of this coordinator has.
struct Join {
  JoinRequest request;
  JoinCallback callback;
  uint64_t join_id = 0;
};

// The worker of this join waits no longer.
struct Withdraw {
  uint64_t join_id = 0;
  WorkerIdentity identity;
};

struct Leave {
  Generation generation;
  Incarnation incarnation;
  LeaveNotice notice;
  StatusCallback callback;
};

// The outcome of job_effect::WriteDeparture, if it is OK.
struct DepartureWritten {
  Leave leave;
  bool again = false;  // it was written twice
};

struct Exit {
  ExitReport report;
  StatusCallback callback;
};

}  // namespace job_input

using JobInput =
    std::variant<job_input::Join, job_input::Withdraw, job_input::Leave,
                 job_input::DepartureWritten, job_input::Exit>;

// To be carried out in their order. What is written is handed to the writer in
// that order, and before any later call of the job.
namespace job_effect {

// Answers a Join, which ends its id.
struct Answer {
  uint64_t join_id = 0;
  JoinCallback callback;
  absl::StatusOr<JoinResult> result;
  StatusCallback on_refused;  // to be called before; may be null
};

// Answers a Leave or an ExitReport.
struct Reply {
  StatusCallback callback;
  absl::Status status;
};

// Answers an ExitReport with CheckSaved(), once all that was written before is
// durable.
struct ReplyWhenSaved {
  StatusCallback callback;
  int64_t failures = 0;  // for CheckSaved()
};

struct Send {
  EventSink sink;
  std::shared_ptr<const AttachEvent> event;
};

// Sends each of the messages to its ranks, one after the other.
struct SendMessages {
  std::vector<EventSink> sinks;  // by rank; null: it gets none
  std::vector<schedule::Message> messages;
  // Once all that was written before is durable, or has failed.
  bool when_written = false;
};

// The attachment has ended. The last event of its sink.
struct CloseStream {
  uint64_t attachment = 0;
  EventSink sink;
  absl::Status status;
};

// The attachment has ended; its sink gets no more events.
struct Detached {
  uint64_t attachment = 0;
};

// To all observers, after all notices of the job so far.
struct NotifyBegan {
  GenerationBegin begin;
};
struct NotifyLeft {
  Generation generation;
  int rank = 0;
};
struct NotifyRegroupWanted {
  Generation generation;
  std::string reason;
};
struct NotifyCatchUpWanted {
  Generation generation;
  std::vector<schedule::Newcomer> newcomers;
};
struct NotifyEnded {
  Generation generation;
  absl::Status status;
};

// After all notices of the job so far: gives these answers, then calls
// Announced().
struct Announce {
  Generation generation;
  std::vector<Answer> answers;
};

// Writes behind. A failure goes to NoteUnsaved().
struct Save {
  StateBatch batch;
};

// Writes, and brings the outcome: `written` if it is OK; else the Leave is
// answered with the error.
struct WriteDeparture {
  StateBatch batch;
  job_input::DepartureWritten written;
};

// After all notices of the job so far: writes the tables of the generation, one
// after the other, and has its plan made. The outcome goes to FinishCommit().
struct Commit {
  std::shared_ptr<RunCommit> commit;
};

// These tables are of a generation that did not begin: to be dropped
// eventually.
struct Discard {
  StateBatch tables;
};

}  // namespace job_effect

using JobEffect = std::variant<
    job_effect::Answer, job_effect::Reply, job_effect::ReplyWhenSaved,
    job_effect::Send, job_effect::SendMessages, job_effect::CloseStream,
    job_effect::Detached, job_effect::NotifyBegan, job_effect::NotifyLeft,
    job_effect::NotifyRegroupWanted, job_effect::NotifyCatchUpWanted,
    job_effect::NotifyEnded, job_effect::Announce, job_effect::Save,
    job_effect::WriteDeparture, job_effect::Commit, job_effect::Discard>;
using JobEffects = std::vector<JobEffect>;

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_JOB_EFFECTS_H_
