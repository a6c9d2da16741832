#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/comm/tcp/raw_tcp_peer_for_test.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/reduce/reducer_test_support.h"
#include "tests/conformance/connected_group.h"
#include "tests/conformance/two_level_group.h"

namespace coxswain {
namespace {

using testing::Each;
using testing::Not;
using Values = std::vector<std::vector<float>>;  // by parameter

// One that is exchanged where it is takes 64 KiB.
constexpr int64_t kCounts[] = {100, 40000, 16384, 7, 0, 16383, 50000, 3};
constexpr int kParameters = 8;
constexpr int kUnmarked = 2;  // on rank 1
constexpr int kInView = 6;    // on rank 1

ReducerOptions SomeBuckets() {
  ReducerOptions options;
  options.buckets = {150000, 250000};
  options.timeout = kSoon;
  options.statistics = true;
  return options;
}

class MeanHook : public AverageHook {
 public:
  bool takes_parts() const override { return true; }
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    return std::make_unique<Mean>(bucket, &communicator);
  }

 private:
  class Mean : public Exchange {
   public:
    Mean(const Bucket& bucket, Communicator* communicator)
        : bucket_(bucket), communicator_(*communicator) {}
    absl::StatusOr<WorkPtr> Advance() override {
      if (std::exchange(started_, true)) return WorkPtr();
      return communicator_.AllReduceMean(bucket_.Parts());
    }

   private:
    const Bucket& bucket_;
    Communicator& communicator_;
    bool started_ = false;
  };
};

Values GradientsOf(int rank) {
  Values gradients;
  for (const int64_t count : kCounts) {
    gradients.emplace_back(static_cast<size_t>(count));
    for (size_t i = 0; i < gradients.back().size(); ++i) {
      gradients.back()[i] = std::sin(static_cast<float>(i) * 0.1F +
                                     static_cast<float>(gradients.size())) *
                            (static_cast<float>(rank) + 0.7F);
    }
  }
  return gradients;
}

using Connecting = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
    const CommunicatorOptions&)>;

// Hosts with different numbers of ranks.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectUneven(
    const CommunicatorOptions& options) {
  return ConnectLevels(options, UnevenTestHosts(options.size));
}

void OnRanks(int size, const Connecting& connect,
             const std::function<void(Communicator*)>& run) {
  const auto group = ConnectGroup(size, kSoon, connect);
  std::vector<std::thread> threads;
  for (const auto& communicator : group) {
    threads.emplace_back([&] { run(communicator.get()); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Marks all gradients and finishes the step; leaves the averages in
// `gradients`.
void Step(Reducer& reducer, int rank, bool in_place, Values* gradients) {
  ASSERT_OK(reducer.BeginStep());
  Reducer::MarkOptions mark;
  mark.copy_back = !in_place;
  mark.in_place = in_place;
  const auto stays = [&](int i) {
    return rank == 1 && (i == kUnmarked || i == kInView);
  };
  for (int i = kParameters - 1; i >= 0; --i) {
    std::vector<float>& gradient = (*gradients)[static_cast<size_t>(i)];
    if (!stays(i)) {
      ASSERT_OK(reducer.MarkReady(i, SpanOf(&gradient), mark));
    } else if (i == kInView) {
      std::copy(gradient.begin(), gradient.end(),
                static_cast<float*>(reducer.GradientView(i).data));
      ASSERT_OK(reducer.MarkReady(i));
    }
  }
  ASSERT_OK(reducer.Finish());
  for (int i = 0; i < kParameters; ++i) {
    if (stays(i)) (*gradients)[static_cast<size_t>(i)] = Gradient(reducer, i);
  }
}

TEST(ReducerInPlaceTest, AveragesAndTheirNormHaveTheBitsOfCopies) {
  const auto check = [](int size, const Connecting& connect) {
    OnRanks(size, connect, [](Communicator* communicator) {
      SCOPED_TRACE(communicator->backend());
      const int rank = communicator->rank();
      Values averages[2];
      double norms[2];
      for (const bool in_place : {false, true}) {
        MeanHook hook;
        ASSERT_OK_AND_ASSIGN(
            const auto reducer,
            Reducer::Create(SomeBuckets(), ParametersOf(kCounts), &hook,
                            communicator));
        // The layout is another one in the second step.
        for (int step = 0; step < 2; ++step) {
          averages[in_place] = GradientsOf(rank + step);
          Step(*reducer, rank, in_place, &averages[in_place]);
          norms[in_place] = reducer->report().gradient_norm;
          if (step == 0 && in_place && rank == 0) {
            // Neither what was handed in nor the average has been copied.
            EXPECT_THAT(Gradient(*reducer, 1), Each(0));
            EXPECT_NE(Gradient(*reducer, 5)[0], 0);
          }
          ASSERT_OK(reducer->Commit());
        }
      }
      EXPECT_EQ(averages[0], averages[1]);
      EXPECT_EQ(norms[0], norms[1]);
      EXPECT_GT(norms[0], 0);
    });
  };
  for (const int size : {1, 2, 3}) {
    check(size, ConnectTcp);
    check(size, ConnectShm);
    check(size, ConnectUneven);
  }
}

TEST(ReducerInPlaceTest, AnotherHookGetsTheGradientsInTheBuckets) {
  OnRanks(2, ConnectTcp, [](Communicator* communicator) {
    const int rank = communicator->rank();
    MeanHook mean;
    AverageHook average;
    ASSERT_OK_AND_ASSIGN(const auto reducer,
                         Reducer::Create(SomeBuckets(), ParametersOf(kCounts),
                                         &mean, communicator));
    Values before = GradientsOf(rank);
    Step(*reducer, rank, true, &before);
    ASSERT_OK(reducer->Commit());
    ASSERT_OK(reducer->ChangeHook(&average, /*carry_state=*/false));
    Values after = GradientsOf(rank);
    Step(*reducer, rank, true, &after);
    EXPECT_EQ(Gradient(*reducer, 1), after[1]);
    // Half of a sum is the sum of halves.
    EXPECT_EQ(before, after);
    ASSERT_OK(reducer->Commit());
  });
}

TEST(ReducerInPlaceTest, WhatNeedsTheBucketsGoesThroughThem) {
  const std::function<void(ReducerOptions*)> changes[] = {
      [](ReducerOptions* options) { options->max_norm = 1e9; },
      [](ReducerOptions* options) { options->find_unused_parameters = true; },
      [](ReducerOptions* options) { options->uneven_inputs = true; },
      [](ReducerOptions* options) {
        options->on_average = [](const Bucket&) { return absl::OkStatus(); };
      }};
  for (const auto& change : changes) {
    OnRanks(2, ConnectTcp, [&](Communicator* communicator) {
      MeanHook hook;
      ReducerOptions options = SomeBuckets();
      change(&options);
      ASSERT_OK_AND_ASSIGN(
          const auto reducer,
          Reducer::Create(options, ParametersOf(kCounts), &hook, communicator));
      Values gradients = GradientsOf(communicator->rank());
      Step(*reducer, communicator->rank(), true, &gradients);
      EXPECT_EQ(Gradient(*reducer, 1), gradients[1]);
      ASSERT_OK(reducer->Commit());
    });
  }
}

// Under AddressSanitizer a later access is an error.
TEST(ReducerInPlaceTest, TheMemoryIsFreeOnceAStepHasFailed) {
  auto group = ConnectGroup(2, kSoon, ConnectTcp);
  std::vector<std::thread> threads;
  for (auto& communicator : group) {
    threads.emplace_back([&communicator] {
      const int rank = communicator->rank();
      HeldCommunicator held(std::move(communicator));
      held.Open();
      // The second bucket; the first one is in flight.
      if (rank == 1) held.Fail(1, absl::UnavailableError("the link is down"));
      MeanHook hook;
      ReducerOptions options = SomeBuckets();
      options.verify = false;
      options.rebuild = false;
      ASSERT_OK_AND_ASSIGN(
          const auto reducer,
          Reducer::Create(options, ParametersOf(kCounts), &hook, &held));
      {
        Values gradients = GradientsOf(rank);
        Reducer::MarkOptions mark;
        mark.in_place = true;
        ASSERT_OK(reducer->BeginStep());
        for (int i = kParameters - 1; i >= 0; --i) {
          // The error may come first.
          (void)reducer->MarkReady(
              i, SpanOf(&gradients[static_cast<size_t>(i)]), mark);
        }
        EXPECT_FALSE(reducer->Finish().ok());
      }
      EXPECT_FALSE(reducer->status().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Rank 1 sends part of what it is to send, and reads part of what it is to
// read.
TEST(ReducerInPlaceTest, AStepAmidWhichAPeerStallsIsLost) {
  const CommunicatorOptions group = TestGroupOptions(
      0, 2, std::make_shared<MemoryStore>(), absl::Milliseconds(500));
  absl::StatusOr<std::unique_ptr<Communicator>> communicator;
  std::thread connecting([&] { communicator = ConnectTcp(group); });
  RawTcpPeer peer(group);
  peer.Meet();
  connecting.join();
  ASSERT_OK(communicator);

  ReducerOptions options;
  options.timeout = kSoon;
  options.verify = false;
  options.rebuild = false;
  ParameterSpec large;
  large.name = "large";
  large.shape = {2 << 20};
  MeanHook hook;
  ASSERT_OK_AND_ASSIGN(
      const auto reducer,
      Reducer::Create(options, {large}, &hook, communicator->get()));
  auto gradient = std::make_unique<std::vector<float>>(2 << 20, 1.0F);
  Reducer::MarkOptions mark;
  mark.in_place = true;
  ASSERT_OK(reducer->BeginStep());
  ASSERT_OK(reducer->MarkReady(0, SpanOf(gradient.get()), mark));
  RawTcpPeer::Write(
      peer.data,
      RawTcpPeer::Opening(
          HeaderOf(CollectiveKind::kMean, SpanOf(gradient.get())), 0));
  RawTcpPeer::Write(peer.data, std::string(300 << 10, '\0'));
  RawTcpPeer::Read(peer.data, 1000);

  EXPECT_THAT(reducer->Finish(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       testing::HasSubstr("rank 1 did not come")));
  // Under AddressSanitizer a later access is an error.
  gradient.reset();
  // No step can be taken with what is half a mean, nor any after it.
  EXPECT_THAT(reducer->Commit(), Not(IsOk()));
  EXPECT_EQ(hook.step(), 0);
  EXPECT_THAT(reducer->BeginStep(), Not(IsOk()));
}

}  // namespace
}  // namespace coxswain
