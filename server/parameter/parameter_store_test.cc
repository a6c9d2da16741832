#include "server/parameter/parameter_store.h"

#include <cstring>
#include <memory>
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
using testing::ElementsAre;
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
    operation.range = {2 * number, 2, 4, 2};
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
  limits.max_operations = 3;
  MakeStore(limits);
  Participant(2);
  ASSERT_OK(rank(0).participant->Begin(Sum(1, 2 * kLarge + 4)));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kResourceExhausted,
                                          HasSubstr("max_tensor_bytes")));
  ASSERT_OK(rank(0).participant->Begin(Sum(2, kLarge)));
  ASSERT_OK(rank(0).Give(2, 0, std::string(kLarge, 'x')));
  EXPECT_THAT(rank(0).Failure(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_job_bytes of 100000")));
  ASSERT_OK(rank(0).participant->Begin(Sum(3, 4)));
  ASSERT_OK(rank(0).participant->Begin(Sum(4, 4)));
  EXPECT_THAT(rank(0).Failure(), StatusIs(absl::StatusCode::kResourceExhausted,
                                          HasSubstr("max_tensors")));
}

TEST_F(ParameterStoreTest, PullsThatWaitAreBoundedInNumberAndTime) {
  ParameterLimits limits;
  limits.max_waiting_pulls = 1;
  MakeStore(limits);
  std::vector<absl::Status> answers;
  const auto note = [&answers](const absl::StatusOr<KeptVersion>& version) {
    answers.push_back(version.status());
  };
  parameters_->Pull(fence_, "w", 0, absl::InfiniteDuration(), note);
  EXPECT_THAT(answers, IsEmpty());
  parameters_->Pull(fence_, "w", 0, absl::Minutes(1), note);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_THAT(answers[0], StatusIs(absl::StatusCode::kResourceExhausted,
                                   HasSubstr("max_waiting_pulls")));
  clock_.Advance(limits.max_timeout);
  parameters_->Tick(clock_.Now());
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_THAT(answers[1], StatusIs(absl::StatusCode::kDeadlineExceeded, _));
}

TEST_F(ParameterStoreTest, TheEndOfTheGenerationEndsStreamsAndPulls) {
  Participant(2);
  ASSERT_OK(rank(0).participant->Begin(Sum(1, 4)));
  absl::Status pulled;
  parameters_->Pull(fence_, "w", 0, absl::Minutes(1),
                    [&](const absl::StatusOr<KeptVersion>& version) {
                      pulled = version.status();
                    });
  parameters_->OnGenerationEnded("job", Generation(7),
                                 absl::AbortedError("rank 1 was lost"));
  EXPECT_THAT(pulled, StatusIs(absl::StatusCode::kAborted,
                               HasSubstr("rank 1 was lost")));
  ASSERT_TRUE(rank(0).outbox->ended().has_value());
  EXPECT_THAT(*rank(0).outbox->ended(),
              StatusIs(absl::StatusCode::kAborted, _));
  EXPECT_THAT(parameters_->JoinGroup(fence_, "other", 0, 1, rank(0).outbox),
              StatusIs(absl::StatusCode::kAborted, _));
}

TEST_F(ParameterStoreTest, WhatNoGenerationInheritsIsDropped) {
  TensorSpec spec;
  spec.bytes = 4;
  {
    ASSERT_OK_AND_ASSIGN(const auto push,
                         parameters_->StartPush(fence_, "w", 1, 0, spec));
    ASSERT_OK(push->Append(0, "abcd", Crc32c("abcd")));
    ASSERT_OK(push->Finish());
  }
  parameters_->OnGenerationEnded("job", Generation(7),
                                 absl::AbortedError("over"));
  clock_.Advance(absl::Minutes(9));
  parameters_->Tick(clock_.Now());
  EXPECT_GE(parameters_->bytes(), 4);
  clock_.Advance(absl::Minutes(2));
  parameters_->Tick(clock_.Now());
  EXPECT_EQ(parameters_->bytes(), 0);
}

TEST_F(ParameterStoreTest, APushThatBreaksOffLeavesNothing) {
  TensorSpec spec;
  spec.bytes = 8;
  absl::Status pulled;
  parameters_->Pull(fence_, "w", 3, absl::Minutes(1),
                    [&](const absl::StatusOr<KeptVersion>& version) {
                      pulled = version.status();
                    });
  {
    ASSERT_OK_AND_ASSIGN(const auto push,
                         parameters_->StartPush(fence_, "w", 3, 0, spec));
    EXPECT_THAT(parameters_->StartPush(fence_, "w", 3, 0, spec),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("another caller")));
    EXPECT_THAT(push->Append(0, "abcd", Crc32c("abcd")),
                StatusIs(absl::StatusCode::kDataLoss, _));
    EXPECT_THAT(push->Finish(), StatusIs(absl::StatusCode::kDataLoss, _));
  }
  EXPECT_THAT(pulled,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("push it again")));
  EXPECT_EQ(parameters_->bytes(), 0);
  EXPECT_THAT(*parameters_->List(fence_), IsEmpty());
}

TEST_F(ParameterStoreTest, NoPeerDeclaresMoreThanTheLimit) {
  EXPECT_THAT(
      parameters_->JoinGroup(fence_, "group", 0, 2'147'483'647, nullptr),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("max_parts of 16384")));
  TensorSpec spec;
  spec.reduction = Reduction::kConcat;
  spec.dtype = "int8";
  spec.bytes = 1;
  spec.parts = 1 << 30;
  EXPECT_THAT(parameters_->StartPush(fence_, "w", 1, 0, spec),
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
  TensorSpec spec;
  spec.reduction = Reduction::kSum;
  spec.bytes = 4;
  spec.parts = kSize;
  absl::Status pulled;
  parameters_->Pull(fence_, "w", 1, absl::Minutes(1),
                    [&](const absl::StatusOr<KeptVersion>& version) {
                      pulled = version.status();
                    });
  ASSERT_OK_AND_ASSIGN(const auto push,
                       parameters_->StartPush(fence_, "w", 1, 0, spec));
  clock_.Advance(absl::Minutes(1));
  parameters_->Tick(clock_.Now());
  const auto answer = outbox->Take();
  ASSERT_TRUE(answer.has_value());
  for (const absl::Status& status : {answer->status, pulled}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_LT(status.message().size(), 500u) << status;
  }
}

TEST_F(ParameterStoreTest, NamesHaveALimitWhereverTheyCome) {
  const std::string name(4096, 'n');
  absl::Status pulled;
  parameters_->Pull(fence_, name, 0, absl::Minutes(1),
                    [&](const absl::StatusOr<KeptVersion>& version) {
                      pulled = version.status();
                    });
  EXPECT_THAT(pulled, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("max_name_bytes")));
  EXPECT_THAT(parameters_->StartPush(fence_, name, 0, 0, {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_name_bytes")));
}

TEST_F(ParameterStoreTest, APushThatBreaksOffLosesNoOtherPart) {
  TensorSpec spec;
  spec.reduction = Reduction::kSum;
  spec.bytes = 4;
  spec.parts = 2;
  const std::string one = Floats({1});
  {
    ASSERT_OK_AND_ASSIGN(const auto first,
                         parameters_->StartPush(fence_, "w", 1, 0, spec));
    ASSERT_OK(first->Append(0, one, Crc32c(one)));
    EXPECT_EQ(*first->Finish(), false);
  }
  const int64_t with_one = parameters_->bytes();
  EXPECT_GE(with_one, 4);
  {
    ASSERT_OK_AND_ASSIGN(const auto broken,
                         parameters_->StartPush(fence_, "w", 1, 1, spec));
    ASSERT_OK(broken->Append(0, one, Crc32c(one)));
  }
  EXPECT_EQ(parameters_->bytes(), with_one);
  ASSERT_OK_AND_ASSIGN(const auto again,
                       parameters_->StartPush(fence_, "w", 1, 1, spec));
  ASSERT_OK(again->Append(0, one, Crc32c(one)));
  ASSERT_OK_AND_ASSIGN(const bool complete, again->Finish());
  EXPECT_TRUE(complete);
  EXPECT_THAT(*parameters_->List(fence_), SizeIs(1));
}

TEST_F(ParameterStoreTest, APushThatTheGenerationDoesNotOutliveFails) {
  TensorSpec spec;
  spec.bytes = 4;
  ASSERT_OK_AND_ASSIGN(const auto push,
                       parameters_->StartPush(fence_, "w", 1, 0, spec));
  ASSERT_OK(push->Append(0, "abcd", Crc32c("abcd")));
  parameters_->OnGenerationEnded("job", Generation(7),
                                 absl::AbortedError("over"));
  EXPECT_THAT(push->Finish(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("over")));
}

TEST_F(ParameterStoreTest, AGenerationThatAsksForNothingKeepsWhatItInherited) {
  TensorSpec spec;
  spec.bytes = 4;
  {
    ASSERT_OK_AND_ASSIGN(const auto push,
                         parameters_->StartPush(fence_, "w", 1, 0, spec));
    ASSERT_OK(push->Append(0, "abcd", Crc32c("abcd")));
    ASSERT_OK(push->Finish());
  }
  parameters_->OnGenerationEnded("job", Generation(7),
                                 absl::AbortedError("over"));
  GenerationBegin begin;
  begin.job = "job";
  begin.generation = Generation(8);
  parameters_->OnGenerationBegan(begin);
  clock_.Advance(absl::Hours(1));
  parameters_->Tick(clock_.Now());
  fence_.generation = Generation(8);
  EXPECT_THAT(*parameters_->List(fence_), SizeIs(1));
  // It is the one whose end counts now.
  parameters_->OnGenerationEnded("job", Generation(8),
                                 absl::AbortedError("over"));
  clock_.Advance(absl::Minutes(11));
  parameters_->Tick(clock_.Now());
  EXPECT_EQ(parameters_->bytes(), 0);
}

TEST_F(ParameterStoreTest, ANewGenerationEndsWhatTheOldOneHas) {
  Participant(2);
  ASSERT_OK(rank(0).participant->Begin(Sum(1, 4)));
  absl::Status pulled;
  parameters_->Pull(fence_, "w", 0, absl::Minutes(1),
                    [&](const absl::StatusOr<KeptVersion>& version) {
                      pulled = version.status();
                    });
  const Fence old = fence_;
  fence_.generation = Generation(8);
  ASSERT_OK(parameters_->List(fence_));
  EXPECT_THAT(pulled, StatusIs(absl::StatusCode::kAborted, _));
  ASSERT_TRUE(rank(0).outbox->ended().has_value());
  EXPECT_THAT(*rank(0).outbox->ended(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("generation 8")));
  EXPECT_GT(rank(0).wakes, 0);
  EXPECT_THAT(parameters_->List(old),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("join again")));
}

}  // namespace
}  // namespace coxswain::server
