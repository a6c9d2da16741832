#include "tests/fuzz/test_server.h"

#include <chrono>

#include "absl/strings/match.h"
#include "base/check.h"
#include "server/plan/plan_record.h"
#include "server/schedule/position_record.h"

namespace coxswain {
namespace {

// So that one input cannot take the memory of the machine.
server::ParameterLimits SmallLimits() {
  server::ParameterLimits limits;
  limits.max_tensor_bytes = 1 << 20;
  limits.max_job_bytes = 8 << 20;
  limits.max_total_bytes = 16 << 20;
  return limits;
}

server::JoinRequest RequestOf(int slot) {
  server::JoinRequest request;
  request.job = "mnist";
  request.identity = {"host", slot};
  request.incarnation = Incarnation(101 + slot);
  request.launcher_id = 7;
  request.host = "host";
  request.address = "host:1234";
  request.manifest.world_size = 2;
  request.manifest.min_world_size = 1;
  request.manifest.hook = "allreduce";
  request.manifest.accumulation_steps = 1;
  request.manifest.parameters = {{"weight", {2, 3}, "float32", {}}};
  request.timeout = absl::Minutes(5);
  return request;
}

}  // namespace

TestServer::TestServer() : fences_(2) {
  OpenComponents();
  OpenServer();
  RunJob();
}

TestServer::~TestServer() {
  membership_->Shutdown();
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  parameter_service_.reset();
  checkpoint_service_.reset();
  group_service_.reset();
  store_service_.reset();
  schedule_service_.reset();
  rendezvous_service_.reset();
  CloseComponents();
  CheckRecords();
  OpenComponents();
  membership_->Shutdown();
  CloseComponents();
}

void TestServer::CloseComponents() {
  parameters_.reset();
  groups_.reset();
  store_.reset();
  schedule_.reset();
  membership_.reset();
  checkpoints_.reset();
  plans_.reset();
}

void TestServer::CheckRecords() {
  const auto tables = state_.Tables("");
  for (const std::string& table : *tables) {
    const auto records = state_.List(table);
    for (const auto& record : *records) {
      if (absl::StartsWith(table, "plan.") && table != "plan.trial") {
        COXSWAIN_CHECK(server::DecodePlan(record.second).ok());
      } else if (absl::StartsWith(table, "schedule/")) {
        COXSWAIN_CHECK(server::DecodePosition(record.second).ok());
      }
    }
  }
}

void TestServer::OpenComponents() {
  plans_ = *server::PlanStore::Load({}, &writer_);
  checkpoints_ = *server::CheckpointStore::Open(&files_, "/checkpoints", {},
                                                &clock_, &random_);
  membership_ = *server::Membership::Open(
      {}, {&clock_, &random_, &writer_, plans_.get()});
  schedule_ = std::make_unique<server::ScheduleRegistry>(
      server::ScheduleLimits(),
      server::ScheduleRegistry::Dependencies{&clock_, membership_.get(),
                                             plans_.get(), &writer_});
  store_ = std::make_unique<server::KeyValueStore>(server::StoreLimits(),
                                                   &clock_, &writer_);
  groups_ = std::make_unique<server::Groups>(server::GroupLimits(), &clock_,
                                             &writer_);
  parameters_ =
      std::make_unique<server::ParameterStore>(SmallLimits(), &clock_);
  membership_->AddObserver(plans_.get());
  membership_->AddObserver(schedule_.get());
  membership_->AddObserver(store_.get());
  membership_->AddObserver(groups_.get());
  membership_->AddObserver(checkpoints_.get());
  membership_->AddObserver(parameters_.get());
  COXSWAIN_CHECK(membership_->Resume().ok());
}

void TestServer::OpenServer() {
  const server::RpcOptions options;
  rendezvous_service_ = std::make_unique<server::RendezvousService>(
      options, membership_.get(), schedule_.get());
  schedule_service_ = std::make_unique<server::ScheduleService>(
      plans_.get(), schedule_.get(), membership_.get());
  store_service_ =
      std::make_unique<server::StoreService>(store_.get(), membership_.get());
  group_service_ =
      std::make_unique<server::GroupService>(groups_.get(), membership_.get());
  checkpoint_service_ = std::make_unique<server::CheckpointService>(
      options, checkpoints_.get(), membership_.get());
  parameter_service_ = std::make_unique<server::ParameterService>(
      options, parameters_.get(), membership_.get());
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.RegisterService(rendezvous_service_.get());
  builder.RegisterService(schedule_service_.get());
  builder.RegisterService(store_service_.get());
  builder.RegisterService(group_service_.get());
  builder.RegisterService(checkpoint_service_.get());
  builder.RegisterService(parameter_service_.get());
  server_ = builder.BuildAndStart();
  COXSWAIN_CHECK(server_ != nullptr);
  channel_ = server_->InProcessChannel(grpc::ChannelArguments());
}

void TestServer::RunJob() {
  for (int slot = 0; slot < 2; ++slot) {
    membership_->Join(
        RequestOf(slot),
        [this, slot](const absl::StatusOr<server::JoinResult>& joined) {
          COXSWAIN_CHECK(joined.ok());
          v1::Fence& fence = fences_[joined->rank];
          fence.set_cluster_id(joined->cluster_id);
          fence.set_term(joined->term.value());
          fence.set_job("mnist");
          fence.set_generation(joined->generation.value());
          fence.set_incarnation(101 + static_cast<uint64_t>(slot));
        });
  }
  Pass(absl::ZeroDuration());
  COXSWAIN_CHECK(fences_[0].generation() > 0 && fences_[1].generation() > 0);
}

void TestServer::Pass(absl::Duration time) {
  clock_.Advance(time);
  const absl::Time now = clock_.Now();
  schedule_->Tick(now);
  membership_->Tick();
  store_->Tick(now);
  groups_->Tick(now);
  parameters_->Tick(now);
}

}  // namespace coxswain
