#ifndef COXSWAIN_CLIENT_RPC_STUB_FACTORY_H_
#define COXSWAIN_CLIENT_RPC_STUB_FACTORY_H_

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/tls_files.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/retry.h"

namespace coxswain {

// Makes the stub of the coordinator at HOST:PORT, or of several with commas
// between, of which one leads: gRPC, with retries around it.
std::shared_ptr<CoordinatorStub> ConnectCoordinator(
    const std::string& address, const RetryPolicy& policy = {},
    const ClientSecurity& security = {});

// Returns a stub without retries, for callers with their own: a MemberContext,
// and Join. `clock` outlives the result.
std::shared_ptr<CoordinatorStub> ConnectWithoutRetries(
    const std::string& address, const ClientSecurity& security = {},
    const Clock* clock = Clock::Real());

// Returns one stub of several coordinators, of which one leads and the others
// do not listen: see Failover, which is notified of how calls and streams end.
// A unary call that may be retried is tried once at each before it fails, and
// so is an Attach stream until it is answered. A stream that has broken is
// opened again by its user. Thread-safe.
//
// One stub per coordinator, at least one; `clock` outlives the result.
std::shared_ptr<CoordinatorStub> MakeFailoverStub(
    const std::vector<std::shared_ptr<CoordinatorStub>>& stubs,
    const Clock* clock);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_STUB_FACTORY_H_
