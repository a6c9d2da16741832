#ifndef COXSWAIN_TESTS_BENCH_SCALE_UNARY_CALL_H_
#define COXSWAIN_TESTS_BENCH_SCALE_UNARY_CALL_H_

#include <chrono>
#include <functional>
#include <memory>

#include "base/grpc_status.h"
#include "grpcpp/grpcpp.h"

namespace coxswain::bench {

constexpr std::chrono::minutes kCallTimeout(3);

// Starts a method of a stub that calls back; `done` gets the status and the
// response.
template <typename Async, typename Request, typename Response, typename Done>
void StartCall(Async* stub,
               void (Async::*method)(grpc::ClientContext*, const Request*,
                                     Response*,
                                     std::function<void(grpc::Status)>),
               const Request& request, const Done& done) {
  struct Call {
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  auto call = std::make_shared<Call>();
  call->context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  call->request = request;
  (stub->*method)(&call->context, &call->request, &call->response,
                  [call, done](const grpc::Status& status) {
                    done(FromGrpcStatus(status), call->response);
                  });
}

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCALE_UNARY_CALL_H_
