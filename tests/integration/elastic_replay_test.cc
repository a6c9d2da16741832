// Silent corruption in an elastic job of two ranks, which have no majority, or
// of more that ask for a replay: real coordinator, each worker a thread.

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/elastic_team.h"

namespace coxswain {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Point = ToyTrainingOptions::Point;

constexpr int64_t kSteps = 20;
// Lies between steps 8 and 12, whose parameters are compared.
constexpr int64_t kWrongAt = 9;
constexpr int64_t kComparedEvery = 4;

// What this process logs of a replay's result.
class ReplayLog : public LogSink {
 public:
  ReplayLog() { AddLogSink(this); }
  ~ReplayLog() override { RemoveLogSink(this); }
  void OnLine(const LogLine& line) override {
    if (line.event != "replay_named" && line.event != "replay_named_none") {
      return;
    }
    MutexLock lock(&mutex_);
    lines_.push_back(FormatLogLine(LogFormat::kText, line));
  }
  std::vector<std::string> lines() {
    MutexLock lock(&mutex_);
    return lines_;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

class ElasticReplayTest : public ::testing::Test {
 protected:
  // Makes a job that compares parameters, of workers in slots 0, 1, ...
  void Make(int ranks, std::string hook = "allreduce", int fewest = 0) {
    team_.emplace(ranks, fewest > 0 ? fewest : ranks, std::move(hook),
                  kComparedEvery);
    workers_.clear();
    for (int slot = 0; slot < ranks; ++slot) {
      workers_.push_back(&team_->Add(slot, kSteps));
    }
  }
  void Train() {
    team_->StartAll();
    team_->Join();
  }
  // Flips bits of a parameter before a step, `times` times. The mask may depend
  // on how often it has done so.
  void Flip(
      size_t slot, int times,
      const std::function<char(int)>& mask = [](int) { return 1; }) {
    ElasticWorker* const worker = workers_[slot];
    worker->training.at = [=, done = 0](Point point,
                                        const ElasticGeneration&) mutable {
      ElasticToyState& state = *worker->state;
      if (point == Point::kBefore && state.step() == kWrongAt && done < times) {
        static_cast<char*>(state.Tensors()[0].data)[6] ^= mask(done++);
      }
      return absl::OkStatus();
    };
  }
  int RankOf(size_t slot) const { return workers_[slot]->reports.back().rank; }
  void ExpectFinished() const {
    for (const ElasticWorker* worker : workers_) {
      EXPECT_OK(worker->status) << "slot " << worker->slot;
      EXPECT_EQ(worker->state->step(), kSteps) << "slot " << worker->slot;
      EXPECT_TRUE(worker->state->Bits() == workers_[0]->state->Bits());
    }
  }
  void ExpectDataLoss(const std::string& why) const {
    for (const ElasticWorker* worker : workers_) {
      EXPECT_THAT(worker->status,
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr(why)))
          << "slot " << worker->slot;
    }
  }

  ReplayLog log_;
  std::optional<ElasticTeam> team_;
  std::vector<ElasticWorker*> workers_;
};

TEST_F(ElasticReplayTest, OfTwoRanksTheOneThatWasWrongIsNamedAndGoesOn) {
  for (const size_t slot : {0, 1}) {
    SCOPED_TRACE(slot);
    const size_t lines = log_.lines().size();
    Make(2);
    Flip(slot, 1);
    Train();
    ExpectFinished();
    for (const ElasticWorker* worker : workers_) {
      EXPECT_EQ(worker->state->Distance(), 0) << "slot " << worker->slot;
      ASSERT_THAT(worker->reports, SizeIs(2));
      EXPECT_EQ(worker->reports[1].step, 8);
      EXPECT_FALSE(worker->reports[1].copied);
      EXPECT_THAT(worker->reports[1].warnings,
                  ElementsAre(AllOf(HasSubstr("ranks 0, 1 had different bits "
                                              "after the same step 12"),
                                    HasSubstr("all go back to step 8"))));
    }
    std::vector<std::string> named = log_.lines();
    named.erase(named.begin(), named.begin() + static_cast<int64_t>(lines));
    // By each rank.
    EXPECT_THAT(named, SizeIs(2));
    EXPECT_THAT(named,
                Each(AllOf(HasSubstr(absl::StrCat("rank=", RankOf(slot), " ")),
                           HasSubstr("replay_named "), HasSubstr("step=12"),
                           HasSubstr(absl::StrCat("host-a/", slot)))));
  }
}

// Errors, and what else a hook has learned, are part of what is gone back to.
TEST_F(ElasticReplayTest, WithErrorFeedbackTheBitsAreThoseOfAnUndisturbedRun) {
  std::vector<std::string> bits;
  for (const int times : {0, 1}) {
    Make(2, "powersgd(rank=2,start_step=2)");
    Flip(1, times);
    Train();
    ExpectFinished();
    EXPECT_THAT(workers_[0]->reports, SizeIs(1 + times));
    bits.push_back(workers_[0]->state->Bits());
  }
  EXPECT_TRUE(bits[0] == bits[1]);
  EXPECT_THAT(log_.lines(),
              Each(HasSubstr(absl::StrCat("rank=", RankOf(1), " "))));
}

TEST_F(ElasticReplayTest, ARankThatIsWrongInTheSameWayAgainEndsTheJob) {
  Make(2);
  Flip(1, 1000);
  Train();
  ExpectDataLoss("each had the bits again that it had had");
  ExpectDataLoss("the steps from 8 on were replayed");
  EXPECT_THAT(workers_[0]->reports, SizeIs(2));
  EXPECT_THAT(log_.lines(), IsEmpty());
}

TEST_F(ElasticReplayTest, ARankThatIsWrongInAnotherWayEachTimeIsNamed) {
  Make(2);
  Flip(1, 1000, [](int done) { return static_cast<char>(1 << done); });
  Train();
  const int rank = RankOf(1);
  ExpectDataLoss(absl::StrCat("rank ", 1 - rank,
                              " had the same bits again, and rank ", rank,
                              " others"));
}

TEST_F(ElasticReplayTest, TwoRanksThatRefuseItEndAsWithoutIt) {
  Make(2);
  for (ElasticWorker* worker : workers_) worker->replay = ReplayMode::kNever;
  Flip(1, 1);
  Train();
  ExpectDataLoss("start the job again from a checkpoint");
  EXPECT_THAT(workers_[0]->reports, SizeIs(1));
}

// The other one takes over its copy.
TEST_F(ElasticReplayTest, OneRankThatKeepsACopyIsEnough) {
  Make(2);
  workers_[0]->replay = ReplayMode::kNever;
  Flip(1, 1);
  Train();
  ExpectFinished();
  EXPECT_EQ(workers_[0]->state->Distance(), 0);
  EXPECT_TRUE(workers_[0]->reports[1].copied);
  EXPECT_FALSE(workers_[1]->reports[1].copied);
}

TEST_F(ElasticReplayTest, ThreeRanksReplayOnlyIfTheyAreAskedTo) {
  for (const ReplayMode mode : {ReplayMode::kTwoRanks, ReplayMode::kAlways}) {
    Make(3);
    for (ElasticWorker* worker : workers_) worker->replay = mode;
    Flip(1, 1);
    Flip(2, 1, [](int) { return 2; });
    Train();
    if (mode == ReplayMode::kTwoRanks) {
      ExpectDataLoss("start the job again from a checkpoint");
      EXPECT_THAT(workers_[0]->reports, SizeIs(1));
      continue;
    }
    ExpectFinished();
    EXPECT_EQ(workers_[0]->state->Distance(), 0);
    EXPECT_EQ(workers_[0]->reports[1].step, 8);
    EXPECT_THAT(log_.lines(), SizeIs(6));
    for (const size_t slot : {1, 2}) {
      EXPECT_THAT(
          log_.lines(),
          Contains(HasSubstr(absl::StrCat("rank=", RankOf(slot), " "))));
    }
    EXPECT_THAT(log_.lines(),
                Each(Not(HasSubstr(absl::StrCat("rank=", RankOf(0), " ")))));
  }
}

// A majority knows without a replay.
TEST_F(ElasticReplayTest, OfThreeRanksAMajorityIsFollowedAllTheSame) {
  Make(3);
  for (ElasticWorker* worker : workers_) worker->replay = ReplayMode::kAlways;
  Flip(1, 1);
  Train();
  ExpectFinished();
  EXPECT_EQ(workers_[0]->reports[1].step, 12);
  EXPECT_TRUE(workers_[1]->reports[1].copied);
  EXPECT_THAT(log_.lines(), IsEmpty());
}

TEST_F(ElasticReplayTest, ALossMeanwhileIsTheOrdinaryRecovery) {
  Make(3, "allreduce", /*fewest=*/2);
  for (ElasticWorker* worker : workers_) worker->replay = ReplayMode::kAlways;
  Flip(1, 1);
  ElasticWorker* const lost = workers_[2];
  lost->training.at = [lost, done = false](Point point,
                                           const ElasticGeneration&) mutable {
    ElasticToyState& state = *lost->state;
    if (point != Point::kBefore) return absl::OkStatus();
    if (state.step() == kWrongAt && !std::exchange(done, true)) {
      static_cast<char*>(state.Tensors()[0].data)[6] ^= 2;
    }
    if (lost->reports.size() == 2 && state.step() == 10) {
      return absl::InternalError("this worker is to die here");
    }
    return absl::OkStatus();
  };
  Train();
  EXPECT_THAT(lost->status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("die here")));
  workers_.pop_back();
  ExpectFinished();
  EXPECT_EQ(workers_[0]->state->Distance(), 0);
  ASSERT_THAT(workers_[0]->reports, SizeIs(3));
  EXPECT_EQ(workers_[0]->reports[1].step, 8);
  EXPECT_EQ(workers_[0]->reports[2].step, 10);
  EXPECT_THAT(workers_[0]->reports[2].warnings,
              ElementsAre(HasSubstr("it is not found out which")));
  EXPECT_THAT(log_.lines(), IsEmpty());
}

}  // namespace
}  // namespace coxswain
