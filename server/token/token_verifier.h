#ifndef COXSWAIN_SERVER_TOKEN_TOKEN_VERIFIER_H_
#define COXSWAIN_SERVER_TOKEN_TOKEN_VERIFIER_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/watched_file.h"
#include "server/token/key_set.h"
#include "server/token/known_tokens.h"
#include "server/token/web_token.h"

namespace coxswain::server {

// Whose signed token it is, by the keys in a file. The file is read again when
// it has changed, as issuers replace their keys from time to time; one that
// cannot be understood then is logged, and the keys stay as they were. Asked
// with each call. Thread-safe; signatures are checked side by side.
class TokenVerifier {
 public:
  // As many as a large cluster has workers.
  static constexpr size_t kMostKnown = 4096;

  // INVALID_ARGUMENT if the keys cannot be read. The clock outlives it.
  static absl::StatusOr<std::unique_ptr<TokenVerifier>> Open(
      const std::string& keys_path, TokenRules rules, const Clock* clock);

  // UNAUTHENTICATED says what is wrong with the token (CheckWebToken).
  absl::StatusOr<std::string> SubjectOf(absl::string_view token);

 private:
  using Keys = std::shared_ptr<const KeySet>;

  TokenVerifier(std::string path, TokenRules rules, const Clock* clock)
      : rules_(std::move(rules)), clock_(clock), file_(std::move(path)) {}

  absl::Status ReadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadAgainLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TokenRules rules_;
  const Clock* const clock_;
  Mutex mutex_;
  WatchedFile file_ ABSL_GUARDED_BY(mutex_);
  Keys keys_ ABSL_GUARDED_BY(mutex_);
  KnownTokens known_ ABSL_GUARDED_BY(mutex_){kMostKnown};
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TOKEN_TOKEN_VERIFIER_H_
