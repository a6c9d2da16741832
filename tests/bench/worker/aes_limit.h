#ifndef COXSWAIN_TESTS_BENCH_WORKER_AES_LIMIT_H_
#define COXSWAIN_TESTS_BENCH_WORKER_AES_LIMIT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct evp_cipher_ctx_st;  // OpenSSL's EVP_CIPHER_CTX

namespace coxswain::bench {

// The arithmetic that encrypted connections cannot do without: AES-128-GCM in
// records of 16 KiB, the cipher and the size of the back end's TLS, by OpenSSL
// and in one thread.
class AesLimit {
 public:
  static absl::StatusOr<std::unique_ptr<AesLimit>> Create();

  // Encrypts so many bytes, as a rank does that sends them, and decrypts as
  // many into other memory, as it does when it receives. What lies between the
  // two is one record, which stays in the cache: a connection's buffers would
  // make it slower.
  absl::Status Run(int64_t bytes);

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };

  AesLimit() = default;
  bool Move(const char* from, char* to, int bytes);

  std::unique_ptr<evp_cipher_ctx_st, Free> encrypts_;
  std::unique_ptr<evp_cipher_ctx_st, Free> decrypts_;
  int64_t records_ = 0;
  std::vector<unsigned char> record_;
  std::vector<char> out_;
  std::vector<char> in_;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_WORKER_AES_LIMIT_H_
