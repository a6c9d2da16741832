#ifndef COXSWAIN_SERVER_HTTP_HOST_NAMES_H_
#define COXSWAIN_SERVER_HTTP_HOST_NAMES_H_

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace coxswain::server {

// The names under which a server may be asked for. A page of another site whose
// name leads to this machine (DNS rebinding) comes with that name, and is
// refused; addresses, localhost and what the operator names are not.
class HostNames {
 public:
  // `listen` is the host that is listened on.
  HostNames(absl::string_view listen, const std::vector<std::string>& more);

  // Of a header "Host: NAME[:PORT]". Names count without their case.
  bool Admit(absl::string_view header) const;

 private:
  std::set<std::string> names_;  // in lower case
};

// Returns whether only this machine can reach that host: the loopback's
// addresses, and localhost. Other names count as reachable from elsewhere.
bool IsLoopbackHost(absl::string_view host);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_HOST_NAMES_H_
