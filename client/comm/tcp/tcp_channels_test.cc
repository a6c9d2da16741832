#include "client/comm/tcp/tcp_channels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

// What rank 0 sends is not written until the test says so.
class TcpChannelsTest : public testing::Test {
 protected:
  using Kind = ControlFrame::Kind;

  // A frame of rank 1 about the channel to it.
  static ControlFrame Answer(Kind kind, uint64_t id) {
    ControlFrame frame;
    frame.kind = kind;
    frame.tag = 7;
    frame.id = id;
    frame.header.kind = CollectiveKind::kMessage;
    frame.header.root = 0;
    if (kind == Kind::kOpen) frame.header.count = kSlotBytes;
    return frame;
  }

  absl::Status Send() {
    return sender_->Send(Span{block_.data(), kSlotBytes, DType::kUInt8, {}},
                         absl::ZeroDuration());
  }

  static constexpr int64_t kSlotBytes = 64;
  std::array<char, kSlotBytes> block_ = {};
  std::vector<std::shared_ptr<char>> being_written_;
  TcpChannels channels_{/*rank=*/0, "test",
                        [this](int, const ControlFrame&, const char*,
                               std::shared_ptr<char> memory) {
                          if (memory != nullptr)
                            being_written_.push_back(std::move(memory));
                        },
                        [](int, const char*, int64_t) {}};
  std::unique_ptr<ChannelSender> sender_;
};

TEST_F(TcpChannelsTest, ABlockThatIsStillBeingWrittenIsNotFreed) {
  auto sender = channels_.OpenSender({1, 7, kSlotBytes, 2});
  ASSERT_OK(sender);
  sender_ = *std::move(sender);
  ASSERT_OK(channels_.Take(1, Answer(Kind::kOpen, 2)));
  ASSERT_OK(Send());
  ASSERT_OK(Send());
  const auto invalid = StatusIs(absl::StatusCode::kInvalidArgument, testing::_);
  EXPECT_THAT(channels_.Take(1, Answer(Kind::kFreed, 1)), invalid);
  being_written_.erase(being_written_.begin());
  EXPECT_THAT(channels_.Take(1, Answer(Kind::kFreed, 2)), invalid);
  ASSERT_OK(channels_.Take(1, Answer(Kind::kFreed, 1)));
  ASSERT_OK(Send());
}

TEST_F(TcpChannelsTest, MoreEndsThanThePeerTakesAreNotOpened) {
  for (uint32_t tag = 0; tag < kMaxUnopenedChannels; ++tag) {
    ASSERT_OK(channels_.OpenSender({1, tag, kSlotBytes, 2}));
  }
  // Closed ones count with the peer.
  const ChannelOptions next = {1, kMaxUnopenedChannels, kSlotBytes, 2};
  EXPECT_THAT(channels_.OpenReceiver(next),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("rank 1 has not opened 256")));
  ASSERT_OK(channels_.OpenSender({2, 0, kSlotBytes, 2}));
  ASSERT_OK(channels_.Take(1, Answer(Kind::kOpen, 2)));
  ASSERT_OK(channels_.OpenReceiver(next));
}

}  // namespace
}  // namespace coxswain
