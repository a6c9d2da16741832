#include "client/comm/tcp/tls_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/data_key.h"
#include "client/comm/tcp/control_stream.h"
#include "client/comm/tcp/tcp_stream.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

std::shared_ptr<const TlsKeys> KeysOfRank(int rank) {
  CommunicatorOptions options;
  options.id = "world/7";
  options.rank = rank;
  options.size = 2;
  options.data_key =
      std::make_shared<DataKey>("mnist", 7, std::string(DataKey::kBytes, 'k'));
  auto keys = TlsKeys::Make(options);
  EXPECT_OK(keys);
  return *std::move(keys);
}

// Both ends of a connection, of whose bytes few fit into the system.
std::pair<UniqueFd, UniqueFd> SocketPair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
      0);
  const int few = 4096;
  for (const int fd : fds) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &few, sizeof(few));
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

class TlsChannelTest : public testing::Test {
 protected:
  void Open(int64_t bytes_by_one_key = TlsChannel::kBytesByOneKey) {
    auto [first, second] = SocketPair();
    auto caller =
        TlsChannel::Call(KeysOfRank(1), std::move(first), 0, bytes_by_one_key);
    auto called = TlsChannel::Answer(KeysOfRank(0), std::move(second));
    ASSERT_OK(caller);
    ASSERT_OK(called);
    caller_ = *std::move(caller);
    called_ = *std::move(called);
  }

  // Sends a text in two parts, and returns what arrives of it.
  static std::string Move(TlsChannel* from, TlsChannel* to,
                          const std::string& text, size_t head) {
    std::string received(text.size(), '\0');
    size_t sent_bytes = 0;
    size_t received_bytes = 0;
    while (received_bytes < text.size()) {
      const size_t of_head = std::min(sent_bytes, head);
      const size_t of_rest = sent_bytes - of_head;
      const iovec parts[] = {
          {const_cast<char*>(text.data()) + of_head, head - of_head},
          {const_cast<char*>(text.data()) + head + of_rest,
           text.size() - head - of_rest}};
      const auto sent = from->Send(parts, 2);
      EXPECT_OK(sent);
      const auto got =
          to->Receive(received.data() + received_bytes,
                      static_cast<int64_t>(received.size() - received_bytes));
      EXPECT_OK(got);
      if (!sent.ok() || !got.ok()) break;
      sent_bytes += static_cast<size_t>(*sent);
      received_bytes += static_cast<size_t>(*got);
    }
    return received;
  }

  static std::string Text(size_t bytes) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 / 3);
    return text;
  }

  std::unique_ptr<TlsChannel> caller_;
  std::unique_ptr<TlsChannel> called_;
};

TEST_F(TlsChannelTest, BytesArriveAsTheyWereSent) {
  for (const bool ahead : {false, true}) {
    Open();
    EXPECT_EQ(called_->peer(), -1);
    EXPECT_EQ(Move(caller_.get(), called_.get(), "hello", 2), "hello");
    EXPECT_EQ(called_->peer(), 1);
    EXPECT_EQ(caller_->peer(), 0);
    if (ahead) {
      caller_->ReadAhead();
      called_->ReadAhead();
    }
    for (const size_t bytes : {1, 40, 16384, 16385, 70000, 300001}) {
      const std::string text = Text(bytes);
      for (const size_t head : {0, 1, 40, 16384, 40000}) {
        const size_t first = std::min(head, bytes);
        EXPECT_TRUE(Move(caller_.get(), called_.get(), text, first) == text);
        EXPECT_TRUE(Move(called_.get(), caller_.get(), text, first) == text);
      }
    }
  }
}

TEST_F(TlsChannelTest, KeysChangeAmidTheBytes) {
  Open(/*bytes_by_one_key=*/30000);
  const std::string text = Text(1000000);
  EXPECT_TRUE(Move(caller_.get(), called_.get(), text, 40) == text);
  EXPECT_TRUE(Move(called_.get(), caller_.get(), text, 40) == text);
  EXPECT_TRUE(Move(caller_.get(), called_.get(), text, 40) == text);
}

TEST_F(TlsChannelTest, OfAStrangerOnlySoMuchIsRead) {
  Open();
  // A greeting of TLS that does not end.
  std::string bytes("\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03", 11);
  bytes.resize(8000);
  const iovec part = {bytes.data(), bytes.size()};
  char buffer[16];
  absl::StatusOr<int64_t> received = 0;
  size_t sent_bytes = 0;
  for (int i = 0; i < 100 && received.ok(); ++i) {
    const iovec rest = {bytes.data() + sent_bytes, part.iov_len - sent_bytes};
    const auto sent = SendSome(caller_->socket(), &rest, 1);
    if (sent.ok()) sent_bytes += static_cast<size_t>(*sent);
    received = called_->Receive(buffer, sizeof(buffer));
  }
  EXPECT_THAT(received, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("more than a handshake")));
  EXPECT_THAT(called_->Receive(buffer, sizeof(buffer)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("")));
}

TEST_F(TlsChannelTest, TheEndOfTheConnectionIsTheEnd) {
  Open();
  EXPECT_EQ(Move(caller_.get(), called_.get(), "hello", 2), "hello");
  char letters[] = "last";
  const iovec part = {letters, 4};
  EXPECT_OK(caller_->Send(&part, 1));
  EndSendingTcp(caller_->socket());
  char buffer[16];
  const auto received = called_->Receive(buffer, sizeof(buffer));
  ASSERT_OK(received);
  EXPECT_EQ(*received, 4);
  EXPECT_THAT(called_->Receive(buffer, sizeof(buffer)),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("it closed the connection")));
}

// A frame of which the system has taken none may be on its way encrypted.
TEST_F(TlsChannelTest, AFrameThatIsHalfEncryptedCannotBeDropped) {
  auto [first, second] = SocketPair();
  TcpStream caller(std::move(first));
  TcpStream called(std::move(second));
  ASSERT_OK(caller.Encrypt(KeysOfRank(1), 0));
  ASSERT_OK(called.EncryptCalled(KeysOfRank(0)));
  char letter = 'x';
  const iovec part = {&letter, 1};
  absl::StatusOr<int64_t> received = 0;
  bool sent = false;
  while (received.ok() && *received == 0) {
    if (!sent) sent = caller.Send(&part, 1).value_or(0) > 0;
    received = called.Receive(&letter, 1);
  }
  ASSERT_OK(received);
  ControlStream stream(std::move(caller));
  const std::string bytes(ControlFrame::kMaxInline, 'y');
  uint64_t id = 0;
  while (!stream.has_output()) {
    ControlFrame frame;
    frame.kind = ControlFrame::Kind::kAnnounce;
    frame.id = ++id;
    frame.bytes = static_cast<int64_t>(bytes.size());
    stream.Queue(frame, bytes.data());
    ASSERT_OK(stream.Flush());
  }
  ControlFrame next;
  next.id = id + 1;
  next.bytes = 5;
  stream.Queue(next, bytes.data());
  stream.Drop(id + 1);
  EXPECT_TRUE(stream.has_output());
  stream.Drop(id);
  EXPECT_FALSE(stream.has_output()) << "it has ended";
}

}  // namespace
}  // namespace coxswain
