#ifndef COXSWAIN_CLIENT_RPC_MEMBERSHIP_SOURCE_H_
#define COXSWAIN_CLIENT_RPC_MEMBERSHIP_SOURCE_H_

#include <memory>

namespace coxswain {

class Membership;  // client/rpc/membership.h

// Implemented by a RendezvousStore that stands on a session: through it a back
// end that needs the coordinator itself finds the member's right to speak to
// it. Found by dynamic_cast: most back ends need none of this. Thread-safe.
class MembershipSource {
 public:
  virtual ~MembershipSource() = default;
  virtual std::shared_ptr<Membership> membership() const = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_MEMBERSHIP_SOURCE_H_
