#include "server/http/http_options.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/http/host_names.h"
#include "transport/listen_address.h"

namespace coxswain::server {

absl::Status HttpOptions::Validate() const {
  COXSWAIN_ASSIGN_OR_RETURN(const auto address, ParseListenAddress(listen));
  if (!insecure && !IsLoopbackHost(address.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--http ", listen,
        " can be reached from elsewhere, in plain text and by everybody: "
        "listen on 127.0.0.1, or say --insecure if you trust the network"));
  }
  if (threads < 1 || threads > 1024 || max_waiting < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "HTTP needs 1 to 1024 threads, not ", threads,
        ", and room for a connection that waits, not ", max_waiting));
  }
  return absl::OkStatus();
}

}  // namespace coxswain::server
