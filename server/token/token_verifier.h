#ifndef COXSWAIN_SERVER_TOKEN_TOKEN_VERIFIER_H_
#define COXSWAIN_SERVER_TOKEN_TOKEN_VERIFIER_H_

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/tls_files.h"
#include "server/token/key_set.h"
#include "server/token/web_token.h"

namespace coxswain::server {

// Tokens whose signature was checked, by the digest of the whole token, until
// they run out: a signature is not checked again with each call. Only valid
// tokens are added, so that callers without one cannot fill it.
// Thread-compatible.
class KnownTokens {
 public:
  explicit KnownTokens(size_t most) : most_(most) {}

  // Returns null if it is not known, or has expired at `now`. Valid until the
  // next change.
  const TokenClaims* Find(const std::string& digest, absl::Time now) const {
    const auto found = known_.find(digest);
    if (found == known_.end()) return nullptr;
    return HasRunOut(found->second, now) ? nullptr : &found->second;
  }

  // When full, forgets those that have expired, or all if none has: they are
  // checked once more.
  void Add(std::string digest, TokenClaims claims, absl::Time now) {
    if (known_.size() >= most_) ForgetOld(now);
    if (known_.size() >= most_) Clear();
    known_[std::move(digest)] = std::move(claims);
  }

  void Clear() { known_.clear(); }
  size_t size() const { return known_.size(); }

 private:
  static bool HasRunOut(const TokenClaims& claims, absl::Time now) {
    return now >= claims.expires + kTokenLeeway;
  }
  void ForgetOld(absl::Time now) {
    for (auto one = known_.begin(); one != known_.end();) {
      one = HasRunOut(one->second, now) ? known_.erase(one) : std::next(one);
    }
  }

  const size_t most_;
  std::map<std::string, TokenClaims> known_;
};

// Verifies signed tokens by the keys in a file. The file is read again when it
// has changed, as issuers replace their keys from time to time; if it cannot be
// parsed then, that is logged and the keys stay as they were. Called with each
// request. Thread-safe; signatures are checked in parallel.
class TokenVerifier {
 public:
  // As many as a large cluster has workers.
  static constexpr size_t kMostKnown = 4096;

  // Fails with INVALID_ARGUMENT if the keys cannot be read. The clock outlives
  // it.
  static absl::StatusOr<std::unique_ptr<TokenVerifier>> Open(
      const std::string& keys_path, TokenRules rules, const Clock* clock);

  // Returns the subject of a token. Fails with UNAUTHENTICATED, describing what
  // is wrong with the token (CheckWebToken).
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
