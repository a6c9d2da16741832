#ifndef COXSWAIN_SERVER_HTTP_HTTP_OPTIONS_H_
#define COXSWAIN_SERVER_HTTP_HTTP_OPTIONS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace coxswain::server {

struct HttpOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0: any free one
  // Plain HTTP without a login leaves this machine only where this is said.
  bool insecure = false;
  // Names besides addresses, localhost, the one that is listened on, and this
  // machine's, by which the server may be asked for.
  std::vector<std::string> hosts;

  // Connections that are served at once, and how many more wait for a thread;
  // past these, they wait in the kernel's queue.
  int threads = 8;
  size_t max_waiting = 64;
  // From the first byte of a request to its last, and the same for its answer.
  absl::Duration time_limit = absl::Seconds(5);
  // The request line and all headers. There are no bodies.
  size_t max_request_bytes = 16 << 10;
  size_t max_target_bytes = 2 << 10;

  // INVALID_ARGUMENT names what is wrong.
  absl::Status Validate() const;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_HTTP_OPTIONS_H_
