#include "client/reduce/root_broadcast.h"

#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "base/status_matchers.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/reduce/counted_buffers_for_test.h"

namespace coxswain::root_broadcast_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);
constexpr int64_t kMiB = 1 << 20;

void OnRanks(int size, const std::function<void(int, Communicator*)>& body) {
  const auto world = InProcessWorld::Create(size, kSoon);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    std::shared_ptr<Communicator> communicator = world->MakeRank(rank);
    threads.emplace_back([=] { body(rank, communicator.get()); });
  }
  for (auto& thread : threads) thread.join();
}

template <typename T>
Span SpanOf(std::vector<T>* values, DType dtype) {
  Span span;
  span.data = values->data();
  span.count = static_cast<int64_t>(values->size());
  span.dtype = dtype;
  return span;
}
Span SpanOf(std::vector<float>* values) {
  return SpanOf(values, DType::kFloat32);
}

TEST(RootBroadcastTest, SmallSpansTravelTogetherAndLargeOnesAlone) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    constexpr int kRoot = 1;
    // Less than, more than and almost one packet, to come in three.
    std::vector<std::vector<float>> values;
    for (const int64_t count :
         {int64_t{3}, 7 * kMiB, 6 * kMiB, int64_t{0}, kMiB}) {
      values.emplace_back(count);
      std::iota(values.back().begin(), values.back().end(),
                rank == kRoot ? 5.0f : 0.0f);
    }
    std::vector<Span> spans;
    for (auto& value : values) spans.push_back(SpanOf(&value));
    const int64_t before = communicator->sequence();
    ASSERT_OK(BroadcastSpans(*communicator, spans, kRoot, kSoon));
    EXPECT_EQ(communicator->sequence() - before, 3);
    for (const auto& value : values) {
      std::vector<float> expected(value.size());
      std::iota(expected.begin(), expected.end(), 5.0f);
      EXPECT_TRUE(value == expected);
    }
  });
}

TEST(RootBroadcastTest, MixedTypesShareAPacket) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    std::vector<uint8_t> bytes = {1, 2, 3};
    std::vector<double> doubles = {4.5, -0.0};
    std::vector<int64_t> integers = {int64_t{1} << 60};
    if (rank != 0) {
      bytes.assign(3, 0);
      doubles.assign(2, 7);
      integers.assign(1, 0);
    }
    ASSERT_OK(BroadcastSpans(
        *communicator,
        {SpanOf(&bytes, DType::kUInt8), SpanOf(&doubles, DType::kFloat64),
         SpanOf(&integers, DType::kInt64)},
        0, kSoon));
    EXPECT_EQ(communicator->sequence(), 1);
    EXPECT_EQ(bytes, std::vector<uint8_t>({1, 2, 3}));
    EXPECT_EQ(doubles, std::vector<double>({4.5, 0}));
    EXPECT_TRUE(std::signbit(doubles[1]));
    EXPECT_EQ(integers, std::vector<int64_t>({int64_t{1} << 60}));
  });
}

TEST(RootBroadcastTest, NothingToSendNeedsNoCollective) {
  LoopbackCommunicator communicator;
  std::vector<float> nothing;
  EXPECT_OK(BroadcastSpans(communicator, {}, 0, kSoon));
  EXPECT_OK(BroadcastSpans(communicator, {SpanOf(&nothing)}, 0, kSoon));
  EXPECT_EQ(communicator.sequence(), 0);
}

TEST(RootBroadcastTest, OnlyHostMemoryIsTaken) {
  LoopbackCommunicator communicator;
  std::vector<float> value(3);
  Span elsewhere = SpanOf(&value);
  elsewhere.device.kind = Device::Kind::kCuda;
  EXPECT_THAT(
      BroadcastSpans(communicator, {elsewhere}, 0, kSoon),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("broadcast: ")));
  // Refused before anything began.
  EXPECT_OK(BroadcastSpans(communicator, {SpanOf(&value)}, 0, kSoon));
}

TEST(RootBroadcastTest, ARootThatIsNoRankIsAnError) {
  LoopbackCommunicator communicator;
  std::vector<float> value(3);
  EXPECT_THAT(BroadcastSpans(communicator, {SpanOf(&value)}, 1, kSoon),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("broadcast: "), HasSubstr("root 1"))));
}

TEST(RootBroadcastTest, AFailureAbortsTheCommunicatorAndEndsThePeersWaits) {
  const auto world = InProcessWorld::Create(2, kSoon);
  HeldCommunicator failing(world->MakeRank(0));
  failing.Fail(0, absl::UnavailableError("the line went dead"));
  failing.Open();
  std::vector<float> here(3);
  std::vector<float> there(3);
  std::thread peer([&] {
    const auto communicator = world->MakeRank(1);
    EXPECT_THAT(
        BroadcastSpans(*communicator, {SpanOf(&there)}, 0, kSoon),
        StatusIs(absl::StatusCode::kUnavailable, HasSubstr("broadcast: ")));
  });
  EXPECT_THAT(BroadcastSpans(failing, {SpanOf(&here)}, 0, kSoon),
              StatusIs(absl::StatusCode::kUnavailable,
                       "broadcast: the line went dead"));
  peer.join();
}

// Its broadcasts end when the test ends them, aborted or not.
class DeafCommunicator : public CountedBuffers<LoopbackCommunicator> {
 public:
  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override {
    if (no_memory) return absl::ResourceExhaustedError("no memory");
    return CountedBuffers::AllocateBuffer(count, dtype);
  }
  void Abort(absl::string_view reason) override {
    aborted = std::string(reason);
    if (!ends_when_aborted) return;
    // As a back end does: soon, by a thread of its own.
    ending = std::thread(
        [this] { broadcast->Complete(absl::AbortedError(aborted)); });
  }
  ~DeafCommunicator() override {
    if (ending.joinable()) ending.join();
  }

  const WorkPtr broadcast = std::make_shared<Work>();
  std::string aborted;
  bool no_memory = false;
  bool ends_when_aborted = false;
  std::thread ending;

 protected:
  WorkPtr DoBroadcast(Span, int) override { return broadcast; }
};

TEST(RootBroadcastTest, PastItsTimeoutAPackKeepsItsMemoryUntilItEnds) {
  DeafCommunicator communicator;
  std::vector<float> value(3);
  EXPECT_THAT(
      BroadcastSpans(communicator, {SpanOf(&value)}, 0, absl::Milliseconds(10)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("broadcast: ")));
  EXPECT_THAT(communicator.aborted, HasSubstr("broadcast: "));
  EXPECT_EQ(communicator.buffers, 1);
  communicator.broadcast->Complete(absl::AbortedError("at last"));
  EXPECT_EQ(communicator.buffers, 0);
}

TEST(RootBroadcastTest, AnErrorIsReturnedWhenTheSpanIsFree) {
  DeafCommunicator communicator;
  communicator.ends_when_aborted = true;
  std::vector<float> large(7 * kMiB);
  // As long again does it wait for the end.
  EXPECT_THAT(
      BroadcastSpans(communicator, {SpanOf(&large)}, 0, absl::Seconds(1)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("broadcast: ")));
  EXPECT_TRUE(communicator.broadcast->Done());
}

TEST(RootBroadcastTest, WithoutMemoryThePeersNeedNotWait) {
  DeafCommunicator communicator;
  communicator.no_memory = true;
  std::vector<float> value(3);
  EXPECT_THAT(
      BroadcastSpans(communicator, {SpanOf(&value)}, 0, kSoon),
      StatusIs(absl::StatusCode::kResourceExhausted, "broadcast: no memory"));
  EXPECT_EQ(communicator.aborted, "broadcast: no memory");
}

}  // namespace
}  // namespace coxswain::root_broadcast_test
