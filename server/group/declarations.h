#ifndef COXSWAIN_SERVER_GROUP_DECLARATIONS_H_
#define COXSWAIN_SERVER_GROUP_DECLARATIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/generation/scoped_component.h"
#include "server/group/declared_mesh.h"
#include "server/group/group_records.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// A named list of ranks of one generation.
struct GroupInfo {
  std::string name;
  // The position is the rank in the group. Empty: all ranks, in order.
  std::vector<int> ranks;
  // "<job>/<generation>/<name>": generations are never used twice, so neither
  // is this.
  std::string communicator_id;
};

// Groups that are declared together: one by itself, or all of a mesh.
struct Declaration {
  std::string name;
  std::optional<DeclaredMesh> mesh;  // if it is one
  std::vector<GroupInfo> groups;
};
using DeclareDone = std::function<void(const absl::Status&)>;

// The groups and meshes of one generation: what is in it is durable. A part of
// GroupScope: one thread at a time. Answers that a call causes are appended to
// `work`, never run.
class Declarations {
 public:
  Declarations(std::string table, size_t max_groups, size_t max_waiting)
      : table_(std::move(table)),
        max_groups_(max_groups),
        max_waiting_(max_waiting) {}

  // What an earlier term has left.
  void Load(const Declaration& declaration) { Install(declaration); }

  // Answers once the groups are durable; the same declaration may come again.
  //   FAILED_PRECONDITION  something else was declared under one of the names
  //   RESOURCE_EXHAUSTED   too many groups, or too many calls wait
  void Declare(Declaration declaration, DeclareDone done, ScopeWork* work);

  // Null if there is no such group.
  const GroupInfo* Find(absl::string_view name) const;
  // Returns whether it is declared, and as this.
  bool HasMesh(absl::string_view name, const DeclaredMesh& mesh) const;

  // Answers all that wait with `status`.
  void End(const absl::Status& status, ScopeWork* work);

 private:
  struct Request {
    Declaration declaration;
    DeclareDone done;
  };
  struct Pending {
    Request first;
    std::vector<Request> later;  // that touch a name of the first
  };

  // Returns whether the groups are there already.
  absl::StatusOr<bool> Check(const Declaration& declaration) const;
  void Start(Request request, ScopeWork* work);
  void Committed(uint64_t id, const absl::Status& status, ScopeWork* work);
  void Install(const Declaration& declaration);

  const std::string table_;
  const size_t max_groups_;
  const size_t max_waiting_;
  std::map<std::string, GroupInfo, std::less<>> groups_;
  std::map<std::string, DeclaredMesh, std::less<>> meshes_;
  // Being committed. A later declaration of one of the names waits for the
  // outcome, which has whether it is a repetition.
  std::map<uint64_t, Pending> pending_;
  std::map<std::string, uint64_t> pending_of_group_;
  std::map<std::string, uint64_t> pending_of_mesh_;
  uint64_t next_id_ = 1;
  size_t waiting_ = 0;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_DECLARATIONS_H_
