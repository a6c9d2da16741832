#include "client/comm/shm/shm_channels.h"

#include <unistd.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::HasSubstr;
using Kind = PeerFrame::Kind;

// Rank 0, and what it sends to rank 1, which the test plays. Words of a
// channel's memory that the test writes: how many blocks are sent, and taken.
class ShmChannelsTest : public testing::Test {
 protected:
  static constexpr int64_t kSlotBytes = 64;
  static constexpr int64_t kSlots = 2;
  static constexpr size_t kSent = 0;
  static constexpr size_t kTaken = 64;
  // Where the first slot says what is in it: behind four lines.
  static constexpr size_t kCount = 256;
  static constexpr size_t kType = kCount + 8;
  static constexpr int64_t kBytes = 4 * 64 + kSlots * (64 + kSlotBytes);

  static ChannelOptions Options(uint32_t tag = 7) {
    return {1, tag, kSlotBytes, kSlots};
  }
  static PeerFrame Frame(Kind kind, uint64_t slots = kSlots,
                         int64_t slot_bytes = kSlotBytes, uint32_t tag = 7) {
    PeerFrame frame;
    frame.kind = kind;
    frame.tag = tag;
    frame.id = slots;
    frame.bytes = slot_bytes;
    return frame;
  }
  Span block() { return {block_.data(), kSlotBytes, DType::kUInt8, {}}; }

  // Opens a sender, whose memory becomes `memory_`.
  void OpenSender() {
    ASSERT_OK_AND_ASSIGN(sender_, channels_.OpenSender(Options()));
    ASSERT_OK(channels_.Take(1, Frame(Kind::kOpenReceiver), UniqueFd()));
    ASSERT_OK_AND_ASSIGN(memory_, Segment::Map(std::move(offered_), kBytes));
  }
  // Opens a receiver on memory of the test's.
  void OpenReceiver() {
    ASSERT_OK_AND_ASSIGN(receiver_, channels_.OpenReceiver(Options()));
    ASSERT_OK_AND_ASSIGN(memory_, Segment::Create(kBytes));
    ASSERT_OK(channels_.Take(1, Frame(Kind::kOpenSender),
                             UniqueFd(dup(memory_.fd()))));
  }
  template <typename Word>
  void Write(size_t at, Word value) {
    std::memcpy(memory_.data() + at, &value, sizeof(value));
  }

  std::vector<char> block_ = std::vector<char>(kSlotBytes);
  UniqueFd offered_;
  absl::Status fails_;
  Segment memory_;
  ShmChannels channels_{/*rank=*/0, /*size=*/2, "test",
                        [this](int, const PeerFrame&, int fd) {
                          if (fd >= 0) offered_ = UniqueFd(dup(fd));
                          return fails_;
                        },
                        std::make_shared<ByteCounter>(nullptr)};
  std::unique_ptr<ChannelSender> sender_;
  std::unique_ptr<ChannelReceiver> receiver_;
};

TEST_F(ShmChannelsTest, MoreBlocksTakenThanSentEndTheChannel) {
  OpenSender();
  ASSERT_OK(sender_->Send(block(), absl::ZeroDuration()));
  Write<uint64_t>(kTaken, 2);
  const auto broken = StatusIs(absl::StatusCode::kInternal,
                               HasSubstr("rank 1 has overwritten its memory"));
  EXPECT_THAT(sender_->Send(block(), absl::ZeroDuration()), broken);
  EXPECT_THAT(sender_->Drain(absl::ZeroDuration()), broken);
  Write<uint64_t>(kTaken, 0);
  EXPECT_THAT(sender_->Send(block(), absl::ZeroDuration()), broken);
}

TEST_F(ShmChannelsTest, AnEndOfWhichThePeerCannotBeNotifiedIsClosed) {
  fails_ = absl::DeadlineExceededError("it does not read");
  EXPECT_THAT(channels_.OpenSender(Options()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("it does not read")));
}

TEST_F(ShmChannelsTest, MoreBlocksSentThanThereAreSlotsEndTheChannel) {
  OpenReceiver();
  Write<int64_t>(kCount, kSlotBytes);
  Write<uint32_t>(kType, static_cast<uint32_t>(DType::kUInt8));
  Write<uint64_t>(kSent, kSlots + 1);
  EXPECT_THAT(receiver_->Receive(block(), absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("rank 1 has overwritten its memory")));
}

// What the first slot says of its block.
struct Said {
  int64_t count;
  uint32_t dtype;
};
class ShmChannelsBlockTest : public ShmChannelsTest,
                             public testing::WithParamInterface<Said> {};

TEST_P(ShmChannelsBlockTest, ThatFitsNoSlotIsNotRead) {
  OpenReceiver();
  Write(kCount, GetParam().count);
  Write(kType, GetParam().dtype);
  Write<uint64_t>(kSent, 1);
  const Span whole = {block_.data(),
                      GetParam().count,
                      static_cast<DType>(GetParam().dtype),
                      {}};
  EXPECT_THAT(receiver_->Receive(whole, absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("rank 1 has overwritten its memory")));
}

constexpr auto kUInt8 = static_cast<uint32_t>(DType::kUInt8);
constexpr auto kDoubles = static_cast<uint32_t>(DType::kFloat64);
INSTANTIATE_TEST_SUITE_P(Blocks, ShmChannelsBlockTest,
                         testing::Values(Said{0, kUInt8}, Said{-1, kUInt8},
                                         Said{65, kUInt8}, Said{9, kDoubles},
                                         Said{int64_t{1} << 61, kDoubles},
                                         Said{1, kUInt8 + 1}));

TEST_F(ShmChannelsTest, FramesThatCannotBeAreRefused) {
  const auto invalid =
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(""));
  EXPECT_THAT(channels_.Take(1, Frame(Kind::kCloseSender), UniqueFd()),
              invalid);
  EXPECT_THAT(channels_.Take(1, Frame(Kind::kOpenReceiver, 0), UniqueFd()),
              invalid);
  EXPECT_THAT(
      channels_.Take(1, Frame(Kind::kOpenReceiver, kMaxChannelSlots + 1),
                     UniqueFd()),
      invalid);
  EXPECT_THAT(
      channels_.Take(1, Frame(Kind::kOpenReceiver, ~uint64_t{0}), UniqueFd()),
      invalid);
  EXPECT_THAT(channels_.Take(1, Frame(Kind::kOpenReceiver, 2, kMaxChannelBytes),
                             UniqueFd()),
              invalid);
  // A sender without memory, and with too little of it.
  EXPECT_THAT(channels_.Take(1, Frame(Kind::kOpenSender), UniqueFd()), invalid);
  ASSERT_OK_AND_ASSIGN(const Segment small, Segment::Create(100));
  EXPECT_THAT(
      channels_.Take(1, Frame(Kind::kOpenSender), UniqueFd(dup(small.fd()))),
      invalid);
  ASSERT_OK(channels_.Take(1, Frame(Kind::kOpenReceiver), UniqueFd()));
  EXPECT_THAT(channels_.Take(1, Frame(Kind::kOpenReceiver), UniqueFd()),
              invalid);
}

TEST_F(ShmChannelsTest, MoreEndsThanThisRankOpensAreRefused) {
  for (uint32_t tag = 0; tag < kMaxUnopenedChannels; ++tag) {
    ASSERT_OK(channels_.Take(
        1, Frame(Kind::kOpenReceiver, kSlots, kSlotBytes, tag), UniqueFd()));
  }
  EXPECT_THAT(channels_.Take(1,
                             Frame(Kind::kOpenReceiver, kSlots, kSlotBytes,
                                   kMaxUnopenedChannels),
                             UniqueFd()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("256")));
}

}  // namespace
}  // namespace coxswain
