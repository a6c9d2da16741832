#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "client/comm/tcp/tls_channel.h"
#include "client/comm/tcp/tls_ends_for_test.h"

// Keys that change while bytes are on their way.

namespace coxswain {
namespace {

// A caller that has the key, and makes its records by itself (RFC 8446).
class RawTlsCaller {
 public:
  static constexpr char kHandshake = 22;
  static constexpr char kData = 23;

  explicit RawTlsCaller(const UniqueFd& socket)
      : socket_(socket), keys_(KeysOfRank(1)) {
    end_.calls = true;
    end_.peer = 0;
    auto ssl = keys_->Begin(&end_);
    EXPECT_OK(ssl);
    ssl_ = *std::move(ssl);
    SSL_set_fd(ssl_.get(), socket_.get());
    SSL_CTX_set_keylog_callback(SSL_get_SSL_CTX(ssl_.get()), NoteSecret);
  }

  bool ShakeHands() { return SSL_do_handshake(ssl_.get()) == 1; }

  // Sends a record of this type.
  void Send(char type, std::string text) {
    text.push_back(type);
    const std::string key = Expand("key", 16);
    std::string nonce = Expand("iv", 12);
    nonce[11] = static_cast<char>(nonce[11] ^ sequence_++);
    std::string record("\x17\x03\x03", 3);
    const size_t bytes = text.size() + 16;
    record.push_back(static_cast<char>(bytes >> 8));
    record.push_back(static_cast<char>(bytes & 0xff));
    std::string sealed(bytes, '\0');
    EVP_CIPHER_CTX* const context = EVP_CIPHER_CTX_new();
    int out = 0;
    EVP_EncryptInit_ex(context, EVP_aes_128_gcm(), nullptr, Bytes(key),
                       Bytes(nonce));
    EVP_EncryptUpdate(context, nullptr, &out, Bytes(record), 5);
    EVP_EncryptUpdate(context, Bytes(&sealed), &out, Bytes(text),
                      static_cast<int>(text.size()));
    EVP_EncryptFinal_ex(context, Bytes(&sealed) + text.size(), &out);
    EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, 16,
                        Bytes(&sealed) + text.size());
    EVP_CIPHER_CTX_free(context);
    record += sealed;
    const iovec part = {record.data(), record.size()};
    EXPECT_EQ(SendSome(socket_, &part, 1).value_or(-1),
              static_cast<int64_t>(record.size()));
  }

  void TakeNextKey() {
    Secret() = Expand("traffic upd", 32);
    sequence_ = 0;
  }

 private:
  static std::string& Secret() {
    static std::string secret;
    return secret;
  }
  static void NoteSecret(const SSL* /*ssl*/, const char* line) {
    const absl::string_view text = line;
    if (text.substr(0, 23) != "CLIENT_TRAFFIC_SECRET_0") return;
    Secret() = absl::HexStringToBytes(text.substr(text.rfind(' ') + 1));
  }
  static const unsigned char* Bytes(const std::string& text) {
    return reinterpret_cast<const unsigned char*>(text.data());
  }
  static unsigned char* Bytes(std::string* text) {
    return reinterpret_cast<unsigned char*>(text->data());
  }
  // HKDF-Expand-Label, of one block.
  static std::string Expand(const std::string& label, size_t bytes) {
    std::string info(1, '\0');
    info.push_back(static_cast<char>(bytes));
    info.push_back(static_cast<char>(6 + label.size()));
    info += "tls13 " + label;
    info.push_back('\0');
    info.push_back('\1');
    std::string block(32, '\0');
    HMAC(EVP_sha256(), Secret().data(), static_cast<int>(Secret().size()),
         Bytes(info), info.size(), Bytes(&block), nullptr);
    return block.substr(0, bytes);
  }

  const UniqueFd& socket_;
  const std::shared_ptr<const TlsKeys> keys_;
  TlsEnd end_;
  TlsSsl ssl_;
  unsigned char sequence_ = 0;
};

// A caller whose connection has no space, as its called end does not read.
class TlsKeyChangeTest : public TlsChannelTest {
 protected:
  static constexpr size_t kPart = 1000;

  void OpenFull(int64_t bytes_by_one_key) {
    Open(bytes_by_one_key);
    sent_.clear();
    EXPECT_EQ(Move(caller_.get(), called_.get(), "hello", 2), "hello");
  }
  void SetRoom(int room) {
    setsockopt(caller_->socket().get(), SOL_SOCKET, SO_SNDBUF, &room,
               sizeof(room));
  }
  bool HasRoom() const {
    pollfd entry = {caller_->socket().get(), POLLOUT, 0};
    return poll(&entry, 1, 0) == 1;
  }
  // Sends a part; false where there is no space for it.
  bool SendPart() {
    const iovec part = {part_.data(), part_.size()};
    const auto sent = caller_->Send(&part, 1);
    EXPECT_OK(sent);
    if (sent.value_or(0) < static_cast<int64_t>(kPart)) return false;
    sent_ += part_;
    for (char& letter : part_) ++letter;
    return true;
  }
  // Returns how many changes of the key are on their way to the called end.
  int KeyChanges() const {
    constexpr size_t kHead = 5;
    constexpr size_t kKeyUpdate = 22;
    std::string records(1 << 20, '\0');
    const ssize_t got =
        recv(called_->socket().get(), records.data(), records.size(), MSG_PEEK);
    records.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    int changes = 0;
    for (size_t at = 0; at + kHead <= records.size();) {
      const auto byte = [&](size_t i) {
        return static_cast<size_t>(static_cast<unsigned char>(records[at + i]));
      };
      const size_t bytes = byte(3) << 8 | byte(4);
      if (bytes == kKeyUpdate) ++changes;
      at += kHead + bytes;
    }
    return changes;
  }
  void ExpectAllArrives() {
    std::string received(sent_.size(), '\0');
    size_t bytes = 0;
    while (bytes < received.size()) {
      const auto got =
          called_->Receive(received.data() + bytes,
                           static_cast<int64_t>(received.size() - bytes));
      ASSERT_OK(got);
      ASSERT_GT(*got, 0);
      bytes += static_cast<size_t>(*got);
    }
    EXPECT_TRUE(received == sent_);
    sent_.clear();
  }

  // The other direction, of which little travels.
  void ExpectAnswer() {
    char answer[] = "answer";
    const iovec part = {answer, 6};
    EXPECT_EQ(called_->Send(&part, 1).value_or(-1), 6);
    char received[6] = {};
    EXPECT_EQ(caller_->Receive(received, 6).value_or(-1), 6);
    EXPECT_EQ(std::string(received, 6), "answer");
  }

  std::string part_ = Text(kPart);
  std::string sent_;
};

TEST_F(TlsKeyChangeTest, KeysChangeAmidTheBytes) {
  Open(/*bytes_by_one_key=*/30000);
  const std::string text = Text(1000000);
  EXPECT_TRUE(Move(caller_.get(), called_.get(), text, 40) == text);
  EXPECT_TRUE(Move(called_.get(), caller_.get(), text, 40) == text);
  EXPECT_TRUE(Move(caller_.get(), called_.get(), text, 40) == text);
}

TEST_F(TlsKeyChangeTest, ItWaitsForSpaceWhileTheOtherDirectionGoesOn) {
  OpenFull(/*bytes_by_one_key=*/1500);
  SetRoom(1 << 20);
  while (sent_.size() < 1500) ASSERT_TRUE(SendPart());
  SetRoom(1);
  ASSERT_FALSE(HasRoom());
  // It is due, and there is space for this and that.
  while (SendPart()) {
  }
  EXPECT_EQ(KeyChanges(), 0);
  ExpectAnswer();

  SetRoom(1 << 20);
  ASSERT_TRUE(SendPart());
  EXPECT_EQ(KeyChanges(), 0) << "the half record is ended first";
  ASSERT_TRUE(SendPart());
  EXPECT_EQ(KeyChanges(), 1);
  ExpectAllArrives();
  ExpectAnswer();
}

TEST_F(TlsKeyChangeTest, WithoutSpaceItComesAtLast) {
  OpenFull(/*bytes_by_one_key=*/1500);
  SetRoom(100000);
  while (HasRoom()) ASSERT_TRUE(SendPart());
  const int with_space = KeyChanges();
  while (SendPart()) {
    ASSERT_FALSE(HasRoom());
  }
  EXPECT_GT(KeyChanges(), with_space);
}

// Whichever of the records is the one that there is no space for.
TEST_F(TlsKeyChangeTest, ItMayBeAmidItsRecordWhenTheSpaceEnds) {
  for (int64_t by_one_key = 1; by_one_key <= 4000; by_one_key += 250) {
    OpenFull(by_one_key);
    SetRoom(20000);
    while (SendPart()) {
    }
    ExpectAllArrives();
    // The rest of a record and of the change, then parts.
    for (int parts = 0, turns = 0; parts < 3; ++turns) {
      ASSERT_LT(turns, 10);
      if (SendPart()) ++parts;
      ExpectAllArrives();
    }
    ExpectAnswer();
  }
}

TEST_F(TlsKeyChangeTest, AMessageInPartsBehindTheHandshakeIsNoHandshake) {
  Open();
  char buffer[16000];
  RawTlsCaller peer(caller_->socket());
  while (!peer.ShakeHands()) {
    ASSERT_OK(called_->Receive(buffer, sizeof(buffer)));
  }
  for (int i = 0; i < 3; ++i) {
    peer.Send(RawTlsCaller::kData, std::string(2000, 'x'));
    ASSERT_EQ(called_->Receive(buffer, sizeof(buffer)).value_or(-1), 2000);
  }
  // A KeyUpdate.
  peer.Send(RawTlsCaller::kHandshake, std::string("\x18\0\0\1", 4));
  peer.Send(RawTlsCaller::kHandshake, std::string(1, '\0'));
  peer.TakeNextKey();
  peer.Send(RawTlsCaller::kData, std::string(2000, 'y'));
  ASSERT_EQ(called_->Receive(buffer, sizeof(buffer)).value_or(-1), 2000);
  EXPECT_EQ(std::string(buffer, 2000), std::string(2000, 'y'));
}

}  // namespace
}  // namespace coxswain
