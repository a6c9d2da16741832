#include "server/rpc/parameter_service.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/grpc_status.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/rpc/call.h"
#include "server/rpc/exchange_call.h"
#include "server/rpc/proto_conversion.h"

namespace coxswain::server {
namespace {

absl::StatusOr<TensorSpec> TakeSpec(const v1::PushHeader& header) {
  TensorSpec spec;
  COXSWAIN_ASSIGN_OR_RETURN(spec.reduction, TakeReduction(header.reduction()));
  spec.dtype = header.dtype();
  spec.bytes = header.bytes();
  spec.parts = header.parts();
  return spec;
}

// One push. gRPC runs the reactions one after the other and owns the object
// until OnDone.
class PushCall : public grpc::ServerReadReactor<v1::PushRequest> {
 public:
  PushCall(const RpcOptions& options, ParameterStore* parameters,
           const FenceValidator* validator,
           grpc::CallbackServerContext* context, v1::PushResponse* response)
      : options_(options),
        parameters_(parameters),
        validator_(validator),
        context_(context),
        response_(response) {
    deadline_.emplace(context, options_.first_message_timeout,
                      "the header of the push did not come");
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    const absl::Status status = ok ? Take() : End();
    if (ok && status.ok()) {
      StartRead(&request_);
      return;
    }
    // Before the answer, so that who has it finds everything in order.
    push_.reset();
    Finish(ToGrpcStatus(status));
  }

  void OnDone() override { delete this; }

 private:
  absl::Status Take() {
    if (request_.has_header()) return TakeHeader(request_.header());
    if (push_ == nullptr || !request_.has_chunk()) {
      return absl::InvalidArgumentError("a push is one header, then chunks");
    }
    v1::Chunk& chunk = *request_.mutable_chunk();
    return push_->Append(chunk.offset(), std::move(*chunk.mutable_data()),
                         chunk.crc32c());
  }

  absl::Status TakeHeader(const v1::PushHeader& header) {
    if (push_ != nullptr) {
      return absl::InvalidArgumentError("a push has one header");
    }
    const Fence fence = FromProto(header.fence());
    COXSWAIN_ASSIGN_OR_RETURN(const Caller caller, validator_->Admit(fence));
    COXSWAIN_ASSIGN_OR_RETURN(const TensorSpec spec, TakeSpec(header));
    if (spec.parts > caller.world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(spec.parts, " parts of a parameter in a world of ",
                       caller.world_size, ": a rank pushes at most one"));
    }
    COXSWAIN_ASSIGN_OR_RETURN(
        push_, parameters_->StartPush(fence, header.name(), header.version(),
                                      header.part(), spec));
    deadline_.emplace(context_, options_.transfer_timeout,
                      "the push did not end");
    return absl::OkStatus();
  }

  absl::Status End() {
    if (context_->IsCancelled()) {
      return absl::CancelledError("the client cancelled the call");
    }
    if (push_ == nullptr) {
      return absl::InvalidArgumentError("a push begins with its header");
    }
    COXSWAIN_ASSIGN_OR_RETURN(const bool complete, push_->Finish());
    response_->set_complete(complete);
    return absl::OkStatus();
  }

  const RpcOptions options_;
  ParameterStore* const parameters_;
  const FenceValidator* const validator_;
  grpc::CallbackServerContext* const context_;
  v1::PushResponse* const response_;
  std::optional<CallDeadline> deadline_;
  v1::PushRequest request_;
  std::unique_ptr<KeptParameters::Push> push_;
};

// One pull. Held by itself until OnDone and by the callback in the store,
// whichever is longer.
class PullCall : public grpc::ServerWriteReactor<v1::PullResponse>,
                 public std::enable_shared_from_this<PullCall> {
 public:
  static PullCall* Start(const RpcOptions& options, ParameterStore* parameters,
                         const FenceValidator* validator,
                         grpc::CallbackServerContext* context,
                         const v1::PullRequest& request) {
    auto call = std::make_shared<PullCall>();
    call->self_ = call;
    call->parameters_ = parameters;
    call->fence_ = FromProto(request.fence());
    const absl::Status admitted = validator->Admit(call->fence_).status();
    if (!admitted.ok()) {
      call->Finish(ToGrpcStatus(admitted));
      return call.get();
    }
    call->Ask(options, context, request);
    return call.get();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED,
                          "the client has ended the call"));
    } else if (next_chunk_ == version_.tensor->chunk_count()) {
      Finish(grpc::Status::OK);
    } else {
      const ChunkPtr chunk = version_.tensor->Chunk(next_chunk_++);
      message_.mutable_chunk()->set_offset(offset_);
      message_.mutable_chunk()->set_data(chunk->bytes);
      message_.mutable_chunk()->set_crc32c(chunk->crc32c);
      offset_ += static_cast<int64_t>(chunk->bytes.size());
      StartWrite(&message_);
    }
  }

  // The store's callback will not come once the call is withdrawn.
  void OnCancel() override {
    uint64_t call = 0;
    {
      MutexLock lock(&mutex_);
      if (answered_) return;
      cancelled_ = true;
      if (call_ == 0) return;  // Ask sees to it
      answered_ = true;
      call = call_;
    }
    parameters_->Cancel(fence_, call);
    Finish(grpc::Status(grpc::StatusCode::CANCELLED,
                        "the client cancelled the call"));
  }

  void OnDone() override {
    const std::shared_ptr<PullCall> self = std::move(self_);
  }

 private:
  void Ask(const RpcOptions& options, grpc::CallbackServerContext* context,
           const v1::PullRequest& request) {
    const uint64_t call =
        parameters_->Pull(fence_, request.name(), request.version(),
                          absl::Milliseconds(request.timeout_ms()),
                          [self = shared_from_this(), &options,
                           context](absl::StatusOr<KeptVersion> version) {
                            self->Answer(options, context, std::move(version));
                          });
    {
      MutexLock lock(&mutex_);
      call_ = call;
      if (answered_ || !cancelled_) return;
      answered_ = true;
    }
    parameters_->Cancel(fence_, call);
    Finish(grpc::Status(grpc::StatusCode::CANCELLED,
                        "the client cancelled the call"));
  }

  void Answer(const RpcOptions& options, grpc::CallbackServerContext* context,
              absl::StatusOr<KeptVersion> version) {
    {
      MutexLock lock(&mutex_);
      if (answered_) return;
      answered_ = true;
    }
    if (!version.ok()) {
      Finish(ToGrpcStatus(version.status()));
      return;
    }
    deadline_.emplace(context, options.transfer_timeout,
                      "the pull did not end");
    version_ = *std::move(version);
    v1::PullHeader& header = *message_.mutable_header();
    header.set_version(version_.version);
    header.set_dtype(version_.tensor->spec().dtype);
    header.set_bytes(version_.tensor->spec().total_bytes());
    header.set_generation(version_.generation.value());
    StartWrite(&message_);
  }

  ParameterStore* parameters_ = nullptr;
  Fence fence_;
  std::shared_ptr<PullCall> self_;
  std::optional<CallDeadline> deadline_;
  KeptVersion version_;
  int64_t next_chunk_ = 0;
  int64_t offset_ = 0;
  v1::PullResponse message_;

  Mutex mutex_;
  uint64_t call_ ABSL_GUARDED_BY(mutex_) = 0;
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

ParameterService::ParameterService(const RpcOptions& options,
                                   ParameterStore* parameters,
                                   const FenceValidator* validator)
    : options_(options), parameters_(parameters), validator_(validator) {}

ParameterService::~ParameterService() = default;

grpc::ServerReadReactor<v1::PushRequest>* ParameterService::Push(
    grpc::CallbackServerContext* context, v1::PushResponse* response) {
  return new PushCall(options_, parameters_, validator_, context, response);
}

grpc::ServerWriteReactor<v1::PullResponse>* ParameterService::Pull(
    grpc::CallbackServerContext* context, const v1::PullRequest* request) {
  return PullCall::Start(options_, parameters_, validator_, context, *request);
}

grpc::ServerUnaryReactor* ParameterService::ListParameters(
    grpc::CallbackServerContext* context,
    const v1::ListParametersRequest* request,
    v1::ListParametersResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = validator_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  const auto list = parameters_->List(fence);
  if (!list.ok()) return ReplyNow(context, list.status());
  for (const KeptDescription& one : *list) {
    v1::ParameterVersion& parameter = *response->add_parameters();
    parameter.set_name(one.name);
    parameter.set_version(one.version);
    parameter.set_dtype(one.dtype);
    parameter.set_bytes(one.bytes);
    parameter.set_generation(one.generation.value());
  }
  return ReplyNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ParameterService::Forget(
    grpc::CallbackServerContext* context, const v1::ForgetRequest* request,
    v1::ForgetResponse* response) {
  const Fence fence = FromProto(request->fence());
  const absl::Status admitted = validator_->Admit(fence).status();
  if (!admitted.ok()) return ReplyNow(context, admitted);
  const auto existed = parameters_->Forget(fence, request->name());
  if (existed.ok()) response->set_existed(*existed);
  return ReplyNow(context, existed.status());
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
ParameterService::Exchange(grpc::CallbackServerContext* context) {
  return ExchangeCall::Start(options_, parameters_, validator_, context);
}

}  // namespace coxswain::server
