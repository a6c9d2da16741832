#ifndef COXSWAIN_SERVER_GROUP_GROUP_SCOPE_H_
#define COXSWAIN_SERVER_GROUP_GROUP_SCOPE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "server/group/barrier.h"
#include "server/group/declarations.h"
#include "server/group/group_records.h"
#include "server/options/options.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// The groups and barriers of one (job, generation). A part of GroupRoom, which
// holds its lock around every call: one thread at a time. Answers that a call
// causes are appended to `work`, never run.
class GroupScope {
 public:
  GroupScope(const GroupLimits& limits, std::string job, Generation generation);
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;

  // DATA_LOSS if it is no record of a generation with so many ranks.
  static absl::Status CheckRecord(const StateStore::Record& record,
                                  int world_size);
  // What an earlier term has left; before anything else. DATA_LOSS.
  absl::Status Load(const std::vector<StateStore::Record>& records);

  GroupInfo MakeGroup(absl::string_view name, std::vector<int> ranks) const;
  // All groups of a mesh.
  Declaration MakeMesh(absl::string_view name,
                       const std::vector<MeshAxis>& axes) const;

  // Of those the groups that the rank is in: one of each axis, in their order.
  std::vector<GroupInfo> MeshGroupsOf(absl::string_view name,
                                      const std::vector<MeshAxis>& axes,
                                      int rank) const;

  // 0 to world_size - 1: the group "".
  const std::vector<int>& Everyone(int world_size);

  Declarations& declarations() { return declarations_; }
  BarrierTable& barriers() { return barriers_; }

  // To be called with what a call has left to commit, and with each outcome.
  void Started(const GroupWork& work);
  void Committed(const GroupWork::Commit& commit, const absl::Status& status,
                 GroupWork* work);

  // Answers everything that waits with `status`; `drop`: then deletes all
  // records. Once; nothing but Committed() is called after it.
  void End(const absl::Status& status, bool drop, GroupWork* work);

 private:
  void DropIfOver(GroupWork* work);
  GroupInfo MakeGroup(absl::string_view mesh, const std::vector<MeshAxis>& axes,
                      MeshGroup part) const;

  const std::string job_;
  const Generation generation_;
  const std::string table_;
  std::vector<int> everyone_;
  Declarations declarations_;
  BarrierTable barriers_;
  size_t under_way_ = 0;  // commits
  bool drop_ = false;     // when the last commit is over
  bool stored_ = false;   // whether there may be records
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_GROUP_SCOPE_H_
