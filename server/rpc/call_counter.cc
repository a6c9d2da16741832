#include "server/rpc/call_counter.h"

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "grpcpp/grpcpp.h"

namespace coxswain::server {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

// One call.
class Counter : public Interceptor {
 public:
  Counter(ServerRpcInfo* info, RpcMetrics* metrics)
      : metrics_(metrics),
        method_(info->method()),
        stream_(info->type() != ServerRpcInfo::Type::UNARY),
        begun_(Clock::Real()->Now()) {}

  void Intercept(InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_STATUS)) {
      // The codes are the same numbers in gRPC and in Abseil.
      const auto code =
          static_cast<absl::StatusCode>(batch->GetSendStatus().error_code());
      metrics_->NoteCall(method_, absl::StatusCodeToString(code),
                         Clock::Real()->Now() - begun_, stream_);
    }
    batch->Proceed();
  }

 private:
  RpcMetrics* const metrics_;
  const std::string method_;
  const bool stream_;
  const absl::Time begun_;
};

class Factory : public ServerInterceptorFactoryInterface {
 public:
  explicit Factory(RpcMetrics* metrics) : metrics_(metrics) {}
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    return new Counter(info, metrics_);  // gRPC owns it.
  }

 private:
  RpcMetrics* const metrics_;
};

}  // namespace

std::unique_ptr<ServerInterceptorFactoryInterface> MakeCallCounter(
    RpcMetrics* metrics) {
  return std::make_unique<Factory>(metrics);
}

}  // namespace coxswain::server
