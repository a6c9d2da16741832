// Tickets of ranks that hold parts of one model: which of them must be equal,
// and what is reported where they are not.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/mesh.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/types.pb.h"
#include "schedule/rank_classes.h"
#include "schedule/step_agreement.h"
#include "transport/error_detail.h"

namespace coxswain::schedule::ticket_classes_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

Mesh MeshOf(const char* text) {
  const absl::StatusOr<Mesh> mesh = Mesh::Parse(text);
  EXPECT_OK(mesh);
  return mesh.value_or(Mesh());
}

// Ranks of a mesh that announce one round.
class Team {
 public:
  explicit Team(const char* mesh, const std::function<void(Plan*)>& edit = {})
      : classes_(MeshOf(mesh), MeshOf(mesh).size()) {
    options_.stream = kTrainStream;
    options_.mesh = MeshOf(mesh);
    options_.world_size = options_.mesh.size();
    options_.plan.version = 1;
    options_.plan.accumulation_steps = 4;
    options_.plan.hook = "allreduce";
    options_.plan.terms.pipeline = "1f1b";
    if (edit) edit(&options_.plan);
  }

  Ticket Honest(int rank) const {
    const int data = classes_.DataIndexOf(rank);
    Ticket ticket;
    ticket.window = options_.plan.WindowOf(data, classes_.data_ranks());
    ticket.micro_batches = ticket.window;
    ticket.weight = 100 + data;
    ticket.plan_version = 1;
    ticket.hook = "allreduce";
    ticket.layout = ticket.digest =
        static_cast<uint64_t>(classes_.ClassOf(Scope::kPart, rank)) + 1;
    ticket.checksum = ticket.layout;
    ticket.replicated_checksum =
        static_cast<uint64_t>(classes_.ClassOf(Scope::kStage, rank)) + 1;
    ticket.pipeline = static_cast<uint64_t>(ticket.micro_batches) << 60;
    return ticket;
  }

  // All announce, the last rank first; edits a ticket of each of these ranks.
  // Returns what is wrong.
  absl::Status Announce(const std::vector<int>& edited = {},
                        const std::function<void(Ticket*)>& edit = {}) const {
    StepAgreement agreement(options_);
    bool decided = false;
    for (int rank = options_.world_size - 1; rank >= 0; --rank) {
      Ticket ticket = Honest(rank);
      if (std::count(edited.begin(), edited.end(), rank) > 0) edit(&ticket);
      decided = !agreement.OnTicket(rank, ticket, kNow).empty();
    }
    EXPECT_EQ(decided, agreement.failure().ok());
    return agreement.failure();
  }

 private:
  RankClasses classes_;
  StepAgreement::Options options_;
};

std::vector<int> Outliers(const absl::Status& failure) {
  const v1::ErrorDetail detail = DetailOf(failure);
  const auto& ranks = detail.schedule_mismatch().odd_ranks();
  return {ranks.begin(), ranks.end()};
}

std::string Message(const absl::Status& failure) {
  return std::string(failure.message());
}

TEST(RankClassesTest, RanksAreDividedByDataAndByPart) {
  const RankClasses classes(MeshOf("pp=2,dp=3,tp=2"), 12);
  EXPECT_TRUE(classes.divided());
  EXPECT_EQ(classes.data_ranks(), 3);
  EXPECT_EQ(classes.ClassesOf(Scope::kPart), 4);
  // Rank 9 is pp 1, dp 1, tp 1.
  EXPECT_EQ(classes.DataIndexOf(9), 1);
  EXPECT_EQ(classes.NameOf(Scope::kData, 1), "the ranks of dp 1");
  EXPECT_EQ(classes.NameOf(Scope::kPart, classes.ClassOf(Scope::kPart, 9)),
            "the ranks of pp 1, tp 1");
  EXPECT_EQ(classes.List({9}), "rank 9 (pp 1, dp 1, tp 1)");
  EXPECT_EQ(classes.List({0, 9}),
            "ranks 0 (pp 0, dp 0, tp 0), 9 (pp 1, dp 1, tp 1)");
  EXPECT_EQ(classes.List({0, 1, 2, 3, 4}), "ranks 0-4");
}

TEST(RankClassesTest, RanksOfOneStageHaveTheSameLayers) {
  const RankClasses classes(MeshOf("pp=2,dp=3,tp=2"), 12);
  EXPECT_EQ(classes.ClassesOf(Scope::kStage), 2);
  EXPECT_EQ(classes.SizeOf(Scope::kStage), 6);
  EXPECT_EQ(classes.ClassOf(Scope::kStage, 5), 0);
  EXPECT_EQ(classes.ClassOf(Scope::kStage, 6), 1);
  EXPECT_EQ(classes.NameOf(Scope::kStage, 1), "the ranks of pp 1");
  const RankClasses one(MeshOf("dp=2,tp=2"), 4);
  EXPECT_EQ(one.SizeOf(Scope::kStage), 4);
  EXPECT_EQ(one.NameOf(Scope::kStage, 0), "all ranks");
}

TEST(RankClassesTest, WithoutPartsAllRanksAreAlike) {
  for (const Mesh& mesh : {Mesh(), MeshOf("pp=1,dp=2,shard=2")}) {
    const RankClasses classes(mesh, 4);
    EXPECT_FALSE(classes.divided());
    EXPECT_EQ(classes.ClassOf(Scope::kPart, 3), 0);
    EXPECT_EQ(classes.DataIndexOf(3), 3);
    EXPECT_EQ(classes.SizeOf(Scope::kData), 1);
    EXPECT_EQ(classes.SizeOf(Scope::kStage), 4);
    EXPECT_EQ(classes.List({3}), "rank 3");
  }
}

TEST(RankClassesTest, OneReplicaIsAllRanks) {
  const RankClasses classes(MeshOf("pp=4"), 4);
  EXPECT_EQ(classes.NameOf(Scope::kData, 0), "all ranks");
  EXPECT_EQ(classes.SizeOf(Scope::kPart), 1);
}

TEST(TicketClassesTest, StagesAndReplicasMayDiffer) {
  for (const char* mesh : {"pp=2,dp=3", "pp=4", "pp=2,dp=2,shard=2,tp=2"}) {
    EXPECT_OK(Team(mesh).Announce()) << mesh;
  }
}

// The two that have all parameters in common would have no majority.
TEST(TicketClassesTest, AReplicatedParameterIsComparedAlongAllOfAStage) {
  const absl::Status failure =
      Team("pp=2,dp=2,tp=2").Announce({5}, [](Ticket* ticket) {
        ++ticket->checksum.value();
        ++ticket->replicated_checksum.value();
      });
  EXPECT_THAT(Outliers(failure), ElementsAre(5));
  EXPECT_THAT(Message(failure),
              AllOf(HasSubstr("checksum of the replicated parameters, the same "
                              "on the ranks of pp 1: 0000000000000003 on rank "
                              "5 (pp 1, dp 0, tp 1), 0000000000000002 on "),
                    HasSubstr("parameters that each of them has whole")));
}

TEST(TicketClassesTest, AnotherScheduleIsFoundWhereMostRanksRunTheSame) {
  const absl::Status failure =
      Team("pp=2,dp=4").Announce({5}, [](Ticket* ticket) {
        ++ticket->pipeline;
      });
  EXPECT_THAT(Outliers(failure), ElementsAre(5));
  EXPECT_THAT(
      Message(failure),
      AllOf(HasSubstr("schedule of the pipeline, the same on the ranks of dp "
                      "1: 4000000000000000 on rank 1 (pp 0, dp 1), "
                      "4000000000000001 on rank 5 (pp 1, dp 1)"),
            HasSubstr("look for stages that run different schedules"),
            // The line has them already.
            Not(HasSubstr("rank 5 is pp 1"))));
}

TEST(TicketClassesTest, OfThreeStagesTheOneThatDiffersIsNamed) {
  const absl::Status failure =
      Team("pp=3").Announce({1}, [](Ticket* ticket) { ticket->pipeline = 0; });
  EXPECT_THAT(Outliers(failure), ElementsAre(1));
  EXPECT_THAT(Message(failure),
              HasSubstr("the same on all ranks: none on rank 1 (pp 1), "
                        "4000000000000000 on ranks 0 (pp 0), 2 (pp 2)"));
}

TEST(TicketClassesTest, OfTwoStagesEitherMayRunTheWrongSchedule) {
  EXPECT_THAT(Outliers(Team("pp=2").Announce(
                  {1}, [](Ticket* ticket) { ++ticket->pipeline; })),
              ElementsAre(0, 1));
}

// Other ranks' schedules are no measure of one for another number of
// micro-batches.
TEST(TicketClassesTest, SchedulesOfShortWindowsAreComparedAmongThemselves) {
  const Team team("pp=2,dp=4", [](Plan* plan) {
    plan->terms.uneven_data = UnevenData::kWaitForAll;
  });
  const auto cut = [](Ticket* ticket) {
    ticket->micro_batches = 3;
    ticket->end_of_data = true;
    ticket->pipeline = 77;
  };
  EXPECT_OK(team.Announce({1, 5}, cut));
  bool first = true;
  const absl::Status failure = team.Announce({1, 5}, [&](Ticket* ticket) {
    const uint64_t whole = ticket->pipeline;
    cut(ticket);
    if (first) ticket->pipeline = whole;  // of rank 5
    first = false;
  });
  EXPECT_THAT(Outliers(failure), ElementsAre(1, 5));
}

TEST(TicketClassesTest, AMicroBatchLeftOutIsFoundWhereThePlanAllowsIt) {
  const Team team("pp=3,dp=2", [](Plan* plan) {
    plan->terms.uneven_data = UnevenData::kWaitForAll;
  });
  const absl::Status failure = team.Announce({3}, [](Ticket* ticket) {
    --ticket->micro_batches;
    ticket->end_of_data = true;
  });
  EXPECT_THAT(Outliers(failure), ElementsAre(3));
  EXPECT_THAT(Message(failure),
              HasSubstr("micro_batches, the same on the ranks of dp 1: 3 on "
                        "rank 3 (pp 1, dp 1), 4 on ranks 1 (pp 0, dp 1), 5 "
                        "(pp 2, dp 1) (4 by the plan)"));
}

TEST(TicketClassesTest, OneCauseIsOneLine) {
  // It breaks the plan, and differs from its stage's neighbours.
  const absl::Status failure =
      Team("pp=2,dp=2").Announce({3}, [](Ticket* ticket) {
        ticket->micro_batches = 3;
        ticket->pipeline = 3;
        ticket->weight = 3;
      });
  EXPECT_THAT(Outliers(failure), ElementsAre(3));
  EXPECT_EQ(DetailOf(failure).schedule_mismatch().differences_size(), 1);
  EXPECT_THAT(Message(failure),
              HasSubstr("micro_batches: 3 on rank 3 (pp 1, dp 1), 4 on ranks "
                        "0 (pp 0, dp 0), 1 (pp 0, dp 1), 2 (pp 1, dp 0) (4 by "
                        "the plan)"));
}

TEST(TicketClassesTest, WeightsAreThoseOfTheData) {
  const absl::Status failure =
      Team("pp=3,dp=2").Announce({4}, [](Ticket* ticket) {
        ticket->weight += 0.5;
      });
  EXPECT_THAT(Outliers(failure), ElementsAre(4));
  EXPECT_THAT(Message(failure),
              HasSubstr("weight, the same on the ranks of dp 0: 100.5 on rank "
                        "4 (pp 2, dp 0), 100 on ranks 0"));
}

TEST(TicketClassesTest, PartsAreComparedAmongTheirReplicas) {
  const Team team("pp=2,dp=3");
  for (const auto& edit : std::vector<std::function<void(Ticket*)>>{
           [](Ticket* ticket) { ticket->layout = 9; },
           [](Ticket* ticket) { ticket->digest = 9; },
           [](Ticket* ticket) { ticket->checksum.reset(); }}) {
    const absl::Status failure = team.Announce({4}, edit);
    EXPECT_THAT(Outliers(failure), ElementsAre(4));
    EXPECT_THAT(Message(failure), HasSubstr("the same on the ranks of pp 1: "));
  }
}

TEST(TicketClassesTest, StepPlanAndHookAreComparedAmongAll) {
  const Team team("pp=2,dp=2");
  for (const auto& edit : std::vector<std::function<void(Ticket*)>>{
           [](Ticket* ticket) { ++ticket->step; },
           [](Ticket* ticket) { ticket->plan_version = 2; },
           [](Ticket* ticket) { ticket->hook = "noop"; }}) {
    EXPECT_THAT(Outliers(team.Announce({2}, edit)), ElementsAre(2));
  }
}

TEST(TicketClassesTest, AGlobalBatchIsDividedAmongTheReplicas) {
  const Team team("pp=2,dp=3", [](Plan* plan) {
    plan->global_micro_batches = 8;  // 3, 3, 2
    plan->terms.on_resize = OnResize::kKeepGlobalBatch;
    plan->terms.uneven_data = UnevenData::kWaitForAll;
  });
  EXPECT_OK(team.Announce());
  EXPECT_EQ(team.Honest(5).window, 2);
  const absl::Status failure = team.Announce({2, 5}, [](Ticket* ticket) {
    ticket->micro_batches = ticket->window = 3;
  });
  EXPECT_THAT(Outliers(failure), ElementsAre(2, 5));
  EXPECT_THAT(Message(failure),
              HasSubstr("(2 or 3 by the plan, the more on the first ranks "
                        "along dp)"));
}

TEST(TicketClassesTest, ManyClassesAreCounted) {
  const absl::Status failure =
      Team("pp=12,dp=2").Announce({0, 2, 4, 6, 8, 10}, [](Ticket* ticket) {
        ticket->layout += 100;
      });
  EXPECT_EQ(DetailOf(failure).schedule_mismatch().differences_size(), 5);
  EXPECT_THAT(Message(failure),
              HasSubstr("layout of the buckets: likewise in 2 other classes"));
}

}  // namespace
}  // namespace coxswain::schedule::ticket_classes_test
