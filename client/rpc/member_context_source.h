#ifndef COXSWAIN_CLIENT_RPC_MEMBER_CONTEXT_SOURCE_H_
#define COXSWAIN_CLIENT_RPC_MEMBER_CONTEXT_SOURCE_H_

#include <memory>

namespace coxswain {

class MemberContext;  // client/rpc/member_context.h

// Implemented by a RendezvousStore of a session: a back end that needs the
// coordinator itself gets the member's context from it. Found by dynamic_cast,
// as most back ends do not need it. Thread-safe.
class MemberContextSource {
 public:
  virtual ~MemberContextSource() = default;
  virtual std::shared_ptr<MemberContext> member() const = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_MEMBER_CONTEXT_SOURCE_H_
