#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/device/await_for_test.h"
#include "client/device/emulated/emulated_runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/device/device_exchange.h"
#include "hooks/device/device_scratch.h"
#include "hooks/plain_hook.h"
#include "hooks/staged_hook.h"
#include "tests/conformance/stream_communicator.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(60);

// One rank on an emulated GPU.
class HookDeviceTest : public testing::Test {
 protected:
  // A bucket of these values.
  Bucket BucketOf(std::vector<float>& values) {
    Bucket bucket;
    bucket.data = {values.data(), static_cast<int64_t>(values.size()),
                   DType::kFloat32, runtime_.device()};
    return bucket;
  }

  EmulatedRuntime runtime_{2};
  StreamCommunicator rank_{InProcessWorld::Create(1)->MakeRank(0), runtime_};
};

TEST_F(HookDeviceTest, ScratchIsUsedAgainOnTheSameStream) {
  DeviceScratch scratch;
  void* first = nullptr;
  {
    ASSERT_OK_AND_ASSIGN(auto block, scratch.Take(rank_, 1000));
    first = block.get();
  }
  ASSERT_OK_AND_ASSIGN(auto again, scratch.Take(rank_, 900));
  EXPECT_EQ(again.get(), first);
  ASSERT_OK_AND_ASSIGN(auto other, scratch.Take(rank_, 900));
  EXPECT_NE(other.get(), first);
  // Not a block that is much too large.
  again.reset();
  ASSERT_OK_AND_ASSIGN(auto small, scratch.Take(rank_, 100));
  EXPECT_NE(small.get(), first);
  ASSERT_OK_AND_ASSIGN(auto none, scratch.Take(rank_, 0));
  EXPECT_NE(none.get(), nullptr);
}

TEST_F(HookDeviceTest, ScratchIsFreedWhenTheStreamIsThroughWithIt) {
  const int64_t before = runtime_.leaked();
  DeviceScratch scratch;
  runtime_.HoldStream(rank_.stream());
  {
    ASSERT_OK_AND_ASSIGN(auto block, scratch.Take(rank_, 1000));
    ASSERT_OK(runtime_.Fill(block.get(), 1, 1000, rank_.stream()));
    ASSERT_OK(scratch.Seal(rank_));
  }
  scratch.Clear();
  EXPECT_EQ(runtime_.leaked(), before + 2);  // with the event
  runtime_.ReleaseStream(rank_.stream());
  ASSERT_OK(AwaitStream(&runtime_, rank_.stream()));
  scratch.Clear();
  EXPECT_EQ(runtime_.leaked(), before);
}

TEST_F(HookDeviceTest, ABlockMayOutliveItsScratch) {
  const int64_t before = runtime_.leaked();
  auto scratch = std::make_unique<DeviceScratch>();
  ASSERT_OK_AND_ASSIGN(auto block, scratch->Take(rank_, 1000));
  ASSERT_OK_AND_ASSIGN(auto host, scratch->TakeHost(rank_, 1000));
  scratch.reset();
  EXPECT_EQ(runtime_.leaked(), before + 2);
  block.reset();
  host.reset();
  EXPECT_EQ(runtime_.leaked(), before);
}

TEST_F(HookDeviceTest, HostMemoryLeftInTheMiddleOfACopyIsNotGivenOutAgain) {
  DeviceScratch scratch;
  void* first = nullptr;
  {
    ASSERT_OK_AND_ASSIGN(auto block, scratch.TakeHost(rank_, 64));
    first = block->data;
  }
  {
    ASSERT_OK_AND_ASSIGN(auto block, scratch.TakeHost(rank_, 64));
    EXPECT_EQ(block->data, first);
    block->copying = true;
  }
  ASSERT_OK_AND_ASSIGN(auto block, scratch.TakeHost(rank_, 64));
  EXPECT_NE(block->data, first);
}

TEST_F(HookDeviceTest, ScratchFailsWhenMemoryIsOut) {
  DeviceScratch scratch;
  runtime_.FailAllocation(0);
  EXPECT_THAT(scratch.Take(rank_, 1000).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("")));
  EXPECT_OK(scratch.Take(rank_, 1000));
}

TEST_F(HookDeviceTest, ASequenceIsRecordedWithTheSecondUseOfItsMemory) {
  SequenceCache cache;
  std::vector<uint8_t> bytes(8);
  const Span span{bytes.data(), 8, DType::kUInt8, runtime_.device()};
  int calls = 0;
  const auto enqueue = [&] {
    ++calls;
    return runtime_.Fill(bytes.data(), 7, 8, rank_.stream());
  };
  for (int i = 0; i < 4; ++i) {
    bytes.assign(8, 0);
    ASSERT_OK(cache.Run(rank_, span, 0, enqueue));
    ASSERT_OK(AwaitStream(&runtime_, rank_.stream()));
    EXPECT_EQ(bytes, std::vector<uint8_t>(8, 7));
    EXPECT_EQ(rank_.recorded(), i == 0 ? 0 : 1);
    EXPECT_EQ(rank_.replayed(), i);
  }
  EXPECT_EQ(calls, 2);
  // Another part, other memory, another count.
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(cache.Run(rank_, span, 1, enqueue));
    ASSERT_OK(cache.Run(rank_, span.Slice(1, 7), 0, enqueue));
    ASSERT_OK(cache.Run(rank_, span.Slice(0, 7), 0, enqueue));
    EXPECT_EQ(rank_.recorded(), 1 + 3 * i);
  }
  EXPECT_EQ(calls, 8);
  cache.Clear();
  ASSERT_OK(cache.Run(rank_, span, 0, enqueue));
  EXPECT_EQ(rank_.recorded(), 4);
  ASSERT_OK(cache.Run(rank_, span, 0, enqueue));
  EXPECT_EQ(rank_.recorded(), 5);
  ASSERT_OK(AwaitStream(&runtime_, rank_.stream()));
}

TEST_F(HookDeviceTest, WithoutRecordingItIsEnqueuedEachTime) {
  StreamCommunicator plain(InProcessWorld::Create(1)->MakeRank(0), runtime_,
                           /*records=*/false);
  SequenceCache cache;
  const Span span{nullptr, 0, DType::kUInt8, runtime_.device()};
  int calls = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(cache.Run(plain, span, 0, [&] {
      ++calls;
      return absl::OkStatus();
    }));
  }
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(cache.size(), 0u);
}

TEST_F(HookDeviceTest, ASequenceThatCannotBeEnqueuedIsAnError) {
  SequenceCache cache;
  const Span span{nullptr, 0, DType::kUInt8, runtime_.device()};
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(
        cache.Run(rank_, span, 0, [] { return absl::InternalError("no way"); }),
        StatusIs(absl::StatusCode::kInternal, HasSubstr("no way")));
  }
  EXPECT_EQ(cache.size(), 0u);
}

TEST_F(HookDeviceTest, KeepsNoMoreSequencesThanItMay) {
  SequenceCache cache;
  const auto enqueue = [] { return absl::OkStatus(); };
  const Span span{nullptr, 0, DType::kUInt8, runtime_.device()};
  const auto most = static_cast<int64_t>(SequenceCache::kMost);
  for (int use = 0; use < 3; ++use) {
    for (int64_t part = 0; part < most + 5; ++part) {
      ASSERT_OK(cache.Run(rank_, span, part, enqueue));
    }
  }
  EXPECT_EQ(cache.size(), SequenceCache::kMost);
  EXPECT_EQ(rank_.recorded(), most);
}

TEST_F(HookDeviceTest, AnExchangeWaitsForTheGradients) {
  ASSERT_OK_AND_ASSIGN(const DeviceStream caller, runtime_.CreateStream());
  ASSERT_OK_AND_ASSIGN(const DeviceEvent ready, runtime_.CreateEvent());
  std::vector<float> values = {1, 2};
  const std::vector<float> gradients = {3, 4};
  std::vector<float> seen(2);
  Bucket bucket = BucketOf(values);
  bucket.ready = ready;
  runtime_.HoldStream(caller);
  ASSERT_OK(runtime_.Copy(values.data(), gradients.data(), 8, caller));
  ASSERT_OK(runtime_.Record(ready, caller));
  const auto exchange = MakeDeviceExchange(bucket, rank_, [&] {
    return runtime_.Copy(seen.data(), values.data(), 8, rank_.stream());
  });
  ASSERT_OK_AND_ASSIGN(const WorkPtr work, exchange->Advance());
  EXPECT_FALSE(work->Done());
  runtime_.ReleaseStream(caller);
  ASSERT_OK(work->Wait(kDeadline));
  EXPECT_EQ(seen, gradients);
  runtime_.DestroyEvent(ready);
  runtime_.DestroyStream(caller);
}

// Knows of no GPU: doubles a bucket in the host's memory.
class DoublingHook : public PlainHook {
 public:
  explicit DoublingHook(int calls) : PlainHook("doubling"), calls_(calls) {}

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    COXSWAIN_RETURN_IF_ERROR(CheckBucket(spec(), bucket));
    if (bucket.ready != nullptr) return absl::InternalError("an event");
    ++prepared_;
    return MakeExchange([this, data = bucket.data,
                         &communicator](int call) -> absl::StatusOr<WorkPtr> {
      if (call < calls_) return communicator.Barrier();
      auto* const values = static_cast<float*>(data.data);
      for (int64_t i = 0; i < data.count; ++i) values[i] *= 2;
      return WorkPtr();
    });
  }

  int prepared() const { return prepared_; }

 private:
  const int calls_;
  int prepared_ = 0;
};

// Advances to the end; returns how often.
int Drive(Exchange& exchange) {
  for (int calls = 1;; ++calls) {
    const auto work = exchange.Advance();
    EXPECT_OK(work);
    if (!work.ok() || *work == nullptr) return calls;
    EXPECT_OK((*work)->Wait(kDeadline));
  }
}

TEST_F(HookDeviceTest, AHookOfTheCpuIsStaged) {
  for (const int calls : {0, 1, 3}) {
    auto inner = std::make_unique<DoublingHook>(calls);
    const DoublingHook& doubling = *inner;
    const auto hook = MakeStagedHook(std::move(inner));
    EXPECT_EQ(hook->spec(), "doubling");
    ASSERT_OK(hook->Configure({}, 1));
    for (int step = 0; step < 2; ++step) {
      std::vector<float> values = {1, 2, 3};
      ASSERT_OK_AND_ASSIGN(auto exchange,
                           hook->Prepare(BucketOf(values), rank_));
      EXPECT_EQ(Drive(*exchange), calls + 3);
      EXPECT_EQ(values, (std::vector<float>{2, 4, 6}));
      ASSERT_OK(hook->Commit());
      EXPECT_EQ(doubling.prepared(), step + 1);
    }
    EXPECT_EQ(hook->step(), 2);
  }
}

TEST_F(HookDeviceTest, BucketsOfTheCpuGoStraightToTheHook) {
  const auto hook = MakeStagedHook(std::make_unique<DoublingHook>(0));
  std::vector<float> values = {1};
  Bucket bucket = BucketOf(values);
  bucket.data.device = Device();
  ASSERT_OK_AND_ASSIGN(auto exchange, hook->Prepare(bucket, rank_));
  EXPECT_EQ(Drive(*exchange), 1);
  EXPECT_EQ(values[0], 2);
}

// Given up with a copy under way: its memory stays for it.
TEST_F(HookDeviceTest, AStagedExchangeMayBeCancelled) {
  const auto hook = MakeStagedHook(std::make_unique<DoublingHook>(0));
  std::vector<float> values = {1, 2};
  runtime_.HoldStream(rank_.stream());
  {
    ASSERT_OK_AND_ASSIGN(auto exchange, hook->Prepare(BucketOf(values), rank_));
    ASSERT_OK(exchange->Advance());
  }
  hook->Rollback();
  ASSERT_OK(hook->Configure({}, 1));
  ASSERT_OK_AND_ASSIGN(auto exchange, hook->Prepare(BucketOf(values), rank_));
  runtime_.ReleaseStream(rank_.stream());
  EXPECT_EQ(Drive(*exchange), 3);
  EXPECT_EQ(values, (std::vector<float>{2, 4}));
}

TEST_F(HookDeviceTest, AFailureOfTheHookEndsAStagedExchange) {
  const auto hook = MakeStagedHook(std::make_unique<DoublingHook>(0));
  std::vector<int32_t> values = {1};
  Bucket bucket;
  bucket.data = {values.data(), 1, DType::kInt32, runtime_.device()};
  ASSERT_OK_AND_ASSIGN(auto exchange, hook->Prepare(bucket, rank_));
  ASSERT_OK_AND_ASSIGN(const WorkPtr work, exchange->Advance());
  ASSERT_OK(work->Wait(kDeadline));
  EXPECT_THAT(exchange->Advance(), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("floating-point")));
}

TEST_F(HookDeviceTest, TheQueueMustBeOfTheBucketsGpu) {
  std::vector<float> values = {1};
  Bucket bucket = BucketOf(values);
  EXPECT_OK(QueueFor("h", bucket, rank_));
  bucket.data.device.index = 5;
  EXPECT_THAT(QueueFor("h", bucket, rank_).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("memory of GPU 5, and the stream communicator "
                                 "is GPU 2's")));
  const auto cpu = InProcessWorld::Create(1)->MakeRank(0);
  EXPECT_THAT(QueueFor("h", bucket, *cpu).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the in_process back end moves CPU memory")));
}

}  // namespace
}  // namespace coxswain
