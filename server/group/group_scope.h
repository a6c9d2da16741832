#ifndef COXSWAIN_SERVER_GROUP_GROUP_SCOPE_H_
#define COXSWAIN_SERVER_GROUP_GROUP_SCOPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "server/generation/scoped_component.h"
#include "server/group/barrier.h"
#include "server/group/declarations.h"
#include "server/group/group_records.h"
#include "server/options/options.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// The groups and barriers of one (job, generation). The Scope of Groups, which
// is a ScopedComponent.
class GroupScope {
 public:
  GroupScope(const GroupLimits& limits, std::string job, Generation generation,
             const std::string& table);
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;

  // DATA_LOSS if it is no record of a generation with so many ranks.
  static absl::Status CheckRecord(const StateStore::Record& record,
                                  int world_size);
  absl::Status Load(const std::vector<StateStore::Record>& records,
                    const std::vector<int>& left);

  GroupInfo MakeGroup(absl::string_view name, std::vector<int> ranks) const;
  // All groups of a mesh.
  Declaration MakeMesh(absl::string_view name, const DeclaredMesh& mesh) const;

  // Of those the groups that the rank is in, in the order of mesh.Along().
  std::vector<GroupInfo> MeshGroupsOf(absl::string_view name,
                                      const DeclaredMesh& mesh, int rank) const;

  // 0 to world_size - 1: the group "".
  const std::vector<int>& Everyone(int world_size);

  Declarations& declarations() { return declarations_; }
  BarrierTable& barriers() { return barriers_; }

  void Cancel(uint64_t call, ScopeWork* work) { barriers_.Cancel(call, work); }
  void Expire(absl::Time now, ScopeWork* work) { barriers_.Expire(now, work); }
  void End(const absl::Status& status, ScopeWork* work);

 private:
  const std::string job_;
  const Generation generation_;
  std::vector<int> everyone_;
  Declarations declarations_;
  BarrierTable barriers_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_GROUP_SCOPE_H_
