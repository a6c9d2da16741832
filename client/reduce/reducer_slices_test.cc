// A reducer whose ranks keep the averages of their own slices.

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/reduce/bucket_slices.h"
#include "client/reduce/reducer_test_support.h"
#include "gmock/gmock.h"

namespace coxswain::reducer_slices_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kCounts[] = {100, 33, 0, 7, 250};
constexpr int kParameters = 5;

ReducerOptions Sliced() {
  ReducerOptions options;
  options.buckets = {400, 600};
  options.timeout = kSoon;
  options.slices = true;
  return options;
}

std::unique_ptr<Reducer> MakeReducer(const ReducerOptions& options, Hook* hook,
                                     Communicator* communicator) {
  auto reducer =
      Reducer::Create(options, ParametersOf(kCounts), hook, communicator);
  EXPECT_OK(reducer);
  return *std::move(reducer);
}

float ValueOf(int rank, int64_t step, int parameter, int64_t element) {
  return std::sin(
      static_cast<float>(element + 10 * parameter + 100 * rank + 1000 * step));
}

// Marks all gradients of a step, and finishes it.
void Exchange(Reducer& reducer, int rank, int64_t step) {
  ASSERT_OK(reducer.BeginStep());
  for (int parameter = 0; parameter < kParameters; ++parameter) {
    const Span view = reducer.GradientView(parameter);
    for (int64_t i = 0; i < view.count; ++i) {
      static_cast<float*>(view.data)[i] = ValueOf(rank, step, parameter, i);
    }
    ASSERT_OK(reducer.MarkReady(parameter));
  }
  ASSERT_OK(reducer.Finish());
}

// With slices and without, over several steps.
TEST(ReducerSlicesTest, TheOwnSlicesHoldTheAverages) {
  for (const int size : {1, 2, 3, 8}) {
    OnRanks(size, [size](int rank, Communicator* communicator) {
      AverageHook sliced_hook, whole_hook;
      auto sliced = MakeReducer(Sliced(), &sliced_hook, communicator);
      ReducerOptions options = Sliced();
      options.slices = false;
      options.rebuild = false;
      auto whole = MakeReducer(options, &whole_hook, communicator);
      for (int64_t step = 0; step < 3; ++step) {
        Exchange(*sliced, rank, step);
        Exchange(*whole, rank, step);
        ASSERT_EQ(sliced->buckets().size(), whole->buckets().size());
        for (size_t i = 0; i < whole->buckets().size(); ++i) {
          const Span& data = whole->buckets()[i].data;
          EXPECT_EQ(ValuesOf(sliced->OwnSlice(sliced->buckets()[i])),
                    ValuesOf(BucketSlices::Of(data, size).Slice(data, rank)));
        }
        ASSERT_OK(sliced->Commit());
        ASSERT_OK(whole->Commit());
      }
      EXPECT_EQ(sliced->layout_version(), 1);
    });
  }
}

TEST(ReducerSlicesTest, StatisticsAndClippingAreThoseOfAllSlices) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    AverageHook sliced_hook, whole_hook;
    ReducerOptions options = Sliced();
    options.max_norm = 1;
    auto sliced = MakeReducer(options, &sliced_hook, communicator);
    options.slices = false;
    auto whole = MakeReducer(options, &whole_hook, communicator);
    Exchange(*sliced, rank, 0);
    Exchange(*whole, rank, 0);
    EXPECT_GT(whole->report().gradient_norm, 1);
    EXPECT_NEAR(sliced->report().gradient_norm, whole->report().gradient_norm,
                1e-12 * whole->report().gradient_norm);
    EXPECT_NEAR(sliced->report().clip_scale, whole->report().clip_scale, 1e-12);
    const Bucket& bucket = sliced->buckets()[0];
    const std::vector<float> own = ValuesOf(sliced->OwnSlice(bucket));
    const std::vector<float> expected = ValuesOf(
        BucketSlices::Of(bucket.data, 3).Slice(whole->buckets()[0].data, rank));
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_NEAR(own[i], expected[i], 1e-7);
    }
    sliced->Rollback();
    whole->Rollback();
  });
}

// Although only one rank has the element.
TEST(ReducerSlicesTest, AllRanksLearnOfAnInfinity) {
  OnRanks(3, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = Sliced();
    options.statistics = true;
    auto reducer = MakeReducer(options, &hook, communicator);
    ASSERT_OK(reducer->BeginStep());
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      Fill(*reducer, parameter, 1);
    }
    if (rank == 2) {
      static_cast<float*>(reducer->GradientView(4).data)[249] =
          std::numeric_limits<float>::infinity();
    }
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      ASSERT_OK(reducer->MarkReady(parameter));
    }
    ASSERT_OK(reducer->Finish());
    EXPECT_EQ(reducer->report().non_finite, 1);
    reducer->Rollback();
  });
}

// A step of an optimizer on the own slices of the parameters, bucket by bucket.
TEST(ReducerSlicesTest, GatheredParametersAreThoseOfAWholeStep) {
  for (const int size : {1, 2, 3}) {
    OnRanks(size, [](int rank, Communicator* communicator) {
      AverageHook sliced_hook, whole_hook;
      auto sliced = MakeReducer(Sliced(), &sliced_hook, communicator);
      ReducerOptions options = Sliced();
      options.slices = false;
      options.rebuild = false;
      auto whole = MakeReducer(options, &whole_hook, communicator);
      std::vector<std::unique_ptr<BufferOwner>> memory;
      std::vector<Span> parameters;
      std::vector<std::vector<float>> expected;
      for (const Bucket& bucket : sliced->buckets()) {
        const int64_t count = bucket.data.count;
        const auto slices = BucketSlices::Of(bucket.data, communicator->size());
        auto owner =
            communicator->AllocateBuffer(slices.padded(), bucket.data.dtype);
        ASSERT_OK(owner);
        parameters.push_back((*owner)->span().Slice(0, count));
        memory.push_back(*std::move(owner));
        std::fill_n(static_cast<float*>(parameters.back().data), count, 1.0F);
        expected.emplace_back(static_cast<size_t>(count), 1.0F);
      }
      const auto step_on = [](float* values, const Span& average) {
        const float* by = static_cast<const float*>(average.data);
        for (int64_t i = 0; i < average.count; ++i) values[i] -= 0.1F * by[i];
      };
      for (int64_t step = 0; step < 3; ++step) {
        Exchange(*sliced, rank, step);
        Exchange(*whole, rank, step);
        for (size_t i = 0; i < parameters.size(); ++i) {
          const Span own = BucketSlices::Of(parameters[i], communicator->size())
                               .Slice(parameters[i], rank);
          step_on(static_cast<float*>(own.data),
                  sliced->OwnSlice(sliced->buckets()[i]));
          step_on(expected[i].data(), whole->buckets()[i].data);
        }
        ASSERT_OK(sliced->GatherSlices(parameters));
        ASSERT_OK(sliced->Commit());
        ASSERT_OK(whole->Commit());
        for (size_t i = 0; i < parameters.size(); ++i) {
          EXPECT_EQ(ValuesOf(parameters[i]), expected[i]) << "step " << step;
        }
      }
    });
  }
}

TEST(ReducerSlicesTest, OnlyWhatIsLikeTheBucketsIsGathered) {
  AverageHook hook;
  LoopbackCommunicator alone;
  auto reducer = MakeReducer(Sliced(), &hook, &alone);
  EXPECT_THAT(reducer->GatherSlices({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 0")));
  std::vector<Span> wrong;
  for (const Bucket& bucket : reducer->buckets()) wrong.push_back(bucket.data);
  --wrong.back().count;
  EXPECT_THAT(reducer->GatherSlices(wrong),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("what is gathered in its place")));
  ASSERT_OK(reducer->BeginStep());
  EXPECT_THAT(reducer->GatherSlices(wrong),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("call Finish first")));
}

TEST(ReducerSlicesTest, AveragesCannotBeCopiedOut) {
  AverageHook hook;
  LoopbackCommunicator alone;
  auto reducer = MakeReducer(Sliced(), &hook, &alone);
  ASSERT_OK(reducer->BeginStep());
  std::vector<float> gradient(100);
  Reducer::MarkOptions mark;
  mark.copy_back = true;
  EXPECT_THAT(reducer->MarkReady(0, SpanOf(&gradient), mark),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no rank has all of it")));
}

class LocalHook : public AverageHook {
 public:
  bool needs_averager() const override { return true; }
};

TEST(ReducerSlicesTest, AHookThatNeedsAnAveragerIsRefused) {
  LocalHook local;
  AverageHook average;
  LoopbackCommunicator alone;
  EXPECT_THAT(Reducer::Create(Sliced(), ParametersOf(kCounts), &local, &alone),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no rank can keep a slice")));
  auto reducer = MakeReducer(Sliced(), &average, &alone);
  EXPECT_THAT(reducer->ChangeHook(&local, false),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no rank can keep a slice")));
}

// One rank that would exchange whole buckets is found before any data travels.
TEST(ReducerSlicesTest, RanksMustAgreeOnThem) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = Sliced();
    options.slices = rank == 0;
    options.rebuild = false;
    auto reducer = MakeReducer(options, &hook, communicator);
    ASSERT_OK(reducer->BeginStep());
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      reducer->MarkReady(parameter).IgnoreError();
    }
    EXPECT_THAT(
        reducer->Finish(),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("slices")));
  });
}

}  // namespace
}  // namespace coxswain::reducer_slices_test
