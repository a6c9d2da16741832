#include "client/parameter/parameter_client.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/rpc/member_context.h"
#include "client/rpc/parameter_stub.h"
#include "client/rpc/retry.h"
#include "proto/parameter.pb.h"

namespace coxswain {
namespace {

constexpr absl::Duration kConnect = absl::Seconds(10);

absl::Status CheckSpan(absl::string_view name, const Span& span) {
  if (span.count > 0 && span.data != nullptr &&
      span.device.kind == Device::Kind::kCpu) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("parameter '", name, "': ", span.count,
                   " elements without memory of the CPU"));
}

absl::Status CopyTo(absl::string_view name, const PulledParameter& pulled,
                    const Span& span) {
  if (pulled.header.dtype() != NameOf(span.dtype) ||
      pulled.header.bytes() != span.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", name, "' has ", pulled.header.bytes(), " bytes of ",
        pulled.header.dtype(), ", and is pulled into ", span.bytes(),
        " bytes of ", NameOf(span.dtype)));
  }
  std::memcpy(span.data, pulled.bytes.data(), pulled.bytes.size());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<ParameterStub>> ParameterClient::Stub(
    absl::Duration timeout) {
  {
    MutexLock lock(&mutex_);
    if (stub_ != nullptr) return stub_;
  }
  // Without the lock: it blocks, and calls of others may end meanwhile.
  COXSWAIN_ASSIGN_OR_RETURN(
      auto stub,
      ConnectParameterStub(member_->stub().address(), member_->security(),
                           std::min(timeout, kConnect), &member_->ended()));
  MutexLock lock(&mutex_);
  if (stub_ == nullptr) stub_ = std::move(stub);
  return stub_;
}

void ParameterClient::DropStub() {
  MutexLock lock(&mutex_);
  stub_ = nullptr;
}

absl::Status ParameterClient::Push(absl::string_view name, int64_t version,
                                   const Span& span) {
  return PushPart(name, version, span, {}).status();
}

absl::StatusOr<bool> ParameterClient::PushPart(absl::string_view name,
                                               int64_t version,
                                               const Span& span,
                                               const ParameterPart& part) {
  COXSWAIN_RETURN_IF_ERROR(CheckSpan(name, span));
  v1::PushHeader header;
  header.set_name(std::string(name));
  header.set_version(version);
  header.set_reduction(part.parts == 1 ? v1::REDUCTION_SET : ToWire(part.op));
  header.set_dtype(std::string(NameOf(span.dtype)));
  header.set_part(part.part);
  header.set_parts(part.parts);
  header.set_bytes(span.bytes());
  const absl::string_view bytes(static_cast<const char*>(span.data),
                                static_cast<size_t>(span.bytes()));
  const CallOptions options = member_->Call(transfer_timeout_);
  bool complete = false;
  bool again = false;
  absl::Status status = CallWithRetries(
      member_->policy(), options, "Parameter/Push", member_->stub().address(),
      [&](absl::Duration left) {
        COXSWAIN_ASSIGN_OR_RETURN(const auto stub, Stub(left));
        *header.mutable_fence() = member_->fence();
        CallOptions once = options;
        once.timeout = left;
        const auto pushed = stub->Push(header, bytes, once);
        if (pushed.ok()) complete = *pushed;
        // What was lost may have been the answer alone.
        if (again && absl::IsAlreadyExists(pushed.status())) {
          if (part.parts == 1) {
            complete = true;
            return absl::OkStatus();
          }
          COXSWAIN_ASSIGN_OR_RETURN(
              complete, IsComplete(name, version, header.fence().generation()));
          return absl::OkStatus();
        }
        again = true;
        if (absl::IsUnavailable(pushed.status())) DropStub();
        return pushed.status();
      });
  if (!status.ok()) return member_->Outcome(status);
  return complete;
}

absl::StatusOr<bool> ParameterClient::IsComplete(absl::string_view name,
                                                 int64_t version,
                                                 int64_t generation) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto list, List());
  return std::any_of(list.begin(), list.end(),
                     [&](const ParameterDescription& one) {
                       return one.name == name && one.version >= version &&
                              one.generation == generation;
                     });
}

absl::StatusOr<ParameterDescription> ParameterClient::Pull(
    absl::string_view name, int64_t version, absl::Duration timeout,
    const Span& span) {
  COXSWAIN_RETURN_IF_ERROR(CheckSpan(name, span));
  v1::PullRequest request;
  request.set_name(std::string(name));
  request.set_version(version);
  const bool wait = timeout > absl::ZeroDuration();
  const absl::Time deadline = member_->policy().clock->Now() + timeout;
  const CallOptions options = member_->Call(timeout + transfer_timeout_);
  PulledParameter pulled;
  const auto attempt = [&](absl::Duration left) -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(const auto stub, Stub(left));
    *request.mutable_fence() = member_->fence();
    // Not 0, which asks for another error.
    const absl::Duration rest = deadline - member_->policy().clock->Now();
    request.set_timeout_ms(
        std::max<int64_t>(TimeoutMillis(rest), wait ? 1 : 0));
    CallOptions once = options;
    once.timeout = left;
    auto answer = stub->Pull(request, once);
    if (answer.ok()) pulled = *std::move(answer);
    if (absl::IsUnavailable(answer.status())) DropStub();
    return answer.status();
  };
  const absl::Status status =
      CallWithRetries(member_->policy(), options, "Parameter/Pull",
                      member_->stub().address(), attempt);
  if (!status.ok()) return member_->Outcome(status);
  COXSWAIN_RETURN_IF_ERROR(CopyTo(name, pulled, span));
  return ParameterDescription{std::string(name), pulled.header.version(),
                              pulled.header.dtype(), pulled.header.bytes(),
                              pulled.header.generation()};
}

absl::StatusOr<std::vector<ParameterDescription>> ParameterClient::List() {
  v1::ListParametersRequest request;
  *request.mutable_fence() = member_->fence();
  v1::ListParametersResponse response;
  const absl::Status status =
      member_->stub().Call("/coxswain.v1.Parameter/ListParameters", request,
                           &response, member_->Call());
  if (!status.ok()) return member_->Outcome(status);
  std::vector<ParameterDescription> list;
  for (const v1::ParameterVersion& one : response.parameters()) {
    list.push_back({one.name(), one.version(), one.dtype(), one.bytes(),
                    one.generation()});
  }
  return list;
}

absl::StatusOr<bool> ParameterClient::Forget(absl::string_view name) {
  v1::ForgetRequest request;
  *request.mutable_fence() = member_->fence();
  request.set_name(std::string(name));
  v1::ForgetResponse response;
  const absl::Status status = member_->stub().Call(
      "/coxswain.v1.Parameter/Forget", request, &response, member_->Call());
  if (!status.ok()) return member_->Outcome(status);
  return response.existed();
}

}  // namespace coxswain
