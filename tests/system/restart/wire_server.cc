#include "tests/system/restart/wire_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/grpc_status.h"
#include "base/status_macros.h"

namespace coxswain {

WireServer::WireServer(const std::string& folder,
                       std::shared_ptr<server::OwnedState> state) {
  options_.state_dir = folder;
  options_.state = std::move(state);
  options_.clock = &clock_;
}

absl::Status WireServer::Start() {
  COXSWAIN_ASSIGN_OR_RETURN(coordinator_, server::Coordinator::Start(options_));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // Nothing of an earlier coordinator's connections is shared.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = grpc::CreateCustomChannel(
      absl::StrCat("127.0.0.1:", coordinator_->port()),
      grpc::InsecureChannelCredentials(), arguments);
  rendezvous_ = v1::Rendezvous::NewStub(channel);
  schedule_ = v1::Schedule::NewStub(channel);
  group_ = v1::Group::NewStub(channel);
  store_ = v1::Store::NewStub(channel);
  checkpoint_ = v1::Checkpoint::NewStub(channel);
  return absl::OkStatus();
}

void WireServer::Stop(bool in_good_order) {
  if (in_good_order) {
    coordinator_->Shutdown(absl::Seconds(10));
  } else {
    coordinator_->Abandon();
  }
  coordinator_.reset();
}

v1::DescribeResponse WireServer::Describe() {
  Context context;
  v1::DescribeResponse response;
  const grpc::Status status = rendezvous_->Describe(&context, {}, &response);
  COXSWAIN_CHECK(status.ok());
  return response;
}

v1::GetPlanResponse WireServer::PlanOf(const std::string& job) {
  Context context;
  v1::GetPlanRequest request;
  v1::GetPlanResponse response;
  request.set_job(job);
  const grpc::Status status = schedule_->GetPlan(&context, request, &response);
  if (!status.ok()) response.Clear();
  return response;
}

v1::Fence WireServer::OperatorFence() {
  const v1::DescribeResponse known = Describe();
  v1::Fence fence;
  fence.set_cluster_id(known.cluster_id());
  fence.set_term(known.term());
  return fence;
}

WireWorker::WireWorker(WireServer* server, const std::string& job, int slot)
    : server_(server) {
  request_.set_job(job);
  request_.mutable_identity()->set_node("host-a");
  request_.mutable_identity()->set_slot(slot);
  request_.set_incarnation(static_cast<uint64_t>(100 + slot));
  request_.set_launcher_id(7);
  request_.set_host("host-a");
  request_.set_address("host-a:1234");
  request_.mutable_manifest()->set_world_size(1);
  request_.mutable_manifest()->set_accumulation_steps(1);
  request_.mutable_manifest()->set_hook("allreduce");
  request_.set_timeout_ms(60'000);
}

v1::Fence WireWorker::Fence() const {
  v1::Fence fence;
  fence.set_cluster_id(joined_.cluster_id());
  fence.set_term(term_);
  fence.set_job(request_.job());
  fence.set_generation(joined_.generation());
  fence.set_incarnation(request_.incarnation());
  return fence;
}

absl::Status WireWorker::Join() {
  Context context;
  COXSWAIN_RETURN_IF_ERROR(
      FromGrpcStatus(server_->rendezvous().Join(&context, request_, &joined_)));
  term_ = joined_.term();
  return absl::OkStatus();
}

absl::Status WireWorker::Attach() {
  stream_.reset();
  context_ = std::make_unique<Context>();
  stream_ = server_->rendezvous().Attach(context_.get());
  v1::AttachRequest hello;
  *hello.mutable_hello()->mutable_fence() = Fence();
  v1::AttachEvent event;
  if (stream_->Write(hello) && stream_->Read(&event)) {
    term_ = event.attached().term();
    return absl::OkStatus();
  }
  return FromGrpcStatus(stream_->Finish());
}

absl::Status WireWorker::ReadDecision(v1::Decision* decision) {
  v1::AttachEvent event;
  while (stream_->Read(&event)) {
    if (!event.has_decision()) continue;
    *decision = event.decision();
    return absl::OkStatus();
  }
  const absl::Status end = FromGrpcStatus(stream_->Finish());
  return end.ok() ? absl::UnavailableError("the stream has ended") : end;
}

absl::Status WireWorker::Leave(v1::LeaveRequest request) {
  Context context;
  v1::LeaveResponse response;
  *request.mutable_fence() = Fence();
  return FromGrpcStatus(
      server_->rendezvous().Leave(&context, request, &response));
}

}  // namespace coxswain
