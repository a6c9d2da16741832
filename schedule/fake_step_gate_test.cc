#include "schedule/fake_step_gate.h"

#include <functional>
#include <thread>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain::schedule::fake_step_gate_test {
namespace {

void OnRanks(int world_size, const std::function<void(int rank)>& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&work, rank]() { work(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

Ticket TicketOf(int64_t step, const std::string& skip = "") {
  Ticket ticket;
  ticket.step = step;
  ticket.skip = skip;
  return ticket;
}

TEST(FakeScheduleTest, ScriptedDecisionsReachAllRanks) {
  FakeSchedule schedule(3);
  schedule.SkipAt(1, "because");
  schedule.StopAt(2, "enough");
  schedule.CheckpointAt(1);
  schedule.CheckpointAt(2, "save it");
  Plan next;
  next.version = 7;
  schedule.ChangePlanAt(0, next);
  OnRanks(3, [&schedule](int rank) {
    StepGate& gate = *schedule.gate(rank);
    std::vector<Decision> decisions;
    for (int step = 0; step < 3; ++step) {
      ASSERT_OK(gate.Announce(TicketOf(step)));
      ASSERT_OK(gate.AwaitGrant());
      gate.NoteBucket(step);
      const auto decision = gate.Decide({});
      ASSERT_OK(decision);
      decisions.push_back(*decision);
    }
    ASSERT_TRUE(decisions[0].plan.has_value());
    EXPECT_EQ(decisions[0].plan->version, 7);
    EXPECT_FALSE(decisions[1].commit);
    EXPECT_EQ(decisions[1].reason, "because");
    EXPECT_TRUE(decisions[2].commit);
    EXPECT_EQ(decisions[2].stop, "enough");
    EXPECT_EQ(decisions[1].checkpoint, "") << "it is skipped";
    EXPECT_EQ(decisions[2].checkpoint, "save it");
  });
  EXPECT_EQ(schedule.tickets(2).size(), 3u);
  EXPECT_EQ(schedule.votes(0).size(), 3u);
  EXPECT_EQ(schedule.buckets(1), (std::vector<int>{0, 1, 2}));
}

TEST(FakeScheduleTest, RanksSkipForEachOther) {
  Plan plan;
  plan.terms.commit_vote = true;
  plan.terms.enforcement = Enforcement::kStrict;
  FakeSchedule schedule(2, plan);
  OnRanks(2, [&schedule](int rank) {
    StepGate& gate = *schedule.gate(rank);
    ASSERT_OK(gate.Announce(TicketOf(0, rank == 1 ? "no loss" : "")));
    ASSERT_OK(gate.AwaitGrant());
    Vote vote;
    vote.commit = rank != 0;
    vote.reason = rank == 0 ? "not finite" : "";
    const auto decision = gate.Decide(vote);
    ASSERT_OK(decision);
    EXPECT_FALSE(decision->commit);
    EXPECT_EQ(decision->reason, "rank 0: not finite; rank 1: no loss");
  });
}

TEST(FakeScheduleTest, FailureEndsWaits) {
  FakeSchedule schedule(2);
  ASSERT_OK(schedule.gate(0)->Announce(TicketOf(0)));
  std::thread failing(
      [&schedule]() { schedule.FailAt(0, absl::AbortedError("it is over")); });
  const absl::Status status = schedule.gate(0)->Decide({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "it is over");
  failing.join();
}

}  // namespace
}  // namespace coxswain::schedule::fake_step_gate_test
