#ifndef COXSWAIN_CLI_ADDRESS_H_
#define COXSWAIN_CLI_ADDRESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// Where a server listens: a host name or address, and a port. The brackets of
// an IPv6 address belong to the text only.
struct HostPort {
  std::string host;
  int port = 0;

  std::string ToString() const;
};

enum class PortRule {
  kAnyFree,  // 0 stands for any free port: where to listen
  kNamed,    // 1 to 65535: where to connect
};

// Reads HOST:PORT, also [IPV6]:PORT. INVALID_ARGUMENT says what is wrong and
// shows the right form.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, PortRule rule);

// Several of them, all to connect to, with commas between and none twice.
absl::StatusOr<std::vector<HostPort>> ParseHostPorts(absl::string_view text);

// Whether only this machine can reach that host. Names other than localhost
// are not resolved and count as reachable from elsewhere.
bool IsLoopback(absl::string_view host);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_ADDRESS_H_
