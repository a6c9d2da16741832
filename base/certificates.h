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

// Names the holder of a certificate, as a subject alternative name of the kind
// URI in it.
inline constexpr char kOperatorUri[] = "coxswain://operator";
inline constexpr char kCoordinatorUri[] = "coxswain://coordinator";
inline constexpr char kJobUriPrefix[] = "coxswain://job/";

struct KeyPair {
  std::string cert;
  std::string key;  // not encrypted: only its owner may read it
};

// The contents of a certificate.
struct CertificateFacts {
  std::string common_name;
  std::vector<std::string> uris;
  std::vector<std::string> hosts;  // DNS names and addresses
  absl::Time not_before;
  absl::Time not_after;
};

struct Validity {
  absl::Time not_before;
  absl::Time not_after;
};

// The contents of a certificate that is to be issued.
struct CertificateRequest {
  std::string common_name;
  std::string uri;
  std::vector<std::string> hosts;  // DNS names and addresses
  Validity validity;
};

// Signs certificates. Made by `coxswain certs` and by tests.
class CertificateAuthority {
 public:
  // Returns a new one, with a new key. Fails with INTERNAL if OpenSSL fails.
  static absl::StatusOr<CertificateAuthority> Create(
      const std::string& common_name, const Validity& validity);
  // Returns one that was made before. Fails with INVALID_ARGUMENT if it is no
  // such pair.
  static absl::StatusOr<CertificateAuthority> Load(KeyPair pair);

  // Returns a certificate with a new key, valid for both ends of a connection:
  // a worker serves its peers while no coordinator can be reached.
  absl::StatusOr<KeyPair> Issue(const CertificateRequest& request) const;

  const KeyPair& pair() const { return pair_; }

 private:
  explicit CertificateAuthority(KeyPair pair) : pair_(std::move(pair)) {}
  KeyPair pair_;
};

// Returns the contents of the first certificate in the text. Fails with
// INVALID_ARGUMENT if there is none.
absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view pem);

// Fails with INVALID_ARGUMENT unless the text has a certificate, and all that
// it begins are whole: of a file that is still being written, the last one is
// not.
absl::Status CheckCertificates(absl::string_view pem);

// Fails with INVALID_ARGUMENT if a certificate in the text is one that OpenSSL
// does not show to peers, by the security level of this system: of a short key,
// or signed over a hash that can be forged.
absl::Status CheckStrongChain(absl::string_view chain);
// The same of authorities: if that is so of all of them.
absl::Status CheckStrongAuthorities(absl::string_view ca);

// Fails with INVALID_ARGUMENT if an issuer is missing in `chain` that stood in
// the one of `before`: of a file that is still being written, the certificates
// at its end.
absl::Status CheckChainIsNotCut(absl::string_view chain,
                                absl::string_view before);

// Fails with UNAUTHENTICATED if it has expired by `now`, or is no certificate.
absl::Status CheckNotExpired(absl::string_view pem, absl::Time now);

// Fails with INVALID_ARGUMENT, and OpenSSL's reason, unless one of the
// authorities in `ca` has signed the first certificate of `chain`, by those
// that follow it or without any between. Does not look at dates.
absl::Status CheckSignedBy(absl::string_view chain, absl::string_view ca);

// Returns whether the first certificate in the text names this host, which is a
// DNS name or an address.
bool NamesHost(absl::string_view pem, const std::string& host);

// The holder of a certificate, by its names of the kind URI. Neither an
// operator nor a job if none of them is ours, or several are: all but one would
// be ignored silently.
struct CertificateSubject {
  bool is_operator = false;
  std::string job;  // of one that is no operator
};
std::optional<CertificateSubject> SubjectOf(
    const std::vector<std::string>& uris);

// Fails with INVALID_ARGUMENT if the text is no private key, or not that of the
// first certificate.
absl::Status CheckKeyBelongs(absl::string_view cert, absl::string_view key);

// Returns the first private key of the text, without what else is in it. Fails
// with INVALID_ARGUMENT if there is none.
absl::StatusOr<std::string> OnlyKey(absl::string_view key);

// Returns a digest of 32 bytes, which reveals nothing about `text`. How long
// the comparison of two digests takes reveals nothing about the texts either.
std::string Sha256(absl::string_view text);
bool SameInConstantTime(absl::string_view a, absl::string_view b);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_CERTIFICATES_H_
