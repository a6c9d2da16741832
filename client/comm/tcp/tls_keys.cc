#include "client/comm/tcp/tls_keys.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>

#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/random.h"
#include "client/comm/data_key.h"

namespace coxswain {
namespace {

// Its hash is that of the keys.
constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[] = {0x13, 0x01};
constexpr char kCurves[] = "X25519:P-256";
// Taken of a caller, each of which costs time: one, and again where another
// curve is asked for.
constexpr int kMaxIdentities = 2;
constexpr char kPurpose[] = "coxswain data connection 1";

struct KdfFree {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

absl::Status CannotEncrypt() {
  return absl::InternalError(
      absl::StrCat("OpenSSL cannot encrypt connections: ", TlsReason()));
}

// None can be taken for the end of one and the beginning of the next.
template <typename... Parts>
std::string WithLengths(const Parts&... parts) {
  std::string text;
  for (const std::string& part : {absl::StrCat(parts)...}) {
    absl::StrAppend(&text, part.size(), ":", part);
  }
  return text;
}

// HKDF by SHA-256, without salt.
bool DeriveKey(const std::string& secret, std::string info,
               std::array<unsigned char, DataKey::kBytes>* derived) {
  const std::unique_ptr<EVP_KDF, KdfFree> kdf(
      EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr));
  const std::unique_ptr<EVP_KDF_CTX, KdfFree> context(
      EVP_KDF_CTX_new(kdf.get()));
  if (context == nullptr) return false;
  std::string hash = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, hash.data(), 0),
      OSSL_PARAM_construct_octet_string(
          OSSL_KDF_PARAM_KEY, const_cast<char*>(secret.data()), secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(),
                                        info.size()),
      OSSL_PARAM_construct_end()};
  return EVP_KDF_derive(context.get(), derived->data(), derived->size(),
                        parameters) == 1;
}

}  // namespace

void TlsFree::operator()(SSL* ssl) const { SSL_free(ssl); }
void TlsFree::operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
void TlsFree::operator()(SSL_SESSION* session) const {
  SSL_SESSION_free(session);
}

std::string TlsReason() {
  const auto error = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(error);
  return reason == nullptr ? absl::StrCat("error ", error) : reason;
}

TlsKeys::TlsKeys(const CommunicatorOptions& options)
    : key_(options.data_key),
      communicator_(options.id),
      size_(options.size),
      rank_(options.rank),
      identity_prefix_(absl::StrCat("coxswain/1/", key_->generation(), "/",
                                    absl::Hex(StableHash(communicator_)),
                                    "/")) {}

absl::StatusOr<std::unique_ptr<TlsKeys>> TlsKeys::Make(
    const CommunicatorOptions& options) {
  std::unique_ptr<TlsKeys> keys(new TlsKeys(options));
  ERR_clear_error();
  SSL_CTX* const context = SSL_CTX_new(TLS_method());
  keys->context_.reset(context);
  if (context == nullptr ||
      SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, kCipher) != 1 ||
      SSL_CTX_set1_groups_list(context, kCurves) != 1) {
    return CannotEncrypt();
  }
  // No other sessions than the keys. A ticket that is not read when the
  // connection is closed would cut off what was sent before.
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_psk_use_session_callback(context, Show);
  SSL_CTX_set_psk_find_session_callback(context, Find);
  SSL_CTX_set_app_data(context, keys.get());
  return keys;
}

absl::StatusOr<TlsSsl> TlsKeys::Begin(TlsEnd* end) const {
  ERR_clear_error();
  TlsSsl ssl(SSL_new(context_.get()));
  if (ssl == nullptr) return CannotEncrypt();
  SSL_set_app_data(ssl.get(), end);
  if (end->calls) {
    end->identity = Identity(rank_, end->peer);
    SSL_set_connect_state(ssl.get());
    // A peer that shows a certificate in place of the key is refused.
    SSL_set_verify(ssl.get(), SSL_VERIFY_PEER, nullptr);
  } else {
    SSL_set_accept_state(ssl.get());
  }
  return ssl;
}

std::string TlsKeys::Identity(int caller, int called) const {
  return absl::StrCat(identity_prefix_, caller, "/", called);
}

std::optional<int> TlsKeys::CallerOf(absl::string_view identity) const {
  absl::string_view ranks = identity;
  int caller = 0;
  if (!absl::ConsumePrefix(&ranks, identity_prefix_) ||
      !absl::SimpleAtoi(ranks.substr(0, ranks.find('/')), &caller) ||
      caller <= rank_ || caller >= size_ ||
      identity != Identity(caller, rank_)) {
    return std::nullopt;
  }
  return caller;
}

std::unique_ptr<SSL_SESSION, TlsFree> TlsKeys::KeyOf(SSL* ssl, int caller,
                                                     int called) const {
  std::array<unsigned char, DataKey::kBytes> derived = {};
  std::unique_ptr<SSL_SESSION, TlsFree> session(SSL_SESSION_new());
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kCipherId);
  const bool made =
      session != nullptr && cipher != nullptr &&
      DeriveKey(key_->secret(),
                WithLengths(kPurpose, key_->job(), key_->generation(),
                            communicator_, size_, caller, called),
                &derived) &&
      SSL_SESSION_set1_master_key(session.get(), derived.data(),
                                  derived.size()) == 1 &&
      SSL_SESSION_set_cipher(session.get(), cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  OPENSSL_cleanse(derived.data(), derived.size());
  if (!made) session.reset();
  return session;
}

int TlsKeys::Show(SSL* ssl, const EVP_MD* /*hash*/,
                  const unsigned char** identity, size_t* bytes,
                  SSL_SESSION** key) {
  const auto* const keys =
      static_cast<const TlsKeys*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  const auto* const end = static_cast<const TlsEnd*>(SSL_get_app_data(ssl));
  *key = keys->KeyOf(ssl, keys->rank_, end->peer).release();
  *identity = reinterpret_cast<const unsigned char*>(end->identity.data());
  *bytes = end->identity.size();
  return *key != nullptr;
}

int TlsKeys::Find(SSL* ssl, const unsigned char* identity, size_t bytes,
                  SSL_SESSION** key) {
  const auto* const keys =
      static_cast<const TlsKeys*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  auto* const end = static_cast<TlsEnd*>(SSL_get_app_data(ssl));
  *key = nullptr;  // without one the handshake fails
  if (++end->identities > kMaxIdentities) return 0;
  const auto caller = keys->CallerOf(
      absl::string_view(reinterpret_cast<const char*>(identity), bytes));
  if (!caller.has_value()) return 1;
  end->peer = *caller;
  *key = keys->KeyOf(ssl, *caller, keys->rank_).release();
  return *key != nullptr;
}

}  // namespace coxswain
