#include "proto/bulk/compression_gate.h"

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "grpc/grpc.h"
#include "grpcpp/grpcpp.h"
#include "proto/bulk/raw_methods.h"

// The flags of the message that a call has received last: gRPC's own, of which
// no header is installed. Null in a gRPC that lacks it.
uint32_t grpc_call_test_only_get_message_flags(grpc_call* call)
    __attribute__((weak));

namespace coxswain::bulk {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

// GRPC_WRITE_INTERNAL_COMPRESS of gRPC 1.51.
constexpr uint32_t kCompressed = 0x80000000u;

bool CanSeeFlags() { return &grpc_call_test_only_get_message_flags != nullptr; }

// Of services of others nothing is known of where the message lies; none of
// them changes anything.
void Empty(absl::string_view method, void* message) {
  if (message == nullptr || !absl::StartsWith(method, "/coxswain.v1.")) return;
  if (IsRaw(method)) {
    const grpc::Slice nothing;
    *static_cast<grpc::ByteBuffer*>(message) = grpc::ByteBuffer(&nothing, 1);
  } else {
    static_cast<google::protobuf::Message*>(message)->Clear();
  }
}

// One call. gRPC runs reads and writes of a stream side by side.
class Gate : public Interceptor {
 public:
  explicit Gate(ServerRpcInfo* info) : info_(info) {}

  void Intercept(InterceptorBatchMethods* batch) override {
    using Point = InterceptionHookPoints;
    if (batch->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE) &&
        HasCompressed()) {
      Refuse(batch->GetRecvMessage());
    }
    if (refused_ && batch->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      batch->ModifySendStatus(
          grpc::Status(grpc::StatusCode::UNIMPLEMENTED, Reason()));
    }
    batch->Proceed();
  }

 private:
  // A message that cannot be parsed is not seen here, but its flags are.
  bool HasCompressed() const {
    return CanSeeFlags() && (grpc_call_test_only_get_message_flags(
                                 info_->server_context()->c_call()) &
                             kCompressed) != 0;
  }

  void Refuse(void* message) {
    Empty(info_->method(), message);
    if (refused_.exchange(true)) return;
    // The service may wait for something before it answers.
    grpc_call_cancel_with_status(info_->server_context()->c_call(),
                                 GRPC_STATUS_UNIMPLEMENTED, Reason().c_str(),
                                 nullptr);
  }

  std::string Reason() const {
    return absl::StrCat("a message of ", info_->method(),
                        " is compressed, and this server takes none that are; "
                        "call it without compression");
  }

  ServerRpcInfo* const info_;
  std::atomic<bool> refused_{false};
};

class Factory : public ServerInterceptorFactoryInterface {
 public:
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    return new Gate(info);  // gRPC owns it.
  }
};

}  // namespace

std::unique_ptr<ServerInterceptorFactoryInterface> RefuseCompression(
    grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // A server that compresses says that it takes compressed messages as well.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
  if (!CanSeeFlags()) {
    // gRPC refuses such calls by the encoding that they name, and logs each.
    for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
      builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
    }
  }
  return std::make_unique<Factory>();
}

}  // namespace coxswain::bulk
