// A reducer whose ranks keep the averages of their own slices, on a GPU, which
// is emulated: what it does there has the bits of the same on the CPU.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/comm/nccl/emulated/emulated_group.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/device_world_for_test.h"
#include "client/reduce/reducer_test_support.h"
#include "gmock/gmock.h"
#include "schedule/fake_step_gate.h"

namespace coxswain::reducer_device_slices_test {
namespace {

using testing::_;
using testing::AllOf;
using testing::HasSubstr;

// Of several buckets, one of which has less than a cache line.
constexpr int64_t kCounts[] = {1, 40, 5000, 2048, 7};
constexpr int kParameters = 5;
constexpr int64_t kSteps = 3;

ReducerOptions Sliced() {
  ReducerOptions options;
  options.buckets = {16, 16384};
  options.timeout = kSoon;
  options.slices = true;
  return options;
}

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

using Slices = std::vector<std::vector<float>>;  // by bucket

// A rank with its reducer, on the CPU or on a GPU.
struct Rank {
  Reducer* reducer = nullptr;
  Gpu* gpu = nullptr;  // null: on the CPU
  int rank = 0;

  void Write(const Span& span, std::vector<float> values) const {
    if (gpu != nullptr) return gpu->Write(span, std::move(values));
    if (values.empty()) return;
    std::memcpy(span.data, values.data(), static_cast<size_t>(span.bytes()));
  }
  std::vector<float> Read(const Span& span) const {
    return gpu != nullptr ? gpu->Read(span) : ValuesOf(span);
  }
  // Marks all gradients of a step that has begun, and finishes it.
  absl::Status Exchange(int64_t step) const {
    for (int p = 0; p < kParameters; ++p) {
      Write(reducer->GradientView(p), GradientOf(rank, step, p));
      COXSWAIN_RETURN_IF_ERROR(reducer->MarkReady(p));
    }
    return reducer->Finish();
  }
  Slices OwnSlices() const {
    Slices slices;
    for (const Bucket& bucket : reducer->buckets()) {
      slices.push_back(Read(reducer->OwnSlice(bucket)));
    }
    return slices;
  }
};

using Program = std::function<void(const Rank&)>;
using OptionsOf = std::function<ReducerOptions(int rank)>;

// Runs a program on ranks of the CPU, and on ranks of emulated GPUs.
void OnCpus(int size, const OptionsOf& options, const Program& run) {
  OnRanks(size, [&](int rank, Communicator* communicator) {
    AverageHook hook;
    const auto reducer = Reducer::Create(options(rank), ParametersOf(kCounts),
                                         &hook, communicator);
    ASSERT_OK(reducer);
    run({reducer->get(), nullptr, rank});
  });
}

void OnGpu(int rank, int size, const std::shared_ptr<RendezvousStore>& store,
           const ReducerOptions& options, const Program& run) {
  Gpu gpu(rank);
  {
    const auto communicator = ConnectGpu(&gpu.runtime, rank, size, store);
    DeviceAverageHook hook;
    const auto reducer = Reducer::Create(OnStreamOf(gpu, options),
                                         OnDevice(ParametersOf(kCounts), rank),
                                         &hook, communicator.get());
    ASSERT_OK(reducer);
    run({reducer->get(), &gpu, rank});
  }
  gpu.tensors.clear();
  EXPECT_EQ(gpu.runtime.leaked(), 1) << "but for the framework's stream";
}

void OnGpus(int size, const OptionsOf& options, const Program& run) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { OnGpu(rank, size, store, options(rank), run); });
  }
  for (std::thread& thread : threads) thread.join();
}

// What a rank has after each step.
struct Seen {
  Slices slices;
  double norm = 0;
  double clip_scale = 0;
  int64_t non_finite = 0;

  static Seen Of(const Rank& rank) {
    const StepReport report = rank.reducer->report();
    return {rank.OwnSlices(), report.gradient_norm, report.clip_scale,
            report.non_finite};
  }
  friend bool operator==(const Seen& a, const Seen& b) {
    return a.slices == b.slices && a.norm == b.norm &&
           a.clip_scale == b.clip_scale && a.non_finite == b.non_finite;
  }
};

using Steps = std::function<std::vector<Seen>(const Rank&)>;

void ExpectSameBits(int size, const OptionsOf& cpu_options,
                    const OptionsOf& gpu_options, const Steps& run) {
  std::vector<std::vector<Seen>> cpu(static_cast<size_t>(size));
  std::vector<std::vector<Seen>> gpu(static_cast<size_t>(size));
  OnCpus(size, cpu_options, [&](const Rank& rank) {
    cpu[static_cast<size_t>(rank.rank)] = run(rank);
  });
  OnGpus(size, gpu_options, [&](const Rank& rank) {
    gpu[static_cast<size_t>(rank.rank)] = run(rank);
  });
  for (size_t rank = 0; rank < cpu.size(); ++rank) {
    ASSERT_FALSE(cpu[rank].empty());
    ASSERT_EQ(cpu[rank].size(), gpu[rank].size());
    for (size_t step = 0; step < cpu[rank].size(); ++step) {
      EXPECT_TRUE(cpu[rank][step] == gpu[rank][step])
          << "rank " << rank << " of " << size << ", step " << step
          << ", norms " << cpu[rank][step].norm << " and "
          << gpu[rank][step].norm;
    }
  }
}

void ExpectSameBits(const ReducerOptions& options, const Steps& run) {
  const auto alike = [&](int) { return options; };
  for (const int size : {1, 2, 4}) ExpectSameBits(size, alike, alike, run);
}

std::vector<Seen> TakeSteps(const Rank& rank) {
  std::vector<Seen> seen;
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_OK(rank.reducer->BeginStep());
    EXPECT_OK(rank.Exchange(step));
    seen.push_back(Seen::Of(rank));
    EXPECT_OK(rank.reducer->Commit());
  }
  return seen;
}

TEST(ReducerDeviceSlicesTest, TheAveragesAreThoseOfTheCpu) {
  ExpectSameBits(Sliced(), TakeSteps);
}

TEST(ReducerDeviceSlicesTest, NormsAndClippingAreThoseOfTheCpu) {
  ReducerOptions options = Sliced();
  options.statistics = true;
  ExpectSameBits(options, TakeSteps);
  options.max_norm = 0.5;
  ExpectSameBits(options, TakeSteps);
}

// Of a bucket of four parameters one in the middle, so that slices have several
// runs.
TEST(ReducerDeviceSlicesTest, WhatIsNotCountedIsInNoNorm) {
  ReducerOptions options = Sliced();
  options.buckets = {1, 1 << 20};
  options.buckets.uncounted_parameters = {"p2"};
  options.max_norm = 0.5;
  ExpectSameBits(options, TakeSteps);
}

// Rank 0 comes without data in one step.
TEST(ReducerDeviceSlicesTest, WeightsCountAsOnTheCpu) {
  ReducerOptions options = Sliced();
  options.statistics = true;
  options.uneven_inputs = true;
  const Steps run = [](const Rank& rank) {
    std::vector<Seen> seen;
    for (int64_t step = 0; step < kSteps; ++step) {
      const bool idle = step == 1 && rank.rank == 0;
      EXPECT_OK(rank.reducer->BeginStep(idle ? 0 : 1 + rank.rank));
      EXPECT_OK(idle ? rank.reducer->Finish() : rank.Exchange(step));
      if (rank.reducer->report().empty) {
        rank.reducer->Rollback();  // it is the only rank
        continue;
      }
      seen.push_back(Seen::Of(rank));
      EXPECT_OK(rank.reducer->Commit());
    }
    return seen;
  };
  ExpectSameBits(options, run);
}

TEST(ReducerDeviceSlicesTest, AllRanksLearnOfAnInfinity) {
  ReducerOptions options = Sliced();
  options.max_norm = 1;
  OnGpus(
      2, [&](int) { return options; },
      [](const Rank& rank) {
        ASSERT_OK(rank.reducer->BeginStep());
        for (int p = 0; p < kParameters; ++p) {
          std::vector<float> gradient = GradientOf(rank.rank, 0, p);
          if (rank.rank == 1 && p == 2) {
            gradient[4999] = std::numeric_limits<float>::infinity();
          }
          rank.Write(rank.reducer->GradientView(p), std::move(gradient));
          ASSERT_OK(rank.reducer->MarkReady(p));
        }
        ASSERT_OK(rank.reducer->Finish());
        EXPECT_EQ(rank.reducer->report().non_finite, 1);
        rank.reducer->Rollback();
      });
}

// With sync_each_batch: windows of three, one, and three, of which the last
// one's second micro-batch is skipped.
TEST(ReducerDeviceSlicesTest, AveragesOfAWindowAreAddedUpAsOnTheCpu) {
  ReducerOptions options = Sliced();
  options.statistics = true;
  const Steps run = [](const Rank& rank) {
    std::vector<Seen> seen;
    for (int64_t step = 0; step < 4; ++step) {
      const int window = step == 1 ? 1 : 3;
      for (int micro = 0; micro < window; ++micro) {
        schedule::Ticket ticket;
        ticket.step = step;
        ticket.micro = micro;
        ticket.window = window;
        EXPECT_OK(rank.reducer->BeginStep(ticket, 1));
        EXPECT_OK(rank.Exchange(10 * step + micro));
        seen.push_back(Seen::Of(rank));
        if (step == 2 && micro == 1) {
          rank.reducer->Rollback();
          break;
        }
        EXPECT_OK(rank.reducer->Commit());
      }
    }
    return seen;
  };
  ExpectSameBits(options, run);
}

TEST(ReducerDeviceSlicesTest, NoMemoryForSumsIsAnErrorOfTheStep) {
  EmulatedGpus gpus(1, 21805);  // without memory of NCCL's own
  CommunicatorOptions connecting;
  connecting.id = "scarce";
  connecting.timeout = kSoon;
  ASSERT_OK_AND_ASSIGN(const auto communicator, gpus.Connect(connecting));
  DeviceAverageHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(Sliced(), OnDevice(ParametersOf(kCounts)), &hook,
                      communicator.get()));
  schedule::Ticket ticket;
  ticket.window = 2;
  gpus.runtime(0).FailAllocation(0);
  EXPECT_THAT(reducer->BeginStep(ticket, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("memory for sums of averages")));
}

// Clipped by Decide, on a stream that is another one in each step.
TEST(ReducerDeviceSlicesTest, NormsByVoteAreThoseOfTheCpu) {
  constexpr int kRanks = 2;
  schedule::Plan plan;
  plan.terms.commit_vote = true;
  schedule::FakeSchedule cpu(kRanks, plan);
  schedule::FakeSchedule gpu(kRanks, plan);
  const auto voting = [&](schedule::FakeSchedule& schedule) {
    return [&](int rank) {
      ReducerOptions options = Sliced();
      options.max_norm = 0.5;
      options.gate = schedule.gate(rank);
      FollowPlan(plan, kRanks, &options);
      return options;
    };
  };
  const Steps run = [](const Rank& rank) {
    std::vector<Seen> seen;
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_OK(rank.reducer->BeginStep());
      EXPECT_OK(rank.Exchange(step));
      EXPECT_EQ(rank.reducer->report().gradient_norm, 0);
      EXPECT_OK(rank.reducer->Decide());
      EXPECT_GT(rank.reducer->report().gradient_norm, 0.5);
      seen.push_back(Seen::Of(rank));
      EXPECT_OK(rank.reducer->Commit());
    }
    return seen;
  };
  ExpectSameBits(kRanks, voting(cpu), voting(gpu), run);
}

// A step overwrites what the vote's clipping reads only once that has run.
TEST(ReducerDeviceSlicesTest, AStepOnAnotherStreamComesAfterTheClipping) {
  schedule::Plan plan;
  plan.terms.commit_vote = true;
  schedule::FakeSchedule schedule(1, plan);
  Gpu gpu;
  ASSERT_OK_AND_ASSIGN(const DeviceStream other, gpu.runtime.CreateStream());
  {
    const auto communicator = ConnectGpu(&gpu.runtime);
    DeviceAverageHook hook;
    DeviceStream current = gpu.stream;
    ReducerOptions options = Sliced();
    options.max_norm = 0.5;
    options.gate = schedule.gate(0);
    FollowPlan(plan, 1, &options);
    options.caller_stream = [&] { return current; };
    ASSERT_OK_AND_ASSIGN(const auto reducer,
                         Reducer::Create(options, OnDevice(ParametersOf({4})),
                                         &hook, communicator.get()));
    const Span view = reducer->GradientView(0);
    ASSERT_OK(reducer->BeginStep());
    gpu.Write(view, {3, 0, 0, 4});
    ASSERT_OK(reducer->MarkReady(0));
    ASSERT_OK(reducer->Finish());
    gpu.runtime.HoldStream(gpu.stream);
    ASSERT_OK(reducer->Decide());
    ASSERT_OK(reducer->Commit());
    current = other;
    ASSERT_OK(reducer->BeginStep());
    const Span next = gpu.Tensor(4);
    gpu.Write(next, {9, 9, 9, 9}, other);
    ASSERT_OK(reducer->MarkReady(0, next));
    ASSERT_TRUE(hook.log().WaitForSize(2));
    EXPECT_FALSE(communicator->device_queue()->Mark()->Done());
    gpu.runtime.ReleaseStream(gpu.stream);
    ASSERT_OK(reducer->Finish());
    EXPECT_EQ(gpu.Read(view), std::vector<float>(4, 9));
    ASSERT_OK(reducer->Decide());
    ASSERT_OK(reducer->Commit());
  }
  gpu.runtime.DestroyStream(other);
}

// An optimizer step on the own slices, then all ranks have all of it: without
// a wait of the host between.
TEST(ReducerDeviceSlicesTest, SlicesAreGatheredBehindTheCallersStream) {
  constexpr int kRanks = 2;
  OnGpus(
      kRanks, [](int) { return Sliced(); },
      [](const Rank& rank) {
        Gpu& gpu = *rank.gpu;
        std::vector<Span> wholes;
        for (const Bucket& bucket : rank.reducer->buckets()) {
          const auto slices = BucketSlices::Of(bucket.data, kRanks);
          wholes.push_back(gpu.Tensor(slices.padded()));
          wholes.back().count = bucket.data.count;
        }
        // The first time the ranks are compared, too.
        ASSERT_OK(rank.reducer->GatherSlices(wholes));
        ASSERT_OK(AwaitStream(&gpu.runtime, gpu.stream));
        gpu.runtime.HoldStream(gpu.stream);
        for (size_t i = 0; i < wholes.size(); ++i) {
          const Span own =
              BucketSlices::Of(wholes[i], kRanks).Slice(wholes[i], rank.rank);
          rank.Write(own,
                     std::vector<float>(static_cast<size_t>(own.count),
                                        static_cast<float>(rank.rank + 1)));
        }
        const int64_t before = gpu.runtime.launches();
        std::thread releasing([&] {
          while (gpu.runtime.launches() == before) std::this_thread::yield();
          const DeviceEvent gathered = gpu.runtime.CreateEvent().value();
          EXPECT_OK(gpu.runtime.Record(
              gathered, rank.reducer->slicing().device_queue()->stream()));
          EXPECT_THAT(
              AwaitEvent(&gpu.runtime, gathered, absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, _));
          gpu.runtime.DestroyEvent(gathered);
          gpu.runtime.ReleaseStream(gpu.stream);
        });
        EXPECT_OK(rank.reducer->GatherSlices(wholes));
        releasing.join();
        for (const Span& whole : wholes) {
          const auto slices = BucketSlices::Of(whole, kRanks);
          std::vector<float> expected(
              static_cast<size_t>(slices.count(whole.count, 0)), 1.0F);
          expected.resize(static_cast<size_t>(whole.count), 2.0F);
          EXPECT_EQ(gpu.Read(whole), expected);
        }
      });
}

TEST(ReducerDeviceSlicesTest, WhatIsGatheredLiesOnTheDevice) {
  OnGpus(
      1, [](int) { return Sliced(); },
      [](const Rank& rank) {
        std::vector<std::vector<float>> memory;
        std::vector<Span> wholes;
        for (const Bucket& bucket : rank.reducer->buckets()) {
          memory.emplace_back(static_cast<size_t>(bucket.data.count) + 16);
          wholes.push_back(SpanOf(&memory.back()).Slice(0, bucket.data.count));
        }
        EXPECT_THAT(
            rank.reducer->GatherSlices(wholes),
            StatusIs(absl::StatusCode::kInvalidArgument,
                     AllOf(HasSubstr("on cuda:0"), HasSubstr("in its place"),
                           HasSubstr("on the CPU"))));
        EXPECT_OK(rank.reducer->status());
      });
}

// As an optimizer that steps a bucket while others travel reads them: on a
// stream that has waited for nothing.
TEST(ReducerDeviceSlicesTest, SumsStandInTheSliceWhenItIsHandedOver) {
  Gpu gpu;
  ASSERT_OK_AND_ASSIGN(const DeviceStream other, gpu.runtime.CreateStream());
  {
    const auto communicator = ConnectGpu(&gpu.runtime);
    DeviceAverageHook hook;
    std::vector<float> seen(4);
    Span own;
    ReducerOptions options = OnStreamOf(gpu, Sliced());
    options.on_average = [&](const Bucket&) -> absl::Status {
      COXSWAIN_RETURN_IF_ERROR(
          gpu.runtime.Copy(seen.data(), own.data, own.bytes(), other));
      return AwaitStream(&gpu.runtime, other);
    };
    ASSERT_OK_AND_ASSIGN(const auto reducer,
                         Reducer::Create(options, OnDevice(ParametersOf({4})),
                                         &hook, communicator.get()));
    own = reducer->OwnSlice(reducer->buckets()[0]);
    for (int micro = 0; micro < 3; ++micro) {
      schedule::Ticket ticket;
      ticket.micro = micro;
      ticket.window = 3;
      ASSERT_OK(reducer->BeginStep(ticket, 1));
      gpu.Write(reducer->GradientView(0), {1, 2, 3, 4});
      ASSERT_OK(reducer->MarkReady(0));
      ASSERT_OK(reducer->Finish());
      const auto times = static_cast<float>(micro + 1);
      EXPECT_EQ(seen,
                (std::vector<float>{times, 2 * times, 3 * times, 4 * times}));
      ASSERT_OK(reducer->Commit());
    }
  }
  gpu.runtime.DestroyStream(other);
}

TEST(ReducerDeviceSlicesTest, WhatIsForTheCpuIsRefused) {
  Gpu gpu;
  const auto communicator = ConnectGpu(&gpu.runtime);
  DeviceAverageHook hook;
  const auto why = [&](const ReducerOptions& options) {
    return Reducer::Create(options, OnDevice(ParametersOf(kCounts)), &hook,
                           communicator.get())
        .status();
  };
  ReducerOptions released = Sliced();
  released.release_buckets = true;
  EXPECT_THAT(why(released),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"p0\" is on cuda:0"),
                             HasSubstr("release_buckets (zero=2)"),
                             HasSubstr("leave it out"))));
  LoopbackCommunicator replicas;
  ReducerOptions hybrid = Sliced();
  hybrid.hybrid = {communicator.get(), &replicas};
  EXPECT_THAT(why(hybrid),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"p0\" is on cuda:0"),
                             HasSubstr("hybrid sharding is for the CPU"))));
}

}  // namespace
}  // namespace coxswain::reducer_device_slices_test
