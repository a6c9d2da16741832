#ifndef COXSWAIN_CLI_TLS_HINT_H_
#define COXSWAIN_CLI_TLS_HINT_H_

#include "absl/status/status.h"
#include "base/tls_files.h"

namespace coxswain {

// An error of a call to a coordinator. Where the connection was cut off, and
// certificates are not given, it says besides that these may be what is
// missing. For cli/main.cc.
absl::Status HintAtTls(const absl::Status& error,
                       const ClientSecurity& security);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_TLS_HINT_H_
