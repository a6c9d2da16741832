#ifndef COXSWAIN_SERVER_RPC_GROUP_SERVICE_H_
#define COXSWAIN_SERVER_RPC_GROUP_SERVICE_H_

#include "proto/group.grpc.pb.h"
#include "server/generation/fence.h"
#include "server/group/groups.h"

namespace coxswain::server {

// coxswain.v1.Group over gRPC. A waiting Barrier is a stored callback; a client
// that goes away withdraws its own. Thread-safe; the pointers must
// outlive the gRPC server.
class GroupService final : public v1::Group::CallbackService {
 public:
  GroupService(Groups* groups, const FenceValidator* validator);
  ~GroupService() override;

  grpc::ServerUnaryReactor* CreateGroup(
      grpc::CallbackServerContext* context,
      const v1::CreateGroupRequest* request,
      v1::CreateGroupResponse* response) override;
  grpc::ServerUnaryReactor* CreateMesh(
      grpc::CallbackServerContext* context,
      const v1::CreateMeshRequest* request,
      v1::CreateMeshResponse* response) override;
  grpc::ServerUnaryReactor* Barrier(grpc::CallbackServerContext* context,
                                    const v1::BarrierRequest* request,
                                    v1::BarrierResponse* response) override;

 private:
  Groups* const groups_;
  const FenceValidator* const validator_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_GROUP_SERVICE_H_
