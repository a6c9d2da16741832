#include "client/comm/tcp/tcp_communicator.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/float16.h"
#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/comm/work.h"
#include "tests/conformance/channel_conformance.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Group = std::vector<std::unique_ptr<Communicator>>;

constexpr absl::Duration kLong = absl::Minutes(1);

Group MakeGroup(int size, absl::Duration timeout) {
  return ConnectGroup(size, timeout, ConnectTcp);
}

Group MakeTunedGroup(int size, absl::Duration timeout,
                     const TcpTuning& tuning) {
  return ConnectGroup(size, timeout, [&](const CommunicatorOptions& options) {
    return ConnectTcpTuned(options, tuning);
  });
}

CommunicatorCase TcpCase() {
  CommunicatorCase result;
  result.name = "Tcp";
  result.make_group = MakeGroup;
  result.channels = true;
  result.mean = true;
  result.has_wire = true;
  return result;
}

// Nothing with the opening, many chunks, over several connections.
TcpTuning InChunksBy(int direct_ranks) {
  TcpTuning tuning;
  tuning.small_bytes = 0;
  tuning.chunk_bytes = 4096;
  tuning.stripes = 3;
  tuning.direct_ranks = direct_ranks;
  tuning.direct_bytes = std::numeric_limits<int64_t>::max();
  return tuning;
}

CommunicatorCase TunedCase(const std::string& name, int direct_ranks) {
  CommunicatorCase result;
  result.name = name;
  result.make_group = [direct_ranks](int size, absl::Duration timeout) {
    return MakeTunedGroup(size, timeout, InChunksBy(direct_ranks));
  };
  result.channels = true;
  result.mean = true;
  result.has_wire = true;
  return result;
}

// Even ranks, and then the odd ones backwards.
std::vector<int> MixedRing(int size) {
  std::vector<int> ring;
  for (int rank = 0; rank < size; rank += 2) ring.push_back(rank);
  for (int rank = size - 1; rank > 0; --rank) {
    if (rank % 2 == 1) ring.push_back(rank);
  }
  return ring;
}

Group MakeMixedGroup(int size, absl::Duration timeout) {
  TcpTuning tuning = InChunksBy(1);
  tuning.ring = MixedRing(size);
  return MakeTunedGroup(size, timeout, tuning);
}

CommunicatorCase MixedCase() {
  CommunicatorCase result = TunedCase("TcpMixedRing", 1);
  result.make_group = MakeMixedGroup;
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         testing::Values(TcpCase(), TunedCase("TcpDirect", 8),
                                         TunedCase("TcpRing", 1), MixedCase()),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Backends, ChannelConformance,
                         testing::Values(TcpCase()), CaseName);

// gcc's sanitizers end the process where there is no memory.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(TcpCommunicatorTest, WithoutMemoryForItsPeersNothingIsExchanged) {
  TcpTuning tuning;
  tuning.small_bytes = int64_t{1} << 60;
  tuning.small_total = tuning.small_bytes;
  const Group group = MakeTunedGroup(2, kLong, tuning);
  for (const auto& rank : group) {
    std::vector<float> data(8);
    Span span;
    span.data = data.data();
    span.count = 8;
    EXPECT_THAT(rank->AllReduce(span)->Wait(kLong),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("has no memory for the")));
  }
}
#endif

void OnEach(const Group& group,
            const std::function<void(int, Communicator&)>& run) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back(
        [&, rank] { run(static_cast<int>(rank), *group[rank]); });
  }
  for (auto& thread : threads) thread.join();
}

template <typename T>
Span SpanOf(std::vector<T>* data, DType dtype) {
  Span span;
  span.data = data->data();
  span.count = static_cast<int64_t>(data->size());
  span.dtype = dtype;
  return span;
}

// Small integers, whose sums are exact in every order.
float ValueOf(int rank, int64_t i) {
  return static_cast<float>((i * 7 + int64_t{rank} * 3) % 11);
}

// All-reduce, and reduce-scatter with all-gather, of `count` elements a rank.
void CheckSums(Communicator& comm, int64_t count) {
  const auto size = static_cast<size_t>(comm.size());
  std::vector<float> data(static_cast<size_t>(count) * size);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = ValueOf(comm.rank(), static_cast<int64_t>(i));
  }
  const std::vector<float> input = data;
  std::vector<float> slice(static_cast<size_t>(count));
  std::vector<float> gathered(data.size());
  const auto wait = [](const WorkPtr& work) { ASSERT_OK(work->Wait(kLong)); };
  wait(comm.ReduceScatter(SpanOf(&data, DType::kFloat32),
                          SpanOf(&slice, DType::kFloat32)));
  ASSERT_EQ(data, input) << "the input has changed";
  wait(comm.AllGather(SpanOf(&slice, DType::kFloat32),
                      SpanOf(&gathered, DType::kFloat32)));
  wait(comm.AllReduce(SpanOf(&data, DType::kFloat32)));
  for (size_t i = 0; i < data.size(); ++i) {
    float expected = 0;
    for (int rank = 0; rank < comm.size(); ++rank) {
      expected += ValueOf(rank, static_cast<int64_t>(i));
    }
    ASSERT_EQ(data[i], expected) << "element " << i << " of " << data.size();
    ASSERT_EQ(gathered[i], expected) << "element " << i;
  }
}

TEST(TcpCommunicatorTest, AllWaysGiveTheSumsAtAllSizes) {
  for (const int direct_ranks : {1, 8}) {
    for (const int size : {2, 3, 5}) {
      const Group group = MakeTunedGroup(size, kLong, InChunksBy(direct_ranks));
      OnEach(group, [](int, Communicator& comm) {
        // Around a chunk, several of them, and fewer elements than ranks.
        for (const int64_t count : {1, 3, 63, 1023, 1024, 1025, 8191, 20001}) {
          CheckSums(comm, count);
        }
      });
    }
  }
}

TEST(TcpCommunicatorTest, ARingInAnyOrderGivesTheSumsAtAllSizes) {
  for (const int size : {2, 3, 6}) {
    OnEach(MakeMixedGroup(size, kLong), [](int, Communicator& comm) {
      for (const int64_t count : {1, 3, 1025, 20001}) CheckSums(comm, count);
    });
  }
}

// Values that are rounded differently in each order.
TEST(TcpCommunicatorTest, ARingInAnyOrderGivesAllRanksTheSameBitsEachTime) {
  std::vector<std::vector<float>> sums;
  for (int run = 0; run < 2; ++run) {
    std::vector<std::vector<float>> data(5, std::vector<float>(9001));
    OnEach(MakeMixedGroup(5, kLong), [&](int rank, Communicator& comm) {
      std::vector<float>& own = data[static_cast<size_t>(rank)];
      for (size_t i = 0; i < own.size(); ++i) {
        own[i] = 1.0f / static_cast<float>(1 + (i + 31 * rank) % 997);
      }
      EXPECT_OK(comm.AllReduce(SpanOf(&own, DType::kFloat32))->Wait(kLong));
    });
    sums.insert(sums.end(), data.begin(), data.end());
  }
  for (const std::vector<float>& sum : sums) EXPECT_EQ(sum, sums[0]);
}

TEST(TcpCommunicatorTest, LargeOnesTakeTheirWayByThemselves) {
  for (const int size : {2, 3}) {
    OnEach(MakeGroup(size, kLong),
           [](int, Communicator& comm) { CheckSums(comm, 700001); });
  }
}

TEST(TcpCommunicatorTest, SixteenBitSumsAreRoundedOnce) {
  for (const int direct_ranks : {1, 8}) {
    for (const int64_t small_bytes : {0, 1 << 20}) {
      TcpTuning tuning = InChunksBy(direct_ranks);
      tuning.small_bytes = small_bytes;
      OnEach(MakeTunedGroup(3, kLong, tuning), [](int rank,
                                                  Communicator& comm) {
        // 256 + 1 + 1: rounded after each step it would stay 256 in bfloat16.
        std::vector<uint16_t> data(9000,
                                   FloatToBFloat16(rank == 0 ? 256.0f : 1.0f));
        ASSERT_OK(comm.AllReduce(SpanOf(&data, DType::kBFloat16))->Wait(kLong));
        for (const uint16_t value : data) {
          ASSERT_EQ(BFloat16ToFloat(value), 258.0f);
        }
      });
    }
  }
}

TEST(TcpCommunicatorTest, DifferentLargeCollectivesAreNoHarm) {
  OnEach(MakeGroup(3, kLong), [](int rank, Communicator& comm) {
    std::vector<float> data(500000, 1);
    Span span = SpanOf(&data, DType::kFloat32);
    // One of them sends its data with the opening.
    if (rank == 1) span.count = 100;
    EXPECT_THAT(comm.AllReduce(span)->Wait(kLong),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("begin different collectives"),
                               HasSubstr("rank 1 all-reduce (sum) of 100"))));
    EXPECT_EQ(data, std::vector<float>(500000, 1));
    EXPECT_OK(comm.AllReduce(SpanOf(&data, DType::kFloat32))->Wait(kLong));
    EXPECT_EQ(data[499999], 3);
  });
}

TEST(TcpCommunicatorTest, AWaitThatGivesUpLeavesTheOperationGoing) {
  const Group group = MakeGroup(2, kLong);
  std::vector<float> first = {1};
  std::vector<float> second = {2};
  const WorkPtr waiting = group[0]->AllReduce(SpanOf(&first, DType::kFloat32));
  EXPECT_THAT(waiting->Wait(absl::Milliseconds(5)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("")));
  EXPECT_OK(group[1]->AllReduce(SpanOf(&second, DType::kFloat32))->Wait(kLong));
  EXPECT_OK(waiting->Wait(kLong));
  EXPECT_EQ(first[0], 3);
  EXPECT_EQ(second[0], 3);
}

TEST(TcpCommunicatorTest, LongMessagesArriveWhileCollectivesRun) {
  OnEach(MakeGroup(2, kLong), [](int rank, Communicator& comm) {
    std::vector<float> sent(3 << 20, static_cast<float>(rank + 1));
    std::vector<float> received(sent.size());
    const WorkPtr send = comm.Send(SpanOf(&sent, DType::kFloat32), 1 - rank, 7);
    const WorkPtr receive =
        comm.Receive(SpanOf(&received, DType::kFloat32), 1 - rank, 7);
    for (int i = 0; i < 20; ++i) CheckSums(comm, 1000 << (i % 8));
    EXPECT_OK(receive->Wait(kLong));
    EXPECT_OK(send->Wait(kLong));
    EXPECT_EQ(received, std::vector<float>(sent.size(), 2 - rank));
  });
}

TEST(TcpCommunicatorTest, BothEndsOfAMessageThatDiffersAreTold) {
  const Group group = MakeGroup(2, kLong);
  for (const size_t count : {8, 100000}) {
    std::vector<float> from(count), to(count - 1);
    const WorkPtr sent = group[0]->Send(SpanOf(&from, DType::kFloat32), 1, 5);
    const auto refused =
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("tag 5"), HasSubstr(absl::StrCat(count)),
                       HasSubstr(absl::StrCat(count - 1))));
    EXPECT_THAT(
        group[1]->Receive(SpanOf(&to, DType::kFloat32), 0, 5)->Wait(kLong),
        refused);
    EXPECT_THAT(sent->Wait(kLong), refused);
  }
}

TEST(TcpCommunicatorTest, AnAbortIsSeenByThePeersWithItsReason) {
  // Several times: the end of a message, the end of a connection and the reason
  // come to the peer's threads in any order.
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    const Group group = MakeGroup(2, kLong);
    const WorkPtr work = group[1]->Barrier();
    std::vector<float> data(10);
    const WorkPtr message =
        group[1]->Receive(SpanOf(&data, DType::kFloat32), 0, 1);
    group[0]->Abort("the hook broke");
    const absl::Status ends[] = {work->Wait(kLong), message->Wait(kLong)};
    int unavailable = 0;
    for (const absl::Status& end : ends) {
      ASSERT_THAT(std::string(end.message()),
                  HasSubstr("rank 0 gave up: the hook broke"));
      if (absl::IsUnavailable(end)) ++unavailable;
    }
    // The other one may have ended because the first did.
    ASSERT_GE(unavailable, 1) << ends[0] << "; " << ends[1];
  }
}

TEST(TcpCommunicatorTest, AnAbortAmidALongAllReduceIsSeenByThePeers) {
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::vector<float>> data(3, std::vector<float>(2 << 20));
    const Group group = MakeGroup(3, kLong);
    std::vector<WorkPtr> works;
    for (size_t rank = 0; rank < 3; ++rank) {
      works.push_back(
          group[rank]->AllReduce(SpanOf(&data[rank], DType::kFloat32)));
    }
    const int64_t bytes = SpanOf(&data[2], DType::kFloat32).bytes();
    while (group[2]->wire_bytes() < bytes * round / kRounds) {
      std::this_thread::yield();
    }
    group[2]->Abort("enough");
    for (size_t rank = 0; rank < 2; ++rank) {
      const absl::Status status = works[rank]->Wait(absl::Seconds(20));
      // Well, if this thread was too slow.
      EXPECT_TRUE(status.ok() || absl::IsUnavailable(status))
          << "round " << round << ", rank " << rank << ": " << status;
    }
    (void)works[2]->Wait(absl::Seconds(20));
  }
}

TEST(TcpCommunicatorTest, RanksThatLeaveAfterALargeAllReduceDisturbNoOther) {
  for (int round = 0; round < 20; ++round) {
    Group group = MakeGroup(4, kLong);
    std::vector<std::thread> threads;
    for (auto& communicator : group) {
      threads.emplace_back([&communicator] {
        std::vector<float> data(300000, 1);
        EXPECT_OK(communicator->AllReduce(SpanOf(&data, DType::kFloat32))
                      ->Wait(kLong));
        communicator.reset();
        EXPECT_EQ(data.back(), 4);
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

TEST(TcpCommunicatorTest, ASplitWithARankThatHasLeftEndsAtOnce) {
  Group group = MakeGroup(3, absl::Minutes(10));
  group[2].reset();
  EXPECT_THAT(group[0]->Split({0, 2}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2")));
  group.pop_back();
  OnEach(group, [](int, Communicator& comm) { EXPECT_OK(comm.Split({0, 1})); });
}

}  // namespace
}  // namespace coxswain
