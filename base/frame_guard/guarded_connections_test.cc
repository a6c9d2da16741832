#include "base/frame_guard/guarded_connections.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "gtest/gtest.h"
#include "tests/hostile/http2.h"

namespace coxswain {
namespace {

constexpr int kPort = 7777;
constexpr int64_t kNoLimit = int64_t{1} << 50;

GuardedConnections::Limits SmallLimits() {
  GuardedConnections::Limits limits;
  limits.held_bytes = 10'000;
  limits.own_held_bytes = 1000;
  limits.own_calls = 4;
  limits.bytes_of_a_call = 100;
  limits.resets = 20;
  limits.resets_per_second = 10;
  limits.own_resets = 5;
  limits.own_resets_per_second = 1;
  return limits;
}

class GuardedConnectionsTest : public testing::Test {
 protected:
  struct Client {
    std::shared_ptr<GuardedConnections::Connection> connection;
    uint32_t stream = 1;
    std::shared_ptr<bool> ended = std::make_shared<bool>(false);
  };

  Client Connect() {
    Client client;
    client.connection =
        connections_.Add(absl::StrCat("ipv4:10.0.0.1:", ++clients_), kPort,
                         [ended = client.ended] { *ended = true; });
    EXPECT_TRUE(Send(client, kHttp2Preface).ok());
    return client;
  }
  absl::Status Send(const Client& client, absl::string_view bytes) {
    return connections_.Scan(client.connection.get(), bytes);
  }
  absl::Status BeginCall(Client* client) {
    const std::string frame = Http2Frame(kHttp2Headers, kHttp2EndHeaders,
                                         client->stream, GrpcHeaders("/a/b"));
    client->stream += 2;
    return Send(*client, frame);
  }
  // A call that has sent so many bytes of a message that is longer.
  absl::Status Hold(Client* client, size_t bytes) {
    const absl::Status begun = BeginCall(client);
    if (!begun.ok()) return begun;
    const std::string message = GrpcMessage(std::string(bytes + 1, 'x'));
    return Send(*client, Http2Frame(kHttp2Data, 0, client->stream - 2,
                                    message.substr(0, message.size() - 1)));
  }
  absl::Status BeginAndReset(Client* client) {
    const absl::Status begun = BeginCall(client);
    if (!begun.ok()) return begun;
    return Send(*client, Http2Frame(kHttp2Reset, 0, client->stream - 2,
                                    std::string(4, '\0')));
  }

  FakeClock clock_;
  GuardedConnections connections_{SmallLimits(), &clock_};
  int clients_ = 0;
};

TEST_F(GuardedConnectionsTest, WhoHoldsMostEndsWhenAllHoldTooMuch) {
  Client heavy = Connect();
  EXPECT_TRUE(Hold(&heavy, 3000).ok());
  EXPECT_TRUE(Hold(&heavy, 3000).ok());
  Client light = Connect();
  EXPECT_TRUE(Hold(&light, 3900).ok());
  EXPECT_FALSE(*heavy.ended);
  EXPECT_EQ(connections_.held(), 9900);
  Client last = Connect();
  EXPECT_TRUE(Hold(&last, 900).ok());
  EXPECT_TRUE(*heavy.ended);
  EXPECT_FALSE(*light.ended);
  EXPECT_EQ(connections_.ended(), 1);
  EXPECT_EQ(connections_.held(), 4800);
  // What still comes of it is not read any more.
  EXPECT_EQ(BeginCall(&heavy).code(), absl::StatusCode::kUnavailable);
  connections_.Remove(heavy.connection);
  EXPECT_EQ(connections_.held(), 4800);
  EXPECT_EQ(connections_.ended(), 1);
}

TEST_F(GuardedConnectionsTest, WhoHoldsNoMoreThanEverybodyMayStays) {
  std::vector<Client> clients;
  for (int i = 0; i < 15; ++i) {
    clients.push_back(Connect());
    EXPECT_TRUE(Hold(&clients.back(), 1000).ok());
  }
  EXPECT_EQ(connections_.ended(), 0);
  // Who holds more does not, once all are looked at again.
  EXPECT_TRUE(Hold(&clients[3], 10).ok());
  EXPECT_FALSE(*clients[3].ended);
  clients.push_back(Connect());
  EXPECT_TRUE(Hold(&clients.back(), 900).ok());
  EXPECT_TRUE(*clients[3].ended);
  EXPECT_EQ(connections_.ended(), 1);
}

TEST_F(GuardedConnectionsTest, HowMuchMayBeHeldCanBeSaid) {
  connections_.SetMaxHeld(5000);
  Client client = Connect();
  EXPECT_TRUE(Hold(&client, 5000).ok());
  EXPECT_FALSE(*client.ended);
  EXPECT_TRUE(Hold(&client, 1).ok());
  EXPECT_TRUE(*client.ended);
}

TEST_F(GuardedConnectionsTest, CallsCountPastTheFirst) {
  Client client = Connect();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(BeginCall(&client).ok());
  EXPECT_EQ(connections_.held(), 0);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(BeginCall(&client).ok());
  EXPECT_EQ(connections_.held(), 10'000);
  EXPECT_FALSE(*client.ended);
  EXPECT_TRUE(BeginCall(&client).ok());
  EXPECT_TRUE(*client.ended);
}

TEST_F(GuardedConnectionsTest, WhatTheServerEndsCountsNoLonger) {
  Client client = Connect();
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(Hold(&client, 100).ok());
    connections_.EndCall(client.connection.get(), client.stream - 2);
  }
  EXPECT_EQ(connections_.held(), 0);
  EXPECT_FALSE(*client.ended);
}

TEST_F(GuardedConnectionsTest, WhoIsGoneHoldsNothing) {
  Client client = Connect();
  EXPECT_TRUE(Hold(&client, 5000).ok());
  connections_.Remove(client.connection);
  EXPECT_EQ(connections_.held(), 0);
  // gRPC may end its calls later.
  connections_.EndCall(client.connection.get(), 1);
  EXPECT_EQ(connections_.held(), 0);
}

TEST_F(GuardedConnectionsTest, WhoResetsManyEndsWhileAllResetTooMany) {
  Client one = Connect();
  Client other = Connect();
  for (int i = 0; i < 15; ++i) EXPECT_TRUE(BeginAndReset(&one).ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(BeginAndReset(&other).ok());
  const absl::Status status = BeginAndReset(&one);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(
      absl::StrContains(status.message(),
                        "it begins calls and resets them: 16 of its 16, while "
                        "clients together reset more than 10 in a second"))
      << status;
  EXPECT_EQ(connections_.ended(), 1);
  // Others are below what everybody may, or wait a little.
  Client third = Connect();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(BeginAndReset(&third).ok());
  EXPECT_FALSE(BeginAndReset(&other).ok());
  clock_.Advance(absl::Seconds(3));
  EXPECT_TRUE(BeginAndReset(&third).ok());
}

TEST_F(GuardedConnectionsTest, AResetNowAndThenIsNothing) {
  std::vector<Client> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(Connect());
  // All of them at once, as when a coordinator was away.
  for (int turn = 0; turn < 5; ++turn) {
    for (Client& client : clients) ASSERT_TRUE(BeginAndReset(&client).ok());
  }
  for (int turn = 0; turn < 100; ++turn) {
    clock_.Advance(absl::Seconds(1));
    for (Client& client : clients) ASSERT_TRUE(BeginAndReset(&client).ok());
  }
}

TEST_F(GuardedConnectionsTest, OneThatResetsIsNothingWhileOthersDoNot) {
  Client client = Connect();
  for (int i = 0; i < 1000; ++i) {
    clock_.Advance(absl::Milliseconds(100));
    ASSERT_TRUE(BeginAndReset(&client).ok());
  }
}

TEST_F(GuardedConnectionsTest, ResetsOfWhatTheServerHasEndedAreNone) {
  Client client = Connect();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(BeginCall(&client).ok());
    connections_.EndCall(client.connection.get(), client.stream - 2);
    ASSERT_TRUE(Send(client, Http2Frame(kHttp2Reset, 0, client.stream - 2,
                                        std::string(4, '\0')))
                    .ok());
  }
}

TEST_F(GuardedConnectionsTest, StrangersShareWhatTheySend) {
  GuardedConnections::Limits limits;
  limits.held_bytes = kNoLimit;
  limits.stranger_free_bytes = 1000;
  limits.strangers_bytes = 10'000;
  GuardedConnections connections(limits, &clock_);
  connections.Guard(kPort);
  const auto one = connections.Add("ipv4:10.0.0.1:1", kPort, [] {});
  const auto other = connections.Add("ipv4:10.0.0.1:2", kPort, [] {});
  const auto third = connections.Add("ipv4:10.0.0.1:3", kPort + 1, [] {});
  EXPECT_TRUE(connections.IsStranger("ipv4:10.0.0.1:1"));
  EXPECT_FALSE(connections.IsStranger("ipv4:10.0.0.1:3"));
  const std::string data = Http2Frame(kHttp2Data, 0, 1, std::string(8000, 'x'));
  EXPECT_TRUE(connections.Scan(one.get(), kHttp2Preface).ok());
  EXPECT_TRUE(connections.Scan(one.get(), data).ok());
  EXPECT_TRUE(connections.Scan(third.get(), kHttp2Preface).ok());
  EXPECT_TRUE(connections.Scan(third.get(), data).ok());
  EXPECT_TRUE(connections.Scan(other.get(), kHttp2Preface).ok());
  EXPECT_FALSE(connections.Scan(other.get(), data).ok());
  connections.Remove(other);
  // Whom somebody knows gives its share back.
  connections.Know("ipv4:10.0.0.1:1");
  EXPECT_TRUE(connections.Scan(one.get(), data).ok());
  const auto fourth = connections.Add("ipv4:10.0.0.1:4", kPort, [] {});
  EXPECT_TRUE(connections.Scan(fourth.get(), kHttp2Preface).ok());
  EXPECT_TRUE(connections.Scan(fourth.get(), data).ok());
  connections.Release(kPort);
}

}  // namespace
}  // namespace coxswain
