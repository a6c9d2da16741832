#ifndef COXSWAIN_SERVER_LISTEN_ADDRESS_H_
#define COXSWAIN_SERVER_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::server {

// "HOST:PORT", "[IPV6]:PORT" or ":PORT" (all addresses) in two parts.
struct ListenAddress {
  std::string host;
  int port = 0;
};

// INVALID_ARGUMENT says what is wrong with the text.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// Why nobody could listen there, found by trying: gRPC itself only says that
// it failed. UNAVAILABLE with the system's reason.
absl::Status ExplainListenFailure(const ListenAddress& address);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_LISTEN_ADDRESS_H_
