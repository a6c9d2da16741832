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

TEST(TcpMessagesTest, ALookTakesAllThatHasArrived) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const UniqueFd peer(ends[1]);
  // More than one turn fits between the two.
  const int room = 1 << 20;
  setsockopt(peer.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
  std::vector<TcpStream> streams(2);
  streams[1] = TcpStream(UniqueFd(ends[0]));
  PeerEnds peer_ends;
  // Without Start, so that no thread looks as well.
  TcpMessages messages(std::move(streams), /*rank=*/0, "test",
                       std::make_shared<ByteCounter>(nullptr), &peer_ends);
  std::vector<char> data(ControlFrame::kMaxInline);
  Span span;
  span.data = data.data();
  span.count = static_cast<int64_t>(data.size());
  span.dtype = DType::kUInt8;
  ControlFrame frame;
  frame.kind = ControlFrame::Kind::kAnnounce;
  frame.tag = 3;
  frame.bytes = span.count;
  frame.header = HeaderOf(CollectiveKind::kMessage, span, ElementOp::kSum, 1);
  std::string sent;
  while (static_cast<int64_t>(sent.size()) < ControlStream::kTurnBytes) {
    messages.PostReceive(1, 3, span);
    ++frame.id;
    sent += RawTcpPeer::Encoded(frame) + std::string(data.size(), 'x');
  }
  const std::string why = "the hook broke";
  ControlFrame end;
  end.bytes = static_cast<int64_t>(why.size());
  sent += RawTcpPeer::Encoded(end) + why;
  const iovec part = {sent.data(), sent.size()};
  ASSERT_OK_AND_ASSIGN(const int64_t fits, SendSome(peer, &part, 1));
  ASSERT_EQ(fits, static_cast<int64_t>(sent.size()));
  messages.Look(1);
  EXPECT_THAT(peer_ends.Await(1, absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kUnavailable,
                       testing::HasSubstr("rank 1 gave up: the hook broke")));
}

}  // namespace
}  // namespace coxswain
