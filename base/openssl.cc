#include "base/openssl.h"

#include <arpa/inet.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

// At the end of a process threads of gRPC may still make connections, which
// crash once OpenSSL has freed what they use. This counts if it comes before
// all other calls of OpenSSL.
[[maybe_unused]] const int kStaysToTheEnd =
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio, &data);
  return std::string(data, size);
}

// A key file with a passphrase is refused instead of asked for on a terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writing*/,
                 void* /*data*/) {
  return 0;
}

}  // namespace

std::string TakeOpenSslError() {
  const unsigned long code = ERR_get_error();  // NOLINT(runtime/int)
  ERR_clear_error();
  char text[256] = "unknown reason";
  if (code != 0) ERR_error_string_n(code, text, sizeof(text));
  return text;
}

absl::Status OpenSslFailed(absl::string_view what) {
  return absl::InternalError(
      absl::StrCat("cannot ", what, ": ", TakeOpenSslError()));
}

Bio ReadingPem(absl::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Certificate NextCertificate(BIO* pem) {
  return Certificate(PEM_read_bio_X509(pem, nullptr, NoPassphrase, nullptr));
}

absl::StatusOr<Certificate> ParseCertificate(absl::string_view pem) {
  const Bio bio = ReadingPem(pem);
  Certificate certificate = NextCertificate(bio.get());
  if (certificate != nullptr) return certificate;
  return absl::InvalidArgumentError(
      absl::StrCat("no certificate as PEM text: ", TakeOpenSslError()));
}

absl::StatusOr<EvpKey> ParseKey(absl::string_view pem) {
  const Bio bio = ReadingPem(pem);
  EvpKey key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(absl::StrCat(
      "no private key as PEM text without a passphrase: ", TakeOpenSslError()));
}

absl::StatusOr<std::string> ToPem(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), certificate) != 1) {
    return OpenSslFailed("write a certificate");
  }
  return TextOf(bio.get());
}

absl::StatusOr<std::string> ToPem(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr ||
      PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0,
                                    nullptr, nullptr) != 1) {
    return OpenSslFailed("write a private key");
  }
  return TextOf(bio.get());
}

bool IsAddress(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace coxswain
