#include "tests/conformance/device_conformance.h"

#include <cctype>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "base/status_matchers.h"
#include "client/device/await_for_test.h"
#include "client/device/launch_for_test.h"
#include "client/device/runtime.h"

namespace coxswain {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);

namespace {

constexpr int64_t kBlock = SumOfBlock::kThreads;

const auto kInvalid = StatusIs(absl::StatusCode::kInvalidArgument, testing::_);
const auto kRefused =
    StatusIs(absl::StatusCode::kFailedPrecondition, testing::_);

void Number(float* values, int64_t count, float first = 0) {
  std::iota(values, values + count, first);
}

}  // namespace

DeviceConformance::~DeviceConformance() {
  for (DeviceStream stream : streams_) {
    EXPECT_OK(AwaitStream(runtime_, stream));
    runtime_->DestroyStream(stream);
  }
  EXPECT_OK(AwaitStream(runtime_, nullptr));
  for (DeviceEvent event : events_) runtime_->DestroyEvent(event);
}

DeviceStream DeviceConformance::NewStream() {
  absl::StatusOr<DeviceStream> stream = runtime_->CreateStream();
  EXPECT_OK(stream);
  streams_.push_back(*stream);
  return *stream;
}

DeviceEvent DeviceConformance::NewEvent() {
  absl::StatusOr<DeviceEvent> event = runtime_->CreateEvent();
  EXPECT_OK(event);
  events_.push_back(*event);
  return *event;
}

float* DeviceConformance::NewMemory(int64_t floats) {
  auto buffer = DeviceBuffer::Make(runtime_, floats * int64_t{4});
  EXPECT_OK(buffer);
  memory_.push_back(*std::move(buffer));
  return memory_.back().as<float>();
}

float* DeviceConformance::NewHostMemory(int64_t floats) {
  auto buffer = PinnedBuffer::Make(runtime_, floats * int64_t{4});
  EXPECT_OK(buffer);
  host_memory_.push_back(*std::move(buffer));
  return host_memory_.back().as<float>();
}

absl::Status DeviceConformance::CopyFloats(float* to, const float* from,
                                           int64_t count, DeviceStream stream) {
  return runtime_->Copy(to, from, count * int64_t{4}, stream);
}

std::vector<float> DeviceConformance::Read(const float* from, int64_t count,
                                           DeviceStream stream) {
  float* const host = NewHostMemory(count);
  EXPECT_OK(CopyFloats(host, from, count, stream));
  EXPECT_OK(AwaitStream(runtime_, stream));
  return std::vector<float>(host, host + count);
}

absl::Status DeviceConformance::Sum(const float* values, float* sums,
                                    int64_t count, DeviceStream stream) {
  LaunchTarget target = runtime_->Target(stream);
  Launch(&target, count / kBlock, SumOfBlock{values, sums});
  return runtime_->StatusOf(target);
}

void DeviceConformance::Delay(DeviceStream stream) {
  constexpr int64_t kBytes = int64_t{1} << 24;
  float* const memory = NewMemory(kBytes / 4);
  for (uint8_t value = 0; value < 4; ++value) {
    EXPECT_OK(runtime_->Fill(memory, value, kBytes, stream));
  }
}

TEST_P(DeviceConformance, DescribesItself) {
  EXPECT_EQ(runtime_->device().kind, Device::Kind::kCuda);
  const DeviceProperties& properties = runtime_->properties();
  EXPECT_NE(properties.name, "");
  EXPECT_NE(properties.pci_bus_id, "");
  EXPECT_EQ(properties.uuid.size(), 32u);
  for (const char digit : properties.uuid) {
    EXPECT_TRUE(std::isxdigit(static_cast<unsigned char>(digit))) << digit;
  }
  EXPECT_GT(properties.compute_major, 0);
  EXPECT_GT(properties.memory, 0);
  EXPECT_GT(properties.multiprocessors, 0);
}

TEST_P(DeviceConformance, GivesAlignedPiecesOfMemory) {
  std::vector<void*> pieces;
  for (const int64_t bytes : {1, 255, 256, 257, 100000}) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK_AND_ASSIGN(void* const memory, runtime_->Allocate(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
      for (void* const other : pieces) EXPECT_NE(memory, other);
      pieces.push_back(memory);
    }
  }
  for (void* const memory : pieces) runtime_->Free(memory);
}

TEST_P(DeviceConformance, NoBytesAreNull) {
  EXPECT_EQ(runtime_->Allocate(0).value_or(this), nullptr);
  EXPECT_EQ(runtime_->AllocateHost(0).value_or(this), nullptr);
  runtime_->Free(nullptr);
  runtime_->FreeHost(nullptr);
  EXPECT_THAT(runtime_->Allocate(-1), kInvalid);
  EXPECT_THAT(runtime_->AllocateHost(-1), kInvalid);
}

TEST_P(DeviceConformance, ReportsThatMemoryIsOutAndGoesOn) {
  const int64_t too_much = runtime_->properties().memory + 1;
  EXPECT_THAT(runtime_->Allocate(too_much),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr(std::to_string(too_much))));
  float* const memory = NewMemory(1);
  EXPECT_OK(runtime_->Fill(memory, 0, 4, nullptr));
  EXPECT_EQ(Read(memory, 1, nullptr), std::vector<float>{0});
}

TEST_P(DeviceConformance, CopiesInAllDirections) {
  constexpr int64_t kCount = 1000;
  const DeviceStream stream = NewStream();
  std::vector<float> pageable(kCount);
  Number(pageable.data(), kCount);
  float* const pinned = NewHostMemory(kCount);
  float* const a = NewMemory(kCount);
  float* const b = NewMemory(kCount);
  std::vector<float> back(kCount);
  ASSERT_OK(CopyFloats(pinned, pageable.data(), kCount, stream));
  ASSERT_OK(CopyFloats(a, pinned, kCount, stream));
  ASSERT_OK(CopyFloats(b, a, kCount, stream));
  ASSERT_OK(CopyFloats(back.data(), b, kCount, stream));
  ASSERT_OK(AwaitStream(runtime_, stream));
  EXPECT_EQ(back, pageable);
}

TEST_P(DeviceConformance, CopiesAPartOfMemory) {
  const DeviceStream stream = NewStream();
  float* const host = NewHostMemory(4);
  Number(host, 4, 1);
  float* const memory = NewMemory(4);
  ASSERT_OK(runtime_->Fill(memory, 0, 16, stream));
  ASSERT_OK(CopyFloats(memory + 1, host + 2, 2, stream));
  EXPECT_EQ(Read(memory, 4, stream), (std::vector<float>{0, 3, 4, 0}));
}

TEST_P(DeviceConformance, ChecksWhatToCopy) {
  float* const memory = NewMemory(4);
  EXPECT_OK(runtime_->Copy(nullptr, nullptr, 0, nullptr));
  EXPECT_OK(runtime_->Fill(nullptr, 1, 0, nullptr));
  EXPECT_THAT(runtime_->Copy(memory, memory, -1, nullptr), kInvalid);
  EXPECT_THAT(runtime_->Fill(memory, 1, -1, nullptr), kInvalid);
  EXPECT_THAT(runtime_->Copy(nullptr, memory, 4, nullptr), kInvalid);
  EXPECT_THAT(runtime_->Copy(memory, nullptr, 4, nullptr), kInvalid);
  EXPECT_THAT(runtime_->Fill(nullptr, 1, 4, nullptr), kInvalid);
}

TEST_P(DeviceConformance, AStreamKeepsItsOrder) {
  constexpr int64_t kCount = 64 * kBlock;
  const DeviceStream stream = NewStream();
  float* const host = NewHostMemory(kCount);
  float* const values = NewMemory(kCount);
  float* const sums = NewMemory(kBlock);
  float* const sum = NewMemory(1);
  std::fill(host, host + kCount, 2.0f);
  Delay(stream);
  ASSERT_OK(CopyFloats(values, host, kCount, stream));
  ASSERT_OK(Sum(values, sums, kCount, stream));
  ASSERT_OK(runtime_->Fill(values, 0, kCount * 4, stream));
  ASSERT_OK(Sum(sums, sum, kBlock, stream));
  EXPECT_EQ(Read(sum, 1, stream), std::vector<float>{2 * kCount});
  EXPECT_EQ(Read(values, 1, stream), std::vector<float>{0});
}

TEST_P(DeviceConformance, TheDefaultStreamIsOneToo) {
  float* const host = NewHostMemory(kBlock);
  float* const values = NewMemory(kBlock);
  float* const sum = NewMemory(1);
  Number(host, kBlock);
  ASSERT_OK(CopyFloats(values, host, kBlock, nullptr));
  ASSERT_OK(Sum(values, sum, kBlock, nullptr));
  EXPECT_EQ(Read(sum, 1, nullptr), std::vector<float>{2016});
}

TEST_P(DeviceConformance, AnEventStandsForWhatIsOnItsStream) {
  const DeviceStream stream = NewStream();
  const DeviceEvent event = NewEvent();
  float* const host = NewHostMemory(1);
  float* const memory = NewMemory(1);
  *host = -1;
  Delay(stream);
  ASSERT_OK(runtime_->Fill(memory, 0, 4, stream));
  ASSERT_OK(CopyFloats(host, memory, 1, stream));
  ASSERT_OK(runtime_->Record(event, stream));
  ASSERT_OK(AwaitEvent(runtime_, event));
  EXPECT_EQ(*host, 0);
}

TEST_P(DeviceConformance, AnEventThatWasNeverRecordedHasPassed) {
  const DeviceStream stream = NewStream();
  const DeviceEvent event = NewEvent();
  ASSERT_OK_AND_ASSIGN(const bool passed, runtime_->HasPassed(event));
  EXPECT_TRUE(passed);
  ASSERT_OK(runtime_->StreamWait(stream, event));
  EXPECT_OK(AwaitStream(runtime_, stream));
}

TEST_P(DeviceConformance, StreamsWaitForEachOthersEvents) {
  constexpr int kSteps = 50;
  const DeviceStream streams[2] = {NewStream(), NewStream()};
  const DeviceEvent events[2] = {NewEvent(), NewEvent()};
  float* const host = NewHostMemory(1);
  float* const memory = NewMemory(kSteps + 1);
  *host = 5;
  Delay(streams[1]);
  ASSERT_OK(CopyFloats(memory, host, 1, streams[1]));
  ASSERT_OK(runtime_->Record(events[1], streams[1]));
  for (int i = 0; i < kSteps; ++i) {
    const DeviceStream stream = streams[i % 2];
    ASSERT_OK(runtime_->StreamWait(stream, events[(i + 1) % 2]));
    ASSERT_OK(CopyFloats(memory + i + 1, memory + i, 1, stream));
    ASSERT_OK(runtime_->Record(events[i % 2], stream));
  }
  EXPECT_EQ(Read(memory + kSteps, 1, streams[(kSteps - 1) % 2]),
            std::vector<float>{5});
}

TEST_P(DeviceConformance, AWaitIsForWhatTheEventStoodForThen) {
  const DeviceStream a = NewStream();
  const DeviceStream b = NewStream();
  const DeviceEvent event = NewEvent();
  Delay(a);
  ASSERT_OK(runtime_->Record(event, a));
  ASSERT_OK(runtime_->StreamWait(b, event));
  // Were this what b waits for, it would wait for itself.
  ASSERT_OK(runtime_->Record(event, b));
  EXPECT_OK(AwaitEvent(runtime_, event));
}

TEST_P(DeviceConformance, ADestroyedStreamStillRuns) {
  const DeviceEvent event = NewEvent();
  float* const host = NewHostMemory(1);
  float* const memory = NewMemory(1);
  *host = 7;
  ASSERT_OK_AND_ASSIGN(const DeviceStream stream, runtime_->CreateStream());
  Delay(stream);
  EXPECT_OK(CopyFloats(memory, host, 1, stream));
  EXPECT_OK(runtime_->Record(event, stream));
  runtime_->DestroyStream(stream);
  ASSERT_OK(AwaitEvent(runtime_, event));
  EXPECT_EQ(Read(memory, 1, nullptr), std::vector<float>{7});
}

TEST_P(DeviceConformance, ManyThreadsUseIt) {
  constexpr int kThreads = 4;
  std::vector<DeviceStream> streams;
  std::vector<float*> hosts;
  std::vector<float*> memory;
  for (int i = 0; i < kThreads; ++i) {
    streams.push_back(NewStream());
    hosts.push_back(NewHostMemory(2));
    memory.push_back(NewMemory(1));
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int step = 0; step < 20; ++step) {
        hosts[i][0] = static_cast<float>(step);
        ASSERT_OK(CopyFloats(memory[i], hosts[i], 1, streams[i]));
        ASSERT_OK(CopyFloats(hosts[i] + 1, memory[i], 1, streams[i]));
        ASSERT_OK(AwaitStream(runtime_, streams[i]));
        ASSERT_EQ(hosts[i][1], static_cast<float>(step));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DeviceConformance, ACaptureRunsWhenItIsLaunched) {
  const DeviceStream stream = NewStream();
  float* const host = NewHostMemory(kBlock);
  float* const values = NewMemory(kBlock);
  float* const sum = NewMemory(1);
  ASSERT_OK(runtime_->Fill(sum, 0, 4, stream));
  ASSERT_OK(AwaitStream(runtime_, stream));

  ASSERT_OK(runtime_->BeginCapture(stream));
  EXPECT_OK(CopyFloats(values, host, kBlock, stream));
  EXPECT_OK(Sum(values, sum, kBlock, stream));
  EXPECT_OK(runtime_->Fill(values, 0, kBlock * 4, stream));
  ASSERT_OK_AND_ASSIGN(const DeviceGraph graph, runtime_->EndCapture(stream));
  EXPECT_EQ(Read(sum, 1, stream), std::vector<float>{0});

  for (const float value : {1.0f, 2.0f}) {
    std::fill(host, host + kBlock, value);
    ASSERT_OK(runtime_->LaunchGraph(graph, stream));
    EXPECT_EQ(Read(sum, 1, stream), std::vector<float>{value * kBlock});
    EXPECT_EQ(Read(values, 1, stream), std::vector<float>{0});
  }
  const DeviceStream other = NewStream();
  std::fill(host, host + kBlock, 3.0f);
  ASSERT_OK(runtime_->LaunchGraph(graph, other));
  EXPECT_EQ(Read(sum, 1, other), std::vector<float>{3 * kBlock});
  runtime_->DestroyGraph(graph);
}

TEST_P(DeviceConformance, AnEmptyCaptureIsAGraph) {
  const DeviceStream stream = NewStream();
  ASSERT_OK(runtime_->BeginCapture(stream));
  ASSERT_OK_AND_ASSIGN(const DeviceGraph graph, runtime_->EndCapture(stream));
  EXPECT_OK(runtime_->LaunchGraph(graph, stream));
  EXPECT_OK(AwaitStream(runtime_, stream));
  runtime_->DestroyGraph(graph);
}

TEST_P(DeviceConformance, CapturesAreBegunAndEnded) {
  const DeviceStream stream = NewStream();
  EXPECT_THAT(runtime_->BeginCapture(nullptr), kInvalid);
  EXPECT_THAT(runtime_->EndCapture(nullptr), kRefused);
  EXPECT_THAT(runtime_->EndCapture(stream), kRefused);
  ASSERT_OK(runtime_->BeginCapture(stream));
  EXPECT_THAT(runtime_->BeginCapture(stream), kRefused);
  ASSERT_OK_AND_ASSIGN(const DeviceGraph graph, runtime_->EndCapture(stream));
  runtime_->DestroyGraph(graph);
}

TEST_P(DeviceConformance, EventsAreNotCaptured) {
  const DeviceStream stream = NewStream();
  const DeviceEvent event = NewEvent();
  ASSERT_OK(runtime_->Record(event, stream));
  float* const memory = NewMemory(1);
  ASSERT_OK(runtime_->BeginCapture(stream));
  EXPECT_THAT(runtime_->Record(event, stream), kRefused);
  EXPECT_THAT(runtime_->StreamWait(stream, event), kRefused);
  EXPECT_OK(runtime_->Fill(memory, 0, 4, stream));
  // The capture is none the worse.
  ASSERT_OK_AND_ASSIGN(const DeviceGraph graph, runtime_->EndCapture(stream));
  ASSERT_OK(runtime_->LaunchGraph(graph, stream));
  EXPECT_EQ(Read(memory, 1, stream), std::vector<float>{0});
  runtime_->DestroyGraph(graph);
}

TEST_P(DeviceConformance, OtherThingsGoOnDuringACapture) {
  const DeviceStream stream = NewStream();
  const DeviceStream other = NewStream();
  float* const host = NewHostMemory(1);
  *host = 4;
  ASSERT_OK(runtime_->BeginCapture(stream));
  float* const memory = NewMemory(1);
  EXPECT_OK(CopyFloats(memory, host, 1, other));
  EXPECT_OK(AwaitStream(runtime_, other));
  EXPECT_EQ(Read(memory, 1, other), std::vector<float>{4});
  ASSERT_OK_AND_ASSIGN(const DeviceGraph graph, runtime_->EndCapture(stream));
  runtime_->DestroyGraph(graph);
}

TEST_P(DeviceConformance, ReturnsTheStatusOfALaunch) {
  LaunchTarget target = runtime_->Target(nullptr);
  EXPECT_OK(runtime_->StatusOf(target));
  target.error = 2;  // cudaErrorMemoryAllocation
  EXPECT_THAT(runtime_->StatusOf(target),
              StatusIs(absl::StatusCode::kResourceExhausted, testing::_));
  target.error = 9;  // cudaErrorInvalidConfiguration
  EXPECT_THAT(runtime_->StatusOf(target), kInvalid);
}

}  // namespace coxswain
