#ifndef COXSWAIN_TESTS_SECURITY_TEST_ISSUER_H_
#define COXSWAIN_TESTS_SECURITY_TEST_ISSUER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/public_key.h"
#include "nlohmann/json.hpp"

namespace coxswain {

// Signs tokens as a Kubernetes cluster does, with its own key. Aborts the test
// program where OpenSSL fails. Thread-compatible.
class TestIssuer {
 public:
  static constexpr char kName[] = "https://issuer.example";
  static constexpr char kAudience[] = "coxswain";

  // Makes an issuer with a new key. `bits` is of an RSA key.
  explicit TestIssuer(SignatureKind kind, const std::string& key_id = "k1",
                      int bits = 2048);
  ~TestIssuer();

  // Return the public key as a JSON Web Key, and as PEM.
  nlohmann::json Key() const;
  std::string Pem() const;

  // Returns {"alg": ..., "kid": ...} of this key.
  nlohmann::json Header() const;
  // Returns a token in its compact form, with any two texts.
  std::string Sign(absl::string_view header, absl::string_view payload) const;
  std::string Sign(const nlohmann::json& claims) const;

  // Returns the claims of a projected token of a service account, valid for an
  // hour from `now` on.
  static nlohmann::json Claims(const std::string& subject, absl::Time now);

 private:
  struct Keeper;  // of OpenSSL's key
  std::string Signature(absl::string_view text) const;

  const SignatureKind kind_;
  const std::string key_id_;
  const std::unique_ptr<Keeper> keeper_;
};

// Returns a JSON Web Key Set of these.
std::string KeySetOf(const std::vector<nlohmann::json>& keys);

// Returns the bytes in base64url, without padding.
std::string ToBase64Url(absl::string_view bytes);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_TEST_ISSUER_H_
