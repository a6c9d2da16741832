#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "client/comm/tcp/control_stream.h"
#include "client/comm/tcp/tcp_stream.h"
#include "client/comm/tcp/tls_ends_for_test.h"

// Control frames that travel encrypted.

namespace coxswain {
namespace {

// Both ends of an encrypted connection that is ready for control frames.
std::pair<TcpStream, TcpStream> ControlPair(int room) {
  auto [first, second] = SocketPair(room);
  TcpStream caller(std::move(first));
  TcpStream called(std::move(second));
  EXPECT_OK(caller.Encrypt(KeysOfRank(1), 0));
  EXPECT_OK(called.EncryptCalled(KeysOfRank(0)));
  char letter = 'x';
  const iovec part = {&letter, 1};
  absl::StatusOr<int64_t> received = 0;
  bool sent = false;
  while (received.ok() && *received == 0) {
    if (!sent) sent = caller.Send(&part, 1).value_or(0) > 0;
    received = called.Receive(&letter, 1);
  }
  EXPECT_OK(received);
  return {std::move(caller), std::move(called)};
}

// Else a long message would keep its reader from all others, and from its end.
TEST(TlsControlStreamTest, ReadingAFrameEndsAtItsLimit) {
  auto [caller, called] = ControlPair(/*room=*/150000);
  ControlStream from(std::move(caller));
  ControlStream to(std::move(called));
  std::string bytes(100000, 'y');
  ControlFrame frame;
  frame.bytes = static_cast<int64_t>(bytes.size());
  from.Queue(frame, bytes.data());
  ASSERT_OK(from.Flush());
  ASSERT_FALSE(from.has_output());
  std::string received(bytes.size(), ' ');
  bool complete = false;
  ControlStream::Handlers handlers;
  handlers.place = [&](const ControlFrame&) { return received.data(); };
  handlers.take = [&](const ControlFrame&) {
    complete = true;
    return absl::OkStatus();
  };
  // Of whole records.
  ASSERT_OK(to.Read(handlers, 1000));
  EXPECT_EQ(received.back(), ' ');
  for (int i = 0; i < 10 && !complete; ++i) {
    ASSERT_OK(to.Read(handlers, 30000));
  }
  EXPECT_TRUE(complete);
  EXPECT_TRUE(received == bytes);
}

// A frame of which the system has taken none may be on its way encrypted.
TEST(TlsControlStreamTest, AFrameThatIsHalfEncryptedCannotBeDropped) {
  auto [caller, called] = ControlPair(/*room=*/4096);
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
