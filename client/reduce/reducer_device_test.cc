// The reducer with its buckets on a GPU, which is emulated: a missing wait
// shows as wrong numbers here, and as a race to ThreadSanitizer.

#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/device/await_for_test.h"
#include "client/device/emulated/emulated_runtime.h"
#include "client/reduce/device_world_for_test.h"
#include "client/reduce/reducer.h"
#include "client/reduce/reducer_test_support.h"
#include "schedule/fake_step_gate.h"

namespace coxswain {
namespace {

using testing::_;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Of sizes around those that are computed together.
std::vector<ParameterSpec> SomeParameters() {
  std::vector<ParameterSpec> parameters = Parameters(5);
  const int64_t counts[] = {1, 40, 5000, 2048, 7};
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].shape = {counts[i]};
  }
  return parameters;
}

std::vector<float> GradientOf(int rank, int64_t step, int parameter,
                              int64_t count) {
  const CounterRandom random(static_cast<uint64_t>(rank * 100 + step),
                             static_cast<uint64_t>(parameter));
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(random.Normal(i)));
  }
  return values;
}

// What a rank has after each step: all that a caller can see.
struct Seen {
  std::vector<std::vector<float>> averages;  // by parameter
  std::vector<std::vector<float>> outside;   // likewise
  double norm = 0;
  double clip_scale = 0;
  int64_t non_finite = 0;
  bool unused = false;
  int64_t layout_version = 0;

  friend bool operator==(const Seen& a, const Seen& b) {
    return a.averages == b.averages && a.outside == b.outside &&
           a.norm == b.norm && a.clip_scale == b.clip_scale &&
           a.non_finite == b.non_finite && a.unused == b.unused &&
           a.layout_version == b.layout_version;
  }
};

constexpr int kSteps = 4;

// The same steps on the CPU and on a GPU, by way of these.
struct Memory {
  std::function<void(const Span&, std::vector<float>)> write;
  std::function<std::vector<float>(const Span&)> read;
  std::function<Span(int64_t)> tensor;
};

Memory OfGpu(Gpu* gpu) {
  return {[gpu](const Span& span, std::vector<float> values) {
            gpu->Write(span, std::move(values));
          },
          [gpu](const Span& span) { return gpu->Read(span); },
          [gpu](int64_t count) { return gpu->Tensor(count); }};
}

Memory OfCpu(std::deque<std::vector<float>>* tensors) {
  return {[](const Span& span, std::vector<float> values) {
            std::memcpy(span.data, values.data(),
                        static_cast<size_t>(span.bytes()));
          },
          [](const Span& span) {
            const float* data = static_cast<const float*>(span.data);
            return std::vector<float>(data, data + span.count);
          },
          [tensors](int64_t count) {
            tensors->emplace_back(static_cast<size_t>(count));
            return SpanOf(&tensors->back());
          }};
}

// Parameters 0 and 3 come from outside; 4 is not used, by rank 1 or by any.
absl::Status TakeStep(Reducer& reducer, int rank, int64_t step,
                      const Memory& memory, std::vector<Span>* outside) {
  const bool weighs = step == 2;
  const bool idle = weighs && rank == 1;
  COXSWAIN_RETURN_IF_ERROR(reducer.BeginStep(idle ? 0 : weighs ? 3 + rank : 1));
  for (int p = 0; p < 5 && !idle; ++p) {
    const Span view = reducer.GradientView(p);
    const std::vector<float> gradient = GradientOf(rank, step, p, view.count);
    if (p == 4 && step % 2 == 1) {
      COXSWAIN_RETURN_IF_ERROR(reducer.MarkZeros(p));
    } else if (p == 4 && rank == 1) {
      continue;
    } else if (p % 3 == 0) {
      Reducer::MarkOptions mark;
      mark.copy_back = true;
      const Span& tensor = (*outside)[static_cast<size_t>(p)];
      memory.write(tensor, gradient);
      COXSWAIN_RETURN_IF_ERROR(reducer.MarkReady(p, tensor, mark));
    } else {
      memory.write(view, gradient);
      COXSWAIN_RETURN_IF_ERROR(reducer.MarkReady(p));
    }
  }
  return reducer.Finish();
}

std::vector<Seen> RunSteps(Reducer& reducer, int rank, const Memory& memory,
                           bool decides) {
  std::vector<Seen> seen;
  std::vector<Span> outside;
  for (int p = 0; p < 5; ++p) {
    outside.push_back(memory.tensor(reducer.GradientView(p).count));
    memory.write(outside.back(),
                 std::vector<float>(static_cast<size_t>(outside.back().count)));
  }
  for (int64_t step = 0; step < kSteps; ++step) {
    const absl::Status status = TakeStep(reducer, rank, step, memory, &outside);
    EXPECT_OK(status);
    if (!status.ok()) return seen;
    if (decides) {
      EXPECT_EQ(reducer.report().clip_scale, 1);
      EXPECT_OK(reducer.Decide());
    }
    Seen now;
    now.norm = reducer.report().gradient_norm;
    now.clip_scale = reducer.report().clip_scale;
    now.non_finite = reducer.report().non_finite;
    now.unused = reducer.unused_everywhere(4);
    for (int p = 0; p < 5; ++p) {
      now.averages.push_back(memory.read(reducer.GradientView(p)));
      now.outside.push_back(memory.read(outside[static_cast<size_t>(p)]));
    }
    EXPECT_OK(reducer.Commit());
    // What stands in the views is carried over when the buckets change.
    for (int p = 0; p < 5; ++p) {
      EXPECT_TRUE(memory.read(reducer.GradientView(p)) ==
                  now.averages[static_cast<size_t>(p)]);
    }
    now.layout_version = reducer.layout_version();
    seen.push_back(std::move(now));
  }
  return seen;
}

std::vector<Seen> StepsOnCpu(int rank, Communicator* communicator,
                             const ReducerOptions& options) {
  AverageHook hook;
  std::deque<std::vector<float>> tensors;
  const auto reducer =
      Reducer::Create(options, SomeParameters(), &hook, communicator);
  EXPECT_OK(reducer);
  return RunSteps(**reducer, rank, OfCpu(&tensors), options.gate != nullptr);
}

std::vector<Seen> StepsOnGpu(int rank, int ranks,
                             const std::shared_ptr<RendezvousStore>& store,
                             const ReducerOptions& options) {
  Gpu gpu(rank);
  std::vector<Seen> seen;
  {
    const auto communicator = ConnectGpu(&gpu.runtime, rank, ranks, store);
    DeviceAverageHook hook;
    const auto reducer = Reducer::Create(OnStreamOf(gpu, options),
                                         OnDevice(SomeParameters(), rank),
                                         &hook, communicator.get());
    EXPECT_OK(reducer);
    if (reducer.ok()) {
      seen = RunSteps(**reducer, rank, OfGpu(&gpu), options.gate != nullptr);
    }
  }
  gpu.tensors.clear();
  EXPECT_EQ(gpu.runtime.leaked(), 1) << "but for the framework's stream";
  return seen;
}

// With norm_by_vote the first rank is the one that counts.
ReducerOptions OfRank(int rank, schedule::FakeSchedule& schedule,
                      ReducerOptions options) {
  if (!options.norm_by_vote) return options;
  options.gate = schedule.gate(rank);
  options.counts_in_norm = rank == 0;
  return options;
}

void ExpectSameBits(const ReducerOptions& options) {
  constexpr int kRanks = 2;
  schedule::Plan voting;
  voting.terms.commit_vote = true;
  schedule::FakeSchedule of_cpus(kRanks, voting);
  schedule::FakeSchedule of_gpus(kRanks, voting);
  std::vector<std::vector<Seen>> cpu(kRanks);
  OnRanks(kRanks, [&](int rank, Communicator* communicator) {
    cpu[static_cast<size_t>(rank)] =
        StepsOnCpu(rank, communicator, OfRank(rank, of_cpus, options));
  });
  std::vector<std::vector<Seen>> gpu(kRanks);
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      gpu[static_cast<size_t>(rank)] =
          StepsOnGpu(rank, kRanks, store, OfRank(rank, of_gpus, options));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_EQ(cpu[rank].size(), size_t{kSteps});
    ASSERT_EQ(gpu[rank].size(), size_t{kSteps});
    for (size_t step = 0; step < kSteps; ++step) {
      EXPECT_TRUE(gpu[rank][step] == cpu[rank][step])
          << "rank " << rank << ", step " << step << ", norms "
          << gpu[rank][step].norm << " and " << cpu[rank][step].norm;
    }
  }
}

ReducerOptions SomeBuckets() {
  ReducerOptions options;
  options.buckets = {4096, 16384};
  options.timeout = kSoon;
  options.uneven_inputs = true;
  return options;
}

TEST(ReducerDeviceTest, TheSameBitsAsOnTheCpu) {
  ExpectSameBits(SomeBuckets());
}

TEST(ReducerDeviceTest, TheSameNormsAndClippingAsOnTheCpu) {
  ReducerOptions options = SomeBuckets();
  options.statistics = true;
  ExpectSameBits(options);
  options.max_norm = 0.5;
  ExpectSameBits(options);
}

TEST(ReducerDeviceTest, TheSameNormsByVoteAsOnTheCpu) {
  ReducerOptions options = SomeBuckets();
  options.norm_by_vote = true;
  options.max_norm = 0.5;
  options.buckets.late_parameters = {"p1", "p3"};
  options.buckets.uncounted_parameters = {"p1"};
  ExpectSameBits(options);
}

TEST(ReducerDeviceTest, TheSameUnusedParametersAsOnTheCpu) {
  ReducerOptions options = SomeBuckets();
  options.find_unused_parameters = true;
  options.max_norm = 3;
  ExpectSameBits(options);
}

TEST(ReducerDeviceTest, TheDefaultStreamWhereNoneIsNamed) {
  Gpu gpu;
  const auto communicator = ConnectGpu(&gpu.runtime);
  DeviceAverageHook hook;
  ASSERT_OK_AND_ASSIGN(const auto reducer,
                       Reducer::Create(OneBucketEach(), OnDevice(Parameters(1)),
                                       &hook, communicator.get()));
  ASSERT_OK(reducer->BeginStep());
  const std::vector<float> gradient = {1, 2, 3, 4};
  const Span view = reducer->GradientView(0);
  ASSERT_OK(
      gpu.runtime.Copy(view.data, gradient.data(), view.bytes(), nullptr));
  ASSERT_OK(reducer->MarkReady(0));
  ASSERT_OK(reducer->Finish());
  EXPECT_EQ(gpu.Read(view), gradient);
}

// Leaves gradients as they are, without a look at them.
class KeepingHook : public AverageHook {
 public:
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(const Bucket&,
                                                    Communicator&) override {
    return std::make_unique<Keeping>();
  }

 private:
  struct Keeping : public Exchange {
    absl::StatusOr<WorkPtr> Advance() override { return WorkPtr(); }
  };
};

// A step on one rank with the bucket {p0, p1}, and streams in the test's hand.
class HeldStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    Make(Options(), &hook_, 2);
    ASSERT_EQ(reducer_->buckets().size(), 1);
  }

  ReducerOptions Options() {
    ReducerOptions options;
    options.timeout = kSoon;
    options.verify = false;
    options.caller_stream = [this]() -> absl::StatusOr<DeviceStream> {
      EXPECT_EQ(std::this_thread::get_id(), caller_) << "it has its own stream";
      if (!no_stream_.ok()) return no_stream_;
      return current_;
    };
    return options;
  }

  void Make(const ReducerOptions& options, Hook* hook, int parameters) {
    reducer_.reset();
    ASSERT_OK_AND_ASSIGN(
        reducer_, Reducer::Create(options, OnDevice(Parameters(parameters)),
                                  hook, communicator_.get()));
  }

  const std::thread::id caller_ = std::this_thread::get_id();
  Gpu gpu_;
  DeviceStream current_ = gpu_.stream;
  absl::Status no_stream_;
  const std::unique_ptr<Communicator> communicator_ = ConnectGpu(&gpu_.runtime);
  DeviceAverageHook hook_;
  KeepingHook keeping_;
  std::unique_ptr<Reducer> reducer_;
};

TEST_F(HeldStreamTest, TheExchangeWaitsForGradientsThatAreNotReady) {
  ASSERT_OK(reducer_->BeginStep());
  gpu_.runtime.HoldStream(gpu_.stream);
  for (int p = 0; p < 2; ++p) {
    gpu_.Write(reducer_->GradientView(p), {1, 2, 3, static_cast<float>(p)});
    ASSERT_OK(reducer_->MarkReady(p));
  }
  // Marking did not wait, nor did the hook.
  ASSERT_TRUE(hook_.log().WaitForSize(1));
  const WorkPtr mark = communicator_->device_queue()->Mark();
  EXPECT_FALSE(mark->Done());
  gpu_.runtime.ReleaseStream(gpu_.stream);
  ASSERT_OK(reducer_->Finish());
  EXPECT_OK(mark->Wait(kSoon));
  EXPECT_THAT(gpu_.Read(reducer_->GradientView(0)), ElementsAre(1, 2, 3, 0));
  EXPECT_THAT(gpu_.Read(reducer_->GradientView(1)), ElementsAre(1, 2, 3, 1));
}

TEST_F(HeldStreamTest, GradientsOfOneBucketMayComeOnSeveralStreams) {
  ASSERT_OK_AND_ASSIGN(const DeviceStream other, gpu_.runtime.CreateStream());
  ASSERT_OK(reducer_->BeginStep());
  gpu_.runtime.HoldStream(gpu_.stream);
  const Span first = gpu_.Tensor(4);
  gpu_.Write(first, {1, 1, 1, 1});
  ASSERT_OK(reducer_->MarkReady(1, first));
  current_ = other;
  const Span second = gpu_.Tensor(4);
  gpu_.Write(second, {2, 2, 2, 2}, other);
  ASSERT_OK(reducer_->MarkReady(0, second));
  // The bucket is complete, and what came last has long been there.
  ASSERT_TRUE(hook_.log().WaitForSize(1));
  EXPECT_FALSE(communicator_->device_queue()->Mark()->Done());
  gpu_.runtime.ReleaseStream(gpu_.stream);
  ASSERT_OK(reducer_->Finish());
  EXPECT_THAT(gpu_.Read(reducer_->GradientView(1)), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(gpu_.Read(reducer_->GradientView(0)), ElementsAre(2, 2, 2, 2));
  current_ = gpu_.stream;
  gpu_.runtime.DestroyStream(other);
}

TEST_F(HeldStreamTest, AveragesAreTakenOnceTheGradientsAreReady) {
  ReducerOptions options = Options();
  options.statistics = true;
  Make(options, &keeping_, 2);
  const Span outside = gpu_.Tensor(4);
  gpu_.Write(outside, {1, 2, 3, 4});
  ASSERT_OK(AwaitStream(&gpu_.runtime, gpu_.stream));
  ASSERT_OK(reducer_->BeginStep());
  gpu_.runtime.HoldStream(gpu_.stream);
  const int64_t before = gpu_.runtime.launches();
  Reducer::MarkOptions mark;
  mark.copy_back = true;
  ASSERT_OK(reducer_->MarkReady(0, outside, mark));
  gpu_.Write(reducer_->GradientView(1), {5, 0, 0, 0});
  ASSERT_OK(reducer_->MarkReady(1));
  while (gpu_.runtime.launches() == before) std::this_thread::yield();
  EXPECT_FALSE(communicator_->device_queue()->Mark()->Done());
  gpu_.runtime.ReleaseStream(gpu_.stream);
  ASSERT_OK(reducer_->Finish());
  EXPECT_EQ(reducer_->report().gradient_norm, std::sqrt(55.0));
  EXPECT_THAT(gpu_.Read(outside), ElementsAre(1, 2, 3, 4));
}

TEST_F(HeldStreamTest, WhatFollowsAStepComesAfterItsGradients) {
  ASSERT_OK_AND_ASSIGN(const DeviceStream other, gpu_.runtime.CreateStream());
  ASSERT_OK_AND_ASSIGN(const DeviceEvent after, gpu_.runtime.CreateEvent());
  ReducerOptions options = Options();
  options.rebuild = false;
  Make(options, &keeping_, 1);
  ASSERT_OK(reducer_->BeginStep());
  gpu_.runtime.HoldStream(gpu_.stream);
  ASSERT_OK(reducer_->MarkReady(0));
  current_ = other;
  ASSERT_OK(reducer_->Finish());
  ASSERT_OK(gpu_.runtime.Record(after, other));
  ASSERT_OK_AND_ASSIGN(const bool passed, gpu_.runtime.HasPassed(after));
  EXPECT_FALSE(passed);
  gpu_.runtime.ReleaseStream(gpu_.stream);
  ASSERT_OK(AwaitStream(&gpu_.runtime, other));
  current_ = gpu_.stream;
  gpu_.runtime.DestroyEvent(after);
  gpu_.runtime.DestroyStream(other);
}

TEST_F(HeldStreamTest, AStepOverwritesOnlyWhatWasDelivered) {
  ASSERT_OK_AND_ASSIGN(const DeviceStream other, gpu_.runtime.CreateStream());
  ReducerOptions options = Options();
  options.rebuild = false;
  options.max_norm = 100;  // so that the caller's stream delivers
  Make(options, &hook_, 1);
  const Span outside = gpu_.Tensor(4);
  gpu_.Write(outside, {1, 2, 3, 4});
  ASSERT_OK(reducer_->BeginStep());
  Reducer::MarkOptions mark;
  mark.copy_back = true;
  ASSERT_OK(reducer_->MarkReady(0, outside, mark));
  ASSERT_OK(AwaitStream(&gpu_.runtime, gpu_.stream));
  gpu_.runtime.HoldStream(gpu_.stream);
  ASSERT_OK(reducer_->Finish());
  ASSERT_OK(reducer_->Commit());
  current_ = other;
  ASSERT_OK(reducer_->BeginStep());
  const Span next = gpu_.Tensor(4);
  gpu_.Write(next, {9, 9, 9, 9}, other);
  ASSERT_OK(reducer_->MarkReady(0, next));
  ASSERT_TRUE(hook_.log().WaitForSize(2));
  EXPECT_FALSE(communicator_->device_queue()->Mark()->Done());
  gpu_.runtime.ReleaseStream(gpu_.stream);
  ASSERT_OK(reducer_->Finish());
  EXPECT_THAT(gpu_.Read(outside), ElementsAre(1, 2, 3, 4));
  current_ = gpu_.stream;
  gpu_.runtime.DestroyStream(other);
}

// Whichever allocation fails, the buckets from before go on.
TEST_F(HeldStreamTest, BucketsThatCannotBeAllocatedChangeNothing) {
  ReducerOptions options = Options();
  options.rebuild = false;
  options.statistics = true;
  options.buckets = {32, 1};
  Make(options, &hook_, 3);
  ASSERT_EQ(reducer_->buckets().size(), 2);
  int failures = 0;
  for (bool changed = false; !changed; ++failures) {
    gpu_.runtime.FailAllocation(failures);
    const absl::Status status = reducer_->ChangeBuckets({1, 1});
    changed = status.ok();
    ASSERT_OK(reducer_->BeginStep());
    for (int p = 0; p < 3; ++p) {
      gpu_.Write(reducer_->GradientView(p),
                 {static_cast<float>(1 << p), 0, 0, 0});
      ASSERT_OK(reducer_->MarkReady(p));
    }
    ASSERT_OK(reducer_->Finish());
    EXPECT_EQ(reducer_->report().gradient_norm, std::sqrt(21.0)) << status;
    ASSERT_OK(reducer_->Commit());
  }
  EXPECT_GT(failures, 3);
  EXPECT_EQ(reducer_->buckets().size(), 3);
}

TEST_F(HeldStreamTest, NoStreamToMarkOnIsAnErrorOfTheStep) {
  ASSERT_OK(reducer_->BeginStep());
  no_stream_ = absl::UnimplementedError("which stream is not known");
  EXPECT_THAT(reducer_->MarkReady(0),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("which stream is not known")));
  EXPECT_THAT(reducer_->Finish(),
              StatusIs(absl::StatusCode::kUnimplemented, _));
}

TEST_F(HeldStreamTest, AFailedDeviceEndsTheStep) {
  ASSERT_OK(reducer_->BeginStep());
  gpu_.runtime.HoldStream(gpu_.stream);
  ASSERT_OK(reducer_->MarkReady(0));
  ASSERT_OK(reducer_->MarkReady(1));
  ASSERT_TRUE(hook_.log().WaitForSize(1));
  gpu_.runtime.Fail("an error of its memory");
  reducer_->Abort(absl::UnavailableError("somebody noticed"));
  EXPECT_THAT(reducer_->Finish(), StatusIs(absl::StatusCode::kUnavailable,
                                           HasSubstr("somebody noticed")));
}

TEST_F(HeldStreamTest, AGradientElsewhereIsRefused) {
  std::vector<float> gradient(4);
  ASSERT_OK(reducer_->BeginStep());
  EXPECT_THAT(reducer_->MarkReady(0, SpanOf(&gradient)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("not on the device of its parameter")));
}

TEST_F(HeldStreamTest, BroadcastsWhatTheCallersStreamLeaves) {
  const Span small = gpu_.Tensor(3);
  std::vector<float> host = {7, 8};
  gpu_.Write(small, {4, 5, 6});
  ASSERT_OK(reducer_->BroadcastFromRoot({small, SpanOf(&host)}));
  EXPECT_THAT(gpu_.Read(small), ElementsAre(4, 5, 6));
  EXPECT_THAT(host, ElementsAre(7, 8));
}

TEST(ReducerDeviceTest, PacksOfABroadcastAreOfTheRuntimesMemory) {
  Gpu gpu;
  {
    const Span small = gpu.Tensor(3);
    const auto communicator = ConnectGpu(&gpu.runtime);
    DeviceAverageHook hook;
    ASSERT_OK_AND_ASSIGN(
        const auto reducer,
        Reducer::Create(OnStreamOf(gpu, OneBucketEach()),
                        OnDevice(Parameters(1)), &hook, communicator.get()));
    ASSERT_OK(reducer->BroadcastFromRoot({small}));
    gpu.runtime.FailAllocation(0);
    EXPECT_THAT(reducer->BroadcastFromRoot({small}),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("broadcast: ")));
  }
  gpu.tensors.clear();
  EXPECT_EQ(gpu.runtime.leaked(), 1) << "but for the framework's stream";
}

TEST(ReducerDeviceTest, RootsParametersReachEveryGpu) {
  const auto store = std::make_shared<MemoryStore>();
  const auto run = [&](int rank) {
    Gpu gpu(rank);
    const auto communicator = ConnectGpu(&gpu.runtime, rank, 2, store);
    DeviceAverageHook hook;
    ASSERT_OK_AND_ASSIGN(const auto reducer,
                         Reducer::Create(OnStreamOf(gpu, OneBucketEach()),
                                         OnDevice(Parameters(1), rank), &hook,
                                         communicator.get()));
    const int64_t large = (26 << 20) / 4;
    std::vector<Span> spans = {gpu.Tensor(3), gpu.Tensor(large), gpu.Tensor(5)};
    for (const Span& span : spans) {
      gpu.Write(span, std::vector<float>(static_cast<size_t>(span.count),
                                         static_cast<float>(rank) + 1));
    }
    ASSERT_OK(reducer->BroadcastFromRoot(spans, 1));
    for (const Span& span : spans) {
      EXPECT_TRUE(gpu.Read(span) ==
                  std::vector<float>(static_cast<size_t>(span.count), 2));
    }
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
}

TEST(ReducerDeviceTest, ParametersAreWhereTheCommunicatorMovesMemory) {
  Gpu gpu(3);
  const auto device = ConnectGpu(&gpu.runtime);
  LoopbackCommunicator cpu;
  AverageHook hook;
  const auto why = [&](std::vector<ParameterSpec> parameters,
                       Communicator* communicator) {
    return Reducer::Create(OneBucketEach(), std::move(parameters), &hook,
                           communicator)
        .status();
  };
  EXPECT_THAT(why(OnDevice(Parameters(2)), &cpu),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("parameters are on cuda:0"),
                             HasSubstr("(loopback) moves memory of the CPU"),
                             HasSubstr("connect through nccl"))));
  EXPECT_THAT(why(OnDevice(Parameters(2)), device.get()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("on cuda:0, and the communicator (nccl) "
                                 "moves memory of cuda:3")));
  EXPECT_THAT(why(Parameters(2), device.get()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("are on the CPU, and the communicator")));
  std::vector<ParameterSpec> apart = OnDevice(Parameters(2), 3);
  apart[1].device.index = 1;
  EXPECT_THAT(why(apart, device.get()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"p0\" is on cuda:3 and \"p1\" on cuda:1")));
}

}  // namespace
}  // namespace coxswain
