#ifndef COXSWAIN_CLIENT_SESSION_SESSION_GROUPS_H_
#define COXSWAIN_CLIENT_SESSION_SESSION_GROUPS_H_

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/group/process_group.h"
#include "client/rpc/membership.h"
#include "proto/group.pb.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// The groups of a session, each connected once. A part of Session.
// Thread-safe.
class SessionGroups {
 public:
  SessionGroups(int rank, ProcessGroup::ConnectOptions connect,
                std::shared_ptr<Membership> membership);

  // The group of this description, connected now unless it is already.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Obtain(
      const v1::GroupInfo& info);

  // The generation is over: groups that come later are refused with this, and
  // if asked to, all communicators are aborted. Once.
  void End(const absl::Status& why, bool abort_communicators);

  // Adds what all communicators have done.
  void AddProgress(v1::Heartbeat* heartbeat) const;

 private:
  // The group, or why it could not be connected, if that is known; nullptr:
  // the caller is to connect it.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Claim(
      const v1::GroupInfo& info);
  // Keeps a group that has just been connected.
  absl::Status Keep(const std::shared_ptr<ProcessGroup>& group);

  const int rank_;
  const ProcessGroup::ConnectOptions connect_;
  const std::shared_ptr<Membership> membership_;

  mutable Mutex mutex_;
  CondVar connected_;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;  // communicators are
  // By communicator id. All of them live as long as the session.
  std::map<std::string, std::shared_ptr<ProcessGroup>> groups_
      ABSL_GUARDED_BY(mutex_);
  std::set<std::string> connecting_ ABSL_GUARDED_BY(mutex_);
  // Why it could not be connected, by communicator id: an id is used once.
  std::map<std::string, absl::Status> failed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_SESSION_GROUPS_H_
