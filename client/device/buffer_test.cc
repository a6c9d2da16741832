#include "client/device/buffer.h"

#include <utility>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "client/device/emulated/emulated_runtime.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

TEST(DeviceBufferTest, OwnsItsMemory) {
  EmulatedRuntime runtime;
  {
    ASSERT_OK_AND_ASSIGN(const DeviceBuffer buffer,
                         DeviceBuffer::Make(&runtime, 24));
    EXPECT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.as<float>(), buffer.data());
    EXPECT_EQ(buffer.bytes(), 24);
    EXPECT_EQ(runtime.leaked(), 1);
  }
  EXPECT_EQ(runtime.leaked(), 0);
}

TEST(DeviceBufferTest, MovesIt) {
  EmulatedRuntime runtime;
  ASSERT_OK_AND_ASSIGN(DeviceBuffer a, DeviceBuffer::Make(&runtime, 8));
  ASSERT_OK_AND_ASSIGN(DeviceBuffer b, DeviceBuffer::Make(&runtime, 16));
  void* const memory = a.data();
  b = std::move(a);
  EXPECT_EQ(b.data(), memory);
  EXPECT_EQ(b.bytes(), 8);
  EXPECT_EQ(runtime.leaked(), 1);
  const DeviceBuffer c = std::move(b);
  EXPECT_EQ(c.data(), memory);
  EXPECT_EQ(runtime.leaked(), 1);
}

TEST(DeviceBufferTest, StaysWhereItIsIfItIsLargeEnough) {
  EmulatedRuntime runtime;
  ASSERT_OK_AND_ASSIGN(DeviceBuffer buffer, DeviceBuffer::Make(&runtime, 100));
  void* const memory = buffer.data();
  ASSERT_OK(buffer.Resize(10));
  EXPECT_EQ(buffer.bytes(), 10);
  ASSERT_OK(buffer.Resize(100));
  EXPECT_EQ(buffer.data(), memory);
  ASSERT_OK(buffer.Resize(101));
  EXPECT_EQ(buffer.bytes(), 101);
  EXPECT_EQ(runtime.leaked(), 1);
}

TEST(DeviceBufferTest, IsWhatItWasIfThereIsNoMemory) {
  EmulatedRuntime runtime;
  ASSERT_OK_AND_ASSIGN(DeviceBuffer buffer, DeviceBuffer::Make(&runtime, 4));
  void* const memory = buffer.data();
  runtime.FailAllocation(0);
  EXPECT_THAT(buffer.Resize(8), StatusIs(absl::StatusCode::kResourceExhausted,
                                         testing::HasSubstr("8")));
  EXPECT_EQ(buffer.data(), memory);
  EXPECT_EQ(buffer.bytes(), 4);
  EXPECT_THAT(buffer.Resize(-1),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
}

TEST(DeviceBufferTest, MayBeEmpty) {
  EmulatedRuntime runtime;
  ASSERT_OK_AND_ASSIGN(DeviceBuffer buffer, DeviceBuffer::Make(&runtime, 0));
  EXPECT_EQ(buffer.data(), nullptr);
  ASSERT_OK(buffer.Resize(4));
  EXPECT_NE(buffer.data(), nullptr);
  DeviceBuffer none;
  EXPECT_OK(none.Resize(0));
  EXPECT_THAT(none.Resize(1),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::_));
}

TEST(PinnedBufferTest, IsMemoryOfTheHost) {
  EmulatedRuntime runtime;
  ASSERT_OK_AND_ASSIGN(PinnedBuffer buffer, PinnedBuffer::Make(&runtime, 4));
  *buffer.as<float>() = 1;
  EXPECT_EQ(*buffer.as<float>(), 1);
  EXPECT_EQ(runtime.leaked(), 1);
}

}  // namespace
}  // namespace coxswain
