#ifndef COXSWAIN_SERVER_GROUP_GROUPS_H_
#define COXSWAIN_SERVER_GROUP_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "server/group/barrier.h"
#include "server/group/mesh.h"
#include "server/membership/fence.h"
#include "server/membership/generation_guard.h"

namespace coxswain::server {

// What one generation of a job may declare.
struct GroupLimits {
  size_t max_groups = 1 << 16;
  size_t max_name_bytes = 128;
  size_t max_tag_bytes = 256;
  size_t max_barriers = 1 << 12;  // tags with someone waiting
  absl::Duration max_timeout = absl::Hours(24);
};

// A named list of ranks of one generation.
struct GroupInfo {
  std::string name;
  std::vector<int> ranks;  // the position is the rank in the group
  // "<job>/<generation>/<name>": generations are never used twice, so neither
  // is this.
  std::string communicator_id;
};

// Named process groups and barriers, scoped by (job, generation), in memory.
// The group "" holds all ranks and always exists.
//
// Called by the Group service, with fences that a FenceGate has admitted and
// the caller it found. Thread-safe. Callbacks run exactly once, without a lock
// held, on the thread whose call decided them.
class GroupRoom : public GenerationObserver {
 public:
  using CallId = uint64_t;

  // `clock` must outlive the room.
  GroupRoom(const GroupLimits& limits, const Clock* clock);
  ~GroupRoom() override;

  // Declares a group; repeating the same declaration is harmless.
  //   INVALID_ARGUMENT     bad name, a rank out of range or named twice, or
  //                        the caller is not in the group
  //   FAILED_PRECONDITION  other ranks were declared under this name
  absl::StatusOr<GroupInfo> CreateGroup(const Fence& fence,
                                        const Caller& caller,
                                        absl::string_view name,
                                        const std::vector<int>& ranks);

  // Declares all groups of a mesh and returns the caller's, one per axis.
  //   INVALID_ARGUMENT     bad name, or sizes that do not make the world size
  //   FAILED_PRECONDITION  another mesh was declared under this name
  absl::StatusOr<std::vector<GroupInfo>> CreateMesh(
      const Fence& fence, const Caller& caller, absl::string_view name,
      const std::vector<MeshAxis>& axes);

  // Answers once all members of the group wait under the same tag. Each caller
  // has its own deadline; one that passes it is no longer counted as present.
  // A repeat with the request id of a completed call is answered OK; a second
  // call of a rank that still waits takes the place of the first, which gets
  // ABORTED.
  //   NOT_FOUND          no such group
  //   INVALID_ARGUMENT   the caller is not in the group
  //   DEADLINE_EXCEEDED  not all came; the answer has the missing ranks
  //   ABORTED            the generation ended
  //   FAILED_PRECONDITION
  //                      a member of the group has left in good order, before
  //                      or while the caller waits
  // Returns the name of the waiting call for Cancel, or 0 if answered.
  CallId Barrier(const Fence& fence, const Caller& caller,
                 absl::string_view group, absl::string_view tag,
                 absl::Duration timeout, const BarrierDone& done);

  // Withdraws a waiting Barrier call (its connection is gone): CANCELLED.
  void Cancel(CallId call);

  // Answers the barrier calls whose deadline has come.
  void Tick(absl::Time now);

  void OnGenerationEnded(absl::string_view job, Generation generation,
                         const absl::Status& reason) override;
  void OnMemberLeft(absl::string_view job, Generation generation,
                    int rank) override;

  size_t scope_count() const;

 private:
  using ScopeKey = std::pair<std::string, Generation>;
  struct Scope {
    std::map<std::string, GroupInfo, std::less<>> groups;
    std::map<std::string, std::vector<MeshAxis>, std::less<>> meshes;
    BarrierTable barriers;
  };

  absl::StatusOr<Scope*> FindScopeLocked(const Fence& fence)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckName(absl::string_view what, absl::string_view name) const;
  // Adds all of the groups, or none.
  absl::Status DeclareLocked(const std::vector<GroupInfo>& groups, Scope* scope)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The ranks that a barrier needs.
  absl::StatusOr<std::vector<int>> MembersLocked(const Scope& scope,
                                                 const Caller& caller,
                                                 absl::string_view group) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<CallId> ArriveLocked(
      const Fence& fence, const Caller& caller, absl::string_view group,
      absl::string_view tag, absl::Duration timeout, const BarrierDone& done,
      BarrierCalls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GroupLimits limits_;
  const Clock* const clock_;

  mutable Mutex mutex_;
  CallId next_call_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<ScopeKey, Scope> scopes_ ABSL_GUARDED_BY(mutex_);
  GenerationGuard ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_GROUPS_H_
