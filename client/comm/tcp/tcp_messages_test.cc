#include "client/comm/tcp/tcp_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/tcp/raw_tcp_peer_for_test.h"

namespace coxswain {
namespace {

TEST(TcpMessagesTest, APeerThatSendsAndDoesNotReadIsLost) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const UniqueFd peer(ends[1]);
  std::vector<TcpStream> streams(2);
  streams[1] = TcpStream(UniqueFd(ends[0]));
  PeerEnds peer_ends;
  TcpMessages messages(std::move(streams), /*rank=*/0, "test",
                       std::make_shared<ByteCounter>(nullptr), &peer_ends);
  ASSERT_OK(messages.Start());
  float value = 0;
  Span span;
  span.data = &value;
  span.count = 1;
  // More answers than fit between the two.
  constexpr int kMessages = TcpMessages::kMaxAnswers + 1024;
  TcpMessages::MessagePtr last;
  std::string sent;
  ControlFrame frame;
  frame.kind = ControlFrame::Kind::kAnnounce;
  frame.tag = 3;
  frame.bytes = sizeof(value);
  frame.header = HeaderOf(CollectiveKind::kMessage, span, ElementOp::kSum, 1);
  for (int i = 0; i < kMessages; ++i) {
    last = messages.PostReceive(1, 3, span);
    frame.id = static_cast<uint64_t>(i) + 1;
    sent += RawTcpPeer::Encoded(frame) + std::string(sizeof(value), '\0');
  }
  RawTcpPeer::Write(peer, sent);
  EXPECT_THAT(messages.Await(last, absl::Minutes(1)),
              StatusIs(absl::StatusCode::kUnavailable,
                       testing::HasSubstr("has not read 65536 answers")));
}

}  // namespace
}  // namespace coxswain
