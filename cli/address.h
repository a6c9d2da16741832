#ifndef COXSWAIN_CLI_ADDRESS_H_
#define COXSWAIN_CLI_ADDRESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// A host name or address, and a port. Brackets around
// an IPv6 address are part of the text only.
struct HostPort {
  std::string host;
  int port = 0;

  std::string ToString() const;
};

enum class PortRule {
  kAnyFree,  // 0 stands for any free port: where to listen
  kNamed,    // 1 to 65535: where to connect
};

// Reads HOST:PORT or [IPV6]:PORT. Fails with INVALID_ARGUMENT, naming what is
// wrong and the right form.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, PortRule rule);

// Reads several addresses to connect to, with commas between. Fails as
// ParseHostPort, and if one is given twice.
absl::StatusOr<std::vector<HostPort>> ParseHostPorts(absl::string_view text);

// Returns whether only this machine can reach that host. Names other than
// localhost are not resolved and count as reachable from elsewhere.
bool IsLoopback(absl::string_view host);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_ADDRESS_H_
