#include "base/public_key.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/openssl.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

using Number = std::unique_ptr<BIGNUM, FreedBy<BN_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, FreedBy<EVP_PKEY_CTX_free>>;
using Digest = std::unique_ptr<EVP_MD_CTX, FreedBy<EVP_MD_CTX_free>>;
using Builder = std::unique_ptr<OSSL_PARAM_BLD, FreedBy<OSSL_PARAM_BLD_free>>;
using Parameters = std::unique_ptr<OSSL_PARAM, FreedBy<OSSL_PARAM_free>>;
using Signature = std::unique_ptr<ECDSA_SIG, FreedBy<ECDSA_SIG_free>>;

constexpr int kBitsOfByte = 8;
// 65537 has three. Checking costs in proportion.
constexpr size_t kMostExponentBytes = 4;
constexpr size_t kP256Bytes = 32;
// In front of a point's two coordinates.
constexpr char kUncompressed = 0x04;
constexpr char kCurve[] = "prime256v1";

const unsigned char* Bytes(absl::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

Number NumberOf(absl::string_view bytes) {
  return Number(
      BN_bin2bn(Bytes(bytes), static_cast<int>(bytes.size()), nullptr));
}

absl::Status NoKey(absl::string_view what) {
  ERR_clear_error();  // Else it turns up in another error.
  return absl::InvalidArgumentError(what);
}

// Returns null if OpenSSL finds that this is no key.
EvpKey MakeKey(const char* type, OSSL_PARAM* parameters) {
  const KeyContext context(EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* made = nullptr;
  if (context == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &made, EVP_PKEY_PUBLIC_KEY,
                        parameters) != 1) {
    return nullptr;
  }
  EvpKey key(made);
  const KeyContext check(
      EVP_PKEY_CTX_new_from_pkey(nullptr, key.get(), nullptr));
  // Of a point: that it lies on the curve.
  if (check == nullptr || EVP_PKEY_public_check(check.get()) != 1) {
    return nullptr;
  }
  return key;
}

absl::Status CheckRsaNumbers(const BIGNUM* modulus, const BIGNUM* exponent) {
  const int bits = BN_num_bits(modulus);
  if (bits < PublicKey::kLeastRsaBits || bits > PublicKey::kMostRsaBits) {
    return NoKey(absl::StrCat("an RSA key of ", bits, " bits; it must have ",
                              PublicKey::kLeastRsaBits, " to ",
                              PublicKey::kMostRsaBits));
  }
  if (!BN_is_odd(modulus) || !BN_is_odd(exponent) || BN_is_one(exponent)) {
    return NoKey(
        "the numbers of an RSA key must be odd, and its exponent not 1");
  }
  return absl::OkStatus();
}

// Returns r and s in OpenSSL's encoding. Empty if they cannot be encoded.
std::vector<unsigned char> ToDer(absl::string_view signature) {
  std::vector<unsigned char> der;
  if (signature.size() != 2 * kP256Bytes) return der;
  Number r = NumberOf(signature.substr(0, kP256Bytes));
  Number s = NumberOf(signature.substr(kP256Bytes));
  const Signature pair(ECDSA_SIG_new());
  if (r == nullptr || s == nullptr || pair == nullptr ||
      ECDSA_SIG_set0(pair.get(), r.get(), s.get()) != 1) {
    return der;
  }
  (void)r.release();  // `pair` owns them now.
  (void)s.release();
  const int size = i2d_ECDSA_SIG(pair.get(), nullptr);
  if (size <= 0) return der;
  der.resize(size);
  unsigned char* end = der.data();
  i2d_ECDSA_SIG(pair.get(), &end);
  return der;
}

bool Verify(EVP_PKEY* key, absl::string_view text,
            const unsigned char* signature, size_t size) {
  const Digest digest(EVP_MD_CTX_new());
  const bool good = digest != nullptr &&
                    EVP_DigestVerifyInit(digest.get(), nullptr, EVP_sha256(),
                                         nullptr, key) == 1 &&
                    EVP_DigestVerify(digest.get(), signature, size, Bytes(text),
                                     text.size()) == 1;
  ERR_clear_error();
  return good;
}

}  // namespace

struct PublicKey::Handle {
  explicit Handle(EvpKey key_in) : key(std::move(key_in)) {}
  const EvpKey key;
};

absl::StatusOr<PublicKey> PublicKey::Rsa(absl::string_view modulus,
                                         absl::string_view exponent) {
  // Checked before anything is computed with them. There may be leading zeros.
  if (modulus.size() > kMostRsaBits / kBitsOfByte + 1 ||
      exponent.size() > kMostExponentBytes) {
    return NoKey(absl::StrCat("an RSA key's modulus has at most ", kMostRsaBits,
                              " bits, and its exponent ", kMostExponentBytes,
                              " bytes"));
  }
  const Number n = NumberOf(modulus);
  const Number e = NumberOf(exponent);
  const Builder builder(OSSL_PARAM_BLD_new());
  if (n == nullptr || e == nullptr || builder == nullptr) {
    return absl::InternalError("OpenSSL has no memory for a key");
  }
  COXSWAIN_RETURN_IF_ERROR(CheckRsaNumbers(n.get(), e.get()));
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, n.get());
  OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, e.get());
  const Parameters parameters(OSSL_PARAM_BLD_to_param(builder.get()));
  EvpKey key = MakeKey("RSA", parameters.get());
  if (key == nullptr) return NoKey("these numbers are no RSA key");
  return PublicKey(SignatureKind::kRs256,
                   std::make_shared<const Handle>(std::move(key)));
}

absl::StatusOr<PublicKey> PublicKey::P256(absl::string_view x,
                                          absl::string_view y) {
  if (x.size() != kP256Bytes || y.size() != kP256Bytes) {
    return NoKey(absl::StrCat("a point of P-256 has two numbers of ",
                              kP256Bytes, " bytes each"));
  }
  std::string point = absl::StrCat(std::string(1, kUncompressed), x, y);
  std::string curve = kCurve;
  OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_PKEY_PARAM_GROUP_NAME, curve.data(),
                                       curve.size()),
      OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                        point.size()),
      OSSL_PARAM_construct_end()};
  EvpKey key = MakeKey("EC", parameters);
  if (key == nullptr) return NoKey("these numbers are no point of P-256");
  return PublicKey(SignatureKind::kEs256,
                   std::make_shared<const Handle>(std::move(key)));
}

bool PublicKey::HasSigned(absl::string_view text,
                          absl::string_view signature) const {
  EVP_PKEY* const key = handle_->key.get();
  if (kind_ == SignatureKind::kRs256) {
    return Verify(key, text, Bytes(signature), signature.size());
  }
  const std::vector<unsigned char> der = ToDer(signature);
  return !der.empty() && Verify(key, text, der.data(), der.size());
}

}  // namespace coxswain
