// A reducer whose buckets have memory only while gradients are in them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status_matchers.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/reducer_test_support.h"
#include "gmock/gmock.h"

namespace coxswain::reducer_release_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

// Ten buckets of a gradient each.
constexpr int kAlike = 10;
constexpr int64_t kElements = 160;
constexpr int64_t kBytes = 4 * kElements;

std::vector<ParameterSpec> Alike() {
  return ParametersOf(std::vector<int64_t>(kAlike, kElements));
}

ReducerOptions Released() {
  ReducerOptions options;
  options.buckets = {1, 1};
  options.timeout = kSoon;
  options.slices = true;
  options.release_buckets = true;
  return options;
}

std::unique_ptr<Reducer> MakeReducer(const ReducerOptions& options, Hook* hook,
                                     Communicator* communicator,
                                     std::vector<ParameterSpec> parameters) {
  auto reducer =
      Reducer::Create(options, std::move(parameters), hook, communicator);
  EXPECT_OK(reducer);
  return *std::move(reducer);
}

std::vector<float> GradientOf(int64_t count, int rank, int64_t step,
                              int parameter) {
  std::vector<float> gradient(static_cast<size_t>(count));
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = std::sin(static_cast<float>(i) +
                           static_cast<float>(10 * parameter + 100 * rank) +
                           1000 * static_cast<float>(step));
  }
  return gradient;
}

// Hands a gradient over in memory that is freed at once.
absl::Status Mark(Reducer& reducer, int rank, int64_t step, int parameter) {
  const int64_t count =
      reducer.parameters()[static_cast<size_t>(parameter)].count();
  std::vector<float> gradient = GradientOf(count, rank, step, parameter);
  return reducer.MarkReady(parameter, SpanOf(&gradient));
}

void MarkAll(Reducer& reducer, int rank, int64_t step) {
  for (int parameter = kAlike; parameter-- > 0;) {
    ASSERT_OK(Mark(reducer, rank, step, parameter));
  }
}

void Exchange(Reducer& reducer, int rank, int64_t step) {
  ASSERT_OK(reducer.BeginStep());
  MarkAll(reducer, rank, step);
  ASSERT_OK(reducer.Finish());
}

std::vector<std::vector<float>> OwnSlicesOf(const Reducer& reducer) {
  std::vector<std::vector<float>> slices;
  for (const Bucket& bucket : reducer.buckets()) {
    slices.push_back(ValuesOf(reducer.OwnSlice(bucket)));
  }
  return slices;
}

// ---- values ----

// One rank's step with random choices: the order of gradients, which of them
// are left out or zeros, and how many threads mark them.
void RandomStep(Reducer& reducer, int rank, int64_t step, uint64_t seed) {
  const CounterRandom random(seed, static_cast<uint64_t>(rank + 100 * step));
  const int parameters = static_cast<int>(reducer.parameters().size());
  std::vector<int> order(static_cast<size_t>(parameters));
  std::iota(order.begin(), order.end(), 0);
  const auto draw = [&](uint64_t i) { return random.Uniform(i); };
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return draw(static_cast<uint64_t>(a)) < draw(static_cast<uint64_t>(b));
  });
  const int threads = 1 + static_cast<int>(3 * draw(1000));
  ASSERT_OK(reducer.BeginStep());
  std::vector<std::thread> marking;
  for (int thread = 0; thread < threads; ++thread) {
    marking.emplace_back([&, thread] {
      for (int i = thread; i < parameters; i += threads) {
        const int parameter = order[static_cast<size_t>(i)];
        const double choice = draw(static_cast<uint64_t>(2000 + parameter));
        if (choice < 0.1) continue;
        if (choice < 0.2) {
          ASSERT_OK(reducer.MarkZeros(parameter));
        } else {
          ASSERT_OK(Mark(reducer, rank, step, parameter));
        }
      }
    });
  }
  for (std::thread& thread : marking) thread.join();
  ASSERT_OK(reducer.Finish());
}

TEST(ReducerReleaseTest, RandomStepsHaveTheBitsOfSlicesThatKeepTheirBuckets) {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    const CounterRandom random(seed, 7);
    std::vector<int64_t> counts;
    const int parameters = 1 + static_cast<int>(20 * random.Uniform(0));
    for (int i = 0; i < parameters; ++i) {
      const double size = random.Uniform(static_cast<uint64_t>(i) + 10);
      counts.push_back(static_cast<int64_t>(size * size * 700));
    }
    ReducerOptions options = Released();
    options.buckets.first_bucket_bytes =
        1 + static_cast<int64_t>(500 * random.Uniform(1));
    options.buckets.bucket_bytes =
        1 + static_cast<int64_t>(3000 * random.Uniform(2));
    options.max_norm = seed % 3 == 0 ? 0.5 : 0;
    options.find_unused_parameters = seed % 4 == 0;
    for (const int size : {1, 2, 3, 4}) {
      OnRanks(size, [&](int rank, Communicator* communicator) {
        AverageHook released_hook, kept_hook;
        const auto released = MakeReducer(options, &released_hook, communicator,
                                          ParametersOf(counts));
        ReducerOptions keeps = options;
        keeps.release_buckets = false;
        const auto kept =
            MakeReducer(keeps, &kept_hook, communicator, ParametersOf(counts));
        for (int64_t step = 0; step < 3; ++step) {
          RandomStep(*released, rank, step, seed);
          RandomStep(*kept, rank, step, seed);
          EXPECT_EQ(OwnSlicesOf(*released), OwnSlicesOf(*kept))
              << "seed " << seed << ", step " << step << " of " << size;
          EXPECT_EQ(released->report().gradient_norm,
                    kept->report().gradient_norm);
          for (int i = 0; i < parameters; ++i) {
            EXPECT_EQ(released->unused_everywhere(i),
                      kept->unused_everywhere(i));
          }
          ASSERT_OK(released->Commit());
          ASSERT_OK(kept->Commit());
        }
      });
    }
  }
}

TEST(ReducerReleaseTest, AllRanksLearnOfAnInfinity) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = Released();
    options.statistics = true;
    const auto reducer = MakeReducer(options, &hook, communicator, Alike());
    ASSERT_OK(reducer->BeginStep());
    std::vector<float> gradient = GradientOf(kElements, rank, 0, 0);
    if (rank == 2) gradient[159] = std::numeric_limits<float>::infinity();
    ASSERT_OK(reducer->MarkReady(0, SpanOf(&gradient)));
    ASSERT_OK(reducer->Finish());
    EXPECT_EQ(reducer->report().non_finite, 1);
    reducer->Rollback();
  });
}

// ---- memory ----

TEST(ReducerReleaseTest, APassInOrderNeedsFewBucketsAndTheyAreUsedAgain) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    Log done;
    ReducerOptions options = Released();
    options.on_average = [&](const Bucket& bucket) {
      EXPECT_EQ(bucket.data.data, nullptr);
      done.Add(absl::StrCat(bucket.index));
      return absl::OkStatus();
    };
    const auto reducer = MakeReducer(options, &hook, communicator, Alike());
    EXPECT_EQ(reducer->totals().bucket_memory.bytes, 0);
    size_t averaged = 0;
    for (int64_t step = 0; step < 5; ++step) {
      ASSERT_OK(reducer->BeginStep());
      for (int bucket = 0; bucket < kAlike; ++bucket) {
        // A pass that is as fast as the network: one bucket is exchanged while
        // the next one fills.
        if (bucket >= 2) {
          ASSERT_TRUE(done.WaitForSize(++averaged));
        }
        ASSERT_OK(Mark(*reducer, rank, step, kAlike - 1 - bucket));
      }
      ASSERT_OK(reducer->Finish());
      averaged += 2;
      ASSERT_OK(reducer->Commit());
    }
    const BucketMemoryUse use = reducer->totals().bucket_memory;
    EXPECT_LE(use.peak_bytes, 3 * kBytes);
    EXPECT_LE(use.allocations, 3);
    EXPECT_EQ(use.bytes, use.peak_bytes);
  });
}

// Marks as fast as it can, beside a network that is slow: without a wait the
// pool would grow.
TEST(ReducerReleaseTest, AWaitKeepsTwoBuckets) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = Released();
    options.bucket_wait = kSoon;
    const auto reducer = MakeReducer(options, &hook, communicator, Alike());
    const int64_t padded =
        BucketSlices::Of(reducer->buckets()[0].data, communicator->size())
            .padded() *
        4;
    for (int64_t step = 0; step < 20; ++step) {
      Exchange(*reducer, rank, step);
      ASSERT_OK(reducer->Commit());
    }
    EXPECT_LE(reducer->totals().bucket_memory.peak_bytes, 2 * padded);
  });
}

// A hook with more collectives than buckets may have memory: it is in the
// middle of three buckets when it needs the fourth.
TEST(ReducerReleaseTest, AWaitEndsWhereTheExchangeNeedsMore) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    HookPlan plan;
    plan.phases = 6;
    AverageHook hook(plan);
    ReducerOptions options = Released();
    options.bucket_wait = 100 * kSoon;
    const auto reducer = MakeReducer(options, &hook, communicator, Alike());
    for (int64_t step = 0; step < 5; ++step) {
      Exchange(*reducer, rank, step);
      ASSERT_OK(reducer->Commit());
    }
    EXPECT_GT(reducer->totals().bucket_memory.peak_bytes, 3 * kBytes);
  });
}

TEST(ReducerReleaseTest, AWaitIsBounded) {
  const auto stuck = Stuck();
  AverageHook hook;
  ReducerOptions options = Released();
  options.verify = false;
  options.bucket_wait = absl::Milliseconds(1);
  const auto reducer = MakeReducer(options, &hook, stuck.get(), Alike());
  ASSERT_OK(reducer->BeginStep());
  MarkAll(*reducer, 0, 0);
  EXPECT_EQ(reducer->totals().bucket_memory.bytes, kAlike * kBytes);
  reducer->Rollback();
}

TEST(ReducerReleaseTest, ItGrowsRatherThanWaitsForTheFirstBucket) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = Released();
    options.bucket_wait = 100 * kSoon;
    const auto reducer = MakeReducer(options, &hook, communicator, Alike());
    ASSERT_OK(reducer->BeginStep());
    // The first bucket's gradient comes last.
    for (int parameter = 0; parameter < kAlike; ++parameter) {
      ASSERT_OK(Mark(*reducer, rank, 0, parameter));
      if (parameter < kAlike - 1) {
        EXPECT_EQ(reducer->totals().bucket_memory.bytes,
                  (parameter + 1) * kBytes);
      }
    }
    ASSERT_OK(reducer->Finish());
    ASSERT_OK(reducer->Commit());
    EXPECT_EQ(reducer->totals().bucket_memory.peak_bytes, kAlike * kBytes);
    // Two steps that need less: nothing is marked but by Finish.
    for (int step = 0; step < 2; ++step) {
      ASSERT_OK(reducer->BeginStep());
      ASSERT_OK(reducer->Finish());
      ASSERT_OK(reducer->Commit());
    }
    EXPECT_LE(reducer->totals().bucket_memory.bytes, 3 * kBytes);
    EXPECT_EQ(reducer->totals().bucket_memory.allocations, kAlike);
  });
}

TEST(ReducerReleaseTest, ZerosTakeMemoryOnlyWhenTheyAreExchanged) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = Released();
    options.uneven_inputs = true;
    const auto reducer = MakeReducer(options, &hook, communicator, Alike());
    for (int64_t step = 0; step < 3; ++step) {
      // Rank 1 has no data, or reaches no parameter.
      ASSERT_OK(reducer->BeginStep(rank == 1 && step == 0 ? 0 : 1));
      if (rank == 0) {
        MarkAll(*reducer, rank, step);
      } else if (step == 1) {
        for (int i = 0; i < kAlike; ++i) ASSERT_OK(reducer->MarkZeros(i));
      }
      ASSERT_OK(reducer->Finish());
      const double divisor = step == 0 ? 1 : 2;
      for (const Bucket& bucket : reducer->buckets()) {
        const std::vector<float> all =
            GradientOf(kElements, 0, step, kAlike - 1 - bucket.index);
        const std::vector<float> own = ValuesOf(reducer->OwnSlice(bucket));
        const auto begin = static_cast<size_t>(
            BucketSlices::Of(bucket.data, 2).begin(kElements, rank));
        for (size_t i = 0; i < own.size(); ++i) {
          EXPECT_NEAR(own[i], all[begin + i] / divisor, 1e-6);
        }
      }
      ASSERT_OK(reducer->Commit());
    }
    if (rank == 1) {
      EXPECT_LE(reducer->totals().bucket_memory.peak_bytes, 3 * kBytes);
    }
  });
}

TEST(ReducerReleaseTest, AnEmptyStepGivesItsBucketsBack) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = Released();
    options.uneven_inputs = options.end_at_first = true;
    const auto reducer = MakeReducer(options, &hook, communicator, Alike());
    for (int64_t step = 0; step < 3; ++step) {
      ASSERT_OK(reducer->BeginStep(rank == 1 && step < 2 ? 0 : 1));
      if (rank == 0 || step == 2) MarkAll(*reducer, rank, step);
      ASSERT_OK(reducer->Finish());
      EXPECT_EQ(reducer->report().empty, step < 2);
      if (step == 2) {
        ASSERT_OK(reducer->Commit());
      } else {
        reducer->Rollback();
      }
    }
    EXPECT_OK(reducer->status());
    EXPECT_LE(reducer->totals().bucket_memory.allocations, kAlike);
  });
}

TEST(ReducerReleaseTest, OtherBucketsComeFromMemoryOfTheirSize) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook released_hook, kept_hook;
    const auto released =
        MakeReducer(Released(), &released_hook, communicator, Alike());
    ReducerOptions keeps = Released();
    keeps.release_buckets = false;
    const auto kept = MakeReducer(keeps, &kept_hook, communicator, Alike());
    Exchange(*released, rank, 0);
    ASSERT_OK(released->Commit());
    for (Reducer* reducer : {released.get(), kept.get()}) {
      ASSERT_OK(reducer->ChangeBuckets({3 * kBytes, 3 * kBytes}));
      EXPECT_EQ(reducer->buckets().size(), 4u);
    }
    EXPECT_EQ(released->layout_version(), 2);
    EXPECT_EQ(released->totals().bucket_memory.bytes, 0);
    for (const std::vector<float>& slice : OwnSlicesOf(*released)) {
      EXPECT_THAT(slice, Each(0));
    }
    Exchange(*released, rank, 1);
    Exchange(*kept, rank, 1);
    EXPECT_EQ(OwnSlicesOf(*released), OwnSlicesOf(*kept));
    ASSERT_OK(released->Commit());
    ASSERT_OK(kept->Commit());
    std::vector<ParameterSpec> fewer = Alike();
    fewer.pop_back();
    ASSERT_OK(released->ChangeParameters(fewer));
    EXPECT_EQ(released->buckets().size(), 3u);
    EXPECT_EQ(released->totals().bucket_memory.bytes, 0);
  });
}

TEST(ReducerReleaseTest, BucketsThatKeepTheirMemoryAreCountedToo) {
  AverageHook hook;
  LoopbackCommunicator alone;
  ReducerOptions options;
  options.buckets = {1, 1};
  const auto reducer = MakeReducer(options, &hook, &alone, Alike());
  EXPECT_EQ(reducer->totals().bucket_memory.bytes, kAlike * kBytes);
  ASSERT_OK(reducer->ChangeBuckets({1 << 20, 1 << 20}));
  const BucketMemoryUse use = reducer->totals().bucket_memory;
  EXPECT_EQ(use.bytes, kAlike * kBytes);
  EXPECT_EQ(use.peak_bytes, 2 * kAlike * kBytes);
  EXPECT_EQ(use.allocations, kAlike + 1);
}

// ---- errors ----

TEST(ReducerReleaseTest, ItNeedsSlices) {
  AverageHook hook;
  LoopbackCommunicator alone;
  ReducerOptions options = Released();
  options.slices = false;
  EXPECT_THAT(Reducer::Create(options, Alike(), &hook, &alone),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("release_buckets")));
}

TEST(ReducerReleaseTest, ViewsHaveNoMemory) {
  AverageHook hook;
  LoopbackCommunicator alone;
  const auto reducer = MakeReducer(Released(), &hook, &alone, Alike());
  EXPECT_EQ(reducer->GradientView(1).data, nullptr);
  EXPECT_EQ(reducer->GradientView(1).count, kElements);
  ASSERT_OK(reducer->BeginStep());
  EXPECT_THAT(reducer->MarkReady(1),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("p1"), HasSubstr("release_buckets"))));
  EXPECT_FALSE(reducer->Finish().ok());
}

TEST(ReducerReleaseTest, WrongGradientsAreRefusedBeforeTheyTakeMemory) {
  for (const bool back : {false, true}) {
    AverageHook hook;
    LoopbackCommunicator alone;
    const auto reducer = MakeReducer(Released(), &hook, &alone, Alike());
    ASSERT_OK(reducer->BeginStep());
    std::vector<float> gradient(back ? kElements : kElements - 1);
    Reducer::MarkOptions mark;
    mark.copy_back = back;
    EXPECT_THAT(reducer->MarkReady(1, SpanOf(&gradient), mark),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("p1")));
    EXPECT_EQ(reducer->totals().bucket_memory.bytes, 0);
  }
}

TEST(ReducerReleaseTest, MemoryThatIsUsedUpEndsTheStep) {
  // The own slices take the first buffer.
  for (const bool zeros : {false, true}) {
    AverageHook hook;
    ScarceCommunicator scarce(1 + 2);
    ReducerOptions options = Released();
    options.verify = false;
    const auto reducer = MakeReducer(options, &hook, &scarce, Alike());
    ASSERT_OK(reducer->BeginStep());
    if (zeros) {
      // For the third bucket two have been allocated, or given back.
      ASSERT_OK(Mark(*reducer, 0, 0, 0));
      ASSERT_OK(Mark(*reducer, 0, 0, 1));
    } else {
      for (int i = 0; i < 2; ++i) ASSERT_OK(Mark(*reducer, 0, 0, i));
      EXPECT_THAT(Mark(*reducer, 0, 0, 2),
                  StatusIs(absl::StatusCode::kResourceExhausted,
                           HasSubstr("taking a gradient")));
    }
    EXPECT_THAT(reducer->Finish(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("rank 0, step 0"),
                               HasSubstr("640 bytes for a bucket, beside "
                                         "1280"))));
    EXPECT_EQ(hook.rollbacks(), 1);
  }
}

TEST(ReducerReleaseTest, OwnSlicesNeedMemoryFromTheStart) {
  AverageHook hook;
  ScarceCommunicator scarce(0);
  EXPECT_THAT(
      Reducer::Create(Released(), Alike(), &hook, &scarce),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("used up")));
}

TEST(ReducerReleaseTest, AHookThatFailsEndsTheStep) {
  HookPlan plan;
  plan.fail_bucket = 1;
  AverageHook hook(plan);
  LoopbackCommunicator alone;
  const auto reducer = MakeReducer(Released(), &hook, &alone, Alike());
  ASSERT_OK(reducer->BeginStep());
  for (int i = kAlike; i-- > 0;) (void)Mark(*reducer, 0, 0, i);
  EXPECT_THAT(reducer->Finish(), StatusIs(absl::StatusCode::kInternal,
                                          HasSubstr("bucket 1 of 10")));
  EXPECT_FALSE(reducer->BeginStep().ok());
}

TEST(ReducerReleaseTest, ACollectiveThatFailsEndsTheStep) {
  HeldCommunicator held(std::make_unique<LoopbackCommunicator>());
  held.Open();
  held.Fail(2, absl::UnavailableError("the link is down"));
  AverageHook hook;
  ReducerOptions options = Released();
  options.verify = false;
  const auto reducer = MakeReducer(options, &hook, &held, Alike());
  ASSERT_OK(reducer->BeginStep());
  for (int i = kAlike; i-- > 0;) (void)Mark(*reducer, 0, 0, i);
  EXPECT_THAT(reducer->Finish(), StatusIs(absl::StatusCode::kUnavailable,
                                          HasSubstr("the link is down")));
  EXPECT_EQ(hook.rollbacks(), 1);
}

TEST(ReducerReleaseTest, AStepThatIsStuckIsLostAtTheDeadline) {
  const auto stuck = Stuck();
  AverageHook hook;
  ReducerOptions options = Released();
  options.verify = false;
  options.timeout = absl::Milliseconds(50);
  const auto reducer = MakeReducer(options, &hook, stuck.get(), Alike());
  ASSERT_OK(reducer->BeginStep());
  MarkAll(*reducer, 0, 0);
  EXPECT_THAT(reducer->Finish(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                          HasSubstr("rank 0, step 0")));
}

TEST(ReducerReleaseTest, AStepThatIsGivenUpBreaksTheReducer) {
  const auto stuck = Stuck();
  AverageHook hook;
  ReducerOptions options = Released();
  options.verify = false;
  const auto reducer = MakeReducer(options, &hook, stuck.get(), Alike());
  ASSERT_OK(reducer->BeginStep());
  for (int i = kAlike; i-- > 3;) ASSERT_OK(Mark(*reducer, 0, 0, i));
  reducer->Rollback();
  EXPECT_THAT(reducer->status(), StatusIs(absl::StatusCode::kAborted,
                                          HasSubstr("step was aborted")));
  EXPECT_FALSE(Mark(*reducer, 0, 0, 0).ok());
  EXPECT_EQ(hook.rollbacks(), 1);
}

TEST(ReducerReleaseTest, AStepThatIsRolledBackCanBeTakenAgain) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    const auto reducer = MakeReducer(Released(), &hook, communicator, Alike());
    Exchange(*reducer, rank, 0);
    const auto before = OwnSlicesOf(*reducer);
    reducer->Rollback();
    Exchange(*reducer, rank, 1);
    EXPECT_NE(OwnSlicesOf(*reducer), before);
    reducer->Rollback();
    Exchange(*reducer, rank, 0);
    EXPECT_EQ(OwnSlicesOf(*reducer), before);
    ASSERT_OK(reducer->Commit());
    EXPECT_EQ(hook.step(), 1);
  });
}

// ---- sums of averages ----

schedule::Ticket TicketOf(int64_t step, int micro, int window) {
  schedule::Ticket ticket;
  ticket.step = step;
  ticket.micro = micro;
  ticket.window = window;
  return ticket;
}

void ExchangeMicro(Reducer& reducer, int rank, const schedule::Ticket& ticket) {
  ASSERT_OK(reducer.BeginStep(ticket, 1));
  MarkAll(reducer, rank, 10 * ticket.step + ticket.micro);
  ASSERT_OK(reducer.Finish());
}

// With sync_each_batch each micro-batch's averages are added to the slices: the
// bits of averages that are added up one after the other.
TEST(ReducerReleaseTest, AveragesOfAWindowAreAddedUp) {
  for (const bool release : {true, false}) {
    OnRanks(3, [release](int rank, Communicator* communicator) {
      AverageHook hook, plain_hook;
      ReducerOptions options = Released();
      options.release_buckets = release;
      const auto sums = MakeReducer(options, &hook, communicator, Alike());
      const auto plain =
          MakeReducer(Released(), &plain_hook, communicator, Alike());
      for (int64_t step = 0; step < 4; ++step) {
        // As a plan that changes between windows has it.
        const int window = step == 2 ? 1 : 4;
        std::vector<std::vector<float>> expected;
        for (int micro = 0; micro < window; ++micro) {
          ExchangeMicro(*sums, rank, TicketOf(step, micro, window));
          Exchange(*plain, rank, 10 * step + micro);
          const auto averages = OwnSlicesOf(*plain);
          if (micro == 0) expected = averages;
          for (size_t i = 0; micro > 0 && i < averages.size(); ++i) {
            for (size_t j = 0; j < averages[i].size(); ++j) {
              expected[i][j] += averages[i][j];
            }
          }
          EXPECT_EQ(OwnSlicesOf(*sums), expected)
              << "step " << step << ", micro-batch " << micro;
          ASSERT_OK(plain->Commit());
          // One that is skipped costs the window, and no more.
          if (step == 1 && micro == 1) {
            sums->Rollback();
            break;
          }
          ASSERT_OK(sums->Commit());
        }
      }
    });
  }
}

TEST(ReducerReleaseTest, SumsNeedMemoryWhereBucketsKeepTheirs) {
  AverageHook hook;
  ScarceCommunicator scarce(kAlike);
  ReducerOptions options = Released();
  options.release_buckets = false;
  options.verify = false;
  const auto reducer = MakeReducer(options, &hook, &scarce, Alike());
  ASSERT_OK(reducer->BeginStep());
  MarkAll(*reducer, 0, 0);
  ASSERT_OK(reducer->Finish());
  ASSERT_OK(reducer->Commit());
  EXPECT_THAT(reducer->BeginStep(TicketOf(1, 0, 2), 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("rank 0, step 1"),
                             HasSubstr("memory for sums of averages"))));
  EXPECT_FALSE(reducer->status().ok());
}

}  // namespace
}  // namespace coxswain::reducer_release_test
