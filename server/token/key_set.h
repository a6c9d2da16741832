#ifndef COXSWAIN_SERVER_TOKEN_KEY_SET_H_
#define COXSWAIN_SERVER_TOKEN_KEY_SET_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/public_key.h"

namespace coxswain::server {

// The public keys of the signers of tokens, by their ids: a JSON Web Key Set
// (RFC 7517), such as `kubectl get --raw /openid/v1/jwks` prints. A value.
class KeySet {
 public:
  static constexpr size_t kMostKeys = 64;
  static constexpr size_t kMostIdBytes = 256;

  // Takes the keys for RS256 and ES256, and leaves out those of other kinds or
  // for other uses. Fails with INVALID_ARGUMENT if it is no such set, if one of
  // these keys is wrong or is a private one, or if there are none or too many;
  // no message shows anything of a key.
  static absl::StatusOr<KeySet> Parse(absl::string_view text);

  // Returns null if there is none.
  const PublicKey* Find(const std::string& id) const;

  size_t size() const { return keys_.size(); }

 private:
  std::map<std::string, PublicKey> keys_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TOKEN_KEY_SET_H_
