#ifndef COXSWAIN_SERVER_TOKEN_KNOWN_TOKENS_H_
#define COXSWAIN_SERVER_TOKEN_KNOWN_TOKENS_H_

#include <cstddef>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "server/token/web_token.h"

namespace coxswain::server {

// Tokens whose signature was checked, by the digest of the whole token, until
// they run out: a signature is not checked again with each call. Only good
// tokens come in, so that whoever has none cannot fill it. Thread-compatible.
class KnownTokens {
 public:
  explicit KnownTokens(size_t most) : most_(most) {}

  // Null: it is not known, or has run out at `now`. Until the next change.
  const TokenClaims* Find(const std::string& digest, absl::Time now) const {
    const auto found = known_.find(digest);
    if (found == known_.end()) return nullptr;
    return HasRunOut(found->second, now) ? nullptr : &found->second;
  }

  // Makes room, if there is none, by forgetting those that have run out, or all
  // if none has: they are checked once more.
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

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TOKEN_KNOWN_TOKENS_H_
