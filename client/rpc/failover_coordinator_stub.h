#ifndef COXSWAIN_CLIENT_RPC_FAILOVER_COORDINATOR_STUB_H_
#define COXSWAIN_CLIENT_RPC_FAILOVER_COORDINATOR_STUB_H_

#include <memory>
#include <vector>

#include "base/clock.h"
#include "client/rpc/coordinator_stub.h"

namespace coxswain {

// Several coordinators as one, of which one leads and the others do not listen:
// stays with the one that answers, and goes on to the next when a call or a
// stream ends with UNAVAILABLE. A unary call that may be retried is tried once
// at each before it is given up, and so is an Attach stream until it is
// answered. A stream that has broken is opened again by its user. Thread-safe.
//
// One stub per coordinator, at least one; `clock` outlives the result.
std::shared_ptr<CoordinatorStub> MakeFailoverCoordinatorStub(
    std::vector<std::shared_ptr<CoordinatorStub>> stubs, const Clock* clock);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_FAILOVER_COORDINATOR_STUB_H_
