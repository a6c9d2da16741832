#include "client/elastic/elastic_run.h"

#include <atomic>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/elastic/load_hook_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"
#include "schedule/plan.h"
#include "tests/integration/coarse_hook.h"
#include "tests/integration/elastic_team.h"

// Elastic training against a real coordinator in the same process, each worker
// a thread. The toy's parameters show which samples were counted: each exactly
// once, whatever happened.

namespace coxswain {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Point = ToyTrainingOptions::Point;

// Returns "3x5 2x15": steps by world size, in order.
std::string RunsOf(const ElasticWorker& worker) {
  std::string text;
  for (const ToyRun& run : worker.state->runs()) {
    absl::StrAppend(&text, text.empty() ? "" : " ", run.world_size, "x",
                    run.steps);
  }
  return text;
}

void ExpectFinished(const std::vector<ElasticWorker*>& workers, int64_t steps) {
  for (const ElasticWorker* worker : workers) {
    EXPECT_OK(worker->status) << "slot " << worker->slot;
    EXPECT_EQ(worker->state->step(), steps) << "slot " << worker->slot;
    EXPECT_TRUE(worker->state->Bits() == workers[0]->state->Bits())
        << "slot " << worker->slot;
    EXPECT_EQ(RunsOf(*worker), RunsOf(*workers[0])) << "slot " << worker->slot;
  }
}

void ExpectExact(const std::vector<ElasticWorker*>& workers) {
  for (const ElasticWorker* worker : workers) {
    EXPECT_EQ(worker->state->Distance(), 0) << "slot " << worker->slot;
  }
}

TEST(ElasticRunTest, AQuietJobJoinsTrainsAndLeaves) {
  ElasticTeam team(3, 3);
  std::vector<ElasticWorker*> workers;
  for (int slot = 0; slot < 3; ++slot) workers.push_back(&team.Add(slot, 10));
  team.StartAll();
  team.Join();
  ExpectFinished(workers, 10);
  ExpectExact(workers);
  EXPECT_EQ(RunsOf(*workers[0]), "3x10");
}

TEST(ElasticRunTest, SurvivorsOfALossGoOnInTheSameProcess) {
  ElasticTeam team(3, 2);
  ElasticWorker& a = team.Add(0, 20);
  ElasticWorker& b = team.Add(1, 20);
  ElasticWorker& c = team.Add(2, 20);
  c.DieAt(3, 5, Point::kWithin);
  team.StartAll();
  team.Join();
  ExpectFinished({&a, &b}, 20);
  ExpectExact({&a, &b});
  EXPECT_EQ(RunsOf(a), "3x5 2x15");
  EXPECT_THAT(c.status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("die here")));
  ASSERT_THAT(a.reports, SizeIs(2));
  EXPECT_EQ(a.reports[1].previous_world_size, 3);
  EXPECT_EQ(a.reports[1].step, 5);
  EXPECT_EQ(a.reports[1].source, -1);
  ASSERT_THAT(a.reports[1].lost, SizeIs(1));
  EXPECT_THAT(a.reports[1].lost[0],
              AllOf(HasSubstr("rank 2 (host-a/2"), HasSubstr("die here")));
}

// Of a loss only the step counts, not where in it.
TEST(ElasticRunTest, WithErrorFeedbackTheResultIsThatOfAReferenceRun) {
  std::map<Point, std::string> bits;
  for (const Point point : {Point::kBefore, Point::kWithin}) {
    ElasticTeam team(3, 2, "powersgd(rank=2,start_step=2)");
    ElasticWorker& a = team.Add(0, 20);
    ElasticWorker& b = team.Add(1, 20);
    team.Add(2, 20).DieAt(3, 8, point);
    team.StartAll();
    team.Join();
    ExpectFinished({&a, &b}, 20);
    EXPECT_EQ(RunsOf(a), "3x8 2x12");
    ASSERT_THAT(a.reports, SizeIs(2));
    EXPECT_EQ(a.reports[1].error_scale, 2.0 / 3);
    bits[point] = a.state->Bits();
  }
  EXPECT_TRUE(bits[Point::kBefore] == bits[Point::kWithin]);
}

TEST(ElasticRunTest, ARankThatWasBehindCopiesTheStep) {
  ElasticTeam team(3, 2);
  ElasticWorker& a = team.Add(0, 12);
  ElasticWorker& b = team.Add(1, 12);
  ElasticWorker& c = team.Add(2, 12);
  // The decision on the step reaches rank 0, but it does not take it.
  a.training.at = [&](Point now, const ElasticGeneration& generation) {
    if (now == Point::kDecided && a.state->step() == 5 &&
        generation.communicator->size() == 3) {
      return absl::AbortedError("the connection broke");
    }
    return absl::OkStatus();
  };
  c.DieAt(3, 6, Point::kAfter);
  team.StartAll();
  team.Join();
  ExpectFinished({&a, &b}, 12);
  ExpectExact({&a, &b});
  EXPECT_EQ(RunsOf(a), "3x6 2x6");
  ASSERT_THAT(a.reports, SizeIs(2));
  EXPECT_TRUE(a.reports[1].copied);
  EXPECT_EQ(a.reports[1].source, 1);
  EXPECT_FALSE(b.reports[1].copied);
}

// A flipped bit, of which the next tickets' checksums tell.
TEST(ElasticRunTest, ARankWithDamagedMemoryIsNamedAndGoesOnWithTheOthers) {
  ElasticTeam team(3, 2, "allreduce", /*checksum_every=*/2);
  std::vector<ElasticWorker*> workers;
  for (int slot = 0; slot < 3; ++slot) workers.push_back(&team.Add(slot, 20));
  bool damaged = false;
  workers[1]->training.at = [&](Point point, const ElasticGeneration&) {
    ElasticToyState& state = *workers[1]->state;
    if (point == Point::kBefore && state.step() == 9 && !damaged) {
      damaged = true;
      static_cast<char*>(state.Tensors()[0].data)[6] ^= 1;
    }
    return absl::OkStatus();
  };
  team.StartAll();
  team.Join();
  EXPECT_TRUE(damaged);
  ExpectFinished(workers, 20);
  ExpectExact(workers);
  for (const ElasticWorker* worker : workers) {
    ASSERT_EQ(worker->reports.size(), 2u);
    const RecoveryReport& second = worker->reports[1];
    EXPECT_EQ(second.step, 10);
    EXPECT_EQ(second.copied, worker == workers[1]);
    const int rank = workers[1]->reports[1].rank;
    EXPECT_THAT(second.warnings,
                ElementsAre(HasSubstr(absl::StrCat(
                    "rank ", rank, " had other bits than the other 2 ranks"))));
  }
}

TEST(ElasticRunTest, TwoLossesInARow) {
  ElasticTeam team(4, 2);
  ElasticWorker& a = team.Add(0, 20);
  ElasticWorker& b = team.Add(1, 20);
  team.Add(2, 20).DieAt(3, 9, Point::kWithin);
  team.Add(3, 20).DieAt(4, 5, Point::kWithin);
  team.StartAll();
  team.Join();
  ExpectFinished({&a, &b}, 20);
  ExpectExact({&a, &b});
  EXPECT_EQ(RunsOf(a), "4x5 3x4 2x11");
}

// Dies when it is asked for its state for the `at`-th time.
class DyingState : public ElasticToyState {
 public:
  explicit DyingState(int at)
      : ElasticToyState(DType::kFloat64, 16, 2), at_(at) {}
  absl::StatusOr<uint64_t> Digest() override {
    if (++asked_ == at_) return absl::InternalError("dies while it recovers");
    return ElasticToyState::Digest();
  }

 private:
  const int at_;
  int asked_ = 0;
};

// Sends a manifest that does not match its tensors.
class OtherModelState : public ElasticToyState {
 public:
  OtherModelState() : ElasticToyState(DType::kFloat64, 16, 2) {}
  std::vector<Span> Tensors() override {
    std::vector<Span> tensors = ElasticToyState::Tensors();
    tensors.pop_back();
    return tensors;
  }
};

TEST(ElasticRunTest, ALossWhileOthersRecover) {
  ElasticTeam team(4, 2);
  ElasticWorker& a = team.Add(0, 20);
  ElasticWorker& b = team.Add(1, 20);
  // Once when the first generation has copied, then in the second.
  team.Add(2, 20).state = std::make_unique<DyingState>(2);
  team.Add(3, 20).DieAt(4, 5, Point::kWithin);
  team.StartAll();
  team.Join();
  ExpectFinished({&a, &b}, 20);
  ExpectExact({&a, &b});
  EXPECT_EQ(RunsOf(a), "4x5 2x15");
  EXPECT_THAT(a.reports, SizeIs(2)) << "the second one was not reached";
}

TEST(ElasticRunTest, ANewcomerIsAdmittedAtAStepsEnd) {
  ElasticTeam team(3, 2);
  ElasticWorker& a = team.Add(0, 100'000);
  ElasticWorker& b = team.Add(1, 100'000);
  ElasticWorker& c = team.Add(2, 100'000);
  Door lost;
  c.DieAt(3, 5, Point::kWithin);
  int grown = 0;
  a.training.at = [&](Point now, const ElasticGeneration& generation) {
    const int size = generation.communicator->size();
    if (now == Point::kAfter && size == 2) lost.Open();
    if (now == Point::kAfter && size == 3 && a.reports.size() > 2 &&
        ++grown == 10) {
      generation.session->schedule().RequestStop("ten steps with all three");
    }
    return absl::OkStatus();
  };
  team.StartAll();
  ASSERT_OK(lost.Pass());
  c.thread.join();
  ElasticWorker& again = team.Add(2, 100'000);
  team.Start(again);
  team.Join();
  ExpectFinished({&a, &b, &again}, a.state->step());
  ExpectExact({&a, &b, &again});
  ASSERT_THAT(again.reports, SizeIs(1));
  EXPECT_TRUE(again.reports[0].copied);
  EXPECT_EQ(again.reports[0].rank, 2);
  ASSERT_THAT(a.reports, SizeIs(3));
  EXPECT_EQ(a.reports[2].source, 0);
  EXPECT_EQ(a.reports[2].rank, 0);
}

TEST(ElasticRunTest, AWorkerDrainsAfterItsStep) {
  ElasticTeam team(3, 2);
  ElasticWorker& a = team.Add(0, 100'000);
  ElasticWorker& b = team.Add(1, 100'000);
  ElasticWorker& c = team.Add(2, 100'000);
  int alone = 0;
  c.training.at = [&](Point now, const ElasticGeneration&) {
    if (now == Point::kBefore && c.state->step() == 5) c.drain = true;
    return absl::OkStatus();
  };
  a.training.at = [&](Point now, const ElasticGeneration& generation) {
    if (now == Point::kAfter && generation.communicator->size() == 2 &&
        ++alone == 10) {
      generation.session->schedule().RequestStop("ten steps without it");
    }
    return absl::OkStatus();
  };
  team.StartAll();
  team.Join();
  EXPECT_OK(c.status);
  EXPECT_EQ(c.ending, ElasticRun::Ending::kDrained);
  EXPECT_EQ(a.ending, ElasticRun::Ending::kFinished);
  ExpectFinished({&a, &b}, a.state->step());
  ExpectExact({&a, &b, &c});
  EXPECT_GE(c.state->step(), 6);
  ASSERT_THAT(a.reports, SizeIs(2));
  ASSERT_THAT(a.reports[1].lost, SizeIs(1));
  EXPECT_THAT(a.reports[1].lost[0], HasSubstr("has left"));
}

// The residual is the mean over the ranks of their errors: what survives of it
// keeps its weight when two of four are lost, and their part is lost.
TEST(ElasticRunTest, TheSurvivorsErrorsKeepTheirWeightExactly) {
  ElasticTeam team(4, 2);
  std::vector<ElasticWorker*> workers;
  for (int slot = 0; slot < 4; ++slot) {
    workers.push_back(&team.Add(slot, 20));
    workers.back()->training.make_hook = [](const schedule::Plan&) {
      return absl::StatusOr<std::unique_ptr<Hook>>(
          std::make_unique<CoarseHook>());
    };
  }
  // Both ask in the same round, so that the world shrinks by half at once.
  for (const int slot : {2, 3}) {
    ElasticWorker* const worker = workers[slot];
    worker->training.at = [worker](Point now, const ElasticGeneration&) {
      if (now == Point::kBefore && worker->state->step() == 5) {
        worker->drain = true;
      }
      return absl::OkStatus();
    };
  }
  team.StartAll();
  team.Join();
  ExpectFinished({workers[0], workers[1]}, 20);
  ASSERT_EQ(RunsOf(*workers[0]), "4x7 2x13");
  EXPECT_EQ(workers[0]->reports[1].error_scale, 0.5);

  std::vector<double> unsent(workers[0]->state->Bits().size() / 8);
  for (int slot = 0; slot < 4; ++slot) {
    ASSERT_TRUE(workers[slot]->hook_state.has_value());
    const std::vector<double> errors = CoarseErrors(*workers[slot]->hook_state);
    ASSERT_EQ(errors.size(), unsent.size());
    const double weight = slot < 2 ? 0.5 : 0.25;
    for (size_t i = 0; i < unsent.size(); ++i) unsent[i] += weight * errors[i];
  }
  EXPECT_EQ(workers[0]->state->Missing(), unsent);
  EXPECT_GT(workers[0]->state->Distance(), 0) << "there was nothing to check";
}

// Also where another one's error had ended the generation first.
TEST(ElasticRunTest, TheSameErrorOfAllEndsAll) {
  ElasticTeam team(3, 2);
  std::vector<ElasticWorker*> workers;
  // A rank that learns of a peer's error before its own would join again.
  Door all_here;
  std::atomic<int> here{0};
  for (int slot = 0; slot < 3; ++slot) {
    workers.push_back(&team.Add(slot, 10));
    workers.back()->training.at = [&](Point, const ElasticGeneration&) {
      if (++here == 3) all_here.Open();
      COXSWAIN_RETURN_IF_ERROR(all_here.Pass());
      return absl::UnimplementedError("not possible");
    };
  }
  team.StartAll();
  team.Join();
  for (const ElasticWorker* worker : workers) {
    EXPECT_THAT(worker->status, StatusIs(absl::StatusCode::kUnimplemented,
                                         HasSubstr("not possible")));
  }
}

TEST(ElasticRunTest, AnErrorOfItsOwnEndsAWorkerAndNotTheJob) {
  ElasticTeam team(2, 1);
  ElasticWorker& a = team.Add(0, 10);
  ElasticWorker& b = team.Add(1, 10);
  b.training.at = [](Point, const ElasticGeneration&) {
    return absl::InvalidArgumentError("its data is nonsense");
  };
  team.StartAll();
  team.Join();
  EXPECT_THAT(b.status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("nonsense")));
  ExpectFinished({&a}, 10);
  ExpectExact({&a});
}

TEST(ElasticRunTest, AnExceptionOfItsOwnEndsAWorkerAndNotTheJob) {
  ElasticTeam team(2, 1);
  ElasticWorker& a = team.Add(0, 10);
  ElasticWorker& b = team.Add(1, 10);
  b.training.at = [](Point, const ElasticGeneration&) -> absl::Status {
    throw std::runtime_error("its data is nonsense");
  };
  team.StartAll();
  team.Join();
  EXPECT_THAT(b.status,
              StatusIs(absl::StatusCode::kInternal, HasSubstr("nonsense")));
  ExpectFinished({&a}, 10);
  ExpectExact({&a});
}

TEST(ElasticRunTest, ABrokenConnectionBetweenTheLivingIsMadeAnew) {
  ElasticTeam team(2, 2);
  ElasticWorker& a = team.Add(0, 10);
  ElasticWorker& b = team.Add(1, 10);
  a.reason_timeout = b.reason_timeout = absl::Milliseconds(200);
  b.training.at = [&](Point now, const ElasticGeneration& generation) {
    if (now == Point::kWithin && b.state->step() == 5 &&
        b.reports.size() == 1) {
      generation.communicator->Abort("the cable was pulled out");
    }
    return absl::OkStatus();
  };
  team.StartAll();
  team.Join();
  ExpectFinished({&a, &b}, 10);
  ExpectExact({&a, &b});
  EXPECT_EQ(RunsOf(a), "2x5 2x5");
}

// Its peer's data would never come; nor does the peer's end.
TEST(ElasticRunTest, PeersOfAnErrorDoNotWaitForTheirTimeouts) {
  ElasticTeam team(2, 2);
  ElasticWorker& a = team.Add(0, 10);
  ElasticWorker& b = team.Add(1, 10);
  a.reason_timeout = absl::ZeroDuration();
  b.reason_timeout = absl::Seconds(2);
  b.training.at = [&](Point now, const ElasticGeneration&) {
    if (now == Point::kBefore && b.state->step() == 5 &&
        b.reports.size() == 1) {
      return absl::UnavailableError("its data cannot be read now");
    }
    return absl::OkStatus();
  };
  team.StartAll();
  team.Join();
  // Rank 0's exchange ended when rank 1's wait for an explanation began.
  ASSERT_THAT(a.reports, SizeIs(2));
  EXPECT_GT(a.reports[1].joining, absl::Seconds(1));
  EXPECT_GE(a.reports[1].took, a.reports[1].joining + a.reports[1].connecting);
  ExpectFinished({&a, &b}, 10);
  ExpectExact({&a, &b});
}

TEST(ElasticRunTest, ADeathAfterTheLastStepIsSeenByAllOrNone) {
  ElasticTeam team(3, 2);
  ElasticWorker& a = team.Add(0, 10);
  ElasticWorker& b = team.Add(1, 10);
  team.Add(2, 10).DieAt(3, 10, Point::kAfter);
  team.StartAll();
  team.Join();
  ExpectFinished({&a, &b}, 10);
  ExpectExact({&a, &b});
  EXPECT_THAT(a.reports, SizeIs(2));
  EXPECT_THAT(b.reports, SizeIs(2));
}

TEST(ElasticRunTest, AFinishedWorkerDoesNotFailForWantOfOthers) {
  ElasticTeam team(2, 2);
  ElasticWorker& a = team.Add(0, 10);
  a.join_timeout = absl::Seconds(2);
  team.Add(1, 10).DieAt(2, 10, Point::kAfter);
  team.StartAll();
  team.Join();
  ExpectFinished({&a}, 10);
  EXPECT_EQ(a.ending, ElasticRun::Ending::kFinished);
}

TEST(ElasticRunTest, AWorkerWithAnotherModelFailsAlone) {
  ElasticTeam team(3, 2);
  ElasticWorker& a = team.Add(0, 100'000);
  ElasticWorker& b = team.Add(1, 100'000);
  ElasticWorker& c = team.Add(2, 100'000);
  c.DieAt(3, 5, Point::kWithin);
  int alone = 0;
  Door lost;
  a.training.at = [&](Point now, const ElasticGeneration& generation) {
    if (now != Point::kAfter || generation.communicator->size() != 2) {
      return absl::OkStatus();
    }
    lost.Open();
    if (a.reports.size() > 2 && ++alone == 10) {
      generation.session->schedule().RequestStop("ten steps without it");
    }
    return absl::OkStatus();
  };
  team.StartAll();
  ASSERT_OK(lost.Pass());
  c.thread.join();
  ElasticWorker& other = team.Add(2, 100'000);
  other.state = std::make_unique<OtherModelState>();
  team.Start(other);
  team.Join();
  EXPECT_THAT(other.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("other sizes or types")));
  ExpectFinished({&a, &b}, a.state->step());
  ExpectExact({&a, &b});
}

// A plan for the next generation may name another hook.
TEST(ElasticRunTest, AHookThatCannotGoOnFromTheOldOnesStateBeginsWithout) {
  ElasticTeam team(3, 2, "powersgd(rank=2,start_step=2)");
  ElasticWorker& a = team.Add(0, 20);
  ElasticWorker& b = team.Add(1, 20);
  team.Add(2, 20).DieAt(3, 8, Point::kWithin);
  for (ElasticWorker* worker : {&a, &b}) {
    worker->training.make_hook = [worker](const schedule::Plan& plan) {
      schedule::Plan changed = plan;
      if (worker->reports.size() > 1) changed.hook = "int8";
      return MakePlannedHook(changed);
    };
  }
  team.StartAll();
  team.Join();
  ExpectFinished({&a, &b}, 20);
  EXPECT_EQ(RunsOf(a), "3x8 2x12");
}

TEST(LoadHookStateTest, ResetCountsForAnotherHookAlone) {
  CoarseHook hook;
  ElasticGeneration generation;
  schedule::Plan plan;
  EXPECT_OK(LoadHookState(&generation, plan, &hook));
  generation.hook_state.emplace();
  generation.hook_state->spec = "another";
  generation.hook_state->step = 7;
  plan.terms.hook_state = schedule::HookStatePolicy::kReset;
  EXPECT_OK(LoadHookState(&generation, plan, &hook));
  EXPECT_EQ(hook.step(), 0);
  EXPECT_THAT(generation.recovery.warnings,
              ElementsAre(HasSubstr("the state of the hook another of step 7 "
                                    "is dropped")));
  generation.hook_state->spec = hook.spec();
  EXPECT_OK(LoadHookState(&generation, plan, &hook));
  EXPECT_EQ(hook.step(), 7);
  EXPECT_EQ(generation.recovery.warnings.size(), 1u);
}

TEST(ElasticRunTest, GenerationsThatAllFailEndInTheLastError) {
  ElasticTeam team(1, 1);
  ElasticWorker& a = team.Add(0, 10);
  a.reason_timeout = absl::ZeroDuration();
  a.max_fruitless = 3;
  a.training.at = [&](Point, const ElasticGeneration&) {
    return a.state->step() < 2 ? absl::OkStatus()
                               : absl::UnavailableError("the connection broke");
  };
  team.StartAll();
  team.Join();
  EXPECT_THAT(
      a.status,
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("no step was committed in 4 generations"),
                     HasSubstr("the connection broke"))));
  EXPECT_THAT(a.reports, SizeIs(5)) << "the first one was not without steps";
}

TEST(ElasticRunTest, AWorkerThatIsToDrainDoesNotJoin) {
  ElasticTeam team(2, 1);
  ElasticWorker& a = team.Add(0, 10);
  a.drain = true;
  team.StartAll();
  team.Join();
  EXPECT_OK(a.status);
  EXPECT_EQ(a.ending, ElasticRun::Ending::kDrained);
  EXPECT_THAT(a.reports, SizeIs(0));
}

}  // namespace
}  // namespace coxswain
