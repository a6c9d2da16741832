#include "client/session/nccl_ras.h"

#include <string>

#include "base/status_matchers.h"
#include "client/session/fake_ras_server.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr absl::Duration kShort = absl::Milliseconds(20);

TEST(NcclRasTest, TheStatusIsReadToItsEnd) {
  const std::string status =
      "NCCL version 2.28.9\nJob summary\n  Rank 1: ...\n";
  FakeRasServer server({"SERVER PROTOCOL 2\n", "OK\n", status});
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadNcclRas(server.address(), kTimeout));
  EXPECT_EQ(text, status);
  EXPECT_THAT(server.Finish(),
              ElementsAre("CLIENT PROTOCOL 2", "TIMEOUT 1", "VERBOSE STATUS"));
}

TEST(NcclRasTest, LocalhostIsNotLookedUp) {
  FakeRasServer server({"SERVER PROTOCOL 2\n", "OK\n", "fine\n"});
  const std::string port =
      server.address().substr(server.address().rfind(':') + 1);
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadNcclRas("localhost:" + port, kTimeout));
  EXPECT_EQ(text, "fine\n");
}

TEST(NcclRasTest, AnotherVersionOfTheProtocolIsTried) {
  FakeRasServer server({"server protocol 9\n", "ERROR: unknown\n", "fine\n"});
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadNcclRas(server.address(), kTimeout));
  EXPECT_EQ(text, "fine\n");
}

TEST(NcclRasTest, WhatTakesTooLongIsCut) {
  FakeRasServer server({"SERVER PROTOCOL 2\n", "OK\n", "Job summary\n"},
                       /*hangs=*/true);
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadNcclRas(server.address(), absl::Milliseconds(500)));
  EXPECT_THAT(text, AllOf(StartsWith("Job summary\n"),
                          HasSubstr("cut here: NCCL's RAS at"),
                          HasSubstr("did not answer in time")));
}

TEST(NcclRasTest, WhatIsTooLongIsCut) {
  FakeRasServer server(
      {"SERVER PROTOCOL 2\n", "OK\n", std::string(3 * kMostRasBytes, 'x')});
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadNcclRas(server.address(), kTimeout));
  EXPECT_THAT(text, AllOf(SizeIs(kMostRasBytes + 26),
                          EndsWith("x\n(cut here: it is longer)\n")));
}

TEST(NcclRasTest, APeerThatSendsNothingIsNotWaitedForLong) {
  FakeRasServer server({""}, /*hangs=*/true);
  EXPECT_THAT(ReadNcclRas(server.address(), kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr(server.address())));
}

TEST(NcclRasTest, APeerOfAnotherProtocolIsNotAsked) {
  for (const std::string& answer :
       {std::string("HTTP/1.1 400 Bad Request\n"), std::string(4000, 'x')}) {
    FakeRasServer server({answer}, /*hangs=*/true);
    EXPECT_THAT(ReadNcclRas(server.address(), kTimeout),
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr("its answer is not NCCL's RAS protocol")));
  }
  FakeRasServer silent({""});
  EXPECT_THAT(ReadNcclRas(silent.address(), kTimeout),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("it closed the connection")));
}

TEST(NcclRasTest, AMissingPeerIsUnavailable) {
  std::string address;
  {
    FakeRasServer server({});
    address = server.address();
  }
  EXPECT_THAT(ReadNcclRas(address, kTimeout),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
}

TEST(NcclRasTest, AnAddressHasAHostAndAPort) {
  for (const char* wrong : {"localhost", ":28028", "localhost:",
                            "localhost:ras", "gpu-node-7:28028"}) {
    EXPECT_THAT(ReadNcclRas(wrong, kTimeout),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(wrong), HasSubstr("NCCL_RAS_ADDR"))));
  }
}

}  // namespace
}  // namespace coxswain
