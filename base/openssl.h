#ifndef COXSWAIN_BASE_OPENSSL_H_
#define COXSWAIN_BASE_OPENSSL_H_

#include <openssl/evp.h>

#include <memory>

// For the files of this folder that use OpenSSL.

namespace coxswain {

// Deletes what a C library has made: std::unique_ptr<BIO, FreedBy<BIO_free>>.
template <auto Free>
struct FreedBy {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

using EvpKey = std::unique_ptr<EVP_PKEY, FreedBy<EVP_PKEY_free>>;

}  // namespace coxswain

#endif  // COXSWAIN_BASE_OPENSSL_H_
