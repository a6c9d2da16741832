#include "tests/security/test_issuer.h"

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace coxswain {
namespace {

using Json = nlohmann::json;

constexpr int kP256Bytes = 32;

// Big-endian, at least so many bytes.
std::string BytesOf(const BIGNUM* number, int least) {
  const int size = std::max(least, BN_num_bytes(number));
  std::string bytes(size, '\0');
  auto* const target = reinterpret_cast<unsigned char*>(bytes.data());
  COXSWAIN_CHECK(BN_bn2binpad(number, target, size) == size);
  return bytes;
}

std::string NumberOf(EVP_PKEY* key, const char* name, int least) {
  BIGNUM* number = nullptr;
  COXSWAIN_CHECK(EVP_PKEY_get_bn_param(key, name, &number) == 1);
  std::string bytes = BytesOf(number, least);
  BN_free(number);
  return ToBase64Url(bytes);
}

// r and s, as tokens have them.
std::string FromDer(const std::string& der) {
  const auto* begin = reinterpret_cast<const unsigned char*>(der.data());
  ECDSA_SIG* const pair =
      d2i_ECDSA_SIG(nullptr, &begin, static_cast<int>(der.size()));
  COXSWAIN_CHECK(pair != nullptr);
  std::string text = BytesOf(ECDSA_SIG_get0_r(pair), kP256Bytes) +
                     BytesOf(ECDSA_SIG_get0_s(pair), kP256Bytes);
  ECDSA_SIG_free(pair);
  return text;
}

}  // namespace

struct TestIssuer::Keeper {
  explicit Keeper(EVP_PKEY* key_in) : key(key_in) {
    COXSWAIN_CHECK(key != nullptr);
  }
  ~Keeper() { EVP_PKEY_free(key); }
  EVP_PKEY* const key;
};

TestIssuer::TestIssuer(SignatureKind kind, const std::string& key_id, int bits)
    : kind_(kind),
      key_id_(key_id),
      keeper_(std::make_unique<Keeper>(
          kind == SignatureKind::kRs256
              ? EVP_RSA_gen(static_cast<unsigned int>(bits))
              : EVP_EC_gen("P-256"))) {}

TestIssuer::~TestIssuer() = default;

Json TestIssuer::Key() const {
  EVP_PKEY* const key = keeper_->key;
  Json json = Header();
  json["use"] = "sig";
  if (kind_ == SignatureKind::kRs256) {
    json["kty"] = "RSA";
    json["n"] = NumberOf(key, OSSL_PKEY_PARAM_RSA_N, 1);
    json["e"] = NumberOf(key, OSSL_PKEY_PARAM_RSA_E, 1);
  } else {
    json["kty"] = "EC";
    json["crv"] = "P-256";
    json["x"] = NumberOf(key, OSSL_PKEY_PARAM_EC_PUB_X, kP256Bytes);
    json["y"] = NumberOf(key, OSSL_PKEY_PARAM_EC_PUB_Y, kP256Bytes);
  }
  return json;
}

std::string TestIssuer::Pem() const {
  BIO* const bio = BIO_new(BIO_s_mem());
  COXSWAIN_CHECK(PEM_write_bio_PUBKEY(bio, keeper_->key) == 1);
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio, &data);
  std::string pem(data, size);
  BIO_free_all(bio);
  return pem;
}

Json TestIssuer::Header() const {
  return {{"alg", kind_ == SignatureKind::kRs256 ? "RS256" : "ES256"},
          {"kid", key_id_}};
}

std::string TestIssuer::Signature(absl::string_view text) const {
  EVP_MD_CTX* const digest = EVP_MD_CTX_new();
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = 0;
  COXSWAIN_CHECK(EVP_DigestSignInit(digest, nullptr, EVP_sha256(), nullptr,
                                    keeper_->key) == 1);
  COXSWAIN_CHECK(EVP_DigestSign(digest, nullptr, &size, bytes, text.size()) ==
                 1);
  std::string signature(size, '\0');
  COXSWAIN_CHECK(
      EVP_DigestSign(digest, reinterpret_cast<unsigned char*>(signature.data()),
                     &size, bytes, text.size()) == 1);
  EVP_MD_CTX_free(digest);
  signature.resize(size);
  return kind_ == SignatureKind::kRs256 ? signature : FromDer(signature);
}

std::string TestIssuer::Sign(absl::string_view header,
                             absl::string_view payload) const {
  const std::string text =
      absl::StrCat(ToBase64Url(header), ".", ToBase64Url(payload));
  return absl::StrCat(text, ".", ToBase64Url(Signature(text)));
}

std::string TestIssuer::Sign(const Json& claims) const {
  return Sign(Header().dump(), claims.dump());
}

Json TestIssuer::Claims(const std::string& subject, absl::Time now) {
  const int64_t seconds = absl::ToUnixSeconds(now);
  return {{"aud", {kAudience}},
          {"exp", seconds + 3600},
          {"iat", seconds},
          {"nbf", seconds},
          {"iss", kName},
          {"sub", subject},
          {"kubernetes.io", {{"namespace", "space"}}}};
}

std::string KeySetOf(const std::vector<Json>& keys) {
  return Json({{"keys", keys}}).dump();
}

std::string ToBase64Url(absl::string_view bytes) {
  return absl::WebSafeBase64Escape(bytes);
}

}  // namespace coxswain
