#ifndef COXSWAIN_BASE_TLS_FILES_H_
#define COXSWAIN_BASE_TLS_FILES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain {

// Files of PEM text, which may be replaced while the program runs: new
// connections use what is in them then. Empty: none.
struct TlsFiles {
  std::string cert;  // who we are, with the certificates between it and `ca`
  std::string key;   // its private key
  std::string ca;    // who vouches for those whom we talk to

  bool any() const { return !cert.empty() || !key.empty() || !ca.empty(); }
};

// What a client shows to the coordinator. Nothing: it speaks in plain text.
struct ClientSecurity {
  TlsFiles tls;            // encrypted as soon as there is `ca`
  std::string token_file;  // a bearer token, read again when it changes
  bool insecure = false;   // the token may cross a network in plain text
};

// Whether only this machine can reach that host: 127.0.0.0/8, ::1 (with or
// without brackets) and localhost. Other names are not resolved: they count as
// reachable from elsewhere.
bool IsLoopbackHost(absl::string_view host);

// Reads the files that are named: INVALID_ARGUMENT names the one that cannot be
// read, is no PEM, does not belong to the other one or has run out at `now`,
// and says what to do. For the start of a program: gRPC would accept them, and
// refuse each connection without saying why.
absl::Status CheckTlsFiles(const TlsFiles& files, absl::Time now);

// The same of a client that talks to HOST:PORT, or to several with commas
// between: also that a token stays on this machine, or may leave it.
absl::Status CheckClientSecurity(const ClientSecurity& security,
                                 absl::string_view addresses, absl::Time now);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_TLS_FILES_H_
