#include "server/token/key_set.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/token/jose_text.h"

namespace coxswain::server {
namespace {

using Json = nlohmann::json;

// Returns whether a member is absent, or is this.
bool MayBe(const Json& key, const char* name, absl::string_view wanted) {
  if (!key.contains(name)) return true;
  const std::string* const text = FindText(key, name);
  return text != nullptr && *text == wanted;
}

bool Is(const Json& key, const char* name, absl::string_view wanted) {
  return key.contains(name) && MayBe(key, name, wanted);
}

// Returns nothing if the key is for something else, which is no error.
std::optional<SignatureKind> KindOfKey(const Json& key) {
  if (!MayBe(key, "use", "sig")) return std::nullopt;
  if (Is(key, "kty", "RSA") && MayBe(key, "alg", "RS256")) {
    return SignatureKind::kRs256;
  }
  if (Is(key, "kty", "EC") && Is(key, "crv", "P-256") &&
      MayBe(key, "alg", "ES256")) {
    return SignatureKind::kEs256;
  }
  return std::nullopt;
}

absl::StatusOr<std::string> Number(const Json& key, const char* name) {
  const std::string* const text = FindText(key, name);
  if (text != nullptr) {
    auto bytes = FromBase64Url(*text);
    if (bytes.has_value()) return *std::move(bytes);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no number in base64url"));
}

absl::StatusOr<std::string> IdOf(const Json& key) {
  const std::string* const id = FindText(key, "kid");
  if (id != nullptr && !id->empty() && id->size() <= KeySet::kMostIdBytes) {
    return *id;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'kid' is no text of 1 to ", KeySet::kMostIdBytes,
                   " bytes: a token names by it the key that signed it"));
}

absl::StatusOr<PublicKey> KeyOf(const Json& key, SignatureKind kind) {
  if (key.contains("d")) {
    return absl::InvalidArgumentError(
        "this is a private key, which only the issuer should have: put "
        "the public one here");
  }
  const bool rsa = kind == SignatureKind::kRs256;
  COXSWAIN_ASSIGN_OR_RETURN(const std::string first,
                            Number(key, rsa ? "n" : "x"));
  COXSWAIN_ASSIGN_OR_RETURN(const std::string second,
                            Number(key, rsa ? "e" : "y"));
  return rsa ? PublicKey::Rsa(first, second) : PublicKey::P256(first, second);
}

absl::Status Add(const Json& json, std::map<std::string, PublicKey>* keys) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError("it is no JSON object");
  }
  const std::optional<SignatureKind> kind = KindOfKey(json);
  if (!kind.has_value()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(std::string id, IdOf(json));
  COXSWAIN_ASSIGN_OR_RETURN(PublicKey key, KeyOf(json, *kind));
  if (keys->emplace(std::move(id), std::move(key)).second) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("another key has the same 'kid'");
}

}  // namespace

absl::StatusOr<KeySet> KeySet::Parse(absl::string_view text) {
  const std::optional<Json> json = ParseJsonObject(text);
  if (!json.has_value() || !json->contains("keys") ||
      !json->at("keys").is_array()) {
    return absl::InvalidArgumentError(
        "no JSON Web Key Set, an object with a list of 'keys': `kubectl get "
        "--raw /openid/v1/jwks` prints one");
  }
  const Json& list = json->at("keys");
  if (list.size() > kMostKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat(list.size(), " keys; at most ", kMostKeys, " are taken"));
  }
  KeySet set;
  for (size_t i = 0; i < list.size(); ++i) {
    const absl::Status added = Add(list[i], &set.keys_);
    if (added.ok()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "key ", i + 1, " of ", list.size(), ": ", added.message()));
  }
  if (set.keys_.empty()) {
    return absl::InvalidArgumentError(
        "it has no key for RS256 or ES256, the signatures that are accepted");
  }
  return set;
}

const PublicKey* KeySet::Find(const std::string& id) const {
  const auto found = keys_.find(id);
  return found == keys_.end() ? nullptr : &found->second;
}

}  // namespace coxswain::server
