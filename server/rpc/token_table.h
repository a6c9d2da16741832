#ifndef COXSWAIN_SERVER_RPC_TOKEN_TABLE_H_
#define COXSWAIN_SERVER_RPC_TOKEN_TABLE_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/watched_file.h"
#include "server/rpc/identity.h"

namespace coxswain::server {

// The bearer tokens of a coordinator: a file with a line for each,
//
//   # comment
//   operator  TOKEN
//   job/NAME  TOKEN
//
// A name may have several, so that one can be replaced while both count. The
// file is read again when it has changed; one that cannot be understood then is
// logged, and the tokens stay as they were. Only digests are kept. Thread-safe.
class TokenTable {
 public:
  static constexpr size_t kLeastTokenBytes = 16;
  static constexpr size_t kMostTokenBytes = 4096;
  static constexpr size_t kMostTokens = 4096;

  // INVALID_ARGUMENT names the line that is wrong, never a token.
  static absl::StatusOr<std::unique_ptr<TokenTable>> Open(
      const std::string& path);

  // Whose token it is. Takes the same time for each that it is not.
  std::optional<Identity> Find(absl::string_view token);

 private:
  struct Entry {
    std::string digest;
    Identity identity;
  };
  using Entries = std::vector<Entry>;
  explicit TokenTable(std::string path) : file_(std::move(path)) {}

  static absl::StatusOr<Entries> Parse(absl::string_view text);
  absl::Status ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  WatchedFile file_ ABSL_GUARDED_BY(mutex_);
  Entries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_TOKEN_TABLE_H_
