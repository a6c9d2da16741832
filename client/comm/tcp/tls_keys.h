#ifndef COXSWAIN_CLIENT_COMM_TCP_TLS_KEYS_H_
#define COXSWAIN_CLIENT_COMM_TCP_TLS_KEYS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"

// OpenSSL's SSL, SSL_CTX, SSL_SESSION and EVP_MD.
struct ssl_st;
struct ssl_ctx_st;
struct ssl_session_st;
struct evp_md_st;

namespace coxswain {

// Deletes OpenSSL's.
struct TlsFree {
  void operator()(ssl_st* ssl) const;
  void operator()(ssl_ctx_st* context) const;
  void operator()(ssl_session_st* session) const;
};
using TlsSsl = std::unique_ptr<ssl_st, TlsFree>;
using TlsContext = std::unique_ptr<ssl_ctx_st, TlsFree>;

// One end of a connection, as the handshake has it.
struct TlsEnd {
  bool calls = false;
  int peer = -1;         // of one that is called: once it is known
  std::string identity;  // that a caller shows
  int identities = 0;    // shown to one that is called
};

// What a rank encrypts its connections of one communicator with: TLS 1.3 by a
// key that both ends have and a Diffie-Hellman exchange (psk_dhe_ke). There are
// no certificates, and what has travelled stays secret when the key becomes
// known. Each pair of ranks has a key of its own, derived (HKDF) from that of
// the generation, the job, the generation, the communicator, its size and both
// ranks: an end that has another of these cannot end the handshake.
//
// Thread-safe; outlives what it makes.
class TlsKeys {
 public:
  // Of options.data_key, which is set. Fails with INTERNAL if OpenSSL lacks
  // something.
  static absl::StatusOr<std::unique_ptr<TlsKeys>> Make(
      const CommunicatorOptions& options);

  // Returns the state of a connection, without its socket. `end` outlives it.
  absl::StatusOr<TlsSsl> Begin(TlsEnd* end) const;

 private:
  explicit TlsKeys(const CommunicatorOptions& options);

  // What callers show, in plain text: which key is theirs.
  std::string Identity(int caller, int called) const;
  std::optional<int> CallerOf(absl::string_view identity) const;
  // Returns what OpenSSL takes for the key of a pair; null where it fails.
  std::unique_ptr<ssl_session_st, TlsFree> KeyOf(ssl_st* ssl, int caller,
                                                 int called) const;
  // OpenSSL asks for the key of a caller, and for that of a called rank.
  static int Show(ssl_st* ssl, const evp_md_st* hash,
                  const unsigned char** identity, size_t* bytes,
                  ssl_session_st** key);
  static int Find(ssl_st* ssl, const unsigned char* identity, size_t bytes,
                  ssl_session_st** key);

  const std::shared_ptr<const DataKey> key_;
  const std::string communicator_;
  const int size_;
  const int rank_;
  const std::string identity_prefix_;
  TlsContext context_;
};

// Returns what OpenSSL has found wrong last in this thread, which forgets it.
std::string TlsReason();

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_TLS_KEYS_H_
