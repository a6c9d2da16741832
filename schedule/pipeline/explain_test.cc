#include "schedule/pipeline/explain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/execution.h"
#include "schedule/pipeline/generate.h"
#include "schedule/pipeline/proof.h"
#include "schedule/pipeline/random_lists.h"

namespace coxswain::pipeline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr absl::Duration kLong = absl::Seconds(34);

// The pipelines of a job, run in any order that the channels allow; at the end
// of a step each rank waits for those of its stage.
class Job {
 public:
  Job(const std::string& spec, const std::string& mesh, int micro_batches,
      int capacity)
      : mesh_(*Mesh::Parse(mesh)),
        schedules_(spec, mesh_.extent("pp"), micro_batches),
        schedule_(schedules_.Of(micro_batches)->schedule()),
        capacity_(capacity),
        ranks_(static_cast<size_t>(mesh_.size())),
        pipelines_(mesh_.GroupsAlong(mesh_.AxesOf({"pp"}))) {
    for (const auto& group : mesh_.GroupsAlong(mesh_.AxesOf({"dp", "shard"}))) {
      for (const int rank : group) of_stage_[rank] = group;
    }
    for (int rank = 0; rank < size(); ++rank) {
      RankPlace& it = ranks_[static_cast<size_t>(rank)];
      it.place = PipelinePlace{0, 0, micro_batches, kLong, {}};
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  PipelinePlace& place(int rank) {
    return *ranks_[static_cast<size_t>(rank)].place;
  }
  RankPlace& known(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const Schedule::Actions& list(int rank) {
    return schedule_.of_rank()[static_cast<size_t>(ListOf(rank))];
  }
  Action action(int rank) {
    return list(rank)[static_cast<size_t>(place(rank).action)];
  }
  const Schedule& schedule() const { return schedule_; }

  // Takes a rank an action further, if it can go on.
  bool Advance(int rank) {
    PipelinePlace& at = place(rank);
    if (at.action == static_cast<int>(list(rank).size())) {
      for (const int other : of_stage_[rank]) {
        const bool ended =
            place(other).step > at.step ||
            place(other).action == static_cast<int>(list(other).size());
        if (!ended) return false;
      }
      ++at.step;
      at.action = 0;
      return true;
    }
    const Action next = action(rank);
    if (IsReceive(next.kind)) {
      Messages& messages = MessagesOf(rank, next);
      if (messages.sent == messages.received) return false;
      ++messages.received;
    } else if (IsSend(next.kind)) {
      Messages& messages = MessagesOf(rank, next);
      if (messages.sent - messages.received == capacity_) return false;
      ++messages.sent;
    }
    ++at.action;
    return true;
  }

  // Runs all but one rank until none of them can go on.
  void RunAllBut(int frozen, Dice& dice) {
    for (int idle = 0; idle < 50 * size();) {
      const int rank = dice.Below(ranks_.size());
      idle = rank != frozen && Advance(rank) ? 0 : idle + 1;
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < size(); ++rank) {
        while (rank != frozen && Advance(rank)) moved = true;
      }
    }
  }

  Explanation Explain() {
    ExplainInput input;
    input.mesh = mesh_;
    input.ranks = ranks_;
    input.capacity = capacity_;
    input.place_of = [this](int rank) { return mesh_.Describe(rank); };
    return ExplainPipeline(input, &schedules_);
  }

 private:
  struct Messages {
    int sent = 0;
    int received = 0;
  };

  int ListOf(int rank) const { return mesh_.CoordinateOf(rank, "pp"); }
  Messages& MessagesOf(int rank, const Action& transfer) {
    return messages_[{mesh_.GroupIndexOf(rank, mesh_.AxesOf({"pp"})),
                      ChannelOf(transfer)}];
  }

  Mesh mesh_;
  SchedulesOfJob schedules_;
  const Schedule& schedule_;
  const int capacity_;
  std::vector<RankPlace> ranks_;
  const std::vector<std::vector<int>> pipelines_;
  std::map<int, std::vector<int>> of_stage_;
  std::map<std::pair<int, int>, Messages> messages_;
};

struct Case {
  std::string spec, mesh;
  int micro_batches = 1;
  int capacity = 1;
};
Case RandomCase(Dice& dice) {
  const char* const specs[] = {"gpipe",
                               "gpipe(order=fifo)",
                               "1f1b",
                               "interleaved(chunks=2)",
                               "interleaved(chunks=3)",
                               "zb_h1"};
  const char* const shapes[] = {"", ",dp=2", ",dp=3", ",dp=2,shard=2",
                                ",shard=3"};
  const int stages = 2 + dice.Below(4);
  Case made = {specs[dice.Below(6)],
               absl::StrCat("pp=", stages, shapes[dice.Below(5)]),
               1 + dice.Below(7), 1};
  made.capacity =
      *LeastCapacity(*MakeSchedule(made.spec, stages, made.micro_batches)) +
      dice.Below(2);
  made.capacity = std::max(made.capacity, 1);
  return made;
}

std::string TextOf(const Case& made) {
  return absl::StrCat(made.spec, " ", made.mesh, " m=", made.micro_batches,
                      " capacity=", made.capacity);
}

// Stops a rank somewhere in the first two steps, and lets the others go on
// until all of them wait.
void FreezeSomewhere(int frozen, Dice& dice, Job* job) {
  const size_t actions = job->list(frozen).size();
  for (size_t steps = static_cast<size_t>(dice.Below(2 * actions));
       steps > 0;) {
    if (job->Advance(frozen)) {
      --steps;
    } else {
      job->Advance(dice.Below(static_cast<size_t>(job->size())));
    }
  }
  job->RunAllBut(frozen, dice);
}

TEST(ExplainTest, AFrozenRankIsTheOneThatAllWaitFor) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Dice dice(seed);
    const Case made = RandomCase(dice);
    Job job(made.spec, made.mesh, made.micro_batches, made.capacity);
    const int frozen = dice.Below(static_cast<size_t>(job.size()));
    FreezeSomewhere(frozen, dice, &job);
    const size_t actions = job.list(frozen).size();
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", TextOf(made), ", rank ",
                              frozen, " at ", job.place(frozen).action));
    const Explanation found = job.Explain();
    ASSERT_EQ(found.holders.size(), 1u);
    EXPECT_EQ(found.holders[0].rank, frozen);
    EXPECT_EQ(found.holders[0].waiters, job.size() - 1);
    if (job.place(frozen).action < static_cast<int>(actions)) {
      EXPECT_EQ(found.holders[0].action, ToString(job.action(frozen)));
    }
  }
}

// Its last report may be of an earlier step; what the others have of it shows
// where it is, if it is in a pass.
TEST(ExplainTest, OfASilentRankTheMessagesShowWhereItIs) {
  int passes = 0, named = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Dice dice(seed);
    Case made = RandomCase(dice);
    Job job(made.spec, made.mesh, made.micro_batches, made.capacity);
    const int frozen = dice.Below(static_cast<size_t>(job.size()));
    FreezeSomewhere(frozen, dice, &job);
    const size_t actions = job.list(frozen).size();
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", TextOf(made), ", rank ",
                              frozen, " at ", job.place(frozen).action));
    if (job.place(frozen).action == static_cast<int>(actions)) continue;
    const Action truth = job.action(frozen);
    const int64_t step = job.place(frozen).step;
    // The last report was of the very beginning.
    job.place(frozen).step = 0;
    job.place(frozen).action = 0;
    job.known(frozen).silence = kLong;
    const Explanation found = job.Explain();
    ASSERT_FALSE(found.holders.empty());
    EXPECT_EQ(found.holders[0].rank, frozen);
    EXPECT_LE(found.holders[0].step, step);
    if (!IsCompute(truth.kind)) continue;
    ++passes;
    if (found.holders[0].action == ToString(truth)) ++named;
  }
  // Not all: some passes follow others without a message between them.
  EXPECT_GT(passes, 100);
  EXPECT_GT(named, passes / 2);
}

TEST(ExplainTest, TheCapacityOfTheSimulationIsThatOfTheExecution) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Dice dice(seed);
    const Case made = RandomCase(dice);
    Job job(made.spec, made.mesh, made.micro_batches, made.capacity);
    auto execution = *Execution::Create(job.schedule(), made.capacity);
    execution.Run([](int, int) {});
    EXPECT_TRUE(execution.AllEnd());
    const int ranks = job.schedule().ranks();
    // A rank that stays at the end of its list lets all others come to theirs.
    for (int steps = 0; steps < 10000; ++steps) {
      for (int rank = 0; rank < job.size(); ++rank) {
        if (job.place(rank).action < static_cast<int>(job.list(rank).size())) {
          job.Advance(rank);
        }
      }
    }
    for (int rank = 0; rank < job.size(); ++rank) {
      EXPECT_EQ(job.place(rank).action, static_cast<int>(job.list(rank).size()))
          << TextOf(made) << " of " << ranks;
    }
    EXPECT_THAT(job.Explain().holders, IsEmpty());
  }
}

Job Stalled(int frozen, int advances) {
  Job job("1f1b", "pp=3,dp=2", 4, 1);
  Dice dice(1);
  for (int steps = advances; steps > 0;) {
    if (job.Advance(frozen)) {
      --steps;
    } else {
      job.Advance(dice.Below(static_cast<size_t>(job.size())));
    }
  }
  job.RunAllBut(frozen, dice);
  return job;
}

TEST(ExplainTest, TheSentenceHasStageRankPlaceActionTimesAndWaiters) {
  Job job =
      Stalled(/*frozen=*/2, /*advances=*/1);  // pp 1, dp 0: after a receive
  job.place(2).passes = {{1, 0.21, 0.4, 0, 0}};
  const Explanation found = job.Explain();
  ASSERT_EQ(found.holders.size(), 1u);
  EXPECT_EQ(found.holders[0].sentence,
            "stage 1 (rank 2: pp 1, dp 0) has been in 1F0 for 34s (median "
            "210ms); 5 ranks wait for it, 3 of them directly");
  EXPECT_THAT(found.waits_for[0], ElementsAre(2));
  EXPECT_THAT(found.waits_for[4], ElementsAre(2));
  EXPECT_EQ(found.in[2], "1F0");
  EXPECT_EQ(found.HolderOf(2), &found.holders[0]);
  EXPECT_EQ(found.HolderOf(3), nullptr);
}

TEST(ExplainTest, APlaceThatNoRankCanBeInIsNotSensible) {
  const PipelinePlace good = {0, 3, 4, absl::Seconds(1), {{0, 1, 2, 0, 0}}};
  EXPECT_TRUE(good.Sensible());
  std::vector<PipelinePlace> bad(9, good);
  bad[0].step = -2;
  bad[1].step = int64_t{1} << 50;
  bad[2].action = -1;
  bad[3].micro_batches = 0;
  bad[4].in_it = -absl::Seconds(1);
  bad[5].in_it = absl::InfiniteDuration();
  bad[6].passes[0].forward = std::nan("");
  bad[7].passes[0].stage = -1;
  bad[8].passes.resize(PipelinePlace::kMaxStages + 1);
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_FALSE(bad[i].Sensible()) << i;
  }
}

TEST(ExplainTest, ASilentRankHasSentNothing) {
  Job job = Stalled(2, 1);
  job.known(2).silence = kLong;
  EXPECT_THAT(
      job.Explain().holders[0].sentence,
      HasSubstr(") has sent nothing for 34s, and by its last report and "
                "messages is in 1F0; 5 ranks"));
}

// Its message is on the way, and does not come out of a process that is
// stopped.
TEST(ExplainTest, AMessageOfASilentRankIsWaitedForThoughItWasSent) {
  Job job = Stalled(2, 1);
  job.place(2).action = 3;  // past the send
  EXPECT_THAT(job.Explain().waits_for[4], IsEmpty());
  job.known(2).silence = kLong;
  const Explanation found = job.Explain();
  EXPECT_THAT(found.waits_for[4], ElementsAre(2));
  EXPECT_EQ(found.holders[0].rank, 2);
}

TEST(ExplainTest, ARankThatHasReportedNothingIsNamedAsSuch) {
  Job job = Stalled(2, 1);
  job.known(2).place.reset();
  const Explanation found = job.Explain();
  ASSERT_EQ(found.holders.size(), 1u);
  EXPECT_EQ(found.holders[0].sentence,
            "rank 2 (pp 1, dp 0) has reported no place in its pipeline; 5 "
            "ranks wait for it, 3 of them directly");
}

TEST(ExplainTest, RanksThatHaveLeftAreWaitedForByNone) {
  Job job = Stalled(2, 1);
  job.known(2).live = false;
  for (const Holder& holder : job.Explain().holders) {
    EXPECT_NE(holder.rank, 2);
  }
}

// All are between steps for long, as in an evaluation, and the next step
// begins: the heartbeat of one comes before those of the others.
TEST(ExplainTest, APauseOfAllHoldsUpNobody) {
  for (int first = 0; first < 6; ++first) {
    Job job("1f1b", "pp=3,dp=2", 4, 1);
    for (int rank = 0; rank < job.size(); ++rank) {
      job.place(rank).action = static_cast<int>(job.list(rank).size());
      job.place(rank).in_it = absl::Minutes(6);
    }
    job.place(first).step = 1;
    job.place(first).action = 0;
    job.place(first).in_it = absl::Milliseconds(100);
    for (const Holder& holder : job.Explain().holders) {
      EXPECT_LE(holder.since, absl::Milliseconds(100)) << holder.sentence;
    }
  }
}

// It has waited for long, and its heartbeat is older than its sender's.
TEST(ExplainTest, WhoseMessageHasJustBeenSentHasJustBegun) {
  Job job = Stalled(/*frozen=*/0, /*advances=*/0);  // all wait for its 0F0
  ASSERT_EQ(job.Explain().holders[0].rank, 0);
  job.place(0).action = 2;  // past its send
  job.place(0).in_it = absl::Milliseconds(100);
  const Explanation found = job.Explain();
  ASSERT_NE(found.HolderOf(2), nullptr);
  EXPECT_EQ(found.HolderOf(2)->since, absl::Milliseconds(100));
  // Once nothing moves, it is the one that does not.
  job.place(0).in_it = kLong;
  EXPECT_EQ(job.Explain().HolderOf(2)->since, kLong);
}

// Those of the other pipeline have come to their end only now.
TEST(ExplainTest, WhatHasWaitedForAnExchangeHasJustBegun) {
  Job job("1f1b", "pp=2,dp=2", 4, 1);
  for (int rank = 0; rank < job.size(); ++rank) {
    job.place(rank).action = static_cast<int>(job.list(rank).size());
  }
  job.place(1).in_it = absl::Milliseconds(100);  // dp 1
  job.place(3).in_it = absl::Milliseconds(100);
  job.place(2).step = 1;  // pp 1, dp 0: in the next step already
  job.place(2).action = 0;
  const Explanation found = job.Explain();
  ASSERT_NE(found.HolderOf(0), nullptr);
  EXPECT_EQ(found.HolderOf(0)->since, absl::Milliseconds(100));
}

TEST(ExplainTest, ARankThatHasNotBegunIsNamedAsSuch) {
  Job job = Stalled(2, 1);
  job.known(2).place.reset();
  job.known(2).heard = true;
  EXPECT_THAT(job.Explain().holders[0].sentence,
              HasSubstr("rank 2 (pp 1, dp 0) has not begun a step of its "
                        "pipeline; 5 ranks wait"));
  job.known(2).place = PipelinePlace{-1, 0, 4, kLong, {}};
  EXPECT_THAT(job.Explain().holders[0].sentence, HasSubstr("has not begun"));
  job.known(2).silence = kLong;
  EXPECT_THAT(job.Explain().holders[0].sentence,
              HasSubstr("has sent nothing for 34s, and has not begun"));
}

// Half of the ranks of each stage have come to their end.
// Ranks 0 to 7 are (pp 0, dp 0, tp 0), (pp 0, dp 0, tp 1), ...: all but the
// partner of rank 0 have come as far as they can in the second step.
TEST(ExplainTest, ARankInAPassWaitsForItsPartnerThatIsNotInIt) {
  Job job("1f1b", "pp=2,dp=2,tp=2", 2, 1);
  const auto put = [&](int rank, int64_t step, int action) {
    job.place(rank).step = step;
    job.place(rank).action = action;
  };
  const int end = static_cast<int>(job.list(0).size());
  for (int rank = 0; rank < job.size(); ++rank) put(rank, 1, 0);
  put(1, 0, end);
  ASSERT_EQ(ToString(job.action(0)), "0F0");
  const Explanation found = job.Explain();
  EXPECT_THAT(found.waits_for[0], ElementsAre(1));
  EXPECT_THAT(found.waits_for[4], ElementsAre(0));
  EXPECT_THAT(found.waits_for[5], ElementsAre(1));
  const Holder* const holder = found.HolderOf(1);
  ASSERT_NE(holder, nullptr);
  EXPECT_EQ(found.HolderOf(0), nullptr);
  EXPECT_THAT(holder->sentence,
              AllOf(HasSubstr("rank 1 (pp 0, dp 0, tp 1) has been between "
                              "steps for 34s; "),
                    HasSubstr("3 ranks wait for it, 2 of them directly")));
}

TEST(ExplainTest, OfPartnersInOnePassASilentOneIsWaitedFor) {
  Job job("1f1b", "pp=2,tp=2", 2, 1);
  Explanation found = job.Explain();
  // Either may hold up the other.
  EXPECT_EQ(found.holders.size(), 2u);
  job.known(1).silence = kLong;
  found = job.Explain();
  ASSERT_EQ(found.holders.size(), 1u);
  EXPECT_EQ(found.holders[0].rank, 1);
  EXPECT_EQ(found.holders[0].action, "0F0");
  EXPECT_EQ(found.holders[0].waiters, 3);
  EXPECT_THAT(found.waits_for[0], ElementsAre(1));
}

TEST(ExplainTest, ThousandsThatWaitForThousandsAreCounted) {
  Job job("1f1b", "pp=2,dp=2000", 2, 1);
  for (int rank = 0; rank < job.size(); ++rank) {
    job.place(rank).action =
        rank % 2 == 0 ? static_cast<int>(job.list(rank).size()) : 0;
    job.place(rank).in_it = absl::Seconds(rank);
  }
  const Explanation found = job.Explain();
  EXPECT_THAT(found.waits_for[0], ElementsAre(1, 3, 5, 7, 9, 11, 13, 15));
  EXPECT_THAT(found.waits_for[2001], ElementsAre(1));
  ASSERT_EQ(found.holders.size(), Explanation::kMaxHolders);
  for (const Holder& holder : found.holders) {
    EXPECT_EQ(holder.stage, 0);
    // Those of its stage, the receiver of its messages, and who waits for that.
    EXPECT_EQ(holder.directly, 1001);
    EXPECT_EQ(holder.waiters, 2001);
    EXPECT_GE(holder.rank, 1000) << "the longest waited for";
  }
}

// A rank in an evaluation of more micro-batches than a window has, or in a
// schedule that the plan does not have: neither it nor who waits for it is one
// that holds up others.
TEST(ExplainTest, WhereAScheduleIsNotKnownNoRankIsNamed) {
  for (const bool other : {false, true}) {
    Job job = Stalled(2, 1);
    PipelinePlace& place = job.place(2);
    if (other) {
      place.schedule = 77;
    } else {
      place.micro_batches = 1 << 16;
      place.action = std::numeric_limits<int>::max();
    }
    const Explanation found = job.Explain();
    EXPECT_EQ(found.in[2], "");
    EXPECT_EQ(found.HolderOf(2), nullptr);
    EXPECT_EQ(found.HolderOf(4), nullptr) << "it waits for what 2 sends";
    place.schedule = job.schedule().Hash();
    place.micro_batches = 4;
    place.action = 1;
    EXPECT_EQ(job.Explain().holders[0].rank, 2);
  }
}

TEST(ExplainTest, PlacesThatNoScheduleHasAreNotFollowed) {
  Job job = Stalled(2, 1);
  for (int rank = 0; rank < job.size(); ++rank) {
    job.place(rank).micro_batches = 5 + rank;  // the plan has 4
  }
  const Explanation found = job.Explain();
  EXPECT_THAT(found.holders, IsEmpty());
  job.place(0).micro_batches = 4;
  job.place(0).action = 1 << 20;
  EXPECT_EQ(job.Explain().in[0], "between steps");
}

}  // namespace
}  // namespace coxswain::pipeline
