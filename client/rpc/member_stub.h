#ifndef COXSWAIN_CLIENT_RPC_MEMBER_STUB_H_
#define COXSWAIN_CLIENT_RPC_MEMBER_STUB_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/current_term.h"
#include "client/rpc/retrying_coordinator_stub.h"

namespace coxswain {

// Makes a member's unary calls outlive a coordinator that is started again. A
// request with a fence is repeated, with the same request id,
//   - while the coordinator is not there (UNAVAILABLE), with pauses;
//   - when it is fenced off as of an earlier term, as soon as the attachment
//     has been accepted in a later one; if none can be any more, once in the
//     coordinator's term, whose answer says why;
// each time with the term of the day in its fence, and with what is left of
// its own timeout_ms. options.timeout bounds it all; options.retry=false
// forbids the first kind. Streams, and requests without a fence, pass through.
std::shared_ptr<CoordinatorStub> MakeMemberStub(
    std::shared_ptr<CoordinatorStub> stub,
    std::shared_ptr<const CurrentTerm> term, const RetryPolicy& policy);

// The coordinator's own term, if the error's detail says that the request's
// fence has another one.
std::optional<int64_t> TermOfStaleFence(const absl::Status& status);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_MEMBER_STUB_H_
