#include "client/device/emulated/emulated_runtime.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "client/device/await_for_test.h"
#include "client/device/runtime.h"
#include "gtest/gtest.h"
#include "tests/conformance/device_conformance.h"

namespace coxswain {
namespace {

DeviceRuntime* Shared() {
  // Ends with the process, so that its threads do.
  static EmulatedRuntime runtime(3);
  return &runtime;
}

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceConformance,
                         testing::Values(DeviceCase{"emulated", Shared}));

class EmulatedRuntimeTest : public testing::Test {
 protected:
  EmulatedRuntimeTest() : stream_(NewStream()) {}
  ~EmulatedRuntimeTest() override {
    for (void* const memory : memory_) runtime_.Free(memory);
    for (DeviceStream stream : streams_) runtime_.DestroyStream(stream);
    EXPECT_EQ(runtime_.leaked(), 0);
  }

  DeviceStream NewStream() {
    streams_.push_back(*runtime_.CreateStream());
    return streams_.back();
  }
  float* NewMemory(int64_t floats) {
    memory_.push_back(*runtime_.Allocate(floats * int64_t{4}));
    return static_cast<float*>(memory_.back());
  }
  void Enqueue(DeviceStream stream, std::function<void()> work) {
    EmulatedRuntime::HostStreamOf(stream)->Enqueue(std::move(work));
  }

  EmulatedRuntime runtime_{3};
  std::vector<DeviceStream> streams_;
  std::vector<void*> memory_;
  const DeviceStream stream_;
};

const auto kFailed = StatusIs(absl::StatusCode::kUnavailable,
                              testing::HasSubstr("fell off the bus"));

TEST_F(EmulatedRuntimeTest, HasAnIndex) {
  EXPECT_EQ(runtime_.device(), (Device{Device::Kind::kCuda, 3}));
  EXPECT_NE(runtime_.properties().uuid, EmulatedRuntime(4).properties().uuid);
}

TEST_F(EmulatedRuntimeTest, MemoryIsNotANumberAtFirst) {
  const float* const memory = NewMemory(2);
  EXPECT_TRUE(std::isnan(memory[0]));
  EXPECT_TRUE(std::isnan(memory[1]));
}

TEST_F(EmulatedRuntimeTest, CountsWhatIsLeft) {
  EXPECT_EQ(runtime_.leaked(), 1);
  NewMemory(1);
  EXPECT_EQ(runtime_.leaked(), 2);
  ASSERT_OK_AND_ASSIGN(const DeviceEvent event, runtime_.CreateEvent());
  EXPECT_EQ(runtime_.leaked(), 3);
  runtime_.DestroyEvent(event);
  EXPECT_EQ(runtime_.leaked(), 2);
}

TEST_F(EmulatedRuntimeTest, FreesWhatIsLeft) {
  EmulatedRuntime runtime;
  ASSERT_OK(runtime.Allocate(4));
  ASSERT_OK(runtime.AllocateHost(4));
  EXPECT_EQ(runtime.leaked(), 2);
}

TEST_F(EmulatedRuntimeTest, WhatIsNotAllocatedCannotBeFreed) {
  void* const memory = NewMemory(1);
  EXPECT_DEATH(runtime_.FreeHost(memory), "freed what is not allocated");
  float other = 0;
  EXPECT_DEATH(runtime_.Free(&other), "freed what is not allocated");
}

TEST_F(EmulatedRuntimeTest, FailsOneAllocation) {
  runtime_.FailAllocation(1);
  NewMemory(1);
  EXPECT_THAT(runtime_.Allocate(8),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
  NewMemory(1);
}

TEST_F(EmulatedRuntimeTest, AHeldStreamBeginsNothing) {
  runtime_.HoldStream(stream_);
  float* const memory = NewMemory(1);
  ASSERT_OK(runtime_.Fill(memory, 0, 4, stream_));
  ASSERT_OK_AND_ASSIGN(const DeviceEvent event, runtime_.CreateEvent());
  ASSERT_OK(runtime_.Record(event, stream_));
  ASSERT_OK(AwaitStream(&runtime_, NewStream()));
  EXPECT_FALSE(runtime_.HasPassed(event).value_or(true));
  EXPECT_TRUE(std::isnan(*memory));
  runtime_.ReleaseStream(stream_);
  ASSERT_OK(AwaitEvent(&runtime_, event));
  EXPECT_EQ(*memory, 0);
  runtime_.DestroyEvent(event);
}

TEST_F(EmulatedRuntimeTest, ACopyReadsWhenItRuns) {
  float* const memory = NewMemory(1);
  float host = 1;
  runtime_.HoldStream(stream_);
  ASSERT_OK(runtime_.Copy(memory, &host, 4, stream_));
  host = 2;
  runtime_.ReleaseStream(stream_);
  ASSERT_OK(AwaitStream(&runtime_, stream_));
  EXPECT_EQ(*memory, 2);
}

TEST_F(EmulatedRuntimeTest, AStreamWaitsForAHeldOne) {
  const DeviceStream other = NewStream();
  ASSERT_OK_AND_ASSIGN(const DeviceEvent event, runtime_.CreateEvent());
  float* const memory = NewMemory(2);
  runtime_.HoldStream(stream_);
  ASSERT_OK(runtime_.Fill(memory, 0, 4, stream_));
  ASSERT_OK(runtime_.Record(event, stream_));
  ASSERT_OK(runtime_.StreamWait(other, event));
  ASSERT_OK(runtime_.Copy(memory + 1, memory, 4, other));
  ASSERT_OK_AND_ASSIGN(const DeviceEvent copied, runtime_.CreateEvent());
  ASSERT_OK(runtime_.Record(copied, other));
  EXPECT_FALSE(runtime_.HasPassed(copied).value_or(true));
  runtime_.ReleaseStream(stream_);
  ASSERT_OK(AwaitEvent(&runtime_, copied));
  EXPECT_EQ(memory[1], 0);
  runtime_.DestroyEvent(event);
  runtime_.DestroyEvent(copied);
}

TEST_F(EmulatedRuntimeTest, AnEventMayBeDestroyedWhileItIsWaitedFor) {
  const DeviceStream other = NewStream();
  ASSERT_OK_AND_ASSIGN(const DeviceEvent event, runtime_.CreateEvent());
  runtime_.HoldStream(stream_);
  ASSERT_OK(runtime_.Record(event, stream_));
  ASSERT_OK(runtime_.StreamWait(other, event));
  runtime_.DestroyEvent(event);
  runtime_.ReleaseStream(stream_);
  EXPECT_OK(AwaitStream(&runtime_, other));
}

TEST_F(EmulatedRuntimeTest, CapturesNoteWhatLibrariesEnqueue) {
  int runs = 0;
  ASSERT_OK(runtime_.BeginCapture(stream_));
  Enqueue(stream_, [&runs] { ++runs; });
  ASSERT_OK_AND_ASSIGN(const DeviceGraph graph, runtime_.EndCapture(stream_));
  ASSERT_OK(AwaitStream(&runtime_, stream_));
  EXPECT_EQ(runs, 0);
  for (int i = 0; i < 3; ++i) ASSERT_OK(runtime_.LaunchGraph(graph, stream_));
  ASSERT_OK(AwaitStream(&runtime_, stream_));
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(runtime_.launches(), 1);
  EXPECT_EQ(runtime_.graph_launches(), 3);
  runtime_.DestroyGraph(graph);
}

TEST_F(EmulatedRuntimeTest, CountsWhatIsEnqueued) {
  float* const memory = NewMemory(2);
  ASSERT_OK(runtime_.Fill(NewMemory(2), 0, 8, stream_));
  ASSERT_OK(runtime_.Copy(memory, memory + 1, 4, nullptr));
  ASSERT_OK(runtime_.Copy(memory, memory, 0, nullptr));
  EXPECT_EQ(runtime_.copies(), 2);
  EXPECT_EQ(runtime_.launches(), 0);
  Enqueue(stream_, [] {});
  EXPECT_EQ(runtime_.launches(), 1);
  ASSERT_OK(AwaitStream(&runtime_, nullptr));
  ASSERT_OK(AwaitStream(&runtime_, stream_));
}

TEST_F(EmulatedRuntimeTest, AFailedDeviceStaysSo) {
  ASSERT_OK_AND_ASSIGN(const DeviceEvent event, runtime_.CreateEvent());
  float* const memory = NewMemory(1);
  ASSERT_OK(runtime_.BeginCapture(stream_));
  runtime_.Fail("it fell off the bus");
  runtime_.Fail("something else");
  EXPECT_THAT(runtime_.Allocate(4), kFailed);
  EXPECT_THAT(runtime_.AllocateHost(4), kFailed);
  EXPECT_THAT(runtime_.CreateStream(), kFailed);
  EXPECT_THAT(runtime_.CreateEvent(), kFailed);
  EXPECT_THAT(runtime_.Record(event, stream_), kFailed);
  EXPECT_THAT(runtime_.StreamWait(stream_, event), kFailed);
  EXPECT_THAT(runtime_.HasPassed(event), kFailed);
  EXPECT_THAT(runtime_.Copy(memory, memory, 4, stream_), kFailed);
  EXPECT_THAT(runtime_.Fill(memory, 0, 4, stream_), kFailed);
  EXPECT_THAT(runtime_.StatusOf(runtime_.Target(stream_)), kFailed);
  EXPECT_THAT(runtime_.EndCapture(stream_), kFailed);
  EXPECT_THAT(runtime_.BeginCapture(stream_), kFailed);
  runtime_.DestroyEvent(event);
}

TEST_F(EmulatedRuntimeTest, AFailedDeviceDropsWhatHasNotBegun) {
  const DeviceStream other = NewStream();
  ASSERT_OK_AND_ASSIGN(const DeviceEvent event, runtime_.CreateEvent());
  float* const memory = NewMemory(1);
  runtime_.HoldStream(stream_);
  ASSERT_OK(runtime_.Fill(memory, 0, 4, stream_));
  ASSERT_OK(runtime_.Record(event, stream_));
  ASSERT_OK(runtime_.StreamWait(other, event));
  runtime_.Fail("it fell off the bus");
  EXPECT_THAT(AwaitEvent(&runtime_, event), kFailed);
  EXPECT_TRUE(std::isnan(*memory));
  runtime_.DestroyEvent(event);
}

TEST_F(EmulatedRuntimeTest, ItsEndRunsWhatIsLeft) {
  std::atomic<int> runs = 0;
  auto runtime = std::make_unique<EmulatedRuntime>();
  const DeviceStream stream = *runtime->CreateStream();
  runtime->HoldStream(stream);
  Enqueue(stream, [&runs] { ++runs; });
  runtime->HoldStream(nullptr);
  runtime->Target(nullptr).host->Enqueue([&runs] { runs += 0; });
  runtime = nullptr;
  EXPECT_EQ(runs, 1);
}

TEST_F(EmulatedRuntimeTest, ADestroyedStreamGetsNoMoreWork) {
  const DeviceStream stream = *runtime_.CreateStream();
  runtime_.DestroyStream(stream);
  EXPECT_DEATH(Enqueue(stream, [] {}), "a destroyed stream");
}

}  // namespace
}  // namespace coxswain
