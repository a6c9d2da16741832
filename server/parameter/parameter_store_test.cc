#include "server/parameter/parameter_store.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "base/tensor_chunk.h"

namespace coxswain::server {
namespace {

using testing::_;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// One rank of a group, and what it was sent.
class TestRank {
 public:
  TestRank(ParameterStore* parameters, const Fence& fence, int rank, int size)
      : outbox(std::make_shared<Outbox>([this] { ++wakes; })) {
    auto taken = parameters->JoinGroup(fence, "group", rank, size, outbox);
    EXPECT_OK(taken);
    if (taken.ok()) participant = *std::move(taken);
  }

  absl::Status Give(uint64_t id, int64_t offset, const std::string& bytes) {
    return participant->Append(id, offset, bytes, Crc32c(bytes));
  }

  // Returns everything that waits: the bytes, or how it failed.
  std::string Bytes() {
    std::string bytes;
    while (auto delivery = outbox->Take()) {
      if (!delivery->status.ok()) {
        failures.push_back(delivery->status);
      } else {
        bytes += std::string(delivery->bytes());
        ++deliveries;
      }
    }
    return bytes;
  }
  absl::Status Failure() {
    Bytes();
    return failures.empty() ? absl::OkStatus() : failures.back();
  }

  std::shared_ptr<Outbox> outbox;
  std::unique_ptr<ParameterStore::Participant> participant;
  std::vector<absl::Status> failures;
  int deliveries = 0;
  int wakes = 0;
};

class ParameterStoreTest : public testing::Test {
 protected:
  ParameterStoreTest() {
    fence_.job = "job";
    fence_.generation = Generation(7);
    MakeStore({});
  }

  void MakeStore(const ParameterLimits& limits) {
    ranks_.clear();
    parameters_ = std::make_unique<ParameterStore>(limits, &clock_);
  }
  void Participant(int size) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(
          std::make_unique<TestRank>(parameters_.get(), fence_, rank, size));
    }
  }
  TestRank& rank(int number) { return *ranks_[static_cast<size_t>(number)]; }

  // Returns a reduction of all ranks' parts, the whole of which each rank
  // pulls.
  static CollectiveOperation Sum(uint64_t id, int64_t bytes,
                                 const std::string& dtype = "float32") {
    CollectiveOperation operation;
    operation.id = id;
    operation.name = "collective";
    operation.version = static_cast<int64_t>(id);
    operation.reduction = Reduction::kSum;
    operation.dtype = dtype;
    operation.bytes = bytes;
    operation.what = "all-reduce";
    operation.range = {0, bytes, 0, 1};
    operation.timeout = absl::Minutes(1);
    return operation;
  }
  static std::string Floats(const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }

  FakeClock clock_;
  Fence fence_;
  std::unique_ptr<ParameterStore> parameters_;
  std::vector<std::unique_ptr<TestRank>> ranks_;
};

TEST_F(ParameterStoreTest, SumsInTheOrderOfRanksWhateverTheOrderOfArrival) {
  Participant(3);
  // 1 in this order, and 0 in that of their arrival.
  const std::vector<float> values = {1e8f, -1e8f, 1.0f};
  for (const int number : {2, 1, 0}) {
    ASSERT_OK(rank(number).participant->Begin(Sum(1, 4)));
    EXPECT_THAT(rank(number).Bytes(), IsEmpty());
    ASSERT_OK(rank(number).Give(1, 0, Floats({values[number]})));
  }
  for (const auto& one : ranks_) EXPECT_EQ(one->Bytes(), Floats({1.0f}));
  ranks_.clear();
  EXPECT_EQ(parameters_->bytes(), 0);
}

TEST_F(ParameterStoreTest, AChunkIsSentBeforeTheNextOneHasCome) {
  Participant(2);
  const std::string first(kTensorChunkBytes, '\1'), second(8, '\2');
  const auto operation = Sum(1, kTensorChunkBytes + 8, "int8");
  for (const auto& one : ranks_) ASSERT_OK(one->participant->Begin(operation));
  ASSERT_OK(rank(0).Give(1, 0, first));
  ASSERT_OK(rank(0).Give(1, kTensorChunkBytes, second));
  ASSERT_OK(rank(1).Give(1, 0, first));
  EXPECT_EQ(rank(0).Bytes(), std::string(kTensorChunkBytes, '\2'));
  ASSERT_OK(rank(1).Give(1, kTensorChunkBytes, second));
  EXPECT_EQ(rank(0).Bytes(), std::string(8, '\4'));
  EXPECT_EQ(rank(0).deliveries, 2);
  EXPECT_EQ(rank(1).Bytes(),
            std::string(kTensorChunkBytes, '\2') + std::string(8, '\4'));
}

TEST_F(ParameterStoreTest, EachRankMayPullOtherRuns) {
  Participant(2);
  // An all-to-all: run r of each part goes to rank r.
  auto operation = Sum(1, 4, "uint8");
  operation.reduction = Reduction::kConcat;
  for (int number = 0; number < 2; ++number) {
    operation.range = {int64_t{2} * number, 2, 4, 2};
    ASSERT_OK(rank(number).participant->Begin(operation));
  }
  ASSERT_OK(rank(1).Give(1, 0, "wxyz"));
  ASSERT_OK(rank(0).Give(1, 0, "abcd"));
  EXPECT_EQ(rank(0).Bytes(), "abwx");
  EXPECT_EQ(rank(1).Bytes(), "cdyz");
}

TEST_F(ParameterStoreTest, ABarrierWaitsForAll) {
  Participant(3);
  auto barrier = Sum(1, 0);
  barrier.range = {};
  for (int number = 0; number < 3; ++number) {
    for (const auto& one : ranks_) {
      one->Bytes();
      EXPECT_EQ(one->deliveries, 0);
    }
    ASSERT_OK(rank(number).participant->Begin(barrier));
  }
  for (const auto& one : ranks_) {
    one->Bytes();
    EXPECT_EQ(one->deliveries, 1);
  }
}

TEST_F(ParameterStoreTest, ARankThatLeavesIsNamedToThoseWhoNeedIt) {
  Participant(3);
  ASSERT_OK(rank(0).participant->Begin(Sum(1, 4)));
  rank(2).participant.reset();
  EXPECT_THAT(rank(0).Failure(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2")));
  // Ranks that begin later get the same error, for this one and for others.
  ASSERT_OK(rank(1).participant->Begin(Sum(1, 4)));
  EXPECT_THAT(rank(1).Failure(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2")));
  ASSERT_OK(rank(1).participant->Begin(Sum(2, 4)));
  EXPECT_THAT(rank(1).Failure(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2")));
  EXPECT_THAT(rank(1).failures, SizeIs(2));
}

TEST_F(ParameterStoreTest, ARankMayLeaveOnceItHasGivenItsPart) {
  Participant(2);
  ASSERT_OK(rank(1).participant->Begin(Sum(1, 4)));
  ASSERT_OK(rank(1).Give(1, 0, Floats({2})));
  rank(1).participant.reset();
  ASSERT_OK(rank(0).participant->Begin(Sum(1, 4)));
  ASSERT_OK(rank(0).Give(1, 0, Floats({1})));
  EXPECT_EQ(rank(0).Bytes(), Floats({3}));
}

TEST_F(ParameterStoreTest, ADeadlineNamesWhoIsMissing) {
  Participant(3);
  ASSERT_OK(rank(1).participant->Begin(Sum(1, 4)));
  ASSERT_OK(rank(1).Give(1, 0, Floats({1})));
  parameters_->Tick(clock_.Now());
  EXPECT_OK(rank(1).Failure());
  clock_.Advance(absl::Minutes(1));
  parameters_->Tick(clock_.Now());
  EXPECT_THAT(rank(1).Failure(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                          HasSubstr("ranks 0, 2")));
}

TEST_F(ParameterStoreTest, WhatIsDamagedFailsForAll) {
  Participant(2);
  for (const auto& one : ranks_) ASSERT_OK(one->participant->Begin(Sum(1, 8)));
  ASSERT_OK(rank(0).participant->Append(1, 0, Floats({1, 2}), 0x1234));
  for (const auto& one : ranks_) {
    EXPECT_THAT(one->Failure(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum")));
  }
  // Chunks of it that are on their way are dropped.
  EXPECT_OK(rank(1).Give(1, 0, Floats({1, 2})));
  for (const auto& one : ranks_) ASSERT_OK(one->participant->Begin(Sum(2, 8)));
  ASSERT_OK(rank(1).Give(2, 4, Floats({1})));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kDataLoss,
                                          HasSubstr("should follow")));
  ranks_.clear();
  EXPECT_EQ(parameters_->bytes(), 0);
}

TEST_F(ParameterStoreTest, DifferentOperationsAreDistinguished) {
  Participant(2);
  ASSERT_OK(rank(0).participant->Begin(Sum(1, 4)));
  ASSERT_OK(rank(1).participant->Begin(Sum(1, 8, "float64")));
  for (const auto& one : ranks_) {
    EXPECT_THAT(one->Failure(), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("rank 1 all-reduce")));
  }
}

TEST_F(ParameterStoreTest, WhatMakesNoSenseIsRefused) {
  Participant(2);
  auto beyond = Sum(1, 8);
  beyond.range = {4, 8, 0, 1};
  ASSERT_OK(rank(0).participant->Begin(beyond));
  EXPECT_THAT(rank(0).Failure(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lie")));
  auto far = Sum(2, 8);
  far.range = {0, 4, int64_t{1} << 62, 2};
  ASSERT_OK(rank(0).participant->Begin(far));
  EXPECT_THAT(rank(0).Failure(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lie")));
  ASSERT_OK(rank(0).participant->Begin(Sum(3, 7)));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("7 bytes")));
  ASSERT_OK(rank(0).participant->Begin(Sum(4, 8, "float8")));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("'float8'")));
  // These are the stream's.
  EXPECT_THAT(rank(0).participant->Begin(Sum(4, 8)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rise")));
  EXPECT_THAT(
      rank(0).Give(9, 0, "x"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has not begun")));
  EXPECT_THAT(parameters_->JoinGroup(fence_, "group", 1, 2, rank(0).outbox),
              StatusIs(absl::StatusCode::kAlreadyExists, _));
}

TEST_F(ParameterStoreTest, LimitsHold) {
  constexpr int64_t kLarge = 100'000;
  ParameterLimits limits;
  limits.max_tensor_bytes = 2 * kLarge;
  limits.max_job_bytes = kLarge;
  limits.max_tensors = 2;
  limits.max_groups = 1;
  limits.max_operations = 3;
  MakeStore(limits);
  Participant(2);
  ASSERT_OK(rank(0).participant->Begin(Sum(1, 2 * kLarge + 4)));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kResourceExhausted,
                                          HasSubstr("max_tensor_bytes")));
  // What is concatenated has the bytes of all parts.
  auto gathered = Sum(2, kLarge + 4);
  gathered.reduction = Reduction::kConcat;
  ASSERT_OK(rank(0).participant->Begin(gathered));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kResourceExhausted,
                                          HasSubstr("2 times 100004 bytes")));
  ASSERT_OK(rank(0).participant->Begin(Sum(3, kLarge)));
  ASSERT_OK(rank(0).Give(3, 0, std::string(kLarge, 'x')));
  EXPECT_THAT(rank(0).Failure(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_job_bytes of 100000")));
  ASSERT_OK(rank(0).participant->Begin(Sum(4, 4)));
  ASSERT_OK(rank(0).participant->Begin(Sum(5, 4)));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kResourceExhausted,
                                          HasSubstr("max_tensors")));
  EXPECT_THAT(parameters_->JoinGroup(fence_, "other", 0, 1, nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_groups of 1")));
}

TEST_F(ParameterStoreTest, NoOperationWaitsLongerThanTheLimit) {
  ParameterLimits limits;
  limits.max_timeout = absl::Minutes(2);
  MakeStore(limits);
  Participant(2);
  auto operation = Sum(1, 4);
  operation.timeout = absl::InfiniteDuration();
  ASSERT_OK(rank(0).participant->Begin(operation));
  clock_.Advance(absl::Minutes(1));
  parameters_->Tick(clock_.Now());
  EXPECT_OK(rank(0).Failure());
  clock_.Advance(absl::Minutes(1));
  parameters_->Tick(clock_.Now());
  EXPECT_THAT(rank(0).Failure(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, _));
}

TEST_F(ParameterStoreTest, TheEndOfTheGenerationEndsStreams) {
  Participant(2);
  ASSERT_OK(rank(0).participant->Begin(Sum(1, 4)));
  parameters_->OnGenerationEnded("job", Generation(7),
                                 absl::AbortedError("rank 1 was lost"));
  for (const auto& one : ranks_) {
    ASSERT_TRUE(one->outbox->ended().has_value());
    EXPECT_THAT(*one->outbox->ended(), StatusIs(absl::StatusCode::kAborted,
                                                HasSubstr("rank 1 was lost")));
    EXPECT_GT(one->wakes, 0);
  }
  EXPECT_THAT(parameters_->JoinGroup(fence_, "other", 0, 1, rank(0).outbox),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("join again")));
}

TEST_F(ParameterStoreTest, TheNextGenerationHasGroupsOfItsOwn) {
  Participant(1);
  parameters_->OnGenerationEnded("job", Generation(7),
                                 absl::AbortedError("over"));
  fence_.generation = Generation(8);
  Participant(1);
  // The end of the old stream, which comes late, is that of no new group.
  rank(0).participant.reset();
  EXPECT_THAT(parameters_->JoinGroup(fence_, "group", 0, 1, rank(1).outbox),
              StatusIs(absl::StatusCode::kAlreadyExists, _));
  ASSERT_OK(rank(1).participant->Begin(Sum(1, 4)));
  ASSERT_OK(rank(1).Give(1, 0, Floats({3})));
  EXPECT_EQ(rank(1).Bytes(), Floats({3}));
}

TEST_F(ParameterStoreTest, NoPeerDeclaresMoreThanTheLimit) {
  EXPECT_THAT(
      parameters_->JoinGroup(fence_, "group", 0, 2'147'483'647, nullptr),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("max_parts of 16384")));
  Participant(2);
  auto many = Sum(1, 1024, "int8");
  many.range = {0, 1, 1, 1024};
  ASSERT_OK(rank(0).participant->Begin(many));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("sent 1024 runs")));
}

TEST_F(ParameterStoreTest, AReaderThatStallsLosesItsStream) {
  const auto outbox = std::make_shared<Outbox>([] {}, 1000);
  ASSERT_OK_AND_ASSIGN(const auto participant,
                       parameters_->JoinGroup(fence_, "group", 0, 2, outbox));
  uint64_t id = 0;
  while (!outbox->ended().has_value() && id < 1000) {
    ASSERT_OK(participant->Begin(Sum(++id, 7)));  // refused
  }
  ASSERT_TRUE(outbox->ended().has_value());
  EXPECT_THAT(*outbox->ended(), StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("max_outbox_bytes")));
  EXPECT_FALSE(outbox->Take().has_value());
  // One that reads does not.
  const auto read = std::make_shared<Outbox>([] {}, 1000);
  ASSERT_OK_AND_ASSIGN(const auto other,
                       parameters_->JoinGroup(fence_, "group", 1, 2, read));
  for (id = 1; id < 100; ++id) {
    ASSERT_OK(other->Begin(Sum(id, 7)));
    EXPECT_TRUE(read->Take().has_value());
  }
  EXPECT_FALSE(read->ended().has_value());
}

TEST_F(ParameterStoreTest, AReaderThatStallsCountsAgainstItsJob) {
  ParameterLimits limits;
  limits.max_job_bytes = 50'000;
  MakeStore(limits);
  Participant(2);
  uint64_t id = 0;
  while (!rank(0).outbox->ended().has_value() && id < 1000) {
    ASSERT_OK(rank(0).participant->Begin(Sum(++id, 7)));  // refused
  }
  ASSERT_TRUE(rank(0).outbox->ended().has_value());
  EXPECT_THAT(*rank(0).outbox->ended(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_job_bytes of 50000")));
  ranks_.clear();
  EXPECT_EQ(parameters_->bytes(), 0);
}

// As of a stream that has not ended yet.
TEST_F(ParameterStoreTest, WhatAnEndedGenerationHoldsCountsAgainstItsJob) {
  constexpr int64_t kBytes = 60'000;
  ParameterLimits limits;
  limits.max_job_bytes = 100'000;
  MakeStore(limits);
  const auto send = [](TestRank& rank, uint64_t id) {
    ASSERT_OK(rank.participant->Begin(Sum(id, kBytes)));
    ASSERT_OK(rank.Give(id, 0, std::string(kBytes, 'x')));
  };
  Participant(1);
  send(rank(0), 1);
  std::optional<Delivery> held = rank(0).outbox->Take();
  ASSERT_TRUE(held.has_value());
  ASSERT_NE(held->chunk, nullptr);
  parameters_->OnGenerationEnded(fence_.job, fence_.generation,
                                 absl::AbortedError("over"));
  EXPECT_GE(parameters_->bytes(), kBytes);
  Fence fence = fence_;
  fence.generation = Generation(8);
  TestRank next(parameters_.get(), fence, 0, 1);
  send(next, 1);
  EXPECT_THAT(next.Failure(), StatusIs(absl::StatusCode::kResourceExhausted,
                                       HasSubstr("max_job_bytes of 100000")));
  fence.job = "other";
  fence.generation = Generation(9);
  TestRank other(parameters_.get(), fence, 0, 1);
  send(other, 1);
  EXPECT_EQ(other.Bytes().size(), size_t{kBytes});
  held.reset();
  send(next, 2);
  EXPECT_EQ(next.Bytes().size(), size_t{kBytes});
}

TEST_F(ParameterStoreTest, AnOperationThatFailedIsForgottenWithItsLastChunk) {
  ParameterLimits limits;
  limits.max_operations = 1;
  MakeStore(limits);
  Participant(3);
  // Rank 1 has all that it asks for before its own part has come.
  auto operation = Sum(1, 4, "uint8");
  operation.reduction = Reduction::kConcat;
  for (const int number : {0, 1, 2}) {
    operation.range = {0, number == 1 ? 4 : 12, 0, 1};
    ASSERT_OK(rank(number).participant->Begin(operation));
  }
  ASSERT_OK(rank(0).Give(1, 0, "abcd"));
  EXPECT_EQ(rank(1).Bytes(), "abcd");
  rank(2).participant.reset();
  EXPECT_THAT(rank(0).Failure(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2")));
  ASSERT_OK(rank(1).Give(1, 0, "efgh"));
  EXPECT_OK(rank(1).participant->Begin(Sum(2, 4)));
}

TEST_F(ParameterStoreTest, ALongListOfTheMissingIsCut) {
  constexpr int kSize = 10'000;
  const auto outbox = std::make_shared<Outbox>([] {});
  ASSERT_OK_AND_ASSIGN(
      const auto participant,
      parameters_->JoinGroup(fence_, "group", 0, kSize, outbox));
  ASSERT_OK(participant->Begin(Sum(1, 4)));
  clock_.Advance(absl::Minutes(1));
  parameters_->Tick(clock_.Now());
  const auto answer = outbox->Take();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(answer->status.message().size(), 500u) << answer->status;
}

TEST_F(ParameterStoreTest, NamesHaveALimitWhereverTheyCome) {
  const std::string name(1025, 'n');
  EXPECT_THAT(parameters_->JoinGroup(fence_, name, 0, 1, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("1 to 1024 bytes, not 1025")));
  Participant(1);
  auto operation = Sum(1, 4);
  operation.name = name;
  ASSERT_OK(rank(0).participant->Begin(operation));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kResourceExhausted,
                                          HasSubstr("max_name_bytes")));
  operation = Sum(2, 4);
  operation.what = name;
  ASSERT_OK(rank(0).participant->Begin(operation));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kResourceExhausted,
                                          HasSubstr("max_name_bytes")));
  EXPECT_THAT(rank(0).failures, SizeIs(2));
}

}  // namespace
}  // namespace coxswain::server
