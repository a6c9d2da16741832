#ifndef COXSWAIN_TRANSPORT_LISTEN_ADDRESS_H_
#define COXSWAIN_TRANSPORT_LISTEN_ADDRESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace coxswain {

// "HOST:PORT", "[IPV6]:PORT" or ":PORT" (all addresses) in two parts.
struct ListenAddress {
  std::string host;
  int port = 0;
};

// Fails with INVALID_ARGUMENT, naming what is wrong with the text.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// Sockets that listen, non-blocking, all on one port.
struct Listeners {
  std::vector<UniqueFd> sockets;
  int port = 0;
};

// Listens on every address of a host's name. Port 0 is any free one. A
// wildcard, 0.0.0.0 as well as [::], means IPv6 and IPv4. The port is never
// shared: two coordinators would each get half of the workers. Fails with
// UNAVAILABLE and the system's reason.
absl::StatusOr<Listeners> Listen(const ListenAddress& address);

}  // namespace coxswain

#endif  // COXSWAIN_TRANSPORT_LISTEN_ADDRESS_H_
