#ifndef COXSWAIN_CLIENT_RPC_FORWARDING_COORDINATOR_STUB_H_
#define COXSWAIN_CLIENT_RPC_FORWARDING_COORDINATOR_STUB_H_

#include <memory>
#include <string>
#include <utility>

#include "client/rpc/coordinator_stub.h"

namespace coxswain {

// Forwards all calls to another stub: the base of stubs that change how some
// calls are made. As thread-safe as that one.
class ForwardingCoordinatorStub : public CoordinatorStub {
 public:
  explicit ForwardingCoordinatorStub(std::shared_ptr<CoordinatorStub> stub)
      : stub_(std::move(stub)) {}

  absl::Status Call(absl::string_view method,
                    const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response,
                    const CallOptions& options) override {
    return stub_->Call(method, request, response, options);
  }
  std::unique_ptr<AttachStream> Attach(
      StreamCallbacks<v1::AttachEvent> callbacks) override {
    return stub_->Attach(std::move(callbacks));
  }
  std::unique_ptr<EventStream> Watch(
      const v1::WatchRequest& request, CancelSignal* cancel,
      StreamCallbacks<v1::WatchEvent> callbacks) override {
    return stub_->Watch(request, cancel, std::move(callbacks));
  }
  std::unique_ptr<UploadStream> Upload(const CallOptions& options) override {
    return stub_->Upload(options);
  }
  std::unique_ptr<DownloadStream> Download(
      const v1::DownloadRequest& request, const CallOptions& options) override {
    return stub_->Download(request, options);
  }
  std::unique_ptr<VerifyStream> Verify(const v1::VerifyRequest& request,
                                       const CallOptions& options) override {
    return stub_->Verify(request, options);
  }
  bool Connected() const override { return stub_->Connected(); }
  std::string address() const override { return stub_->address(); }

 protected:
  CoordinatorStub& stub() const { return *stub_; }

 private:
  const std::shared_ptr<CoordinatorStub> stub_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_FORWARDING_COORDINATOR_STUB_H_
