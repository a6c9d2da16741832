#include "client/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "client/comm/device_queue.h"
#include "client/comm/memory_store.h"
#include "client/comm/nccl/emulated/emulated_group.h"
#include "client/comm/nccl/nccl_meeting.h"
#include "client/device/launch.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);
constexpr absl::Duration kTimeout = absl::Minutes(2);

using Group = std::vector<std::unique_ptr<Communicator>>;

// Floats in a GPU's memory, which this host may read and write while no stream
// works on them.
class OnGpu {
 public:
  OnGpu(DeviceRuntime* runtime, int64_t count, float value)
      : runtime_(runtime) {
    span_.count = count;
    span_.device = runtime->device();
    auto memory = runtime->Allocate(span_.bytes());
    EXPECT_OK(memory);
    span_.data = *memory;
    std::fill_n(data(), count, value);
  }
  ~OnGpu() { runtime_->Free(span_.data); }
  OnGpu(const OnGpu&) = delete;

  Span span() const { return span_; }
  float* data() const { return static_cast<float*>(span_.data); }

 private:
  DeviceRuntime* const runtime_;
  Span span_;
};

std::vector<std::unique_ptr<OnGpu>> OnAll(EmulatedGpus* gpus, int64_t count) {
  std::vector<std::unique_ptr<OnGpu>> all;
  for (int rank = 0; rank < gpus->count(); ++rank) {
    all.push_back(std::make_unique<OnGpu>(&gpus->runtime(rank), count,
                                          static_cast<float>(rank + 1)));
  }
  return all;
}

// A kernel that adds to and multiplies what is in a span.
void EnqueueKernel(DeviceQueue* queue, Span span, float plus, float times) {
  LaunchTarget target = queue->runtime().Target(queue->stream());
  target.host->Enqueue([=] {
    auto* const data = static_cast<float*>(span.data);
    for (int64_t i = 0; i < span.count; ++i) data[i] = (data[i] + plus) * times;
  });
}

CommunicatorOptions Options(int rank, int size,
                            std::shared_ptr<RendezvousStore> store,
                            absl::Duration timeout) {
  CommunicatorOptions options;
  options.id = "under-test";
  options.rank = rank;
  options.size = size;
  options.store = std::move(store);
  options.timeout = timeout;
  return options;
}

using Connected = absl::StatusOr<std::unique_ptr<Communicator>>;

// Connects two ranks at once.
std::vector<Connected> ConnectTwo(
    const std::function<Connected(int rank, std::shared_ptr<MemoryStore>)>&
        connect) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<Connected> connected(2);
  std::thread other([&] { connected[1] = connect(1, store); });
  connected[0] = connect(0, store);
  other.join();
  return connected;
}

TEST(NcclCommunicatorTest, KernelsAndCollectivesFollowEachOtherOnTheStream) {
  EmulatedGpus gpus(2);
  {
    const Group group = gpus.ConnectAll(2, kTimeout);
    const auto data = OnAll(&gpus, 1000);  // 1 and 2
    std::vector<WorkPtr> marks;
    for (int rank = 0; rank < 2; ++rank) {
      DeviceQueue* const queue = group[rank]->device_queue();
      const Span span = data[rank]->span();
      // Nothing of it can run before all of it has been enqueued.
      gpus.runtime(rank).HoldStream(queue->stream());
      EnqueueKernel(queue, span, 1, 10);  // 20 and 30
      group[rank]->AllReduce(span);       // 50
      EnqueueKernel(queue, span, -1, 2);  // 98
      group[rank]->AllReduce(span);       // 196
      marks.push_back(queue->Mark());
    }
    for (const WorkPtr& mark : marks) EXPECT_FALSE(mark->Done());
    for (int rank = 0; rank < 2; ++rank) {
      gpus.runtime(rank).ReleaseStream(group[rank]->device_queue()->stream());
    }
    for (const WorkPtr& mark : marks) ASSERT_OK(mark->Wait(kSoon));
    EXPECT_EQ(data[0]->data()[0], 196);
    EXPECT_EQ(data[1]->data()[999], 196);
  }
  EXPECT_EQ(gpus.runtime(0).leaked(), 0);
  EXPECT_EQ(gpus.runtime(1).leaked(), 0);
}

TEST(NcclCommunicatorTest, ARecordedSequenceIsReplayedAndCounted) {
  EmulatedGpus gpus(2);
  const Group group = gpus.ConnectAll(2, kTimeout);
  const auto data = OnAll(&gpus, 1000);  // 1 and 2
  std::vector<std::unique_ptr<DeviceSequence>> sequences;
  for (int rank = 0; rank < 2; ++rank) {
    DeviceQueue* const queue = group[rank]->device_queue();
    ASSERT_OK_AND_ASSIGN(auto sequence, queue->Record([&] {
      EnqueueKernel(queue, data[rank]->span(), 1, 1);
      const WorkPtr work = group[rank]->AllReduce(data[rank]->span());
      EXPECT_TRUE(work->Done());
      EXPECT_TRUE(queue->Mark()->Done());
      return work->Wait(kSoon);
    }));
    sequences.push_back(std::move(sequence));
    EXPECT_EQ(group[rank]->sequence(), 0);
    EXPECT_EQ(group[rank]->payload_bytes(), 0);
    EXPECT_EQ(group[rank]->wire_bytes(), 0);
    EXPECT_EQ(data[rank]->data()[0], rank + 1);
  }
  std::vector<WorkPtr> marks;
  for (int rank = 0; rank < 2; ++rank) {
    DeviceQueue* const queue = group[rank]->device_queue();
    ASSERT_OK(queue->Replay(*sequences[rank]));  // 2 + 3
    ASSERT_OK(queue->Replay(*sequences[rank]));  // 6 + 6
    marks.push_back(queue->Mark());
    EXPECT_EQ(group[rank]->sequence(), 2);
    EXPECT_EQ(group[rank]->payload_bytes(), 8000);
    EXPECT_EQ(group[rank]->wire_bytes(), 8000);
  }
  for (const WorkPtr& mark : marks) ASSERT_OK(mark->Wait(kSoon));
  EXPECT_EQ(data[0]->data()[999], 12);
  EXPECT_EQ(data[1]->data()[0], 12);
}

TEST(NcclCommunicatorTest, WhatCannotBeRecordedOrReplayedIsRefused) {
  EmulatedGpus gpus(2);
  const Group group = gpus.ConnectAll(2, kTimeout);
  std::vector<float> host(10);
  Span span;
  span.data = host.data();
  span.count = 10;
  DeviceQueue* const queue = group[0]->device_queue();
  EXPECT_THAT(
      queue->Record([&] { return group[0]->AllReduce(span)->Wait(kSoon); }),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("memory of the CPU")));
  ASSERT_OK_AND_ASSIGN(const auto nothing,
                       queue->Record([] { return absl::OkStatus(); }));
  EXPECT_THAT(group[1]->device_queue()->Replay(*nothing),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("this is another")));
  EXPECT_OK(queue->Replay(*nothing));
  EXPECT_OK(queue->Mark()->Wait(kSoon));
}

TEST(NcclCommunicatorTest, MemoryOfAnotherGpuIsRefusedWithBothNamed) {
  EmulatedGpus gpus(2);
  const Group group = gpus.ConnectAll(2, kTimeout);
  const OnGpu other(&gpus.runtime(1), 10, 0);
  EXPECT_THAT(group[0]->AllReduce(other.span())->Wait(kSoon),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("GPU 0"), HasSubstr("GPU 1"))));
}

TEST(NcclCommunicatorTest, ARankThatDoesNotArriveIsNamed) {
  EmulatedGpus gpus(1);
  EXPECT_THAT(gpus.Connect(Options(0, 3, std::make_shared<MemoryStore>(),
                                   absl::Milliseconds(50))),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 0 of 3"),
                             HasSubstr("rank 1 did not arrive"))));
  EXPECT_EQ(gpus.nccl().counts().inits, 0);
  EXPECT_EQ(gpus.runtime(0).leaked(), 0);
}

TEST(NcclCommunicatorTest, RanksOnOneGpuAreRefused) {
  EmulatedGpus gpus(1);
  for (const Connected& rank : ConnectTwo([&](int rank, auto store) {
         return MakeNcclCommunicator(Options(rank, 2, store, kSoon),
                                     &gpus.nccl(), &gpus.runtime(0));
       })) {
    EXPECT_THAT(rank, StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("ranks 0 and 1 use the same GPU")));
  }
}

TEST(NcclCommunicatorTest, RanksWithDifferentVersionsAreRefused) {
  EmulatedNccl older(22100);
  EmulatedGpus gpus(2);
  for (const Connected& rank : ConnectTwo([&](int rank, auto store) {
         return MakeNcclCommunicator(Options(rank, 2, store, kSoon),
                                     rank == 0 ? &gpus.nccl() : &older,
                                     &gpus.runtime(rank));
       })) {
    EXPECT_THAT(rank, StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("rank 1 has NCCL 2.21.0"),
                                     HasSubstr("rank 0 has 2.28.9"))));
  }
}

TEST(NcclCommunicatorTest, ARankThatFailedIsNotCalledLate) {
  EmulatedGpus gpus(2);
  CancelSignal cancel;
  cancel.Raise(absl::AbortedError("the job ends"));
  const auto connected = ConnectTwo([&](int rank, auto store) {
    CommunicatorOptions options = Options(rank, 2, store, kSoon);
    if (rank == 0) options.cancel = &cancel;
    return gpus.Connect(options);
  });
  EXPECT_THAT(connected[0],
              StatusIs(absl::StatusCode::kAborted, "the job ends"));
  EXPECT_THAT(connected[1], StatusIs(absl::StatusCode::kUnavailable,
                                     HasSubstr("rank 0 failed: the job ends")));
}

TEST(NcclCommunicatorTest, ErrorsOfConnectingComeThrough) {
  for (const bool later : {false, true}) {
    EmulatedGpus gpus(2);
    gpus.nccl().FailInit(NcclResult::kSystemError, later);
    for (const Connected& rank : ConnectTwo([&](int rank, auto store) {
           return gpus.Connect(Options(rank, 2, store, kSoon));
         })) {
      EXPECT_THAT(rank, StatusIs(absl::StatusCode::kUnavailable,
                                 AllOf(HasSubstr("connecting rank"),
                                       HasSubstr("emulated"))));
    }
    EXPECT_EQ(gpus.nccl().counts().communicators, 0);
    EXPECT_EQ(gpus.runtime(0).leaked(), 0);
  }
}

TEST(NcclCommunicatorTest, ConnectingThatHangsEndsByItsDeadline) {
  EmulatedGpus gpus(2);
  gpus.nccl().HangInit(true);
  for (const Connected& rank : ConnectTwo([&](int rank, auto store) {
         return gpus.Connect(Options(rank, 2, store, absl::Milliseconds(300)));
       })) {
    EXPECT_THAT(
        rank, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank")));
  }
  EXPECT_EQ(gpus.nccl().counts().communicators, 0);
}

TEST(NcclCommunicatorTest, ConnectingThatHangsEndsByASignal) {
  EmulatedGpus gpus(2);
  gpus.nccl().HangInit(true);
  CancelSignal cancel;
  std::thread raiser(
      [&] { cancel.Raise(absl::AbortedError("rank 1 is lost")); });
  for (const Connected& rank : ConnectTwo([&](int rank, auto store) {
         CommunicatorOptions options = Options(rank, 2, store, kTimeout);
         options.cancel = &cancel;
         return gpus.Connect(options);
       })) {
    EXPECT_THAT(rank, StatusIs(absl::StatusCode::kAborted, "rank 1 is lost"));
  }
  raiser.join();
  EXPECT_EQ(gpus.nccl().counts().communicators, 0);
}

TEST(NcclCommunicatorTest, WhatNcclFindsWrongEndsEverything) {
  EmulatedGpus gpus(2);
  const Group group = gpus.ConnectAll(2, kTimeout);
  const auto data = OnAll(&gpus, 1000);
  const WorkPtr first = group[0]->AllReduce(data[0]->span());
  const WorkPtr second = group[0]->Barrier();
  gpus.nccl().InjectError(0, NcclResult::kRemoteError);
  EXPECT_THAT(first->Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("rank 0 of communicator")));
  EXPECT_THAT(second->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("an earlier operation failed")));
  EXPECT_EQ(gpus.nccl().counts().aborts, 1);
}

TEST(NcclCommunicatorTest, RanksThatDisagreeGetAnError) {
  EmulatedGpus gpus(2);
  const Group group = gpus.ConnectAll(2, kTimeout);
  const auto data = OnAll(&gpus, 1000);
  const WorkPtr first = group[0]->AllReduce(data[0]->span());
  const WorkPtr second = group[1]->Broadcast(data[1]->span(), 0);
  for (const WorkPtr& work : {first, second}) {
    EXPECT_THAT(work->Wait(kSoon), StatusIs(absl::StatusCode::kInternal,
                                            HasSubstr("NCCL failed inside")));
  }
}

TEST(NcclCommunicatorTest, AbortReturnsWhileNcclDoesNot) {
  EmulatedGpus gpus(2);
  const Group group = gpus.ConnectAll(2, kTimeout);
  const auto data = OnAll(&gpus, 1000);
  const WorkPtr work = group[0]->AllReduce(data[0]->span());
  gpus.nccl().HoldAborts(true);
  group[0]->Abort("enough");
  // Its memory is still the kernel's.
  EXPECT_FALSE(work->Done());
  EXPECT_THAT(group[0]->Barrier()->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  gpus.nccl().HoldAborts(false);
  EXPECT_THAT(work->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "enough"));
}

TEST(NcclCommunicatorTest, AnAbortReleasesRecordedSequences) {
  EmulatedGpus gpus(2);
  Group group = gpus.ConnectAll(2, kTimeout);
  const auto data = OnAll(&gpus, 1000);
  DeviceQueue* const queue = group[0]->device_queue();
  ASSERT_OK_AND_ASSIGN(const auto sequence, queue->Record([&] {
    return group[0]->AllReduce(data[0]->span())->Wait(kSoon);
  }));
  ASSERT_OK(queue->Replay(*sequence));  // which its peer does not join
  const WorkPtr mark = queue->Mark();
  group[0]->Abort("enough");
  EXPECT_THAT(mark->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  // NCCL's abort was through by then: only the peer's is left.
  EXPECT_EQ(gpus.nccl().counts().communicators, 1);
  EXPECT_THAT(queue->Replay(*sequence),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  group.clear();
  // Wherever the next one lies.
  const Group next = gpus.ConnectAll(2, kTimeout);
  EXPECT_THAT(next[0]->device_queue()->Replay(*sequence),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("this is another")));
}

TEST(NcclCommunicatorTest, ASequenceRecordedDuringAnAbortIsReleasedToo) {
  EmulatedGpus gpus(1);
  const Group group = gpus.ConnectAll(1, kTimeout);
  const auto data = OnAll(&gpus, 1000);
  EXPECT_THAT(group[0]->device_queue()->Record([&] {
    const absl::Status status =
        group[0]->AllReduce(data[0]->span())->Wait(kSoon);
    group[0]->Abort("enough");
    return status;
  }),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  EXPECT_THAT(group[0]->device_queue()->Mark()->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  EXPECT_EQ(gpus.nccl().counts().communicators, 0);
}

TEST(NcclCommunicatorTest, AMarkAfterAnAbortEndsAfterTheStreamsWork) {
  EmulatedGpus gpus(1);
  const Group group = gpus.ConnectAll(1, kTimeout);
  const OnGpu data(&gpus.runtime(0), 1000, 1);
  DeviceQueue* const queue = group[0]->device_queue();
  gpus.runtime(0).HoldStream(queue->stream());
  EnqueueKernel(queue, data.span(), 1, 1);
  group[0]->Abort("enough");
  const WorkPtr mark = queue->Mark();
  EXPECT_FALSE(mark->Done());
  EXPECT_EQ(data.data()[0], 1);
  gpus.runtime(0).ReleaseStream(queue->stream());
  EXPECT_THAT(mark->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  EXPECT_EQ(data.data()[999], 2);
  // And when all has ended: the caller waits.
  gpus.runtime(0).HoldStream(queue->stream());
  EnqueueKernel(queue, data.span(), 1, 1);
  std::thread releaser([&] { gpus.runtime(0).ReleaseStream(queue->stream()); });
  EXPECT_THAT(queue->Mark()->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  EXPECT_EQ(data.data()[999], 3);
  releaser.join();
}

TEST(NcclCommunicatorTest, AnIdleCommunicatorIsFinalized) {
  EmulatedGpus gpus(2);
  gpus.nccl().SetPolls(2);
  Group group = gpus.ConnectAll(2, kTimeout);
  group.clear();
  EXPECT_EQ(gpus.nccl().counts().destroys, 2);
  EXPECT_EQ(gpus.nccl().counts().aborts, 0);
}

TEST(NcclCommunicatorTest, AFinalizeThatHangsIsAborted) {
  EmulatedGpus gpus(1);
  Group group = gpus.ConnectAll(1, kTimeout);
  gpus.nccl().HoldFinalize(true);
  group.clear();
  EXPECT_EQ(gpus.nccl().counts().destroys, 0);
  EXPECT_EQ(gpus.nccl().counts().aborts, 1);
}

TEST(NcclCommunicatorTest, TheDeadlineIsByTheGivenClock) {
  FakeClock clock;
  EmulatedGpus gpus(2);
  const Group group = gpus.ConnectAll(2, kTimeout, &clock);
  const auto data = OnAll(&gpus, 1000);
  const WorkPtr work = group[0]->AllReduce(data[0]->span());
  clock.Advance(kTimeout - absl::Seconds(1));
  EXPECT_FALSE(work->Done());
  clock.Advance(absl::Seconds(2));
  EXPECT_THAT(work->Wait(kSoon),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("all-reduce of rank 0 of communicator "
                                 "'under-test' has not ended within 2m")));
}

TEST(NcclCommunicatorTest, ADeviceThatFailsEndsEverything) {
  EmulatedGpus gpus(2);
  const Group group = gpus.ConnectAll(2, kTimeout);
  const auto data = OnAll(&gpus, 1000);
  DeviceQueue* const queue = group[0]->device_queue();
  gpus.runtime(0).HoldStream(queue->stream());
  const WorkPtr work = group[0]->AllReduce(data[0]->span());
  gpus.runtime(0).Fail("fell off the bus");
  EXPECT_THAT(work->Wait(kSoon), StatusIs(absl::StatusCode::kUnavailable,
                                          HasSubstr("fell off the bus")));
  EXPECT_THAT(queue->Mark()->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("an earlier operation failed")));
}

TEST(NcclCommunicatorTest, SlicesInPlaceAreStagedWhole) {
  EmulatedGpus gpus(2);
  const Group group = gpus.ConnectAll(2, kTimeout);
  constexpr int64_t kSlice = 1024;  // as much as the least piece to stage in
  std::vector<std::vector<float>> hosts(2);
  std::vector<WorkPtr> works;
  for (int rank = 0; rank < 2; ++rank) {
    hosts[rank].assign(2 * kSlice, static_cast<float>(rank + 1));
    Span whole;
    whole.data = hosts[rank].data();
    whole.count = 2 * kSlice;
    works.push_back(
        group[rank]->AllGather(whole.Slice(rank * kSlice, kSlice), whole));
  }
  for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
  for (const std::vector<float>& host : hosts) {
    EXPECT_EQ(host[kSlice - 1], 1);
    EXPECT_EQ(host[kSlice], 2);
    EXPECT_EQ(host[2 * kSlice - 1], 2);
  }
}

TEST(NcclCommunicatorTest, MissingStagingMemoryIsReported) {
  EmulatedGpus gpus(1);
  const Group group = gpus.ConnectAll(1, kTimeout);
  std::vector<float> host(10);
  Span span;
  span.data = host.data();
  span.count = 10;
  gpus.runtime(0).FailAllocation(0);
  EXPECT_THAT(group[0]->AllReduce(span)->Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("all-reduce of rank 0")));
}

TEST(NcclCommunicatorTest, AllRanksOfAnotherConnectAgain) {
  EmulatedGpus gpus(2);
  const Group group = gpus.ConnectAll(2, kTimeout);
  const WorkPtr waiting = group[0]->Barrier();
  Group children(2);
  std::thread other([&] {
    auto child = group[1]->Split({1, 0});
    ASSERT_OK(child);
    children[0] = *std::move(child);
  });
  auto child = group[0]->Split({1, 0});
  other.join();
  ASSERT_OK(child);
  children[1] = *std::move(child);
  EXPECT_EQ(children[1]->rank(), 1);
  EXPECT_EQ(gpus.nccl().counts().inits, 4);
  EXPECT_FALSE(waiting->Done());
  EXPECT_OK(group[1]->Barrier()->Wait(kSoon));
  EXPECT_OK(waiting->Wait(kSoon));
}

TEST(NcclCommunicatorTest, OneRankNeedsNoStore) {
  EmulatedGpus gpus(1);
  ASSERT_OK_AND_ASSIGN(const auto alone,
                       gpus.Connect(Options(0, 1, nullptr, kSoon)));
  EXPECT_OK(alone->Barrier()->Wait(kSoon));
  ASSERT_OK_AND_ASSIGN(const auto child, alone->Split({0}));
  EXPECT_OK(child->Barrier()->Wait(kSoon));
}

TEST(NcclCommunicatorTest, ManyRanksShareSeveralRootsWhereNcclCan) {
  constexpr int kRanks = kNcclRanksPerRoot + 1;
  for (const int version : {22200, 22300}) {
    EmulatedGpus gpus(kRanks, version);
    const Group group = gpus.ConnectAll(kRanks, kTimeout);
    std::vector<WorkPtr> works;
    for (const auto& rank : group) works.push_back(rank->Barrier());
    for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
    const EmulatedNccl::Counts counts = gpus.nccl().counts();
    EXPECT_EQ(counts.inits, version < 22300 ? kRanks : 0);
    EXPECT_EQ(counts.scalable_inits, version < 22300 ? 0 : kRanks);
  }
}

TEST(NcclCommunicatorTest, BuffersAreNcclsOwnAndRegisteredWhereItCan) {
  EmulatedGpus gpus(1);
  Group group = gpus.ConnectAll(1, kTimeout);
  ASSERT_OK_AND_ASSIGN(auto buffer,
                       group[0]->AllocateBuffer(100, DType::kFloat32));
  EXPECT_EQ(buffer->span().device, gpus.runtime(0).device());
  EXPECT_EQ(gpus.nccl().counts().allocated, 1);
  EXPECT_EQ(gpus.nccl().counts().registered, 1);
  buffer.reset();
  EXPECT_EQ(gpus.nccl().counts().allocated, 0);
  EXPECT_EQ(gpus.nccl().counts().registered, 0);
  // One that outlives its communicator.
  ASSERT_OK_AND_ASSIGN(buffer, group[0]->AllocateBuffer(100, DType::kFloat32));
  group.clear();
  buffer.reset();
  EXPECT_EQ(gpus.nccl().counts().allocated, 0);
}

TEST(NcclCommunicatorTest, ABufferOfMoreBytesThanCanBeCountedIsRefused) {
  EmulatedGpus gpus(1);
  const Group group = gpus.ConnectAll(1, kTimeout);
  EXPECT_THAT(group[0]->AllocateBuffer(std::numeric_limits<int64_t>::max() / 3,
                                       DType::kFloat32),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("no device has memory")));
}

TEST(NcclCommunicatorTest, BuffersArePlainWhereNcclCannot) {
  for (const bool lacking : {true, false}) {
    EmulatedGpus gpus(1);
    if (lacking) {
      gpus.nccl().Remove(NcclFeature::kMemAlloc);
      gpus.nccl().Remove(NcclFeature::kRegister);
    } else {
      gpus.nccl().FailMemAlloc(true);
    }
    Group group = gpus.ConnectAll(1, kTimeout);
    ASSERT_OK_AND_ASSIGN(const auto buffer,
                         group[0]->AllocateBuffer(100, DType::kFloat32));
    EXPECT_EQ(gpus.nccl().counts().allocated, 0);
    EXPECT_EQ(gpus.nccl().counts().registered, lacking ? 0 : 1);
    EXPECT_EQ(static_cast<float*>(buffer->span().data)[99], 0.0f);
  }
}

}  // namespace
}  // namespace coxswain
