#include "hooks/narrow_communicator.h"

#include <limits>
#include <memory>
#include <vector>

#include "base/float16.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/device/emulated/emulated_runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/device/device_scratch.h"
#include "tests/conformance/stream_communicator.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(20);

template <typename T>
Span SpanOf(std::vector<T>& values, DType dtype) {
  return Span{values.data(), static_cast<int64_t>(values.size()), dtype,
              Device()};
}

// Two ranks with a narrow view each.
class NarrowCommunicatorTest : public testing::Test {
 protected:
  NarrowCommunicatorTest() {
    for (int rank = 0; rank < 2; ++rank) {
      ranks_.push_back(world_->MakeRank(rank));
      narrow_.push_back(std::make_unique<NarrowCommunicator>(
          *ranks_.back(), DType::kFloat16, scratch_));
    }
  }

  // The all-reduces of both ranks' spans.
  absl::Status ReduceBoth(Span a, Span b) {
    const WorkPtr first = narrow_[0]->AllReduce(a);
    const WorkPtr second = narrow_[1]->AllReduce(b);
    absl::Status status = first->Wait(kDeadline);
    status.Update(second->Wait(kDeadline));
    return status;
  }

  std::shared_ptr<InProcessWorld> world_ = InProcessWorld::Create(2);
  ScratchPool scratch_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
  std::vector<std::unique_ptr<NarrowCommunicator>> narrow_;
};

TEST_F(NarrowCommunicatorTest, FloatsAreRoundedSummedAndWidened) {
  std::vector<float> a = {1.0f, 0.1f, 40000.0f};
  std::vector<float> b = {2.0f, 0.0f, 40000.0f};
  ASSERT_OK(ReduceBoth(SpanOf(a, DType::kFloat32), SpanOf(b, DType::kFloat32)));
  EXPECT_EQ(a, b);
  EXPECT_EQ(a[0], 3.0f);
  EXPECT_EQ(a[1], Float16ToFloat(FloatToFloat16(0.1f)));
  EXPECT_EQ(a[2], std::numeric_limits<float>::infinity());
  EXPECT_EQ(ranks_[0]->payload_bytes(), 6);  // 16 bits an element
}

TEST_F(NarrowCommunicatorTest, DoublesTravelNarrowAndIntegersAsTheyAre) {
  std::vector<double> a = {0.5};
  std::vector<double> b = {0.25};
  ASSERT_OK(ReduceBoth(SpanOf(a, DType::kFloat64), SpanOf(b, DType::kFloat64)));
  EXPECT_EQ(b[0], 0.75);
  EXPECT_EQ(ranks_[1]->payload_bytes(), 2);
  std::vector<int64_t> i = {int64_t{1} << 40};
  std::vector<int64_t> j = {1};
  ASSERT_OK(ReduceBoth(SpanOf(i, DType::kInt64), SpanOf(j, DType::kInt64)));
  EXPECT_EQ(i[0], (int64_t{1} << 40) + 1);
  EXPECT_EQ(ranks_[1]->payload_bytes(), 10);
}

TEST_F(NarrowCommunicatorTest, AbortReachesTheCommunicatorBeneath) {
  std::vector<float> a = {1.0f};
  const WorkPtr work = narrow_[0]->AllReduce(SpanOf(a, DType::kFloat32));
  narrow_[0]->Abort("enough");
  EXPECT_THAT(work->Wait(kDeadline),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
  EXPECT_EQ(a[0], 1.0f);
}

// Two ranks on an emulated GPU each.
class NarrowOnDeviceTest : public testing::Test {
 protected:
  NarrowOnDeviceTest() {
    for (int rank = 0; rank < 2; ++rank) {
      ranks_.push_back(std::make_unique<StreamCommunicator>(
          world_->MakeRank(rank), runtimes_[rank]));
    }
  }

  EmulatedRuntime runtimes_[2];
  std::shared_ptr<InProcessWorld> world_ = InProcessWorld::Create(2);
  ScratchPool scratch_;
  std::vector<std::unique_ptr<StreamCommunicator>> ranks_;
};

TEST_F(NarrowOnDeviceTest, SpansTravelNarrowOnTheStream) {
  const Device device{Device::Kind::kCuda, 0};
  std::vector<float> a = {1.0f, 0.1f, 40000.0f};
  std::vector<float> b = {2.0f, 0.0f, 40000.0f};
  DeviceScratch scratch[2];
  std::vector<WorkPtr> works;
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<float>& values = rank == 0 ? a : b;
    NarrowCommunicator narrow(*ranks_[rank], DType::kFloat16, scratch_,
                              &scratch[rank]);
    ASSERT_NE(narrow.device_queue(), nullptr);
    EXPECT_EQ(narrow.device_queue()->stream(), ranks_[rank]->stream());
    EXPECT_THAT(
        narrow.device_queue()->Record([] { return absl::OkStatus(); }),
        StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("narrow")));
    // The view goes before its work has run.
    works.push_back(
        narrow.AllReduce(Span{values.data(), 3, DType::kFloat32, device}));
  }
  for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kDeadline));
  EXPECT_EQ(a, b);
  EXPECT_EQ(a[0], 3.0f);
  EXPECT_EQ(a[1], Float16ToFloat(FloatToFloat16(0.1f)));
  EXPECT_EQ(a[2], std::numeric_limits<float>::infinity());
  EXPECT_EQ(ranks_[0]->payload_bytes(), 6);
}

TEST_F(NarrowOnDeviceTest, MemoryThatIsOutIsAnError) {
  DeviceScratch scratch;
  NarrowCommunicator narrow(*ranks_[0], DType::kBFloat16, scratch_, &scratch);
  runtimes_[0].FailAllocation(0);
  std::vector<float> a = {1.0f};
  EXPECT_THAT(
      narrow
          .AllReduce(Span{a.data(), 1, DType::kFloat32, runtimes_[0].device()})
          ->Wait(kDeadline),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("")));
}

}  // namespace
}  // namespace coxswain
