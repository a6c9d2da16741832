#include "server/rpc/call_deadline.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/grpc.h"

namespace coxswain::server {

CallDeadline::CallDeadline(grpc::CallbackServerContext* context,
                           absl::Duration timeout, std::string what) {
  // The alarm may go off while the call ends: it holds the call, because the
  // context lives no longer than the call's last reaction.
  grpc_call_ref(context->c_call());
  const std::shared_ptr<grpc_call> call(context->c_call(), grpc_call_unref);
  what = absl::StrCat(what, " within ", absl::FormatDuration(timeout));
  alarm_.Set(
      std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout),
      [call, what = std::move(what)](bool expired) {
        if (!expired) return;
        grpc_call_cancel_with_status(call.get(), GRPC_STATUS_DEADLINE_EXCEEDED,
                                     what.c_str(), nullptr);
      });
}

}  // namespace coxswain::server
