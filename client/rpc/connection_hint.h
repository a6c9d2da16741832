#ifndef COXSWAIN_CLIENT_RPC_CONNECTION_HINT_H_
#define COXSWAIN_CLIENT_RPC_CONNECTION_HINT_H_

#include <string>

#include "absl/status/status.h"
#include "base/tls_files.h"

namespace coxswain {

// Returns a sentence on why no connection to the coordinator at HOST:PORT, or
// to any of several with commas between, can be made with `security`, and which
// option to change: a certificate that cannot be read, has expired, is of
// another authority or for another host, TLS where the coordinator speaks plain
// text or the reverse, another program at that port. Empty where the
// coordinator can be reached, where nothing listens, or where the cause cannot
// be found.
//
// Connects to each of them, in turn, without making a call and without sending
// a token: four times at most, for two seconds each. Thread-safe.
std::string ConnectionHint(const std::string& addresses,
                           const ClientSecurity& security);

// Returns the error of a call with that sentence behind it, if it is one that
// comes without an answer: UNAVAILABLE or DEADLINE_EXCEEDED.
absl::Status WithConnectionHint(const absl::Status& error,
                                const std::string& addresses,
                                const ClientSecurity& security);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_CONNECTION_HINT_H_
