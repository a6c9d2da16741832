#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/collective_header.h"
#include "client/comm/memory_store.h"
#include "client/comm/tcp/connections.h"
#include "client/comm/tcp/control_stream.h"
#include "client/comm/tcp/raw_tcp_peer_for_test.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/comm/tcp/tcp_messages.h"
#include "client/comm/work.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kMinute = absl::Minutes(1);

Span FloatSpan(std::vector<float>* data) {
  Span span;
  span.data = data->data();
  span.count = static_cast<int64_t>(data->size());
  return span;
}

auto IsOutOfPlace() {
  return StatusIs(absl::StatusCode::kUnavailable,
                  AllOf(HasSubstr("rank 1 is gone"),
                        HasSubstr("it sent a frame out of place")));
}

// Rank 0 of two, whose peer is a RawTcpPeer.
class TcpFailuresTest : public testing::Test {
 protected:
  // Connects both; `misbehave` runs while rank 0 still waits for its peer.
  void Connect(absl::Duration timeout,
               const std::function<void(RawTcpPeer*)>& misbehave = nullptr) {
    const CommunicatorOptions group =
        TestGroupOptions(0, 2, std::make_shared<MemoryStore>(), timeout);
    std::thread connecting([&] {
      auto connected = ConnectTcp(group);
      ASSERT_OK(connected);
      rank_0_ = *std::move(connected);
    });
    peer_.emplace(group);
    if (misbehave != nullptr) misbehave(&*peer_);
    peer_->Meet();
    connecting.join();
  }

  CollectiveHeader AllReduceHeader() {
    return HeaderOf(CollectiveKind::kAllReduce, FloatSpan(&data_));
  }
  absl::Status AllReduce() {
    return rank_0_->AllReduce(FloatSpan(&data_))->Wait(kMinute);
  }

  // Rank 1 begins this, with so many bytes of data announced.
  void Begin(const CollectiveHeader& header, uint32_t bytes) {
    RawTcpPeer::Write(peer_->data, RawTcpPeer::Opening(header, bytes));
  }

  // A frame about the first message of data_ between the two.
  ControlFrame MessageFrame(ControlFrame::Kind kind) {
    ControlFrame frame;
    frame.kind = kind;
    frame.tag = 3;
    frame.id = 1;
    frame.header = HeaderOf(CollectiveKind::kMessage, FloatSpan(&data_),
                            ElementOp::kSum, /*root=*/1);
    return frame;
  }
  void Control(const ControlFrame& frame) {
    RawTcpPeer::Write(peer_->control, RawTcpPeer::Encoded(frame));
  }

  std::vector<float> data_ = std::vector<float>(1 << 20, 1);
  std::unique_ptr<Communicator> rank_0_;
  std::optional<RawTcpPeer> peer_;
};

TEST_F(TcpFailuresTest, APeerThatIsKilledBeforeItBegins) {
  Connect(kMinute);
  const WorkPtr work = rank_0_->AllReduce(FloatSpan(&data_));
  peer_->control.Close();
  peer_->data.Close();
  EXPECT_THAT(work->Wait(kMinute),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("all-reduce (sum)"),
                             HasSubstr("rank 0 of communicator 'under-test'"),
                             HasSubstr("rank 1 is gone"))));
  EXPECT_THAT(AllReduce(), StatusIs(absl::StatusCode::kAborted,
                                    HasSubstr("an earlier operation failed")));
}

TEST_F(TcpFailuresTest, APeerThatIsKilledAmidItsData) {
  Connect(kMinute);
  const WorkPtr work = rank_0_->AllReduce(FloatSpan(&data_));
  Begin(AllReduceHeader(), 0);
  RawTcpPeer::Write(peer_->data, std::string(1 << 20, 'x'));
  // Rank 0 is past the opening: its data comes.
  RawTcpPeer::Read(peer_->data, 1000);
  peer_->control.Close();
  peer_->data.Close();
  EXPECT_THAT(work->Wait(kMinute), StatusIs(absl::StatusCode::kUnavailable,
                                            HasSubstr("rank 1 is gone")));
}

TEST_F(TcpFailuresTest, APeerThatIsSilent) {
  Connect(absl::Milliseconds(300));
  EXPECT_THAT(AllReduce(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 did not come within 300ms")));
}

TEST_F(TcpFailuresTest, APeerThatFallsSilentAmidItsData) {
  Connect(absl::Milliseconds(500));
  Begin(AllReduceHeader(), 0);
  RawTcpPeer::Write(peer_->data, std::string(1000, 'x'));
  EXPECT_THAT(AllReduce(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 did not come within 500ms")));
}

// The elements may be anything then. What lies between them has not been
// touched, and the memory is the program's again: under AddressSanitizer a
// later access is an error.
TEST_F(TcpFailuresTest, APeerThatStallsAmidAMeanInPlace) {
  constexpr int64_t kPart = 1 << 20;
  constexpr int64_t kGap = 1000;
  Connect(absl::Milliseconds(500));
  auto memory = std::make_unique<std::vector<float>>(2 * kPart + kGap, 7);
  const Span all = FloatSpan(memory.get());
  const WorkPtr work = rank_0_->AllReduceMean(
      {all.Slice(kPart + kGap, kPart), all.Slice(0, kPart)});
  Begin(HeaderOf(CollectiveKind::kMean, all.Slice(0, 2 * kPart)), 0);
  // Part of what rank 0 adds up.
  RawTcpPeer::Write(peer_->data, std::string(300 << 10, '\0'));
  RawTcpPeer::Read(peer_->data, 1000);
  EXPECT_THAT(work->Wait(kMinute),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("mean of 2097152 x float32"),
                             HasSubstr("rank 1 did not come within 500ms"))));
  for (int64_t i = kPart; i < kPart + kGap; ++i) {
    ASSERT_EQ((*memory)[static_cast<size_t>(i)], 7) << i;
  }
  memory.reset();
  EXPECT_THAT(AllReduce(), StatusIs(absl::StatusCode::kAborted,
                                    HasSubstr("an earlier operation failed")));
}

TEST_F(TcpFailuresTest, GarbageInPlaceOfACollective) {
  Connect(kMinute);
  RawTcpPeer::Write(peer_->data, std::string(4096, 'x'));
  EXPECT_THAT(AllReduce(), StatusIs(absl::StatusCode::kInternal,
                                    HasSubstr("rank 1 of communicator")));
}

TEST_F(TcpFailuresTest, MoreBytesThanThereIsRoomForAreNotRead) {
  Connect(kMinute);
  Begin(AllReduceHeader(), 0xfffffff0u);
  EXPECT_THAT(AllReduce(), StatusIs(absl::StatusCode::kInternal,
                                    HasSubstr("sends 4294967280 bytes")));
}

TEST_F(TcpFailuresTest, GarbageInPlaceOfAMessage) {
  Connect(kMinute);
  const WorkPtr work = rank_0_->Receive(FloatSpan(&data_), 1, 3);
  RawTcpPeer::Write(peer_->control, std::string(4096, 'x'));
  EXPECT_THAT(work->Wait(kMinute), StatusIs(absl::StatusCode::kUnavailable,
                                            HasSubstr("makes no sense")));
}

TEST_F(TcpFailuresTest, AnAnnouncementOfMoreThanItMayHold) {
  Connect(kMinute);
  const WorkPtr work = rank_0_->Receive(FloatSpan(&data_), 1, 3);
  ControlFrame frame = MessageFrame(ControlFrame::Kind::kAnnounce);
  frame.bytes = int64_t{1} << 40;
  Control(frame);
  EXPECT_THAT(work->Wait(kMinute), StatusIs(absl::StatusCode::kUnavailable,
                                            HasSubstr("more than it may")));
}

TEST_F(TcpFailuresTest, AMessageWithoutItsBytesIsNotTaken) {
  Connect(kMinute);
  const WorkPtr work = rank_0_->Receive(FloatSpan(&data_), 1, 3);
  Control(MessageFrame(ControlFrame::Kind::kAnnounce));
  RawTcpPeer::Read(peer_->control, ControlFrame::kFixed);  // it may come
  Control(MessageFrame(ControlFrame::Kind::kData));
  EXPECT_THAT(work->Wait(kMinute), IsOutOfPlace());
}

TEST_F(TcpFailuresTest, AMessageIsNotAskedForTwice) {
  Connect(kMinute);
  const WorkPtr work = rank_0_->Send(FloatSpan(&data_), 1, 3);
  Control(MessageFrame(ControlFrame::Kind::kClear));
  Control(MessageFrame(ControlFrame::Kind::kClear));
  EXPECT_THAT(work->Wait(kMinute), IsOutOfPlace());
}

TEST_F(TcpFailuresTest, AMessageIsNotTakenBeforeItHasCome) {
  // More than fits between two sockets: it is still read when the peer takes
  // it.
  data_.resize(32 << 20);
  Connect(kMinute);
  const WorkPtr work = rank_0_->Send(FloatSpan(&data_), 1, 3);
  Control(MessageFrame(ControlFrame::Kind::kClear));
  Control(MessageFrame(ControlFrame::Kind::kTaken));
  EXPECT_THAT(work->Wait(kMinute), IsOutOfPlace());
}

TEST_F(TcpFailuresTest, AMessageThatWasNotAskedForIsNotTaken) {
  Connect(kMinute);
  const WorkPtr work = rank_0_->Send(FloatSpan(&data_), 1, 3);
  Control(MessageFrame(ControlFrame::Kind::kTaken));
  EXPECT_THAT(work->Wait(kMinute), IsOutOfPlace());
}

TEST_F(TcpFailuresTest, MoreMessagesThanMayWaitAreNotHeld) {
  Connect(kMinute);
  const WorkPtr work = rank_0_->Receive(FloatSpan(&data_), 1, 4);
  for (uint64_t id = 1; id <= TcpMessages::kMaxAnnounced + 1; ++id) {
    ControlFrame frame = MessageFrame(ControlFrame::Kind::kAnnounce);
    frame.id = id;
    Control(frame);
  }
  EXPECT_THAT(work->Wait(kMinute),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 1"), HasSubstr("more than 256"))));
}

TEST_F(TcpFailuresTest, MessagesOfAPeerThatIsGoneEnd) {
  Connect(kMinute);
  const WorkPtr send = rank_0_->Send(FloatSpan(&data_), 1, 3);
  peer_->control.Close();
  EXPECT_THAT(send->Wait(kMinute),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("send"), HasSubstr("rank 1 is gone"))));
}

TEST_F(TcpFailuresTest, WhoseConnectionBrokeIsTold) {
  Connect(kMinute);
  Work lost;
  dynamic_cast<PeerLossSource&>(*rank_0_).WatchPeerLosses([&](int peer) {
    lost.Complete(absl::UnknownError(absl::StrCat("peer ", peer)));
  });
  peer_->control.Close();
  EXPECT_THAT(lost.Wait(kMinute),
              StatusIs(absl::StatusCode::kUnknown, "peer 1"));
}

// What rank 1 reads until rank 0 has ended the connection.
std::string Everything(const UniqueFd& control) {
  std::string all;
  while (true) {
    const std::string more = RawTcpPeer::Read(control, 1 << 20);
    all += more;
    if (more.size() < (1 << 20)) return all;
  }
}

TEST_F(TcpFailuresTest, AReasonArrivesBehindNoMessageThatHasNotBegun) {
  Connect(kMinute);
  // More than fits between two sockets.
  std::vector<WorkPtr> works;
  ControlFrame clear = MessageFrame(ControlFrame::Kind::kClear);
  for (clear.id = 1; clear.id <= 16; ++clear.id) {
    works.push_back(rank_0_->Send(FloatSpan(&data_), 1, 3));
    Control(clear);
  }
  const size_t begun = 17 * ControlFrame::kFixed + 1;
  EXPECT_EQ(RawTcpPeer::Read(peer_->control, begun).size(), begun);
  rank_0_->Abort("the hook broke");
  const std::string all = Everything(peer_->control);
  EXPECT_THAT(all, testing::EndsWith("the hook broke"));
  EXPECT_LT(all.size(), size_t{64} << 20);
}

TEST_F(TcpFailuresTest, AReasonArrivesBehindAMessageThatHasBegun) {
  data_.resize(4 << 20);
  Connect(kMinute);
  const WorkPtr work = rank_0_->Send(FloatSpan(&data_), 1, 3);
  Control(MessageFrame(ControlFrame::Kind::kClear));
  constexpr size_t kBegun = 2 * ControlFrame::kFixed + 1;
  EXPECT_EQ(RawTcpPeer::Read(peer_->control, kBegun).size(), kBegun);
  rank_0_->Abort("the hook broke");
  ASSERT_FALSE(work->Wait(kMinute).ok());
  // It is the program's again, and not what the peer gets.
  std::fill(data_.begin(), data_.end(), 7.0f);
  data_.clear();
  data_.shrink_to_fit();
  const std::string all = Everything(peer_->control);
  EXPECT_THAT(all, testing::EndsWith("the hook broke"));
  EXPECT_GE(all.size(), (size_t{16} << 20) - 1);
}

TEST_F(TcpFailuresTest, ConnectionsOfAnAbortedCommunicatorAreNotReported) {
  Connect(kMinute);
  std::atomic<int> told{0};
  dynamic_cast<PeerLossSource&>(*rank_0_).WatchPeerLosses(
      [&told](int) { ++told; });
  rank_0_->Abort("enough");
  peer_->control.Close();
  rank_0_.reset();
  EXPECT_EQ(told, 0);
}

TEST_F(TcpFailuresTest, StrangersDoNotDisturbConnecting) {
  std::vector<UniqueFd> silent;
  Connect(kMinute, [&](RawTcpPeer* peer) {
    const auto is_refused = [&](const UniqueFd& socket) {
      return RawTcpPeer::Read(socket, sizeof(TcpAnswerBytes)).empty();
    };
    EXPECT_TRUE(is_refused(peer->Call(std::string(5000, 'x'))));
    const auto wrong = [&](const std::function<void(TcpHello*)>& change) {
      TcpHello hello = peer->Hello(0);
      change(&hello);
      return is_refused(peer->Call(hello));
    };
    EXPECT_TRUE(wrong([](TcpHello* hello) { hello->communicator ^= 1; }));
    EXPECT_TRUE(wrong([](TcpHello* hello) { hello->call_token ^= 1; }));
    EXPECT_TRUE(wrong([](TcpHello* hello) { hello->size = 3; }));
    EXPECT_TRUE(wrong([](TcpHello* hello) { hello->from = 0; }));
    EXPECT_TRUE(wrong([](TcpHello* hello) { hello->from = 2; }));
    EXPECT_TRUE(wrong([](TcpHello* hello) { hello->to = 1; }));
    EXPECT_TRUE(wrong([](TcpHello* hello) { hello->index = 2; }));
    EXPECT_TRUE(wrong([](TcpHello* hello) { hello->count = 1; }));
    EXPECT_TRUE(wrong([](TcpHello* hello) { hello->count = 1000000; }));
    // Those that send nothing delay no other.
    for (int i = 0; i < kMaxStrangers / 2; ++i) {
      silent.push_back(peer->Call(std::string("CXSTCP01")));
    }
  });
  const WorkPtr work = rank_0_->Barrier();
  Begin(CollectiveHeader(), 0);
  EXPECT_OK(work->Wait(kMinute));
}

TEST_F(TcpFailuresTest, AConnectionIsNotTakenTwice) {
  Connect(kMinute, [&](RawTcpPeer* peer) {
    const UniqueFd first = peer->Call(peer->Hello(0));
    EXPECT_EQ(RawTcpPeer::Read(first, sizeof(TcpAnswerBytes)).size(),
              sizeof(TcpAnswerBytes));
    // This one is answered, and then closed.
    const UniqueFd second = peer->Call(peer->Hello(0));
    EXPECT_EQ(RawTcpPeer::Read(second, 100).size(), sizeof(TcpAnswerBytes));
    peer->data = peer->Call(peer->Hello(1));
  });
}

}  // namespace
}  // namespace coxswain
