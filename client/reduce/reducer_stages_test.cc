// The norm of several reducers' gradients, each with those of a pipeline's
// stage: the votes of all ranks bring it.

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/reduce/reducer_test_support.h"
#include "gmock/gmock.h"
#include "schedule/fake_step_gate.h"

namespace coxswain::reducer_stages_test {
namespace {

using testing::HasSubstr;

constexpr int kStages = 2;
constexpr int kReplicas = 2;
constexpr int kRanks = kStages * kReplicas;
constexpr int64_t kEach = 37;

schedule::Plan Voting() {
  schedule::Plan plan;
  plan.terms.commit_vote = true;
  return plan;
}

// A rank of a job of two stages, each of which two ranks have; ranks are
// numbered stage by stage.
struct Place {
  int stage = 0;
  int replica = 0;
  Communicator* communicator = nullptr;  // of the replicas
  schedule::StepGate* gate = nullptr;
  int rank() const { return stage * kReplicas + replica; }
};

void OnStages(schedule::FakeSchedule& schedule,
              const std::function<void(const Place&)>& run) {
  std::vector<std::thread> threads;
  std::vector<decltype(InProcessWorld::Create(kReplicas, kSoon))> worlds;
  for (int stage = 0; stage < kStages; ++stage) {
    const auto& world =
        worlds.emplace_back(InProcessWorld::Create(kReplicas, kSoon));
    for (int replica = 0; replica < kReplicas; ++replica) {
      threads.emplace_back([&run, &schedule, stage, replica,
                            communicator = world->MakeRank(replica)] {
        Place place;
        place.stage = stage;
        place.replica = replica;
        place.communicator = communicator.get();
        place.gate = schedule.gate(place.rank());
        run(place);
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

// Of the stage, and "tied", which both have.
std::vector<ParameterSpec> Of(int stage) {
  std::vector<ParameterSpec> parameters;
  for (const std::string& name :
       {absl::StrCat("s", stage, ".a"), absl::StrCat("s", stage, ".b"),
        std::string("tied")}) {
    ParameterSpec spec;
    spec.name = name;
    spec.shape = {kEach};
    spec.dtype = DType::kFloat64;
    parameters.push_back(spec);
  }
  return parameters;
}

constexpr int kTied = 2;

// The gradients of "tied" are equal on both stages: they have been summed up.
double ValueOf(int stage, int replica, int parameter, int64_t element) {
  const int of = parameter == kTied ? 7 : stage;
  const double at = 100.0 * parameter + 1000.0 * of + 0.1 * replica;
  return std::sin(static_cast<double>(element) + at);
}

double MeanOf(int stage, int parameter, int64_t element) {
  return (ValueOf(stage, 0, parameter, element) +
          ValueOf(stage, 1, parameter, element)) /
         2;
}

// Of the means of all parameters, each once, as one process computes it.
double NormOfAll() {
  double squares = 0;
  for (int stage = 0; stage < kStages; ++stage) {
    for (int parameter = 0; parameter <= kTied; ++parameter) {
      if (stage > 0 && parameter == kTied) continue;
      for (int64_t i = 0; i < kEach; ++i) {
        squares += MeanOf(stage, parameter, i) * MeanOf(stage, parameter, i);
      }
    }
  }
  return std::sqrt(squares);
}

ReducerOptions OptionsOf(const Place& place, bool slices = false) {
  ReducerOptions options;
  options.buckets = {200, 200};
  options.buckets.late_parameters = {"tied"};
  if (place.stage > 0) options.buckets.uncounted_parameters = {"tied"};
  options.timeout = kSoon;
  options.slices = slices;
  options.max_norm = 1;
  options.gate = place.gate;
  options.counts_in_norm = place.replica == 0;
  FollowPlan(Voting(), kReplicas, &options);
  return options;
}

std::unique_ptr<Reducer> Make(const ReducerOptions& options, const Place& place,
                              Hook* hook) {
  auto reducer =
      Reducer::Create(options, Of(place.stage), hook, place.communicator);
  EXPECT_OK(reducer);
  return *std::move(reducer);
}

void RunStep(Reducer& reducer, const Place& place,
             std::optional<double> instead = {}) {
  ASSERT_OK(reducer.BeginStep());
  for (int parameter = 0; parameter <= kTied; ++parameter) {
    const Span view = reducer.GradientView(parameter);
    for (int64_t i = 0; i < view.count; ++i) {
      static_cast<double*>(view.data)[i] =
          instead.value_or(ValueOf(place.stage, place.replica, parameter, i));
    }
    ASSERT_OK(reducer.MarkReady(parameter));
  }
  ASSERT_OK(reducer.Finish());
}

double Element(const Reducer& reducer, int parameter, int64_t element) {
  return static_cast<double*>(reducer.GradientView(parameter).data)[element];
}

TEST(ReducerStagesTest, WholeAveragesAreClippedByTheNormOfAllStages) {
  schedule::FakeSchedule schedule(kRanks, Voting());
  std::vector<std::vector<double>> clipped(kRanks);
  OnStages(schedule, [&](const Place& place) {
    AverageHook hook;
    auto reducer = Make(OptionsOf(place), place, &hook);
    for (int step = 0; step < 3; ++step) {
      RunStep(*reducer, place);
      // Until the decision nothing is clipped.
      EXPECT_EQ(reducer->report().clip_scale, 1);
      EXPECT_EQ(Element(*reducer, 0, 5), MeanOf(place.stage, 0, 5));
      ASSERT_OK(reducer->Decide());
      const double norm = NormOfAll();
      EXPECT_NEAR(reducer->report().gradient_norm, norm, 1e-12 * norm);
      const double scale = 1 / (norm + 1e-6);
      EXPECT_NEAR(reducer->report().clip_scale, scale, 1e-12);
      clipped[place.rank()].clear();
      for (int parameter = 0; parameter <= kTied; ++parameter) {
        for (int64_t i = 0; i < kEach; ++i) {
          const double is = Element(*reducer, parameter, i);
          clipped[place.rank()].push_back(is);
          EXPECT_NEAR(is, MeanOf(place.stage, parameter, i) * scale, 1e-12);
        }
      }
      ASSERT_OK(reducer->Commit());
    }
  });
  EXPECT_EQ(clipped[0], clipped[1]);
  EXPECT_EQ(clipped[2], clipped[3]);
  // Each average is in one vote.
  EXPECT_EQ(schedule.votes(1)[0].sums->sum_of_squares, 0);
  EXPECT_EQ(schedule.votes(3)[0].sums->sum_of_squares, 0);
  EXPECT_GT(schedule.votes(2)[0].sums->sum_of_squares, 0);
}

TEST(ReducerStagesTest, SlicesAreClippedByItToo) {
  schedule::FakeSchedule schedule(kRanks, Voting());
  OnStages(schedule, [&](const Place& place) {
    AverageHook hook;
    auto reducer = Make(OptionsOf(place, /*slices=*/true), place, &hook);
    RunStep(*reducer, place);
    ASSERT_OK(reducer->Decide());
    const double norm = NormOfAll();
    EXPECT_NEAR(reducer->report().gradient_norm, norm, 1e-12 * norm);
    ASSERT_OK(reducer->Commit());
  });
  EXPECT_GT(schedule.votes(1)[0].sums->sum_of_squares, 0);
}

TEST(ReducerStagesTest, WhatIsCopiedOutComesBeforeTheNorm) {
  schedule::FakeSchedule schedule(kRanks, Voting());
  OnStages(schedule, [&](const Place& place) {
    AverageHook hook;
    auto reducer = Make(OptionsOf(place), place, &hook);
    std::vector<std::vector<double>> gradients(kTied + 1);
    ASSERT_OK(reducer->BeginStep());
    for (int parameter = 0; parameter <= kTied; ++parameter) {
      for (int64_t i = 0; i < kEach; ++i) {
        gradients[parameter].push_back(
            ValueOf(place.stage, place.replica, parameter, i));
      }
      Span span;
      span.data = gradients[parameter].data();
      span.count = kEach;
      span.dtype = DType::kFloat64;
      Reducer::MarkOptions mark;
      mark.copy_back = true;
      ASSERT_OK(reducer->MarkReady(parameter, span, mark));
    }
    ASSERT_OK(reducer->Finish());
    EXPECT_EQ(gradients[1][3], MeanOf(place.stage, 1, 3));
    ASSERT_OK(reducer->Decide());
    EXPECT_EQ(gradients[1][3], MeanOf(place.stage, 1, 3));
    EXPECT_EQ(Element(*reducer, 1, 3),
              gradients[1][3] * reducer->report().clip_scale);
    ASSERT_OK(reducer->Commit());
  });
}

TEST(ReducerStagesTest, WhatIsNotFiniteOnOneStageClipsNone) {
  schedule::FakeSchedule schedule(kRanks, Voting());
  OnStages(schedule, [&](const Place& place) {
    AverageHook hook;
    auto reducer = Make(OptionsOf(place), place, &hook);
    std::optional<double> instead;
    if (place.stage == 1) instead = std::nan("");
    RunStep(*reducer, place, instead);
    // All ranks of the stage see it, whoever counts; the tied one is another's.
    EXPECT_EQ(reducer->report().non_finite, place.stage == 1 ? 2 * kEach : 0);
    ASSERT_OK(reducer->Decide());
    EXPECT_EQ(reducer->report().non_finite, 2 * kEach);
    EXPECT_EQ(reducer->report().clip_scale, 1);
    ASSERT_OK(reducer->Commit());
  });
}

TEST(ReducerStagesTest, AStepThatIsSkippedIsNotClipped) {
  schedule::FakeSchedule schedule(kRanks, Voting());
  OnStages(schedule, [&](const Place& place) {
    AverageHook hook;
    auto reducer = Make(OptionsOf(place), place, &hook);
    RunStep(*reducer, place);
    schedule::Vote vote;
    vote.commit = place.rank() != 3;
    vote.reason = "no";
    ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                         reducer->Decide(vote));
    EXPECT_FALSE(decision.commit);
    EXPECT_EQ(Element(*reducer, 0, 5), MeanOf(place.stage, 0, 5));
    reducer->Rollback();
    ASSERT_OK(reducer->status());
  });
}

// There is no collective over all stages to fall back to.
TEST(ReducerStagesTest, AnEarlierCoordinatorDoesNotKnowTheNorm) {
  schedule::FakeSchedule schedule(kRanks, Voting());
  schedule.SumUpNothing();
  OnStages(schedule, [&](const Place& place) {
    AverageHook hook;
    auto reducer = Make(OptionsOf(place), place, &hook);
    RunStep(*reducer, place);
    EXPECT_THAT(reducer->Decide(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("start a newer coordinator")));
  });
}

TEST(ReducerStagesTest, ANormThatClipsNothingIsTheStagesOwnThen) {
  schedule::FakeSchedule schedule(kRanks, Voting());
  schedule.SumUpNothing();
  OnStages(schedule, [&](const Place& place) {
    AverageHook hook;
    ReducerOptions options = OptionsOf(place);
    options.max_norm = 0;
    options.statistics = true;
    auto reducer = Make(options, place, &hook);
    for (int step = 0; step < 2; ++step) {
      RunStep(*reducer, place);
      ASSERT_OK(reducer->Decide());
      EXPECT_GT(reducer->report().gradient_norm, 0);
      EXPECT_LT(reducer->report().gradient_norm, NormOfAll());
      ASSERT_OK(reducer->Commit());
    }
  });
}

TEST(ReducerStagesTest, ClippingNeedsVotes) {
  LoopbackCommunicator alone;
  AverageHook hook;
  Place place;
  ReducerOptions options = OptionsOf(place);
  EXPECT_THAT(Reducer::Create(options, Of(0), &hook, &alone),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("set commit_vote=true")));
  schedule::FakeSchedule schedule(1, Voting());
  options.gate = schedule.gate(0);
  ASSERT_OK_AND_ASSIGN(const auto reducer,
                       Reducer::Create(options, Of(0), &hook, &alone));
  EXPECT_THAT(reducer->ChangePlan(schedule::Plan()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("set commit_vote=true")));
}

TEST(ReducerStagesTest, NamesOfNoParameterAreRefused) {
  LoopbackCommunicator alone;
  AverageHook hook;
  ReducerOptions options;
  options.buckets.late_parameters = {"tied", "tide"};
  EXPECT_THAT(Reducer::Create(options, Of(0), &hook, &alone),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("late_parameters has \"tide\"")));
  options.buckets.late_parameters.clear();
  options.buckets.separate_parameters = {"no"};
  EXPECT_THAT(Reducer::Create(options, Of(0), &hook, &alone),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("separate_parameters has \"no\"")));
  options.buckets.separate_parameters.clear();
  options.buckets.uncounted_parameters = {"none"};
  EXPECT_THAT(Reducer::Create(options, Of(0), &hook, &alone),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("uncounted_parameters has \"none\"")));
}

// Only the sizes change.
TEST(ReducerStagesTest, LateOnesStayLast) {
  LoopbackCommunicator alone;
  AverageHook hook;
  ReducerOptions options;
  options.timeout = kSoon;
  options.buckets = {1, 1};
  options.buckets.late_parameters = {"s0.b"};
  ASSERT_OK_AND_ASSIGN(const auto reducer,
                       Reducer::Create(options, Of(0), &hook, &alone));
  for (int change = 0; change < 3; ++change) {
    EXPECT_EQ(reducer->buckets().back().gradients[0].parameter, 1);
    if (change == 0) {
      // The order of this step's gradients is that of the next buckets.
      ASSERT_OK(reducer->BeginStep());
      for (const int parameter : {1, 2, 0}) {
        ASSERT_OK(reducer->MarkReady(parameter));
      }
      ASSERT_OK(reducer->Finish());
      ASSERT_OK(reducer->Commit());
    } else if (change == 1) {
      ASSERT_OK(reducer->ChangeBuckets({1, 1 << 20}));
    }
  }
}

}  // namespace
}  // namespace coxswain::reducer_stages_test
