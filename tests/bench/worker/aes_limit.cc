#include "tests/bench/worker/aes_limit.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace coxswain::bench {
namespace {

constexpr int kRecordBytes = 16 << 10;
constexpr int kTagBytes = 16;
// The head of a record of TLS, which is authenticated too.
constexpr std::array<unsigned char, 5> kHead = {23, 3, 3, 64, 0};
constexpr std::array<unsigned char, 16> kKey = {1, 2, 3};

}  // namespace

void AesLimit::Free::operator()(EVP_CIPHER_CTX* context) const {
  EVP_CIPHER_CTX_free(context);
}

absl::StatusOr<std::unique_ptr<AesLimit>> AesLimit::Create() {
  std::unique_ptr<AesLimit> made(new AesLimit);
  made->encrypts_.reset(EVP_CIPHER_CTX_new());
  made->decrypts_.reset(EVP_CIPHER_CTX_new());
  made->record_.resize(kRecordBytes);
  const EVP_CIPHER* const cipher = EVP_aes_128_gcm();
  if (made->encrypts_ != nullptr && made->decrypts_ != nullptr &&
      EVP_EncryptInit_ex(made->encrypts_.get(), cipher, nullptr, kKey.data(),
                         nullptr) == 1 &&
      EVP_DecryptInit_ex(made->decrypts_.get(), cipher, nullptr, kKey.data(),
                         nullptr) == 1) {
    return made;
  }
  return absl::InternalError("OpenSSL has no AES-128-GCM");
}

bool AesLimit::Move(const char* from, char* to, int bytes) {
  std::array<unsigned char, 12> nonce = {};
  ++records_;
  std::memcpy(nonce.data(), &records_, sizeof(records_));
  std::array<unsigned char, kTagBytes> tag;
  int done = 0;
  EVP_CIPHER_CTX* const out = encrypts_.get();
  EVP_CIPHER_CTX* const in = decrypts_.get();
  return EVP_EncryptInit_ex(out, nullptr, nullptr, nullptr, nonce.data()) ==
             1 &&
         EVP_EncryptUpdate(out, nullptr, &done, kHead.data(), kHead.size()) ==
             1 &&
         EVP_EncryptUpdate(out, record_.data(), &done,
                           reinterpret_cast<const unsigned char*>(from),
                           bytes) == 1 &&
         EVP_EncryptFinal_ex(out, record_.data() + done, &done) == 1 &&
         EVP_CIPHER_CTX_ctrl(out, EVP_CTRL_AEAD_GET_TAG, kTagBytes,
                             tag.data()) == 1 &&
         EVP_DecryptInit_ex(in, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
         EVP_DecryptUpdate(in, nullptr, &done, kHead.data(), kHead.size()) ==
             1 &&
         EVP_DecryptUpdate(in, reinterpret_cast<unsigned char*>(to), &done,
                           record_.data(), bytes) == 1 &&
         EVP_CIPHER_CTX_ctrl(in, EVP_CTRL_AEAD_SET_TAG, kTagBytes,
                             tag.data()) == 1 &&
         EVP_DecryptFinal_ex(in, record_.data(), &done) == 1;
}

absl::Status AesLimit::Run(int64_t bytes) {
  out_.resize(static_cast<size_t>(bytes), 1);
  in_.resize(static_cast<size_t>(bytes), 2);
  for (int64_t at = 0; at < bytes; at += kRecordBytes) {
    const int64_t some = std::min<int64_t>(bytes - at, kRecordBytes);
    if (!Move(out_.data() + at, in_.data() + at, static_cast<int>(some))) {
      return absl::InternalError("OpenSSL cannot encrypt or decrypt a record");
    }
  }
  return absl::OkStatus();
}

}  // namespace coxswain::bench
