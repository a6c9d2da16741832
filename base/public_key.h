#ifndef COXSWAIN_BASE_PUBLIC_KEY_H_
#define COXSWAIN_BASE_PUBLIC_KEY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// The kinds of signatures that are accepted, by their names in RFC 7518.
enum class SignatureKind {
  kRs256,  // RSA, PKCS #1 v1.5, over SHA-256
  kEs256,  // ECDSA on P-256 over SHA-256; the signature is r and s, 32 bytes
           // each
};

// A key that signatures are checked with. It is valid for one kind of them
// only, so that the sender of a token cannot choose the kind. Numbers are
// big-endian bytes, as JSON Web Keys have them. A value; copies share the key.
// Thread-safe.
class PublicKey {
 public:
  // Shorter ones can be broken; checking with longer ones takes too long.
  static constexpr int kLeastRsaBits = 2048;
  static constexpr int kMostRsaBits = 8192;

  // Fails with INVALID_ARGUMENT if they are no such key, or one out of the
  // bounds above.
  static absl::StatusOr<PublicKey> Rsa(absl::string_view modulus,
                                       absl::string_view exponent);
  static absl::StatusOr<PublicKey> P256(absl::string_view x,
                                        absl::string_view y);

  SignatureKind kind() const { return kind_; }

  // Returns whether the owner of the private key has signed this. Takes up to a
  // millisecond.
  bool HasSigned(absl::string_view text, absl::string_view signature) const;

 private:
  struct Handle;
  PublicKey(SignatureKind kind, std::shared_ptr<const Handle> handle)
      : kind_(kind), handle_(std::move(handle)) {}

  SignatureKind kind_;
  std::shared_ptr<const Handle> handle_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_PUBLIC_KEY_H_
