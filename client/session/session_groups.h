#ifndef COXSWAIN_CLIENT_SESSION_SESSION_GROUPS_H_
#define COXSWAIN_CLIENT_SESSION_SESSION_GROUPS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "client/group/process_group.h"
#include "client/rpc/member_context.h"
#include "client/schedule/step_timings.h"
#include "client/session/job.h"
#include "proto/group.pb.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// The members of a session's generation: known from the start in a small job,
// requested from the coordinator in a large one. A part of Session.
// Thread-safe.
class SessionMembers {
 public:
  SessionMembers(const v1::JoinResponse& joined,
                 std::shared_ptr<MemberContext> member);

  int world_size() const { return world_size_; }

  // Returns all of them, by rank. The first call that succeeds asks the
  // coordinator if necessary, page by page; fails as Session's calls do.
  absl::StatusOr<std::vector<JobMember>> All();

 private:
  absl::StatusOr<std::vector<JobMember>> Ask() const;

  const int world_size_;
  const std::shared_ptr<MemberContext> member_;
  Mutex mutex_;
  std::vector<JobMember> known_ ABSL_GUARDED_BY(mutex_);  // all or none
};

// The group of all ranks. Its communicator measures the links of the job.
constexpr absl::string_view kWorldGroup = "world";

// The groups of a session, each connected once. A part of Session.
// Thread-safe.
//
// Groups whose names begin with "checkpoint/" belong to the saving of
// checkpoints, which drops its connections after an error while training
// continues. So their losses are not reported as those of peers, and the
// session keeps the last of them only: each replaces the one before it.
class SessionGroups {
 public:
  SessionGroups(int rank, ProcessGroup::ConnectOptions connect,
                std::shared_ptr<MemberContext> member);

  // Returns the group of this description, connected now unless it is already.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Obtain(
      const v1::GroupInfo& info);

  // Returns the group of this rank alone, which no coordinator knows.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> ObtainAlone();

  // Notes that a rank has left, in words: "rank 1 on host-a has left: done".
  // Groups with it that are not connected yet are refused with UNAVAILABLE.
  void NoteLeft(int rank, std::string words);
  // Ends the connecting of groups that have lacked a rank that has left for 2
  // s: one that has met all others may leave while these still finish. Called
  // with each heartbeat, however often these come.
  void EndHopeless();

  // Refuses later groups with `why`, since the generation has ended, and if
  // requested aborts all communicators. Once.
  void End(const absl::Status& why, bool abort_communicators);

  // Returns the traffic of all communicators.
  StepTimings::Traffic traffic() const;
  // Adds the progress of all communicators.
  void AddProgress(v1::Heartbeat* heartbeat) const;

 private:
  // Returns the group, or why it could not be connected, if that is known;
  // nullptr: the caller is to connect it, until `cancel` is raised.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Claim(
      const v1::GroupInfo& info, const std::shared_ptr<CancelSignal>& cancel);
  // Keeps a group that has just been connected.
  absl::Status Keep(const std::shared_ptr<ProcessGroup>& group);
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Obtain(
      const v1::GroupInfo& info, ProcessGroup::ConnectOptions connect);
  // A group that is being connected.
  struct Attempt {
    std::string name;
    std::vector<int> ranks;
    std::shared_ptr<CancelSignal> cancel;
    absl::Status missing;      // a rank has left; OK: none
    absl::Time missing_since;  // where that is not OK
  };
  // Returns UNAVAILABLE where one of the ranks has left.
  absl::Status MissingLocked(absl::string_view name,
                             const std::vector<int>& ranks) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What communicators have done.
  struct Done {
    int64_t sequence = 0, payload_bytes = 0, wire_bytes = 0;

    void Add(const Communicator& communicator);
  };
  Done AllDone() const;

  const int rank_;
  const ProcessGroup::ConnectOptions connect_;
  const std::shared_ptr<MemberContext> member_;

  mutable Mutex mutex_;
  CondVar connected_;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;  // communicators are
  // By communicator id. All of them live as long as the session, but for those
  // of checkpoints.
  std::map<std::string, std::shared_ptr<ProcessGroup>> groups_
      ABSL_GUARDED_BY(mutex_);
  std::string checkpoint_ ABSL_GUARDED_BY(mutex_);  // the last one's id
  Done forgotten_ ABSL_GUARDED_BY(mutex_);          // by those before it
  std::map<std::string, Attempt> connecting_ ABSL_GUARDED_BY(mutex_);
  std::map<int, std::string> left_ ABSL_GUARDED_BY(mutex_);  // in words
  // Why it could not be connected, by communicator id: an id is used once.
  std::map<std::string, absl::Status> failed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_SESSION_GROUPS_H_
