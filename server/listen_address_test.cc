#include "server/listen_address.h"

#include "base/status_matchers.h"

namespace coxswain::server {
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

TEST(ListenAddressTest, ForeignAddressIsExplained) {
  // TEST-NET-1, RFC 5737: nobody's own address.
  EXPECT_THAT(ExplainListenFailure({"192.0.2.1", 7070}),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("192.0.2.1:7070: Cannot assign")));
}

}  // namespace
}  // namespace coxswain::server
