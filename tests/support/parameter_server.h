#ifndef COXSWAIN_TESTS_SUPPORT_PARAMETER_SERVER_H_
#define COXSWAIN_TESTS_SUPPORT_PARAMETER_SERVER_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/comm/memory_store.h"
#include "client/rpc/grpc_coordinator_stub.h"
#include "client/rpc/member_context.h"
#include "client/rpc/member_context_source.h"
#include "grpcpp/grpcpp.h"
#include "server/parameter/parameter_store.h"
#include "server/rpc/parameter_service.h"

namespace coxswain {

// The Parameter service alone, on its own port: it accepts any caller as a
// member, and its world has 16 ranks.
class ParameterServer {
 public:
  explicit ParameterServer(const server::ParameterLimits& limits = {})
      : parameters_(limits, Clock::Real()),
        service_({}, &parameters_, &validator_) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    COXSWAIN_CHECK(server_ != nullptr);
    ticks_ = std::thread([this] { RunTicks(); });
  }
  ~ParameterServer() {
    {
      MutexLock lock(&mutex_);
      stop_ = true;
      changed_.NotifyAll();
    }
    ticks_.join();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  server::ParameterStore& parameters() { return parameters_; }
  int port() const { return port_; }

  // Waits until nothing is held for any peer; false if that takes too long.
  bool WaitUntilEmpty() {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, absl::Seconds(30),
                            [this] { return parameters_.bytes() == 0; });
  }
  // Returns once all calls have ended.
  void Shutdown() { server_->Shutdown(); }

  // Returns the context of a member of a job that is at this generation.
  std::shared_ptr<MemberContext> MakeMemberContext(const std::string& job,
                                                   int64_t generation) const {
    v1::Fence fence;
    fence.set_job(job);
    fence.set_generation(generation);
    return std::make_shared<MemberContext>(
        MakeGrpcCoordinatorStub(absl::StrCat("127.0.0.1:", port_)), fence,
        RetryPolicy());
  }

 private:
  class EverybodyIsAMember : public server::FenceValidator {
   public:
    absl::StatusOr<server::Caller> Admit(const server::Fence&) const override {
      server::Caller caller;
      caller.world_size = 16;
      return caller;
    }
    absl::Status AdmitOperator(const server::Fence&) const override {
      return absl::OkStatus();
    }
  };

  void RunTicks() {
    MutexLock lock(&mutex_);
    while (!changed_.WaitFor(
        &mutex_, absl::Milliseconds(20),
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stop_; })) {
      parameters_.Tick(Clock::Real()->Now());
      changed_.NotifyAll();
    }
  }

  const EverybodyIsAMember validator_;
  server::ParameterStore parameters_;
  server::ParameterService service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  Mutex mutex_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread ticks_;
};

// A rendezvous store of a member.
class MemberStore : public MemoryStore, public MemberContextSource {
 public:
  explicit MemberStore(std::shared_ptr<MemberContext> member)
      : member_(std::move(member)) {}
  std::shared_ptr<MemberContext> member() const override { return member_; }

 private:
  const std::shared_ptr<MemberContext> member_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_PARAMETER_SERVER_H_
