#include "client/comm/tcp/control_stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

ControlFrame FrameOfChannel(ControlFrame::Kind kind, uint32_t tag, int sender,
                            uint64_t id) {
  ControlFrame frame;
  frame.kind = kind;
  frame.tag = tag;
  frame.id = id;
  frame.header.kind = CollectiveKind::kMessage;
  frame.header.root = sender;
  return frame;
}

class ControlStreamTest : public testing::Test {
 protected:
  using Kind = ControlFrame::Kind;

  static ControlStream Opened(int fd) {
    return ControlStream(TcpStream(UniqueFd(fd)));
  }

  ControlStreamTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    writer_ = std::make_unique<ControlStream>(Opened(ends[0]));
    reader_ = std::make_unique<ControlStream>(Opened(ends[1]));
  }

  // Writes and reads all there is.
  std::vector<ControlFrame> Arrived() {
    std::vector<ControlFrame> arrived;
    std::string bytes;
    ControlStream::Handlers handlers;
    handlers.place = [&](const ControlFrame& frame) {
      bytes.resize(static_cast<size_t>(frame.bytes));
      return bytes.data();
    };
    handlers.take = [&](const ControlFrame& frame) {
      arrived.push_back(frame);
      return absl::OkStatus();
    };
    do {
      EXPECT_OK(writer_->Flush());
      EXPECT_OK(reader_->Read(handlers, 1 << 20));
    } while (writer_->has_output());
    return arrived;
  }

  std::unique_ptr<ControlStream> writer_;
  std::unique_ptr<ControlStream> reader_;
};

TEST_F(ControlStreamTest, ACountTakesThePlaceOfOneThatIsNotBegun) {
  // Full to amid the first one's bytes.
  const std::string long_bytes(4 << 20, 'x');
  ControlFrame block = FrameOfChannel(Kind::kSlot, 1, 0, 0);
  block.bytes = static_cast<int64_t>(long_bytes.size());
  writer_->Queue(block, long_bytes.data());
  EXPECT_OK(writer_->Flush());
  ASSERT_TRUE(writer_->has_output());
  for (uint64_t blocks = 1; blocks <= 100; ++blocks) {
    writer_->Queue(FrameOfChannel(Kind::kFreed, 1, 1, blocks), nullptr);
    writer_->Queue(FrameOfChannel(Kind::kFreed, 1, 0, blocks + 1), nullptr);
    writer_->Queue(FrameOfChannel(Kind::kFreed, 2, 1, blocks + 2), nullptr);
  }
  writer_->Queue(FrameOfChannel(Kind::kClose, 1, 1, 0), nullptr);
  const std::vector<ControlFrame> arrived = Arrived();
  ASSERT_EQ(arrived.size(), 5u);
  EXPECT_EQ(arrived[1].id, 100u);
  EXPECT_EQ(arrived[2].id, 101u);
  EXPECT_EQ(arrived[3].id, 102u);
  EXPECT_EQ(arrived[4].kind, Kind::kClose);
}

TEST_F(ControlStreamTest, AnswersCountUntilTheyAreWritten) {
  for (const Kind kind : {Kind::kClear, Kind::kTaken, Kind::kRefused}) {
    writer_->Queue(FrameOfChannel(kind, 1, 0, 1), nullptr);
  }
  writer_->Queue(FrameOfChannel(Kind::kAnnounce, 1, 0, 1), nullptr);
  EXPECT_EQ(writer_->answers(), 3);
  EXPECT_EQ(Arrived().size(), 4u);
  EXPECT_EQ(writer_->answers(), 0);
}

}  // namespace
}  // namespace coxswain
