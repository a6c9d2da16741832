#include <string>
#include <utility>

#include "base/status_macros.h"
#include "client/session/session.h"
#include "client/session/session_core.h"

// The calls of a session that ask the coordinator.

namespace coxswain {
namespace {

constexpr absl::string_view kWorldName = "world";

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> Session::World() {
  v1::CreateGroupRequest request;
  request.set_name(std::string(kWorldName));
  request.set_all_ranks(true);
  return core_->Declare(std::move(request));
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> Session::CreateGroup(
    absl::string_view name, const std::vector<int>& ranks) {
  v1::CreateGroupRequest request;
  request.set_name(std::string(name));
  request.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  return core_->Declare(std::move(request));
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> Session::Core::Declare(
    v1::CreateGroupRequest request) {
  *request.mutable_fence() = membership->NewRequest();
  const auto response =
      membership->stub().CreateGroup(request, membership->Call());
  if (!response.ok()) return membership->Outcome(response.status());
  return groups_.Obtain(response->group());
}

absl::StatusOr<std::vector<std::shared_ptr<ProcessGroup>>> Session::CreateMesh(
    absl::string_view name, const std::vector<MeshAxis>& axes) {
  Membership& membership = *core_->membership;
  v1::CreateMeshRequest request;
  *request.mutable_fence() = membership.NewRequest();
  request.set_name(std::string(name));
  for (const MeshAxis& axis : axes) {
    v1::MeshAxis* wire = request.add_axes();
    wire->set_name(axis.name);
    wire->set_size(axis.size);
  }
  const auto response =
      membership.stub().CreateMesh(request, membership.Call());
  if (!response.ok()) return membership.Outcome(response.status());
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (const v1::GroupInfo& info : response->groups()) {
    COXSWAIN_ASSIGN_OR_RETURN(auto group, core_->Obtain(info));
    groups.push_back(std::move(group));
  }
  return groups;
}

absl::Status Session::Barrier(absl::string_view group, absl::string_view tag,
                              absl::Duration timeout) {
  Membership& membership = *core_->membership;
  v1::BarrierRequest request;
  *request.mutable_fence() = membership.NewRequest();
  request.set_group(std::string(group));
  request.set_tag(std::string(tag));
  request.set_timeout_ms(TimeoutMillis(timeout));
  return membership.Outcome(
      membership.stub()
          .Barrier(request, membership.WaitingCall(timeout))
          .status());
}

}  // namespace coxswain
