#ifndef COXSWAIN_CLIENT_SESSION_SESSION_MEMBERS_H_
#define COXSWAIN_CLIENT_SESSION_SESSION_MEMBERS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/rpc/membership.h"
#include "client/session/job.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// Who is in a session's generation: known from the start in a small job, asked
// for in a large one, where few programs want to know. A part of Session.
// Thread-safe.
class SessionMembers {
 public:
  SessionMembers(const v1::JoinResponse& joined,
                 std::shared_ptr<Membership> membership);

  int world_size() const { return world_size_; }

  // All of them, by rank. The first call that succeeds asks the coordinator if
  // need be, page by page; errors are those of Session's calls.
  absl::StatusOr<std::vector<JobMember>> All();

 private:
  absl::StatusOr<std::vector<JobMember>> Ask() const;

  const int world_size_;
  const std::shared_ptr<Membership> membership_;
  Mutex mutex_;
  std::vector<JobMember> known_ ABSL_GUARDED_BY(mutex_);  // all or none
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_SESSION_MEMBERS_H_
