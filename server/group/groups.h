#ifndef COXSWAIN_SERVER_GROUP_GROUPS_H_
#define COXSWAIN_SERVER_GROUP_GROUPS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ids.h"
#include "server/generation/fence.h"
#include "server/generation/scoped_component.h"
#include "server/group/group_scope.h"
#include "server/state/state_writer.h"

namespace coxswain::server {

// Named process groups and barriers, scoped by (job, generation). The group ""
// holds all ranks and always exists. Groups, meshes and the completion of
// barriers are durable before they are answered.
//
// Called by the Group service, with fences that a FenceValidator has admitted
// and the caller it found. A callback may run before the call has returned.
// Thread-safe.
//
// Every operation may answer with UNAVAILABLE: the state cannot be written now,
// and nothing was changed; or the coordinator is stopping.
class Groups : public ScopedComponent<GroupScope> {
 public:
  using GroupDone = std::function<void(absl::StatusOr<GroupInfo>)>;
  using MeshDone = std::function<void(absl::StatusOr<std::vector<GroupInfo>>)>;

  // `clock` and `state` must outlive it.
  Groups(const GroupLimits& limits, const Clock* clock, StateWriter* state);
  ~Groups() override { Stop(); }

  // Declares a group; repeating the same declaration is harmless.
  //   INVALID_ARGUMENT     bad name, a rank out of range or named twice, or
  //                        the caller is not in the group
  //   FAILED_PRECONDITION  other ranks were declared under this name
  void CreateGroup(const Fence& fence, const Caller& caller,
                   absl::string_view name, const std::vector<int>& ranks,
                   const GroupDone& done);

  // The same for all ranks, in order. A list of them all is the same again.
  void CreateGroupOfAll(const Fence& fence, absl::string_view name,
                        const GroupDone& done);

  // Declares all groups of a mesh; the answer is the caller's: one per axis,
  // then one per set of joined axes.
  //   INVALID_ARGUMENT     bad name, sizes that do not make the world size, or
  //                        joined axes that it does not have
  //   FAILED_PRECONDITION  another mesh was declared under this name
  void CreateMesh(const Fence& fence, const Caller& caller,
                  absl::string_view name, const MeshRequest& request,
                  const MeshDone& done);

  // Answers once all members of the group wait under the same tag. Each caller
  // has its own deadline; one that passes it is no longer counted as present.
  // A repeat with the request id of a completed call is answered OK, also after
  // a restart; a second call of a rank that still waits takes the place of the
  // first, which gets ABORTED.
  //   NOT_FOUND          no such group
  //   INVALID_ARGUMENT   the caller is not in the group
  //   DEADLINE_EXCEEDED  not all came; the answer has the missing ranks
  //   ABORTED            the generation ended
  //   FAILED_PRECONDITION
  //                      a member of the group has left cleanly, before or
  //                      while the caller waits
  // Returns the name of the waiting call for Cancel, or 0 if it waits for no
  // other rank.
  CallId Barrier(const Fence& fence, const Caller& caller,
                 absl::string_view group, absl::string_view tag,
                 absl::Duration timeout, const BarrierDone& done);

  void OnMemberLeft(absl::string_view job, Generation generation,
                    int rank) override;

 private:
  std::unique_ptr<GroupScope> MakeScope(
      const std::string& job, Generation generation,
      const std::string& table) const override;
  absl::Status CheckRecord(const Record& record, int world_size) const override;

  // Empty: all ranks.
  void Declare(const Fence& fence, absl::string_view name,
               const std::vector<int>& ranks, const GroupDone& done);
  absl::Status CheckName(absl::string_view what, absl::string_view name) const;
  absl::StatusOr<DeclaredMesh> CheckMesh(const Caller& caller,
                                         absl::string_view name,
                                         const MeshRequest& request) const;
  // Returns the ranks that a barrier needs; they stay where they are.
  static absl::StatusOr<const std::vector<int>*> Members(
      GroupScope* scope, const Caller& caller, absl::string_view group);
  absl::StatusOr<CallId> Arrive(const Fence& fence, const Caller& caller,
                                absl::string_view group, absl::string_view tag,
                                absl::Duration timeout, const BarrierDone& done,
                                GroupScope* scope, ScopeWork* work);

  const GroupLimits limits_;
  const Clock* const clock_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_GROUPS_H_
