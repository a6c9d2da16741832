#ifndef COXSWAIN_BASE_CERTIFICATES_H_
#define COXSWAIN_BASE_CERTIFICATES_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain {

// Certificates (X.509) as this project uses them. OpenSSL is in this library
// and in public_key.h alone. Texts are PEM. Plain functions and values.

// Who a certificate or a token speaks for, as a name in the certificate (a
// subject alternative name of the kind URI).
inline constexpr char kOperatorUri[] = "coxswain://operator";
inline constexpr char kCoordinatorUri[] = "coxswain://coordinator";
inline constexpr char kJobUriPrefix[] = "coxswain://job/";

struct KeyPair {
  std::string cert;
  std::string key;  // not encrypted: only its owner may read it
};

// What a certificate says.
struct CertificateFacts {
  std::string common_name;
  std::vector<std::string> uris;
  absl::Time not_before;
  absl::Time not_after;
};

struct Validity {
  absl::Time not_before;
  absl::Time not_after;
};

// What a certificate is to say.
struct CertificateRequest {
  std::string common_name;
  std::string uri;
  std::vector<std::string> hosts;  // DNS names and addresses
  Validity validity;
};

// Signs certificates. Made by `coxswain certs` and by tests.
class CertificateAuthority {
 public:
  // A new one, with a new key. INTERNAL if OpenSSL fails.
  static absl::StatusOr<CertificateAuthority> Create(
      const std::string& common_name, const Validity& validity);
  // One that was made before. INVALID_ARGUMENT if it is no such pair.
  static absl::StatusOr<CertificateAuthority> Load(KeyPair pair);

  // A certificate with a new key, good for both ends of a connection: a worker
  // serves its peers while the coordinator is away.
  absl::StatusOr<KeyPair> Issue(const CertificateRequest& request) const;

  const KeyPair& pair() const { return pair_; }

 private:
  explicit CertificateAuthority(KeyPair pair) : pair_(std::move(pair)) {}
  KeyPair pair_;
};

// Of the first certificate in the text. INVALID_ARGUMENT if there is none.
absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view pem);

// UNAUTHENTICATED if it has run out by now, or is none.
absl::Status CheckNotRunOut(absl::string_view pem, absl::Time now);

// Whom the names in a certificate (of the kind URI) make of its holder. Nobody
// if none of them is ours, or several: all but one would be ignored without a
// word.
struct CertificateSubject {
  bool is_operator = false;
  std::string job;  // of one that is no operator
};
std::optional<CertificateSubject> SubjectOf(
    const std::vector<std::string>& uris);

// INVALID_ARGUMENT if the text is no private key, or not that of the first
// certificate.
absl::Status CheckKeyBelongs(absl::string_view cert, absl::string_view key);

// 32 bytes that say nothing about `text`, and two of which are compared in the
// same time wherever they differ.
std::string Sha256(absl::string_view text);
bool SameInConstantTime(absl::string_view a, absl::string_view b);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_CERTIFICATES_H_
