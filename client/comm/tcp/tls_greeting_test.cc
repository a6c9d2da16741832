#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/data_key.h"
#include "client/comm/memory_store.h"
#include "client/comm/tcp/raw_tcp_peer_for_test.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/comm/tcp/tls_channel.h"
#include "client/comm/work.h"
#include "tests/conformance/connected_group.h"

// Greetings of TLS (RFC 8446, ClientHello) that no library would send.

namespace coxswain {
namespace {

using testing::HasSubstr;
using testing::Lt;

constexpr absl::Duration kGreetingTimeout = absl::Minutes(1);

std::string NumberOf(size_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) {
    text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
  return text;
}
std::string WithBytes(const std::string& text, int bytes_of_length) {
  return NumberOf(text.size(), bytes_of_length) + text;
}
std::string Extension(size_t type, const std::string& data) {
  return NumberOf(type, 2) + WithBytes(data, 2);
}

// A greeting that offers these identities in this order, with binders that are
// wrong.
std::string Greeting(const std::vector<std::string>& identities) {
  const std::string x25519 = NumberOf(0x001d, 2);
  std::string offered;
  std::string binders;
  for (const std::string& identity : identities) {
    offered += WithBytes(identity, 2) + NumberOf(0, 4);
    // One is enough to show whether they are looked at.
    if (binders.empty()) binders = WithBytes(std::string(32, 'b'), 1);
  }
  const std::string extensions =
      Extension(43, WithBytes(NumberOf(0x0304, 2), 1)) +
      Extension(10, WithBytes(x25519, 2)) +
      Extension(51, WithBytes(x25519 + WithBytes(std::string(32, 'x'), 2), 2)) +
      Extension(45, WithBytes(NumberOf(1, 1), 1)) +
      Extension(41, WithBytes(offered, 2) + WithBytes(binders, 2));
  const std::string hello =
      NumberOf(0x0303, 2) + std::string(32, 'r') + WithBytes("", 1) +
      WithBytes(NumberOf(0x1301, 2), 2) + WithBytes(NumberOf(0, 1), 1) +
      WithBytes(extensions, 2);
  return NumberOf(22, 1) + NumberOf(0x0301, 2) +
         WithBytes(NumberOf(1, 1) + WithBytes(hello, 3), 2);
}

CommunicatorOptions OptionsOfGreeted(int rank,
                                     std::shared_ptr<RendezvousStore> store) {
  CommunicatorOptions options =
      TestGroupOptions(rank, 2, std::move(store), kGreetingTimeout);
  options.encrypts = true;
  options.data_key =
      std::make_shared<DataKey>("mnist", 7, std::string(DataKey::kBytes, 'k'));
  return options;
}

// Returns the identity that rank 1 shows to rank 0.
std::string IdentityOfRankOne() {
  auto keys = TlsKeys::Make(OptionsOfGreeted(1, nullptr));
  EXPECT_OK(keys);
  TlsEnd end;
  end.calls = true;
  end.peer = 0;
  EXPECT_OK((*keys)->Begin(&end));
  return end.identity;
}

// Returns the state of rank 0 after this greeting.
TlsEnd GreetRankZero(const std::string& greeting) {
  auto keys = TlsKeys::Make(OptionsOfGreeted(0, nullptr));
  EXPECT_OK(keys);
  TlsEnd end;
  auto ssl = (*keys)->Begin(&end);
  EXPECT_OK(ssl);
  BIO* const in = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl->get(), in, BIO_new(BIO_s_mem()));
  BIO_write(in, greeting.data(), static_cast<int>(greeting.size()));
  EXPECT_NE(SSL_do_handshake(ssl->get()), 1);
  ERR_clear_error();
  return end;
}

// As many as may come: of one letter each, before the one that is right.
std::vector<std::string> Hundreds() {
  std::vector<std::string> identities(500, "x");
  identities.push_back(IdentityOfRankOne());
  EXPECT_THAT(Greeting(identities).size(),
              Lt(static_cast<size_t>(TlsChannel::kMaxHandshakeBytes)));
  return identities;
}

TEST(TlsGreetingTest, TheIdentityOfARankIsLookedAt) {
  EXPECT_EQ(GreetRankZero(Greeting({IdentityOfRankOne()})).peer, 1);
  const TlsEnd second = GreetRankZero(Greeting({"x", IdentityOfRankOne()}));
  EXPECT_EQ(second.peer, 1);
  EXPECT_EQ(second.identities, 2);
}

TEST(TlsGreetingTest, OfHundredsOfIdentitiesTheFirstOnesAreLookedAt) {
  const TlsEnd end = GreetRankZero(Greeting(Hundreds()));
  EXPECT_EQ(end.identities, 3) << "the one too many";
  EXPECT_EQ(end.peer, -1);
}

TEST(TlsGreetingTest, HundredsOfIdentitiesAreAnError) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
      0);
  const UniqueFd stranger(fds[0]);
  ASSERT_OK_AND_ASSIGN(auto keys, TlsKeys::Make(OptionsOfGreeted(0, nullptr)));
  ASSERT_OK_AND_ASSIGN(auto called,
                       TlsChannel::Answer(std::move(keys), UniqueFd(fds[1])));
  RawTcpPeer::Write(stranger, Greeting(Hundreds()));
  char buffer[16];
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(called->Receive(buffer, sizeof(buffer)),
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr("do not have the same key")));
  }
  EXPECT_EQ(called->peer(), -1);
}

TEST(TlsGreetingTest, GreetingsOfStrangersDisturbNoRank) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Communicator>> group(2);
  std::vector<std::thread> ranks;
  const auto connect = [&](size_t rank) {
    ranks.emplace_back([&, rank] {
      auto connected =
          ConnectTcp(OptionsOfGreeted(static_cast<int>(rank), store));
      ASSERT_OK(connected);
      group[rank] = *std::move(connected);
      EXPECT_OK(group[rank]->Barrier()->Wait(kGreetingTimeout));
    });
  };
  connect(0);
  const RawTcpPeer stranger(OptionsOfGreeted(1, store));
  const std::string identity = IdentityOfRankOne();
  for (const std::string& greeting :
       {Greeting(Hundreds()), Greeting({identity}), Greeting({}),
        Greeting(std::vector<std::string>(90, identity))}) {
    // An alert at most, and the end.
    EXPECT_THAT(RawTcpPeer::Read(stranger.Call(greeting), 1000).size(), Lt(20u))
        << greeting.size();
  }
  connect(1);
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace coxswain
