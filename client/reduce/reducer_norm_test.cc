// A norm of slices that comes with the step's decision.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/reduce/averager_change.h"
#include "client/reduce/reducer_test_support.h"
#include "gmock/gmock.h"
#include "schedule/fake_step_gate.h"

namespace coxswain::reducer_norm_test {
namespace {

using testing::HasSubstr;

constexpr int kParameters = 4;
constexpr int64_t kEach = 37;

schedule::Plan Voting() {
  schedule::Plan plan;
  plan.terms.commit_vote = true;
  return plan;
}

std::vector<ParameterSpec> Odd() {
  std::vector<ParameterSpec> parameters;
  for (int i = 0; i < kParameters; ++i) {
    ParameterSpec spec;
    spec.name = absl::StrCat("p", i);
    spec.shape = {kEach};
    parameters.push_back(spec);
  }
  return parameters;
}

float ValueOf(int rank, int parameter, int64_t element) {
  return std::sin(static_cast<float>(element + 100 * parameter + 1000 * rank));
}

// Of the mean over all ranks, as one process computes it.
double NormOfAll(int ranks) {
  double squares = 0;
  for (int parameter = 0; parameter < kParameters; ++parameter) {
    for (int64_t i = 0; i < kEach; ++i) {
      float sum = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        sum += ValueOf(rank, parameter, i);
      }
      const double mean = sum / static_cast<float>(ranks);
      squares += mean * mean;
    }
  }
  return std::sqrt(squares);
}

ReducerOptions Clipping(schedule::StepGate* gate) {
  ReducerOptions options;
  options.buckets = {200, 200};
  options.timeout = kSoon;
  options.slices = true;
  options.max_norm = 1;
  options.gate = gate;
  FollowPlan(Voting(), 2, &options);
  return options;
}

void RunStep(Reducer& reducer, int rank) {
  ASSERT_OK(reducer.BeginStep());
  for (int parameter = 0; parameter < kParameters; ++parameter) {
    const Span view = reducer.GradientView(parameter);
    for (int64_t i = 0; i < view.count; ++i) {
      static_cast<float*>(view.data)[i] = ValueOf(rank, parameter, i);
    }
    ASSERT_OK(reducer.MarkReady(parameter));
  }
  ASSERT_OK(reducer.Finish());
}

std::vector<float> OwnSlices(const Reducer& reducer) {
  std::vector<float> values;
  for (const Bucket& bucket : reducer.buckets()) {
    const Span own = reducer.OwnSlice(bucket);
    const float* data = static_cast<const float*>(own.data);
    values.insert(values.end(), data, data + own.count);
  }
  return values;
}

std::unique_ptr<Reducer> Make(const ReducerOptions& options, Hook* hook,
                              Communicator* communicator) {
  auto reducer = Reducer::Create(options, Odd(), hook, communicator);
  EXPECT_OK(reducer);
  return *std::move(reducer);
}

TEST(ReducerNormTest, TheVotesBringItWithoutACollective) {
  for (const int size : {1, 2, 3}) {
    schedule::FakeSchedule schedule(size, Voting());
    OnRanks(size, [&](int rank, Communicator* communicator) {
      AverageHook hook;
      auto reducer = Make(Clipping(schedule.gate(rank)), &hook, communicator);
      const auto buckets = static_cast<int64_t>(reducer->buckets().size());
      for (int step = 0; step < 3; ++step) {
        const int64_t before = communicator->sequence();
        RunStep(*reducer, rank);
        const std::vector<float> unclipped = OwnSlices(*reducer);
        EXPECT_OK(reducer->Decide());
        // The first one also compares the ranks.
        if (step > 0) {
          EXPECT_EQ(communicator->sequence() - before, buckets);
        }
        const StepReport report = reducer->report();
        const double expected = NormOfAll(size);
        EXPECT_NEAR(report.gradient_norm, expected, 1e-6 * expected);
        EXPECT_LT(report.clip_scale, 1);
        const std::vector<float> clipped = OwnSlices(*reducer);
        for (size_t i = 0; i < clipped.size(); ++i) {
          EXPECT_NEAR(clipped[i], unclipped[i] * report.clip_scale, 1e-6);
        }
        ASSERT_OK(reducer->Commit());
      }
    });
  }
}

// The two ways to add the slices' sums up.
TEST(ReducerNormTest, ItIsThatOfACollective) {
  constexpr int kSize = 3;
  schedule::FakeSchedule voting(kSize, Voting());
  schedule::FakeSchedule plain(kSize, Voting());
  OnRanks(kSize, [&](int rank, Communicator* communicator) {
    AverageHook hook, other;
    auto by_vote = Make(Clipping(voting.gate(rank)), &hook, communicator);
    ReducerOptions options = Clipping(plain.gate(rank));
    options.norm_by_vote = false;
    auto by_collective = Make(options, &other, communicator);
    RunStep(*by_vote, rank);
    RunStep(*by_collective, rank);
    ASSERT_OK(by_vote->Decide());
    ASSERT_OK(by_collective->Decide());
    EXPECT_EQ(by_vote->report().gradient_norm,
              by_collective->report().gradient_norm);
    EXPECT_EQ(by_vote->report().clip_scale, by_collective->report().clip_scale);
    EXPECT_EQ(OwnSlices(*by_vote), OwnSlices(*by_collective));
    ASSERT_OK(by_vote->Commit());
    ASSERT_OK(by_collective->Commit());
  });
}

TEST(ReducerNormTest, AnEarlierCoordinatorCostsOneCollective) {
  constexpr int kSize = 2;
  schedule::FakeSchedule schedule(kSize, Voting());
  schedule.SumUpNothing();
  OnRanks(kSize, [&](int rank, Communicator* communicator) {
    AverageHook hook;
    auto reducer = Make(Clipping(schedule.gate(rank)), &hook, communicator);
    const auto buckets = static_cast<int64_t>(reducer->buckets().size());
    for (int step = 0; step < 3; ++step) {
      const int64_t before = communicator->sequence();
      RunStep(*reducer, rank);
      ASSERT_OK(reducer->Decide());
      if (step > 0) {
        EXPECT_EQ(communicator->sequence() - before, buckets + 1);
      }
      EXPECT_NEAR(reducer->report().gradient_norm, NormOfAll(kSize), 1e-5);
      EXPECT_LT(reducer->report().clip_scale, 1);
      ASSERT_OK(reducer->Commit());
    }
  });
  EXPECT_TRUE(schedule.votes(0)[0].sums.has_value());
  EXPECT_FALSE(schedule.votes(0)[1].sums.has_value()) << "asked once";
}

TEST(ReducerNormTest, AStepThatIsSkippedIsNotClipped) {
  schedule::FakeSchedule schedule(2, Voting());
  OnRanks(2, [&](int rank, Communicator* communicator) {
    AverageHook hook;
    auto reducer = Make(Clipping(schedule.gate(rank)), &hook, communicator);
    RunStep(*reducer, rank);
    const std::vector<float> before = OwnSlices(*reducer);
    schedule::Vote vote;
    vote.commit = rank == 0;
    vote.reason = "no";
    ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                         reducer->Decide(vote));
    EXPECT_FALSE(decision.commit);
    EXPECT_EQ(OwnSlices(*reducer), before);
    reducer->Rollback();
    ASSERT_OK(reducer->status());
  });
}

// Each rank alone knows of its own slices; all know of all by the decision.
TEST(ReducerNormTest, WhatIsNotFiniteIsCountedOverAllSlices) {
  schedule::FakeSchedule schedule(2, Voting());
  OnRanks(2, [&](int rank, Communicator* communicator) {
    AverageHook hook;
    ReducerOptions options = Clipping(schedule.gate(rank));
    options.buckets = {1 << 20, 1 << 20};
    auto reducer = Make(options, &hook, communicator);
    ASSERT_OK(reducer->BeginStep());
    for (int parameter = 0; parameter < kParameters; ++parameter) {
      Fill(*reducer, parameter, parameter == 0 ? std::nanf("") : 1.0F);
      ASSERT_OK(reducer->MarkReady(parameter));
    }
    ASSERT_OK(reducer->Finish());
    // The first parameter is the bucket's last.
    EXPECT_EQ(reducer->report().non_finite, rank == 1 ? kEach : 0);
    ASSERT_OK(reducer->Decide());
    EXPECT_EQ(reducer->report().non_finite, kEach);
    EXPECT_EQ(reducer->report().clip_scale, 1);
    ASSERT_OK(reducer->Commit());
  });
}

// Averages with an averager, and says how it is asked.
class ApartHook : public AverageHook {
 public:
  bool needs_averager() const override { return true; }
  bool takes_parts() const override { return true; }
  absl::StatusOr<std::unique_ptr<Exchange>> PrepareSlice(
      const Bucket&, const BucketSlices&, Communicator&) override {
    return absl::InternalError("asked for a slice");
  }
};

TEST(AveragerChangeTest, WhatStandsInForAHookIsAskedAsTheHook) {
  LoopbackCommunicator alone;
  std::unique_ptr<Hook> hook = std::make_unique<AverageHook>();
  std::unique_ptr<Averager> averager;
  std::unique_ptr<Hook> paired;
  for (const bool slices : {true, false}) {
    ReducerOptions options;
    options.timeout = kSoon;
    options.slices = slices;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Reducer> reducer,
                         Reducer::Create(options, Odd(), hook.get(), &alone));
    HookOwner owner;
    owner.hook = &hook;
    owner.averager = &averager;
    owner.paired = &paired;
    owner.reducer = reducer.get();
    owner.communicator = &alone;
    owner.timeout = kSoon;
    owner.keep = [](const absl::Status& status) { return status; };
    owner.configure = [] { return absl::OkStatus(); };
    const absl::Status changed = ChangeHookAndAverager(
        owner, std::make_unique<ApartHook>(), nullptr, /*carry=*/false);
    if (slices) {
      EXPECT_THAT(changed, StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("no rank can keep a slice")));
      EXPECT_EQ(paired, nullptr);
      continue;
    }
    ASSERT_OK(changed);
    ASSERT_NE(paired, nullptr);
    EXPECT_FALSE(paired->needs_averager());
    EXPECT_TRUE(paired->takes_parts());
    EXPECT_THAT(paired->PrepareSlice(Bucket(), BucketSlices(), alone),
                StatusIs(absl::StatusCode::kInternal, "asked for a slice"));
  }
}

}  // namespace
}  // namespace coxswain::reducer_norm_test
