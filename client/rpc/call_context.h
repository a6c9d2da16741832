#ifndef COXSWAIN_CLIENT_RPC_CALL_CONTEXT_H_
#define COXSWAIN_CLIENT_RPC_CALL_CONTEXT_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/grpc_status.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/failover.h"
#include "grpcpp/grpcpp.h"

// What calls over gRPC have in common. For this folder only.
namespace coxswain {

using ContextPtr = std::shared_ptr<grpc::ClientContext>;

using ChannelPtrs = std::vector<std::shared_ptr<grpc::Channel>>;

// Returns a Failover over one channel to each coordinator of a list.
inline Failover FailoverOver(const ChannelPtrs& channels) {
  return Failover(
      channels.size(),
      [channels](size_t at) {
        return channels[at]->GetState(/*try_to_connect=*/false) ==
               GRPC_CHANNEL_READY;
      },
      Clock::Real());
}

inline ContextPtr MakeContext(const CallOptions& options) {
  auto context = std::make_shared<grpc::ClientContext>();
  const absl::Duration timeout = std::min(options.timeout, absl::Hours(8760));
  context->set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::microseconds(absl::ToInt64Microseconds(timeout)));
  return context;
}

// Returns the error of a call that has ended without a status of a coordinator,
// with its probable cause: a coordinator that ends or refuses a call sends a
// status, and a lost connection ends it with UNAVAILABLE. A coordinator whose
// gRPC has ended the call to free memory also sends no status of its own.
inline absl::Status ExplainReset(const absl::Status& status) {
  // ENHANCE_YOUR_CALM of HTTP/2 (RFC 9113, 7).
  if (absl::IsResourceExhausted(status) &&
      absl::StrContains(status.message(), "RST_STREAM with error code 11")) {
    return absl::UnavailableError(
        absl::StrCat("the coordinator holds as much for calls as it may "
                     "(--max-held-mib) and has ended this one: ",
                     status.message()));
  }
  const bool reset = absl::IsCancelled(status) || absl::IsUnknown(status);
  if (!reset || !(absl::StrContains(status.message(), "RST_STREAM") ||
                  absl::StrContains(status.message(), "Stream removed"))) {
    return status;
  }
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(),
                   ": a proxy in front of the coordinator has probably refused "
                   "or cut the call, because no coordinator answers behind it "
                   "or this host has too many calls (docs/proxy.md)"));
}

// Cancels a call when a signal is raised, as long as this object lives.
class CancelLink {
 public:
  CancelLink(CancelSignal* signal, const ContextPtr& context)
      : signal_(signal) {
    if (signal_ == nullptr) return;
    id_ = signal_->OnRaise([context]() { context->TryCancel(); });
  }
  ~CancelLink() {
    if (signal_ != nullptr) signal_->Forget(id_);
  }
  CancelLink(const CancelLink&) = delete;
  CancelLink& operator=(const CancelLink&) = delete;

  // Returns the signal's status instead of a cancelled call's own.
  absl::Status Translate(const grpc::Status& status) const {
    if (!status.ok() && signal_ != nullptr) {
      absl::Status raised = signal_->status();
      if (!raised.ok()) return raised;
    }
    return ExplainReset(FromGrpcStatus(status));
  }

 private:
  CancelSignal* const signal_;
  uint64_t id_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_CALL_CONTEXT_H_
