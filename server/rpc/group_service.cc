#include "server/rpc/group_service.h"

#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "base/error_detail.h"
#include "server/rpc/call.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {
namespace {

v1::GroupInfo ToProto(const GroupInfo& group) {
  v1::GroupInfo message;
  message.set_name(group.name);
  message.mutable_ranks()->Add(group.ranks.begin(), group.ranks.end());
  message.set_communicator_id(group.communicator_id);
  return message;
}

absl::Status WithMissing(const BarrierAnswer& answer) {
  absl::Status status = answer.status;
  if (status.ok() || answer.missing_ranks.empty()) return status;
  v1::ErrorDetail detail;
  v1::MissingMembers* missing = detail.mutable_missing_members();
  missing->set_expected(answer.expected);
  missing->mutable_missing_ranks()->Add(answer.missing_ranks.begin(),
                                        answer.missing_ranks.end());
  status.SetPayload(kErrorDetailUrl, absl::Cord(detail.SerializeAsString()));
  return status;
}

}  // namespace

grpc::ServerUnaryReactor* GroupService::CreateGroup(
    grpc::CallbackServerContext* context, const v1::CreateGroupRequest* request,
    v1::CreateGroupResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::StatusOr<Caller> caller = gate_->Admit(fence);
  if (!caller.ok()) return ReplyNow(context, caller.status());
  const std::vector<int> ranks(request->ranks().begin(),
                               request->ranks().end());
  const absl::StatusOr<GroupInfo> group =
      room_->CreateGroup(fence, *caller, request->name(), ranks);
  if (group.ok()) *response->mutable_group() = ToProto(*group);
  return ReplyNow(context, group.status());
}

grpc::ServerUnaryReactor* GroupService::CreateMesh(
    grpc::CallbackServerContext* context, const v1::CreateMeshRequest* request,
    v1::CreateMeshResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::StatusOr<Caller> caller = gate_->Admit(fence);
  if (!caller.ok()) return ReplyNow(context, caller.status());
  std::vector<MeshAxis> axes;
  for (const v1::MeshAxis& axis : request->axes()) {
    axes.push_back({axis.name(), axis.size()});
  }
  const absl::StatusOr<std::vector<GroupInfo>> groups =
      room_->CreateMesh(fence, *caller, request->name(), axes);
  if (!groups.ok()) return ReplyNow(context, groups.status());
  for (const GroupInfo& group : *groups) {
    *response->add_groups() = ToProto(group);
  }
  return ReplyNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* GroupService::Barrier(
    grpc::CallbackServerContext* context, const v1::BarrierRequest* request,
    v1::BarrierResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::StatusOr<Caller> caller = gate_->Admit(fence);
  if (!caller.ok()) return ReplyNow(context, caller.status());
  auto call = DeferredCall<v1::BarrierResponse>::Start(response);
  const GroupRoom::CallId waiting =
      room_->Barrier(fence, *caller, request->group(), request->tag(),
                     absl::Milliseconds(request->timeout_ms()),
                     [call](const BarrierAnswer& answer) {
                       if (!answer.status.ok())
                         return call->Answer(WithMissing(answer));
                       call->Answer(v1::BarrierResponse());
                     });
  call->OnceCancelled([this, waiting] { room_->Cancel(waiting); });
  return call->reactor();
}

}  // namespace coxswain::server
