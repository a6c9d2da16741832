#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/accumulate/accumulator.h"
#include "gtest/gtest.h"
#include "schedule/fake_step_gate.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/every_hook.h"
#include "tests/hooks/reducer_team.h"

// Hooks, and what a schedule asks of the steps that they are used in: digests
// that do not differ by themselves, steps that never were, and weights.

namespace coxswain {
namespace {

constexpr int kRanks = 3;

schedule::Plan Voting() {
  schedule::Plan plan;
  plan.terms.commit_vote = true;
  return plan;
}

ReducerTeam AtSchedule(const std::string& spec,
                       schedule::FakeSchedule& schedule) {
  return ReducerTeam(spec, kRanks, [&](int rank, ReducerOptions& options) {
    options.gate = schedule.gate(rank);
    options.statistics = true;
  });
}

// A step of these gradients that all ranks vote on; rank 1 may be against it.
void DecidedStep(ReducerTeam& team, const std::vector<Gradients>& local,
                 bool commit) {
  team.OnRanks([&](int rank) -> absl::Status {
    Reducer& reducer = team.reducer(rank);
    COXSWAIN_RETURN_IF_ERROR(reducer.BeginStep());
    team.Mark(rank, local[static_cast<size_t>(rank)]);
    COXSWAIN_RETURN_IF_ERROR(reducer.Finish());
    schedule::Vote vote;
    vote.commit = commit || rank != 1;
    COXSWAIN_ASSIGN_OR_RETURN(const schedule::Decision decision,
                              reducer.Decide(vote));
    EXPECT_EQ(decision.commit, commit);
    if (decision.commit) return reducer.Commit();
    reducer.Rollback();
    return reducer.status();
  });
}

std::vector<Gradients> Results(const ReducerTeam& team) {
  std::vector<Gradients> results;
  for (int rank = 0; rank < kRanks; ++rank) results.push_back(team.Read(rank));
  return results;
}

class ScheduledHookTest : public testing::TestWithParam<AnyHook> {};

TEST_P(ScheduledHookTest, DigestsAreTheSameOnAllRanks) {
  schedule::FakeSchedule schedule(kRanks, Voting());
  ReducerTeam team = AtSchedule(GetParam().spec, schedule);
  std::set<uint64_t> different;
  for (int64_t step = 0; step < 6; ++step) {
    DecidedStep(team, team.Local(step), /*commit=*/step != 4);
    const size_t round = static_cast<size_t>(step);
    const schedule::Ticket first = schedule.tickets(0)[round];
    different.insert(first.digest);
    for (int rank = 1; rank < kRanks; ++rank) {
      const schedule::Ticket ticket = schedule.tickets(rank)[round];
      EXPECT_EQ(ticket.digest, first.digest) << rank << " in " << step;
      EXPECT_EQ(ticket.layout, first.layout) << rank << " in " << step;
    }
  }
  EXPECT_EQ(different.size(), 6u);
}

TEST_P(ScheduledHookTest, ASkippedStepLeavesNoTrace) {
  schedule::FakeSchedule schedule(kRanks, Voting());
  schedule::FakeSchedule other(kRanks, Voting());
  ReducerTeam skips = AtSchedule(GetParam().spec, schedule);
  ReducerTeam leaves_out = AtSchedule(GetParam().spec, other);
  for (int64_t step = 0; step < 6; ++step) {
    DecidedStep(skips, skips.Local(step), /*commit=*/step != 3);
    if (step == 3) continue;
    DecidedStep(leaves_out, leaves_out.Local(step), /*commit=*/true);
    EXPECT_EQ(Results(skips), Results(leaves_out)) << "step " << step;
  }
  EXPECT_EQ(SerializeHookState(skips.Save()),
            SerializeHookState(leaves_out.Save()));
}

INSTANTIATE_TEST_SUITE_P(Hooks, ScheduledHookTest,
                         testing::ValuesIn(EveryHook()), AnyHookName);

// Micro-batches of other numbers of tokens on each rank, and other numbers of
// micro-batches in the last window.
class TokenWeights {
 public:
  static double Of(int rank, int64_t step, int micro) {
    return 1 + static_cast<double>((7 * rank + 13 * step + 29 * micro) % 97);
  }
  static int Micros(int rank, int64_t step) {
    return step == kLast ? 1 + rank % kWindow : kWindow;
  }

  static constexpr int kWindow = 3;
  static constexpr int64_t kLast = 5;
};

class TokenWeightedTest : public testing::TestWithParam<std::string> {
 protected:
  TokenWeightedTest()
      : team_(GetParam(), kRanks, [](int, ReducerOptions& options) {
          FollowPlan(Plan(), kRanks, &options);
        }) {
    for (int rank = 0; rank < kRanks; ++rank) {
      Accumulator::Options options;
      options.plan = Plan();
      options.rank = rank;
      options.world_size = kRanks;
      accumulators_.push_back(*Accumulator::Create(options));
    }
  }

  static schedule::Plan Plan() {
    schedule::Plan plan;
    plan.version = 3;
    plan.accumulation_steps = TokenWeights::kWindow;
    plan.terms.weighting = schedule::Weighting::kTokens;
    return plan;
  }

  // Runs the rank's micro-batches, and adds to the exact sums.
  Gradients Accumulate(int rank, int64_t step, Gradients& exact,
                       double& weights) {
    Gradients sum;
    const int micros = TokenWeights::Micros(rank, step);
    for (int micro = 0; micro < micros; ++micro) {
      Accumulator::Begin begin;
      begin.weight = TokenWeights::Of(rank, step, micro);
      begin.end_of_data = step == TokenWeights::kLast && micro + 1 == micros;
      const auto batch =
          accumulators_[static_cast<size_t>(rank)].BeginMicroBatch("train",
                                                                   begin);
      EXPECT_OK(batch);
      const Gradients gradients = NormalGradients(
          team_.parameters(), static_cast<uint64_t>(100 + micro), rank, step);
      AddTo(sum, gradients, batch->loss_scale);
      AddTo(exact, gradients, *begin.weight);
      weights += *begin.weight;
      EXPECT_EQ(batch->sync, micro + 1 == micros);
    }
    return sum;
  }

  void Exchange(const std::vector<Gradients>& sums) {
    team_.OnRanks([&](int rank) -> absl::Status {
      const WindowSum sum = accumulators_[static_cast<size_t>(rank)].Sum();
      schedule::Ticket ticket;
      ticket.step = sum.step;
      ticket.micro_batches = sum.micro_batches;
      ticket.window = sum.window;
      ticket.weight = sum.weight;
      ticket.end_of_data = sum.end_of_data;
      Reducer& reducer = team_.reducer(rank);
      COXSWAIN_RETURN_IF_ERROR(reducer.BeginStep(ticket, sum.divisor));
      team_.Mark(rank, sums[static_cast<size_t>(rank)]);
      COXSWAIN_RETURN_IF_ERROR(reducer.Finish());
      return reducer.Commit();
    });
  }

  ReducerTeam team_;
  std::vector<Accumulator> accumulators_;
};

// Whatever a hook keeps back comes on top of what it sends: then nothing is
// missing. Hooks without errors send it all.
TEST_P(TokenWeightedTest, TheAverageIsThatOfAllTokens) {
  Gradients kept = MeanError(team_.Save(), team_.parameters(), kRanks);
  for (int64_t step = 0; step <= TokenWeights::kLast; ++step) {
    Gradients exact;
    double weights = 0;
    std::vector<Gradients> sums;
    for (int rank = 0; rank < kRanks; ++rank) {
      sums.push_back(Accumulate(rank, step, exact, weights));
    }
    Exchange(sums);
    EXPECT_EQ(team_.reducer(0).report().total_weight, weights);
    Gradients expected;
    AddTo(expected, exact, 1 / weights);
    AddTo(expected, kept);
    kept = MeanError(team_.Save(), team_.parameters(), kRanks);
    Gradients sent_and_kept = team_.Read(0);
    AddTo(sent_and_kept, kept);
    EXPECT_LT(RelativeDifference(sent_and_kept, expected), 1e-12)
        << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, TokenWeightedTest,
    testing::Values("allreduce", "powersgd(rank=2,start_step=2)",
                    "powersgd(rank=1,start_step=3,min_compression_rate=1)"));

}  // namespace
}  // namespace coxswain
