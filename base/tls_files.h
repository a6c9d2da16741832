#ifndef COXSWAIN_BASE_TLS_FILES_H_
#define COXSWAIN_BASE_TLS_FILES_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain {

// A small file that may be replaced while the program runs, such as a token
// that is renewed. Owned by the code that uses its contents. Thread-compatible.
class WatchedFile {
 public:
  // Larger ones are refused, so that the file does not decide how much memory
  // is used.
  static constexpr int64_t kMaxBytes = 1 << 20;

  explicit WatchedFile(std::string path) : path_(std::move(path)) {}

  // Returns whether the file is another one, or has other times or another
  // size, than at the last Note(); true before the first. Costs one stat().
  bool Changed() const;

  // Makes Changed() compare with the file as it is now.
  void Note();

  // Calls Note(), and returns its present contents. Fails with the system's
  // error (NOT_FOUND, PERMISSION_DENIED, ...), or with INVALID_ARGUMENT if it
  // is too large; messages name the file.
  absl::StatusOr<std::string> Read();

  const std::string& path() const { return path_; }

 private:
  struct Mark {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t size = -1;
    int64_t modified_ns = 0;
    int64_t changed_ns = 0;
  };
  static Mark MarkOf(const std::string& path);

  const std::string path_;
  bool noted_ = false;
  Mark mark_;
};

// Files of PEM text, which may be replaced while the program runs: new
// connections use what is in them then. Empty: none.
struct TlsFiles {
  std::string cert;  // who we are, with the certificates between it and `ca`
  std::string key;   // its private key
  std::string ca;    // the authority that has signed the peers'

  bool any() const { return !cert.empty() || !key.empty() || !ca.empty(); }
};

// The contents of those files. Empty: none.
struct TlsTexts {
  std::string cert;
  std::string key;  // the key alone
  std::string ca;

  bool operator==(const TlsTexts& other) const {
    return cert == other.cert && key == other.key && ca == other.ca;
  }
};

// What a client presents to the coordinator. Empty: it connects in plain text.
struct ClientSecurity {
  TlsFiles tls;            // encrypted as soon as there is `ca`
  std::string token_file;  // a bearer token, read again when it changes
  bool insecure = false;   // the token may cross a network in plain text
};

// Returns whether only this machine can reach that host: 127.0.0.0/8, ::1 (with
// or without brackets) and localhost. Other names are not resolved: they count
// as reachable from elsewhere.
bool IsLoopbackHost(absl::string_view host);

// Returns the contents of the files that are named. Fails with
// INVALID_ARGUMENT, naming the flag (--tls-ca, --tls-cert, --tls-key) and the
// file that cannot be read, is no PEM or not whole, does not belong to the
// other one or has expired at `now`, and what to do. What has passed this gRPC
// can use: with other texts it would refuse each connection without a reason,
// or end the process.
absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files, absl::Time now);

// Fails as ReadTlsFiles() does. For the start of a program.
absl::Status CheckTlsFiles(const TlsFiles& files, absl::Time now);

// The same for a client that connects to HOST:PORT, or to several with commas
// between: also checks that a token stays on this machine, or may leave it.
absl::Status CheckClientSecurity(const ClientSecurity& security,
                                 absl::string_view addresses, absl::Time now);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_TLS_FILES_H_
