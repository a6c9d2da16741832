// What hooks remember, in checkpoints and from one generation to the next.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/capi/attempts.h"
#include "tests/capi/exchange_steps.h"
#include "tests/capi/loaded_library.h"

namespace coxswain::capi_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kOther[] = "other";
constexpr char kInt8[] = "commit_vote=true hook=int8(block=32)";
constexpr int64_t kSteps = 4;

using Averages = std::vector<std::vector<float>>;

// A step of each of two streams.
Averages BothStep(cx_session session, int64_t step, int rank) {
  Averages averages;
  averages.push_back(Step(session, step, rank));
  averages.push_back(Step(session, step, 2 * rank, false, kOther));
  return averages;
}

void SaveStep(cx_session session, uint64_t flags) {
  auto checkpoint = Init<cx_checkpoint>();
  checkpoint.flags = flags;
  checkpoint.step = kSteps;
  checkpoint.reason = "because";
  ASSERT_EQ(api.cx_checkpoint_save(session, &checkpoint), CX_OK) << Message();
  const cx_checkpoint_report report = Saved(session);
  ASSERT_EQ(report.code, CX_OK) << report.error;
  checkpoint.flags = flags ^ CX_CHECKPOINT_OWN_ERRORS;
  EXPECT_EQ(api.cx_checkpoint_save(session, &checkpoint), CX_INVALID_ARGUMENT);
}

cx_code Resume(cx_session session, const char* stream = nullptr) {
  return InSlices([&](cx_call* call) {
    return api.cx_checkpoint_hook(session, stream, call);
  });
}

// Trains two ranks, saves, and goes on. Returns what the step after that
// averaged.
Averages Train(const std::string& job, const char* plan, uint64_t flags) {
  std::vector<Averages> next(2);
  RunAttempt(
      job, 0, 2,
      [&](int rank, cx_session session) {
        ASSERT_EQ(Open(session), CX_OK) << Message();
        ASSERT_EQ(Open(session, kOther), CX_OK) << Message();
        for (int64_t step = 0; step < kSteps; ++step) {
          BothStep(session, step, rank);
        }
        SaveStep(session, flags);
        next[static_cast<size_t>(rank)] = BothStep(session, kSteps, rank);
      },
      plan);
  EXPECT_EQ(next[0], next[1]);
  return next[0];
}

// Goes on from what was saved. Returns what the ranks averaged.
std::vector<Averages> GoOn(const std::string& job, int64_t attempt, int ranks,
                           const char* plan) {
  std::vector<Averages> averages(static_cast<size_t>(ranks));
  RunAttempt(
      job, attempt, ranks,
      [&](int rank, cx_session session) {
        ASSERT_EQ(Open(session), CX_OK) << Message();
        EXPECT_EQ(Resume(session), CX_FAILED_PRECONDITION);
        ASSERT_EQ(api.cx_checkpoint_load(session, "newest", nullptr, nullptr),
                  CX_OK)
            << Message();
        ASSERT_EQ(Resume(session), CX_OK) << Message();
        // Before it is open.
        ASSERT_EQ(Resume(session, kOther), CX_OK) << Message();
        EXPECT_EQ(Resume(session, "none"), CX_NOT_FOUND);
        ASSERT_EQ(api.cx_checkpoint_release(session), CX_OK) << Message();
        ASSERT_EQ(Open(session, kOther), CX_OK) << Message();
        averages[static_cast<size_t>(rank)] = BothStep(session, kSteps, rank);
      },
      plan);
  return averages;
}

TEST(CapiHookStateTest, AJobGoesOnBitByBitOnAsManyRanks) {
  for (const char* const plan : {kPowerSgd, kInt8}) {
    const std::string job = plan == kInt8 ? "int8" : "powersgd";
    const Averages next = Train(job, plan, CX_CHECKPOINT_OWN_ERRORS);
    EXPECT_THAT(GoOn(job, 1, 2, plan), Each(next)) << plan;
    for (const int ranks : {1, 3}) {
      const auto averages = GoOn(job, ranks + 1, ranks, plan);
      EXPECT_THAT(averages, Each(averages[0])) << plan;
    }
  }
}

TEST(CapiHookStateTest, AJobGoesOnWithTheMeanOfTheErrors) {
  const Averages next = Train("mean", kPowerSgd, 0);
  const auto averages = GoOn("mean", 1, 2, kPowerSgd);
  EXPECT_EQ(averages[0], averages[1]);
  for (size_t i = 0; i < next[0].size(); ++i) {
    EXPECT_NEAR(averages[0][0][i], next[0][i], 1e-4);
  }
  // That of another stream has each rank's own, whose averages are exact here.
  EXPECT_EQ(averages[0][1], next[1]);
}

TEST(CapiHookStateTest, AnotherModelOrHookIsRefused) {
  Train("refused", kPowerSgd, CX_CHECKPOINT_OWN_ERRORS);
  RunAttempt(
      "refused", 1, 2,
      [&](int, cx_session session) {
        ASSERT_EQ(api.cx_checkpoint_load(session, "newest", nullptr, nullptr),
                  CX_OK)
            << Message();
        ASSERT_EQ(Open(session, nullptr, "c"), CX_OK) << Message();
        EXPECT_EQ(Resume(session), CX_FAILED_PRECONDITION) << Message();
        ASSERT_EQ(Resume(session, kOther), CX_OK) << Message();
        EXPECT_EQ(Open(session, kOther, "c"), CX_FAILED_PRECONDITION);
      },
      kPowerSgd);
}

// ---- generations ----

std::string Release(cx_session session, bool undo_last = false) {
  const void* state = nullptr;
  size_t size = 0;
  EXPECT_EQ(InSlices([&](cx_call* call) {
              return api.cx_hook_release(session, nullptr, undo_last ? 1 : 0,
                                         &state, &size, call);
            }),
            CX_OK)
      << Message();
  return std::string(static_cast<const char*>(state), size);
}

double Recover(cx_session session, const std::string& kept, int world_size,
               uint64_t flags = CX_HOOK_TOOK_PART) {
  auto standing = Init<cx_hook_standing>();
  standing.flags = flags;
  standing.state = kept.data();
  standing.state_size = kept.size();
  standing.world_size = world_size;
  double scale = -1;
  EXPECT_EQ(InSlices([&](cx_call* call) {
              return api.cx_hook_recover(session, nullptr, &standing, &scale,
                                         call);
            }),
            CX_OK)
      << Message();
  return scale;
}

struct GoneOn {
  explicit GoneOn(size_t ranks)
      : scales(ranks), states(ranks), averages(ranks) {}
  std::vector<double> scales;  // of errors
  std::vector<std::string> states;
  std::vector<std::vector<float>> averages;  // of the next step
};

// Ranks that go on with what two have kept.
GoneOn GoOnWith(const std::vector<std::string>& parts, int ranks) {
  GoneOn gone(static_cast<size_t>(ranks));
  Job job(ranks, kPowerSgd);
  job.Each([&](int rank, cx_session session) {
    const auto place = static_cast<size_t>(rank);
    ASSERT_EQ(Open(session), CX_OK) << Message();
    const bool is_new = place >= parts.size();
    gone.scales[place] =
        Recover(session, is_new ? "" : parts[place], is_new ? 0 : 2,
                is_new ? 0 : CX_HOOK_TOOK_PART);
    gone.states[place] = State(session, true);
    gone.averages[place] = Step(session, 0, rank);
  });
  job.Leave();
  return gone;
}

TEST(CapiHookStateTest, SurvivorsKeepTheirErrorsInAnyNumber) {
  std::vector<std::string> parts(2);
  std::string before;
  {
    Job job(2, kPowerSgd);
    job.Each([&](int rank, cx_session session) {
      ASSERT_EQ(Open(session), CX_OK) << Message();
      for (int64_t step = 0; step < kSteps; ++step) Step(session, step, rank);
      const std::string whole = State(session, true);
      if (rank == 0) before = whole;
      parts[static_cast<size_t>(rank)] = Release(session);
      EXPECT_EQ(Announce(session, kSteps), CX_ABORTED);
    });
  }
  const GoneOn same = GoOnWith(parts, 2);
  EXPECT_THAT(same.scales, Each(1));
  EXPECT_THAT(same.states, Each(before));
  EXPECT_EQ(same.averages[0], same.averages[1]);
  const GoneOn more = GoOnWith(parts, 3);
  EXPECT_THAT(more.scales, ElementsAre(1.5, 1.5, 0));
  EXPECT_THAT(more.states, Each(more.states[0]));
  EXPECT_THAT(more.averages, Each(more.averages[0]));
  const GoneOn fewer = GoOnWith({parts[1]}, 1);
  EXPECT_THAT(fewer.scales, ElementsAre(0.5));
  EXPECT_NE(fewer.averages[0], same.averages[0]);
}

TEST(CapiHookStateTest, ARankThatIsBehindTakesOverWhatAllHaveAlike) {
  std::vector<std::string> parts(2);
  {
    Job job(2, kPowerSgd);
    job.Each([&](int rank, cx_session session) {
      ASSERT_EQ(Open(session), CX_OK) << Message();
      for (int64_t step = 0; step <= kSteps; ++step) Step(session, step, rank);
      // Rank 1 has no decision on it, or has not taken the step.
      parts[static_cast<size_t>(rank)] = Release(session, rank == 1);
    });
  }
  const GoneOn gone = GoOnWith(parts, 2);
  EXPECT_THAT(gone.scales, Each(1));
  EXPECT_EQ(gone.states[0], gone.states[1]);
  EXPECT_EQ(gone.averages[0], gone.averages[1]);
}

TEST(CapiHookStateTest, RanksGoBackToWhatTheirHooksHadBetweenTwoSteps) {
  std::vector<std::string> parts(2);
  std::string before;
  {
    Job job(2, kPowerSgd);
    job.Each([&](int rank, cx_session session) {
      ASSERT_EQ(Open(session), CX_OK) << Message();
      for (int64_t step = 0; step < kSteps; ++step) Step(session, step, rank);
      const std::string whole = State(session, true);
      if (rank == 0) before = whole;
      parts[static_cast<size_t>(rank)] = State(session, CX_HOOK_OWN);
      Step(session, kSteps, rank);
      EXPECT_NE(State(session, true), whole);
      EXPECT_NE(Release(session), parts[static_cast<size_t>(rank)]);
    });
  }
  const GoneOn gone = GoOnWith(parts, 2);
  EXPECT_THAT(gone.scales, Each(1));
  EXPECT_THAT(gone.states, Each(before));
}

TEST(CapiHookStateTest, AStepThatIsUndoneLeavesNothing) {
  for (const bool is_lost : {false, true}) {
    std::vector<std::string> parts(2);
    std::string before;
    {
      Job job(2, kPowerSgd);
      job.Each([&](int rank, cx_session session) {
        ASSERT_EQ(Open(session), CX_OK) << Message();
        for (int64_t step = 0; step < kSteps; ++step) Step(session, step, rank);
        const std::string whole = State(session, true);
        if (rank == 0) before = whole;
        if (!is_lost) {
          Step(session, kSteps, rank);
          parts[static_cast<size_t>(rank)] = Release(session, true);
          return;
        }
        // It ends within an exchange, that of rank 0 alone.
        ASSERT_EQ(Announce(session, kSteps), CX_OK) << Message();
        std::vector<float> data(kCount, 1);
        if (rank == 0) {
          ASSERT_EQ(HandOver(session, 0, &data), CX_OK) << Message();
        }
        parts[static_cast<size_t>(rank)] = Release(session);
      });
    }
    EXPECT_THAT(GoOnWith(parts, 2).states, Each(before)) << is_lost;
  }
}

TEST(CapiHookStateTest, WrongStandingsAreRefused) {
  Job job(1, kPowerSgd);
  ASSERT_EQ(Open(job[0]), CX_OK) << Message();
  auto standing = Init<cx_hook_standing>();
  double scale = 0;
  const auto refused = [&](cx_code code, const char* what) {
    EXPECT_EQ(api.cx_hook_recover(job[0], nullptr, &standing, &scale, nullptr),
              code);
    EXPECT_THAT(Message(), HasSubstr(what));
  };
  standing.flags = 4;
  refused(CX_INVALID_ARGUMENT, "flags");
  standing.flags = 0;
  standing.state = "damaged";
  standing.state_size = 7;
  refused(CX_INVALID_ARGUMENT, "world_size");
  standing.world_size = 2;
  refused(CX_DATA_LOSS, "not a whole hook state");
  EXPECT_EQ(api.cx_hook_recover(job[0], kOther, &standing, &scale, nullptr),
            CX_FAILED_PRECONDITION);
  EXPECT_THAT(Message(), AllOf(HasSubstr("other"), HasSubstr("open")));
  job.Leave();
}

}  // namespace
}  // namespace coxswain::capi_test
