#include "transport/listen_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

TEST(ListenAddressTest, HostAndPortAreSplit) {
  ASSERT_OK_AND_ASSIGN(const auto plain, ParseListenAddress("head:7070"));
  EXPECT_EQ(plain.host, "head");
  EXPECT_EQ(plain.port, 7070);
  ASSERT_OK_AND_ASSIGN(const auto ipv6, ParseListenAddress("[::1]:0"));
  EXPECT_EQ(ipv6.host, "[::1]");
  ASSERT_OK_AND_ASSIGN(const auto any, ParseListenAddress(":7070"));
  EXPECT_EQ(any.host, "[::]");
}

TEST(ListenAddressTest, OtherTextsAreRefused) {
  for (const char* text :
       {"", "head", "head:", "head:x", "head:-1", "head:65536"}) {
    EXPECT_THAT(
        ParseListenAddress(text),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("HOST:PORT")));
  }
}

std::string FamiliesOf(const Listeners& listeners) {
  std::string families;
  for (const UniqueFd& socket : listeners.sockets) {
    sockaddr_storage address = {};
    socklen_t length = sizeof(address);
    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
    families += address.ss_family == AF_INET6 ? '6' : '4';
  }
  return families;
}

bool Connects(const std::string& host, int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                 sizeof(address)) == 0;
}

TEST(ListenTest, ForeignAddressIsExplained) {
  // TEST-NET-1, RFC 5737: no host's own address.
  EXPECT_THAT(Listen({"192.0.2.1", 7070}),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("cannot listen on 192.0.2.1:7070: Cannot "
                                 "assign")));
}

TEST(ListenTest, UnknownNameIsExplained) {
  EXPECT_THAT(Listen({"no host has spaces", 7070}),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("cannot listen on no host has spaces:7070: "
                                 "Name or service not known")));
}

TEST(ListenTest, PortZeroIsAFreePort) {
  ASSERT_OK_AND_ASSIGN(const auto one, Listen({"127.0.0.1", 0}));
  ASSERT_OK_AND_ASSIGN(const auto other, Listen({"127.0.0.1", 0}));
  EXPECT_GT(one.port, 0);
  EXPECT_NE(one.port, other.port);
  EXPECT_TRUE(Connects("127.0.0.1", one.port));
}

TEST(ListenTest, APortIsNeverShared) {
  for (const char* first : {"127.0.0.1", "[::]", "localhost"}) {
    ASSERT_OK_AND_ASSIGN(const auto taken, Listen({first, 0}));
    for (const char* second : {"127.0.0.1", "0.0.0.0", "[::]", "localhost"}) {
      EXPECT_THAT(Listen({second, taken.port}),
                  StatusIs(absl::StatusCode::kUnavailable,
                           HasSubstr("Address already in use")))
          << first << " and " << second;
    }
  }
}

TEST(ListenTest, AnEndedListenerLeavesThePortAtOnce) {
  ASSERT_OK_AND_ASSIGN(auto first, Listen({"127.0.0.1", 0}));
  // A connection that the listener's side ends keeps the port in TIME_WAIT.
  UniqueFd peer(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(getsockname(first.sockets[0].get(), name, &length), 0);
  ASSERT_EQ(connect(peer.get(), name, length), 0);
  UniqueFd accepted(accept(first.sockets[0].get(), nullptr, nullptr));
  ASSERT_TRUE(accepted.valid());
  accepted.Close();
  peer.Close();
  first.sockets.clear();
  EXPECT_OK(Listen({"127.0.0.1", first.port}));
}

TEST(ListenTest, WildcardsTakeBothFamilies) {
  for (const char* host : {"[::]", "0.0.0.0"}) {
    ASSERT_OK_AND_ASSIGN(const auto listeners, Listen({host, 0}));
    EXPECT_THAT(FamiliesOf(listeners), testing::AnyOf("6", "4")) << host;
    EXPECT_TRUE(Connects("127.0.0.1", listeners.port)) << host;
  }
}

TEST(ListenTest, EveryAddressOfANameHasTheSamePort) {
  ASSERT_OK_AND_ASSIGN(const auto listeners, Listen({"localhost", 0}));
  EXPECT_THAT(FamiliesOf(listeners), testing::AnyOf("4", "64", "46", "6"));
  for (const UniqueFd& socket : listeners.sockets) {
    sockaddr_in6 address = {};
    socklen_t length = sizeof(address);
    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
    EXPECT_EQ(ntohs(address.sin6_port), listeners.port);
  }
}

}  // namespace
}  // namespace coxswain
