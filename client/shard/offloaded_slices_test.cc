// Slices whose values and optimizer's state are in the host's memory, on an
// emulated GPU: a missing wait shows as wrong numbers, and as a race to
// ThreadSanitizer.

#include "client/shard/offloaded_slices.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/device/await_for_test.h"
#include "client/device/buffer.h"
#include "client/device/emulated/emulated_runtime.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/device_world_for_test.h"
#include "client/reduce/reducer_test_support.h"
#include "gmock/gmock.h"

namespace coxswain::offloaded_slices_test {
namespace {

using testing::_;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// ---- against a state on the CPU ----

constexpr int64_t kCounts[] = {1, 40, 3000, 2048, 7};
constexpr int kParameters = 5;
constexpr int64_t kSteps = 20;

float ValueOf(int rank, int64_t step, int parameter, int64_t element) {
  return std::sin(static_cast<float>(element + int64_t{10} * parameter +
                                     int64_t{100} * rank + 1000 * step));
}

std::vector<float> GradientOf(int rank, int64_t step, int parameter) {
  std::vector<float> values;
  for (int64_t i = 0; i < kCounts[parameter]; ++i) {
    values.push_back(ValueOf(rank, step, parameter, i));
  }
  return values;
}

// Of one slice.
class Adam {
 public:
  void Step(const Span& gradient, const Span& values) {
    ++step_;
    means_.resize(static_cast<size_t>(gradient.count));
    squares_.resize(means_.size());
    const float* by = static_cast<const float*>(gradient.data);
    float* value = static_cast<float*>(values.data);
    const float mean_scale = 1 - std::pow(0.9F, step_);
    const float square_scale = 1 - std::pow(0.999F, step_);
    for (size_t i = 0; i < means_.size(); ++i) {
      means_[i] = 0.9F * means_[i] + 0.1F * by[i];
      squares_[i] = 0.999F * squares_[i] + 0.001F * by[i] * by[i];
      value[i] -= 0.01F * (means_[i] / mean_scale) /
                  (std::sqrt(squares_[i] / square_scale) + 1e-8F);
    }
  }

 private:
  float step_ = 0;
  std::vector<float> means_;
  std::vector<float> squares_;
};

ReducerOptions Sliced() {
  ReducerOptions options;
  options.buckets = {16, 8192};
  options.timeout = kSoon;
  options.slices = true;
  options.max_norm = 30;
  return options;
}

float FirstValue(int64_t element) {
  return std::cos(static_cast<float>(element));
}

std::vector<float> FirstValues(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(FirstValue(i));
  return values;
}

using Parameters = std::vector<std::vector<float>>;  // by bucket

std::vector<Parameters> TrainOnCpu(int rank, Communicator* communicator) {
  std::vector<Parameters> seen;
  AverageHook hook;
  const auto created =
      Reducer::Create(Sliced(), ParametersOf(kCounts), &hook, communicator);
  EXPECT_OK(created);
  Reducer& reducer = **created;
  std::vector<std::unique_ptr<BufferOwner>> memory;
  std::vector<Span> wholes;
  for (const Bucket& bucket : reducer.buckets()) {
    const auto slices = BucketSlices::Of(bucket.data, communicator->size());
    memory.push_back(
        communicator->AllocateBuffer(slices.padded(), DType::kFloat32).value());
    wholes.push_back(memory.back()->span().Slice(0, bucket.data.count));
    const std::vector<float> first = FirstValues(bucket.data.count);
    std::copy(first.begin(), first.end(),
              static_cast<float*>(wholes.back().data));
  }
  std::vector<Adam> adams(wholes.size());
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_OK(reducer.BeginStep());
    for (int p = 0; p < kParameters; ++p) {
      std::vector<float> gradient = GradientOf(rank, step, p);
      EXPECT_OK(reducer.MarkReady(p, SpanOf(&gradient)));
    }
    EXPECT_OK(reducer.Finish());
    for (size_t i = 0; i < wholes.size(); ++i) {
      adams[i].Step(reducer.OwnSlice(reducer.buckets()[i]),
                    BucketSlices::Of(wholes[i], communicator->size())
                        .Slice(wholes[i], rank));
    }
    EXPECT_OK(reducer.GatherSlices(wholes));
    EXPECT_OK(reducer.Commit());
    seen.emplace_back();
    for (const Span& whole : wholes) seen.back().push_back(ValuesOf(whole));
  }
  return seen;
}

std::vector<Parameters> TrainOnGpu(
    int rank, int size, const std::shared_ptr<RendezvousStore>& store) {
  std::vector<Parameters> seen;
  Gpu gpu(rank);
  {
    const auto communicator = ConnectGpu(&gpu.runtime, rank, size, store);
    DeviceAverageHook hook;
    const auto created = Reducer::Create(OnStreamOf(gpu, Sliced()),
                                         OnDevice(ParametersOf(kCounts), rank),
                                         &hook, communicator.get());
    EXPECT_OK(created);
    Reducer& reducer = **created;
    std::vector<Span> wholes, places;
    for (const Bucket& bucket : reducer.buckets()) {
      const auto slices = BucketSlices::Of(bucket.data, size);
      wholes.push_back(gpu.Tensor(slices.padded()).Slice(0, bucket.data.count));
      gpu.Write(wholes.back(), FirstValues(bucket.data.count));
      places.push_back(slices.Slice(wholes.back(), rank));
    }
    OffloadedSlices::Options options;
    options.caller_stream = [&] { return gpu.stream; };
    const auto offloaded =
        OffloadedSlices::Create(&gpu.runtime, places, options);
    EXPECT_OK(offloaded);
    std::vector<Adam> adams(wholes.size());
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_OK(reducer.BeginStep());
      for (int p = 0; p < kParameters; ++p) {
        gpu.Write(reducer.GradientView(p), GradientOf(rank, step, p));
        EXPECT_OK(reducer.MarkReady(p));
      }
      EXPECT_OK(reducer.Finish());
      std::vector<Span> gradients;
      for (const Bucket& bucket : reducer.buckets()) {
        gradients.push_back(reducer.OwnSlice(bucket));
      }
      EXPECT_OK((*offloaded)->Step(gradients, [&](int i, const Span& gradient) {
        adams[static_cast<size_t>(i)].Step(gradient, (*offloaded)->values(i));
        return absl::OkStatus();
      }));
      EXPECT_OK(reducer.GatherSlices(wholes));
      EXPECT_OK(reducer.Commit());
      seen.emplace_back();
      for (const Span& whole : wholes) seen.back().push_back(gpu.Read(whole));
    }
  }
  gpu.tensors.clear();
  EXPECT_EQ(gpu.runtime.leaked(), 1) << "but for the framework's stream";
  return seen;
}

TEST(OffloadedSlicesTest, AdamOnTheHostHasTheBitsOfAStateOnTheCpu) {
  for (const int size : {1, 2, 4}) {
    std::vector<std::vector<Parameters>> cpu(static_cast<size_t>(size));
    std::vector<std::vector<Parameters>> gpu(static_cast<size_t>(size));
    OnRanks(size, [&](int rank, Communicator* communicator) {
      cpu[static_cast<size_t>(rank)] = TrainOnCpu(rank, communicator);
    });
    const auto store = std::make_shared<MemoryStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        gpu[static_cast<size_t>(rank)] = TrainOnGpu(rank, size, store);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t rank = 0; rank < cpu.size(); ++rank) {
      ASSERT_EQ(cpu[rank].size(), size_t{kSteps});
      EXPECT_TRUE(gpu[rank] == cpu[rank]) << "rank " << rank << " of " << size;
      EXPECT_TRUE(gpu[rank] == gpu[0]) << "rank " << rank << " of " << size;
    }
  }
}

// ---- the way down and up ----

// Notes copies that are enqueued, by what they are from or to.
class NotingRuntime : public EmulatedRuntime {
 public:
  struct Note {
    std::string what;
    DeviceStream stream = nullptr;
  };

  void Name(const void* memory, std::string name) {
    const MutexLock lock(&mutex_);
    names_[memory] = std::move(name);
  }
  void Add(std::string what, DeviceStream stream = nullptr) {
    const MutexLock lock(&mutex_);
    notes_.push_back({std::move(what), stream});
  }
  std::vector<std::string> Take() {
    const MutexLock lock(&mutex_);
    std::vector<std::string> all;
    for (const Note& note : std::exchange(notes_, {})) all.push_back(note.what);
    return all;
  }
  // Returns the stream of a copy that has been noted; null if there is none.
  DeviceStream StreamOf(const std::string& what) const {
    const MutexLock lock(&mutex_);
    for (const Note& note : notes_) {
      if (note.what == what) return note.stream;
    }
    return nullptr;
  }

  absl::Status Copy(void* to, const void* from, int64_t bytes,
                    DeviceStream stream) override {
    {
      const MutexLock lock(&mutex_);
      if (names_.count(from) > 0) {
        notes_.push_back({absl::StrCat("down ", names_[from]), stream});
      } else if (names_.count(to) > 0) {
        notes_.push_back({absl::StrCat("up ", names_[to]), stream});
      }
    }
    return EmulatedRuntime::Copy(to, from, bytes, stream);
  }

 private:
  mutable Mutex mutex_;
  std::map<const void*, std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::vector<Note> notes_ ABSL_GUARDED_BY(mutex_);
};

// Three slices, and an empty one between them, of a caller that works on one
// stream. Values are 1, 2, 3 by slice, gradients 10, 20, 30.
class WayTest : public testing::Test {
 protected:
  static constexpr int64_t kSizes[] = {4, 0, 100, 16};

  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(stream_, runtime_.CreateStream());
    for (size_t i = 0; i < 4; ++i) {
      places_.push_back(Tensor(kSizes[i]));
      gradients_.push_back(Tensor(kSizes[i]));
      if (kSizes[i] == 0) continue;
      runtime_.Name(gradients_[i].data, absl::StrCat("g", i));
      runtime_.Name(places_[i].data, absl::StrCat("v", i));
    }
    WriteAll();
    ASSERT_OK(AwaitStream(&runtime_, stream_));
    options_.caller_stream = [this] { return stream_; };
  }
  void TearDown() override {
    offloaded_.reset();
    tensors_.clear();
    runtime_.DestroyStream(stream_);
    EXPECT_EQ(runtime_.leaked(), 0);
  }

  void Make() {
    ASSERT_OK_AND_ASSIGN(offloaded_,
                         OffloadedSlices::Create(&runtime_, places_, options_));
  }
  Span Tensor(int64_t count) {
    Span span;
    span.count = count;
    span.device = runtime_.device();
    tensors_.push_back(DeviceBuffer::Make(&runtime_, span.bytes()).value());
    span.data = tensors_.back().data();
    return span;
  }
  void Write(const Span& span, float value) {
    kept_.emplace_back(static_cast<size_t>(span.count), value);
    ASSERT_OK(
        runtime_.Copy(span.data, kept_.back().data(), span.bytes(), stream_));
  }
  void WriteAll() {
    for (size_t i = 0; i < 4; ++i) {
      Write(places_[i], static_cast<float>(i + 1));
      Write(gradients_[i], static_cast<float>(10 * (i + 1)));
    }
  }
  // Of the elements, which are all the same.
  float Read(const Span& span) {
    std::vector<float> values(static_cast<size_t>(span.count));
    EXPECT_OK(runtime_.Copy(values.data(), span.data, span.bytes(), stream_));
    EXPECT_OK(AwaitStream(&runtime_, stream_));
    return OneOf(values);
  }
  static float OneOf(const std::vector<float>& values) {
    for (const float value : values) EXPECT_EQ(value, values[0]);
    return values[0];
  }
  // Adds the gradient to the values.
  absl::Status AddTo(int slice, const Span& gradient) {
    const float by = OneOf(ValuesOf(gradient));
    const Span& values = offloaded_->values(slice);
    EXPECT_EQ(gradient.count, values.count);
    float* const value = static_cast<float*>(values.data);
    for (int64_t i = 0; i < values.count; ++i) value[i] += by;
    return absl::OkStatus();
  }
  OffloadedSlices::StepSlice Adding() {
    return [this](int slice, const Span& gradient) {
      runtime_.Add(absl::StrCat("step ", slice));
      return AddTo(slice, gradient);
    };
  }
  std::vector<float> OnGpu() {
    return {Read(places_[0]), Read(places_[2]), Read(places_[3])};
  }

  NotingRuntime runtime_;
  DeviceStream stream_ = nullptr;
  std::vector<DeviceBuffer> tensors_;
  std::deque<std::vector<float>> kept_;
  std::vector<Span> places_, gradients_;
  OffloadedSlices::Options options_;
  std::unique_ptr<OffloadedSlices> offloaded_;
};

TEST_F(WayTest, EachGradientComesDownWhileTheOneBeforeItIsStepped) {
  Make();
  runtime_.Take();
  ASSERT_OK(offloaded_->Step(gradients_, [&](int slice, const Span& gradient) {
    runtime_.Add(absl::StrCat("step ", slice));
    if (slice == 0) {
      // It arrives although this step does not end before.
      const DeviceStream down = runtime_.StreamOf("down g2");
      EXPECT_NE(down, nullptr);
      EXPECT_OK(AwaitStream(&runtime_, down));
    }
    return AddTo(slice, gradient);
  }));
  EXPECT_NE(runtime_.StreamOf("up v0"), runtime_.StreamOf("down g0"));
  EXPECT_THAT(runtime_.Take(),
              ElementsAre("down g0", "down g2", "step 0", "up v0", "down g3",
                          "step 2", "up v2", "step 3", "up v3"));
  EXPECT_THAT(OnGpu(), ElementsAre(11, 33, 44));
}

TEST_F(WayTest, AGradientIsTakenOnceTheCallersStreamHasMadeIt) {
  Make();
  runtime_.Take();
  runtime_.HoldStream(stream_);
  for (size_t i = 0; i < 4; ++i) Write(gradients_[i], 100);
  std::atomic<bool> released{false};
  std::thread releasing([&] {
    while (runtime_.StreamOf("down g0") == nullptr) std::this_thread::yield();
    released = true;
    runtime_.ReleaseStream(stream_);
  });
  EXPECT_OK(offloaded_->Step(gradients_, [&](int slice, const Span& gradient) {
    EXPECT_TRUE(released);
    return AddTo(slice, gradient);
  }));
  releasing.join();
  EXPECT_THAT(OnGpu(), ElementsAre(101, 103, 104));
}

TEST_F(WayTest, WhatTheCallerHadEnqueuedReadsTheValuesOfBefore) {
  places_.resize(1);
  Make();
  const Span copy = Tensor(4);
  runtime_.HoldStream(stream_);
  ASSERT_OK(runtime_.Copy(copy.data, places_[0].data, copy.bytes(), stream_));
  *static_cast<float*>(offloaded_->values(0).data) = 5;
  ASSERT_OK(offloaded_->Send());
  runtime_.ReleaseStream(stream_);
  EXPECT_EQ(Read(copy), 1);
  std::vector<float> values(4);
  ASSERT_OK(runtime_.Copy(values.data(), places_[0].data, 16, stream_));
  ASSERT_OK(AwaitStream(&runtime_, stream_));
  EXPECT_THAT(values, ElementsAre(5, 1, 1, 1));
}

TEST_F(WayTest, WhatTheCallerEnqueuesNextReadsTheNewValues) {
  Make();
  runtime_.Take();
  ASSERT_OK(offloaded_->Step(gradients_, Adding()));
  const DeviceStream up = runtime_.StreamOf("up v3");
  ASSERT_NE(up, nullptr);
  ASSERT_NE(up, stream_);
  const Span copy = Tensor(kSizes[3]);
  ASSERT_OK_AND_ASSIGN(const DeviceEvent read, runtime_.CreateEvent());
  ASSERT_OK(offloaded_->Step(gradients_, [&](int slice, const Span& gradient) {
    if (slice == 3) {
      // Held before, it would keep the block that this slice's values need.
      EXPECT_OK(AwaitStream(&runtime_, up));
      runtime_.HoldStream(up);
    }
    return AddTo(slice, gradient);
  }));
  ASSERT_OK(runtime_.Copy(copy.data, places_[3].data, copy.bytes(), stream_));
  ASSERT_OK(runtime_.Record(read, stream_));
  EXPECT_THAT(AwaitEvent(&runtime_, read, absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, _));
  runtime_.ReleaseStream(up);
  EXPECT_EQ(Read(copy), 84);
  runtime_.DestroyEvent(read);
}

TEST_F(WayTest, ValuesChangedOnTheGpuAreFetched) {
  Make();
  Write(places_[2], 7);
  EXPECT_EQ(OneOf(ValuesOf(offloaded_->values(2))), 3);
  ASSERT_OK(offloaded_->Fetch());
  EXPECT_EQ(OneOf(ValuesOf(offloaded_->values(2))), 7);
  EXPECT_EQ(OneOf(ValuesOf(offloaded_->values(3))), 4);
}

TEST_F(WayTest, AStepThatFailsNamesItsSliceAndLeavesTheOthers) {
  Make();
  EXPECT_THAT(
      offloaded_->Step(gradients_,
                       [&](int slice, const Span& gradient) -> absl::Status {
                         if (slice == 2) {
                           return absl::InternalError("the optimizer broke");
                         }
                         return AddTo(slice, gradient);
                       }),
      StatusIs(absl::StatusCode::kInternal,
               AllOf(HasSubstr("offload, slice 2 of 4: "),
                     HasSubstr("the optimizer broke"))));
  EXPECT_THAT(OnGpu(), ElementsAre(11, 3, 4));
  // It can go on.
  ASSERT_OK(offloaded_->Step(gradients_, Adding()));
  EXPECT_THAT(OnGpu(), ElementsAre(21, 33, 44));
}

TEST_F(WayTest, ADeviceThatFailsEndsTheStep) {
  Make();
  std::vector<int> stepped;
  EXPECT_THAT(offloaded_->Step(gradients_,
                               [&](int slice, const Span& gradient) {
                                 stepped.push_back(slice);
                                 runtime_.Fail("an error of its memory");
                                 return AddTo(slice, gradient);
                               }),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("offload, slice 0 of 4: "),
                             HasSubstr("an error of its memory"))));
  EXPECT_THAT(stepped, ElementsAre(0));
}

TEST_F(WayTest, ACopyThatDoesNotEndIsADeadline) {
  // What Create copies must be through in this time, too.
  options_.timeout = absl::Seconds(2);
  ASSERT_NO_FATAL_FAILURE(Make());
  runtime_.HoldStream(stream_);
  EXPECT_THAT(offloaded_->Step(gradients_, Adding()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("offload, slice 0 of 4: ")));
  runtime_.ReleaseStream(stream_);
  ASSERT_OK(AwaitStream(&runtime_, stream_));
  ASSERT_OK(AwaitStream(&runtime_, runtime_.StreamOf("down g0")));
}

TEST_F(WayTest, NoStreamOfTheCallersIsAnError) {
  Make();
  options_.caller_stream = [] {
    return absl::UnimplementedError("which stream is not known");
  };
  EXPECT_THAT(OffloadedSlices::Create(&runtime_, places_, options_),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("which stream is not known")));
}

TEST_F(WayTest, GradientsAreLikeTheSlices) {
  Make();
  for (const std::function<void()>& change : std::vector<std::function<void()>>{
           [&] { gradients_.pop_back(); }, [&] { gradients_[2].count = 99; },
           [&] { gradients_[0].device = Device(); },
           [&] { gradients_[3].dtype = DType::kInt32; }}) {
    const std::vector<Span> before = gradients_;
    change();
    EXPECT_THAT(offloaded_->Step(gradients_, Adding()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("Reducer::OwnSlice")));
    gradients_ = before;
  }
  EXPECT_OK(offloaded_->Step(gradients_, Adding()));
}

TEST_F(WayTest, PinnedMemoryIsFourTimesTheLargestSlice) {
  Make();
  EXPECT_EQ(offloaded_->pinned_bytes(), 4 * 100 * 4);
  EXPECT_EQ(offloaded_->host_bytes(), 64 + 448 + 64);  // whole cache lines
}

// Whichever allocation fails, nothing is left over: see TearDown.
TEST_F(WayTest, NoPinnedMemoryIsAnErrorOfItsOwn) {
  for (int failing = 0; failing < 4; ++failing) {
    runtime_.FailAllocation(failing);
    EXPECT_THAT(OffloadedSlices::Create(&runtime_, places_, options_),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("4 pinned blocks of 400 bytes"),
                               HasSubstr("smaller buckets"))));
  }
  Make();
}

}  // namespace
}  // namespace coxswain::offloaded_slices_test
