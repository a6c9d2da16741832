#include "server/rpc/group_service.h"

#include <vector>

#include "server/rpc/call.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

// Returns whether each rank is as far above the one before.
bool IsRange(const std::vector<int>& ranks) {
  if (ranks.size() < 2 || ranks[0] >= ranks[1]) return false;
  for (size_t i = 2; i < ranks.size(); ++i) {
    if (ranks[i] - ranks[i - 1] != ranks[1] - ranks[0]) return false;
  }
  return true;
}

// Each of many ranks gets such an answer: it is to be short.
v1::GroupInfo ToProto(const GroupInfo& group, int world_size) {
  v1::GroupInfo message;
  message.set_name(group.name);
  message.set_communicator_id(group.communicator_id);
  const std::vector<int>& ranks = group.ranks;
  if (ranks.empty()) {
    message.mutable_range()->set_stride(1);
    message.mutable_range()->set_count(world_size);
  } else if (IsRange(ranks)) {
    message.mutable_range()->set_first(ranks[0]);
    message.mutable_range()->set_stride(ranks[1] - ranks[0]);
    message.mutable_range()->set_count(static_cast<int>(ranks.size()));
  } else {
    message.mutable_ranks()->Add(ranks.begin(), ranks.end());
  }
  return message;
}

absl::Status WithMissing(const BarrierAnswer& answer) {
  if (answer.status.ok() || answer.missing_ranks.empty()) return answer.status;
  v1::ErrorDetail detail;
  v1::MissingMembers* missing = detail.mutable_missing_members();
  missing->set_expected(answer.expected);
  missing->mutable_missing_ranks()->Add(answer.missing_ranks.begin(),
                                        answer.missing_ranks.end());
  return WithDetail(answer.status, detail);
}

}  // namespace

GroupService::GroupService(Groups* groups, const FenceValidator* validator)
    : groups_(groups), validator_(validator) {}

GroupService::~GroupService() = default;

grpc::ServerUnaryReactor* GroupService::CreateGroup(
    grpc::CallbackServerContext* /*context*/,
    const v1::CreateGroupRequest* request, v1::CreateGroupResponse* response) {
  return Handle(validator_, request, response, [&](auto& by, auto& call) {
    const auto done = call->Done([world_size = by.caller.world_size](
                                     const GroupInfo& group, auto* answer) {
      *answer->mutable_group() = ToProto(group, world_size);
    });
    if (request->all_ranks()) {
      groups_->CreateGroupOfAll(by.fence, request->name(), done);
    } else {
      groups_->CreateGroup(by.fence, by.caller, request->name(),
                           {request->ranks().begin(), request->ranks().end()},
                           done);
    }
  });
}

grpc::ServerUnaryReactor* GroupService::CreateMesh(
    grpc::CallbackServerContext* /*context*/,
    const v1::CreateMeshRequest* request, v1::CreateMeshResponse* response) {
  return Handle(validator_, request, response, [&](auto& by, auto& call) {
    MeshRequest mesh;
    for (const v1::MeshAxis& axis : request->axes()) {
      mesh.axes.push_back({axis.name(), axis.size()});
    }
    for (const v1::JoinedAxes& joined : request->joined()) {
      mesh.joined.emplace_back(joined.names().begin(), joined.names().end());
    }
    groups_->CreateMesh(
        by.fence, by.caller, request->name(), mesh,
        call->Done([world_size = by.caller.world_size](
                       const std::vector<GroupInfo>& groups, auto* answer) {
          for (const GroupInfo& group : groups) {
            *answer->add_groups() = ToProto(group, world_size);
          }
        }));
  });
}

grpc::ServerUnaryReactor* GroupService::Barrier(
    grpc::CallbackServerContext* /*context*/, const v1::BarrierRequest* request,
    v1::BarrierResponse* response) {
  return Handle(validator_, request, response, [&](auto& by, auto& call) {
    const Groups::CallId waiting =
        groups_->Barrier(by.fence, by.caller, request->group(), request->tag(),
                         absl::Milliseconds(request->timeout_ms()),
                         [done = call->Done()](const BarrierAnswer& answer) {
                           done(WithMissing(answer));
                         });
    call->OnceCancelled([this, waiting] { groups_->Cancel(waiting); });
  });
}

}  // namespace coxswain::server
