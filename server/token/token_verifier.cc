#include "server/token/token_verifier.h"

#include "absl/strings/str_cat.h"
#include "base/certificates.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace coxswain::server {

absl::StatusOr<std::unique_ptr<TokenVerifier>> TokenVerifier::Open(
    const std::string& keys_path, TokenRules rules, const Clock* clock) {
  std::unique_ptr<TokenVerifier> verifier(
      new TokenVerifier(keys_path, std::move(rules), clock));
  MutexLock lock(&verifier->mutex_);
  const absl::Status read = verifier->ReadLocked();
  if (!read.ok()) return absl::InvalidArgumentError(read.message());
  return verifier;
}

absl::Status TokenVerifier::ReadLocked() {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string text, file_.Read());
  auto keys = KeySet::Parse(text);
  if (!keys.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": ", keys.status().message()));
  }
  keys_ = std::make_shared<const KeySet>(*std::move(keys));
  known_.Clear();  // Their keys may have been removed.
  return absl::OkStatus();
}

void TokenVerifier::ReadAgainLocked() {
  if (!file_.Changed()) return;
  const absl::Status read = ReadLocked();
  if (read.ok()) {
    LogInfo("token_keys_read",
            {{"file", file_.path()}, {"keys", keys_->size()}});
  } else {
    LogError("token_keys_not_read", {{"error", read.message()},
                                     {"next", "the earlier ones stay valid"}});
  }
}

absl::StatusOr<std::string> TokenVerifier::SubjectOf(absl::string_view token) {
  const absl::Time now = clock_->WallTime();
  std::string digest = Sha256(token);
  Keys keys;
  {
    MutexLock lock(&mutex_);
    ReadAgainLocked();
    const TokenClaims* const known = known_.Find(digest, now);
    if (known != nullptr) return known->subject;
    keys = keys_;
  }
  COXSWAIN_ASSIGN_OR_RETURN(TokenClaims claims,
                            CheckWebToken(token, *keys, rules_, now));
  std::string subject = claims.subject;
  MutexLock lock(&mutex_);
  // By keys that were replaced meanwhile it counts for this call alone.
  if (keys == keys_) known_.Add(std::move(digest), std::move(claims), now);
  return subject;
}

}  // namespace coxswain::server
