#include "cli/address.h"

#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

TEST(AddressTest, HostAndPortAreTakenApart) {
  ASSERT_OK_AND_ASSIGN(HostPort address,
                       ParseHostPort("head-1.local:7077", PortRule::kNamed));
  EXPECT_EQ(address.host, "head-1.local");
  EXPECT_EQ(address.port, 7077);
  EXPECT_EQ(address.ToString(), "head-1.local:7077");
}

TEST(AddressTest, Ipv6AddressesStandInBrackets) {
  ASSERT_OK_AND_ASSIGN(HostPort address,
                       ParseHostPort("[::1]:80", PortRule::kNamed));
  EXPECT_EQ(address.host, "::1");
  EXPECT_EQ(address.ToString(), "[::1]:80");
  EXPECT_THAT(ParseHostPort("::1:80", PortRule::kNamed),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("needs brackets")));
  EXPECT_THAT(
      ParseHostPort("[::1]", PortRule::kNamed),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no port")));
}

TEST(AddressTest, PortZeroIsForListeningOnly) {
  EXPECT_OK(ParseHostPort("localhost:0", PortRule::kAnyFree));
  EXPECT_THAT(
      ParseHostPort("localhost:0", PortRule::kNamed),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("port 0")));
}

TEST(AddressTest, ErrorsShowTheRightForm) {
  for (const char* text :
       {"", "localhost", "localhost:", ":7077", "localhost:65536",
        "localhost:-1", "localhost:+1", "localhost:70 77", "localhost:http",
        "a b:1", "http://head:7077", "[::1:7077",
        "localhost:99999999999999999999"}) {
    SCOPED_TRACE(text);
    EXPECT_THAT(ParseHostPort(text, PortRule::kAnyFree),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("write HOST:PORT")));
  }
}

TEST(AddressTest, SeveralHaveCommasBetween) {
  ASSERT_OK_AND_ASSIGN(const auto addresses,
                       ParseHostPorts("a:1,[::1]:2,10.0.0.1:3"));
  ASSERT_EQ(addresses.size(), 3);
  EXPECT_EQ(addresses[1].ToString(), "[::1]:2");
  EXPECT_EQ(ParseHostPorts("a:1")->size(), 1);
  for (const char* text : {"", "a:1,", ",a:1", "a:1,,b:2", "a:1, b:2", "a:0"}) {
    EXPECT_THAT(ParseHostPorts(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("write HOST:PORT")))
        << text;
  }
  EXPECT_THAT(ParseHostPorts("a:1,b:1,a:1"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("twice")));
}

TEST(AddressTest, OnlyThisMachineIsLoopback) {
  EXPECT_TRUE(IsLoopback("127.0.0.1"));
  EXPECT_TRUE(IsLoopback("127.1.2.3"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_TRUE(IsLoopback("localhost"));
  EXPECT_FALSE(IsLoopback("0.0.0.0"));
  EXPECT_FALSE(IsLoopback("::"));
  EXPECT_FALSE(IsLoopback("head"));
}

}  // namespace
}  // namespace coxswain
