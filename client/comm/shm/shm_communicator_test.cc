#include "client/comm/shm/shm_communicator.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/float16.h"
#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "tests/conformance/channel_conformance.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::unique_ptr<Communicator>> MakeGroup(int size,
                                                     absl::Duration timeout) {
  return ConnectGroup(size, timeout, ConnectShm);
}

CommunicatorCase ShmCase() {
  CommunicatorCase result;
  result.name = "Shm";
  result.make_group = MakeGroup;
  result.mean = true;
  result.has_wire = true;
  result.channels = true;
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         testing::Values(ShmCase()), CaseName);
INSTANTIATE_TEST_SUITE_P(Backends, ChannelConformance,
                         testing::Values(ShmCase()), CaseName);

// Of several pieces; one rank's are in a buffer, and so are in the end all
// ranks'.
TEST(ShmCommunicatorTest, AMeanHasTheSameBitsWhereverItsElementsAre) {
  constexpr int64_t kCount = 3 * (1 << 18) + 12345;
  const auto group = MakeGroup(3, absl::Minutes(1));
  const auto value = [](int rank, int64_t i) {
    return static_cast<float>((i * 7 + rank * 13) % 1001) / 7.0F;
  };
  std::vector<float> expected(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    expected[static_cast<size_t>(i)] =
        value(0, i) / 3.0F + value(1, i) / 3.0F + value(2, i) / 3.0F;
  }
  std::vector<std::thread> threads;
  for (const auto& comm : group) {
    threads.emplace_back([&value, &expected, &comm] {
      for (const int shared : {1, 3}) {
        ASSERT_OK_AND_ASSIGN(const auto buffer,
                             comm->AllocateBuffer(kCount + 1, DType::kFloat32));
        auto* const data = static_cast<float*>(buffer->span().data);
        // The first elements behind the others, with a gap.
        const int64_t first = comm->rank() < shared ? 0 : 54321;
        std::vector<Span> parts = {buffer->span().Slice(0, kCount)};
        if (first > 0) {
          parts = {buffer->span().Slice(kCount + 1 - first, first),
                   buffer->span().Slice(0, kCount - first)};
        }
        const auto at = [&](int64_t i) -> float& {
          return i < first ? data[kCount + 1 - first + i] : data[i - first];
        };
        for (int64_t i = 0; i < kCount; ++i) at(i) = value(comm->rank(), i);
        ASSERT_OK(comm->AllReduceMean(parts)->Wait(absl::Minutes(1)));
        for (int64_t i = 0; i < kCount; ++i) {
          ASSERT_EQ(at(i), expected[static_cast<size_t>(i)]) << i;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ShmCommunicatorTest, AMissingRankIsNamed) {
  auto store = std::make_shared<MemoryStore>();
  EXPECT_THAT(
      ConnectShm(TestGroupOptions(0, 3, store, absl::Milliseconds(200))),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("rank 0 of 3 of communicator 'under-test'"),
                     HasSubstr("missing: rank 1, rank 2"))));
}

// Small integers, whose sums are exact in every type.
float ValueOf(int rank, int64_t i) {
  return static_cast<float>((i * 7 + rank * 3) % 11);
}

Span SpanOf(float* data, int64_t count) {
  Span span;
  span.data = data;
  span.count = count;
  return span;
}

void OnAll(const std::vector<std::unique_ptr<Communicator>>& group,
           const std::function<void(int, Communicator&)>& run) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back(
        [&, rank] { run(static_cast<int>(rank), *group[rank]); });
  }
  for (auto& thread : threads) thread.join();
}

// Where an all-reduce's data lies.
enum class Memory { kShared, kPrivate, kSharedOnRankZero };

void CheckAllReduce(Communicator& comm, int64_t count, int64_t offset,
                    Memory memory) {
  const bool shared = memory == Memory::kShared ||
                      (memory == Memory::kSharedOnRankZero && comm.rank() == 0);
  std::vector<float> own(static_cast<size_t>(count + offset));
  ASSERT_OK_AND_ASSIGN(const auto buffer,
                       comm.AllocateBuffer(count + offset, DType::kFloat32));
  float* const data =
      (shared ? static_cast<float*>(buffer->span().data) : own.data()) + offset;
  for (int64_t i = 0; i < count; ++i) data[i] = ValueOf(comm.rank(), i);
  ASSERT_OK(comm.AllReduce(SpanOf(data, count))->Wait(absl::Minutes(1)));
  for (int64_t i = 0; i < count; ++i) {
    float expected = 0;
    for (int rank = 0; rank < comm.size(); ++rank) expected += ValueOf(rank, i);
    ASSERT_EQ(data[i], expected) << "element " << i << " of " << count;
  }
  // No rank frees its buffer while others still read it.
  ASSERT_OK(comm.Barrier()->Wait(absl::Minutes(1)));
}

TEST(ShmAllReduceTest, AllPathsGiveTheSumAtAllSizesAndPlaces) {
  for (const int size : {1, 2, 3, 5, 16}) {
    const auto group = MakeGroup(size, absl::Minutes(1));
    OnAll(group, [](int, Communicator& comm) {
      for (const Memory memory :
           {Memory::kShared, Memory::kPrivate, Memory::kSharedOnRankZero}) {
        // Around a slot, a piece, and beyond several pieces.
        for (const int64_t count : {1, 2, 63, 64, 65, 1000, 8191, 8192, 8193,
                                    262143, 262144, 262145, 700001}) {
          if (comm.size() > 3 && count > 300000) continue;
          CheckAllReduce(comm, count, /*offset=*/count % 3, memory);
        }
      }
    });
  }
}

TEST(ShmCommunicatorTest, DifferentCollectivesAreAnErrorOnAllRanksAndNoHarm) {
  const auto group = MakeGroup(3, absl::Minutes(1));
  OnAll(group, [](int rank, Communicator& comm) {
    std::vector<float> data(20000, 1);
    for (const int64_t common : {4, 20000}) {
      const int64_t count = rank == 1 ? common - 1 : common;
      EXPECT_THAT(
          comm.AllReduce(SpanOf(data.data(), count))->Wait(absl::Minutes(1)),
          StatusIs(absl::StatusCode::kInvalidArgument,
                   AllOf(HasSubstr("begin different collectives"),
                         HasSubstr(absl::StrCat(common - 1)))));
    }
    data.assign(4, 2);
    EXPECT_OK(comm.AllReduce(SpanOf(data.data(), 4))->Wait(absl::Minutes(1)));
    EXPECT_EQ(data[0], 6);
  });
}

TEST(ShmCommunicatorTest, SixteenBitSumsAreRoundedOnce) {
  const auto group = MakeGroup(3, absl::Minutes(1));
  OnAll(group, [](int rank, Communicator& comm) {
    for (const size_t count : {size_t{8}, size_t{50000}}) {
      // 256 + 1 + 1: rounded after each step it would stay 256 in bfloat16.
      std::vector<uint16_t> data(count,
                                 FloatToBFloat16(rank == 0 ? 256.0f : 1.0f));
      Span span;
      span.data = data.data();
      span.count = static_cast<int64_t>(count);
      span.dtype = DType::kBFloat16;
      ASSERT_OK(comm.AllReduce(span)->Wait(absl::Minutes(1)));
      EXPECT_EQ(BFloat16ToFloat(data[count - 1]), 258.0f);
    }
  });
}

TEST(ShmCommunicatorTest, AWaitThatTimesOutDoesNotEndTheOperation) {
  const auto group = MakeGroup(2, absl::Minutes(1));
  float first = 1;
  float second = 2;
  const WorkPtr waiting = group[0]->AllReduce(SpanOf(&first, 1));
  EXPECT_THAT(waiting->Wait(absl::Milliseconds(5)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("")));
  const WorkPtr other = group[1]->AllReduce(SpanOf(&second, 1));
  EXPECT_OK(other->Wait(absl::Minutes(1)));
  EXPECT_OK(waiting->Wait(absl::Minutes(1)));
  EXPECT_EQ(first, 3);
  EXPECT_EQ(second, 3);
}

TEST(ShmCommunicatorTest, MessagesOfAnotherSizeAreRefused) {
  const auto group = MakeGroup(2, absl::Minutes(1));
  std::vector<float> data(8);
  const WorkPtr sent = group[0]->Send(SpanOf(data.data(), 8), 1, 5);
  EXPECT_THAT(
      group[1]->Receive(SpanOf(data.data(), 4), 0, 5)->Wait(absl::Minutes(1)),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("sent 32 bytes with tag 5, and 16")));
  EXPECT_OK(sent->Wait(absl::Minutes(1)));
}

TEST(ShmCommunicatorTest, ABufferOutlivesItsCommunicator) {
  auto group = MakeGroup(2, absl::Minutes(1));
  ASSERT_OK_AND_ASSIGN(const auto buffer,
                       group[0]->AllocateBuffer(100000, DType::kFloat32));
  group.clear();
  static_cast<float*>(buffer->span().data)[99999] = 1;
}

TEST(ShmCommunicatorTest, LeavesNothingInAnyFileSystem) {
  const auto files = [] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      names.push_back(entry.path().string());
    }
    return names;
  };
  const std::vector<std::string> before = files();
  const auto group = MakeGroup(2, absl::Minutes(1));
  ASSERT_OK_AND_ASSIGN(const auto buffer,
                       group[0]->AllocateBuffer(100000, DType::kFloat32));
  EXPECT_EQ(files(), before);
}

}  // namespace
}  // namespace coxswain
