#include "client/elastic/replay.h"

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::replay_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Whose parameter and optimizer are the step.
class CountingState : public ElasticState {
 public:
  int64_t step() const override { return step_; }
  void Rollback() override {}
  std::vector<Span> Tensors() override {
    Span span;
    span.data = &value;
    span.count = 1;
    span.dtype = DType::kFloat64;
    return {span};
  }
  absl::StatusOr<std::string> Save() override {
    if (throws) throw std::runtime_error("no memory of the framework's");
    if (refuse_save) return absl::ResourceExhaustedError("no memory");
    return extra;
  }
  absl::Status Load(absl::string_view bytes, int64_t step) override {
    extra = std::string(bytes);
    step_ = step;
    return absl::OkStatus();
  }
  void StepTo(int64_t step) {
    step_ = step;
    value = static_cast<double>(step);
    extra = absl::StrCat("after ", step);
  }

  double value = 0;
  std::string extra = "fresh";
  bool refuse_save = false;
  bool throws = false;

 private:
  int64_t step_ = 0;
};

absl::StatusOr<HookState> SaveHook() {
  HookState state;
  state.tensors.resize(1);
  state.tensors[0].data = "error";
  return state;
}

Replay::Generation GenerationOf(int64_t number, int64_t progress) {
  Replay::Generation generation;
  generation.number = number;
  generation.world_size = 2;
  generation.version = {7, number - 1, progress};
  generation.step = progress;
  generation.keep = true;
  return generation;
}

// Steps from where the state is to before `step`, with checksum_every=4.
std::vector<ReplayResult> TrainTo(int64_t step, CountingState* state,
                                  Replay* replay) {
  std::vector<ReplayResult> results;
  while (true) {
    replay->BeforeStep(4, state, SaveHook);
    if (state->step() >= step) return results;
    state->StepTo(state->step() + 1);
    const auto result = replay->AfterStep(state->step());
    if (result) results.push_back(*result);
  }
}

// Both ranks of generation 4 have come to step 12, and differ there, as rank 1
// was wrong after step 9.
ReplayDispute DisputeOf(const Replay& replay, CountingState* state) {
  const int64_t now = replay.Facts().waiting.tensors;
  const auto digest = static_cast<int64_t>(*state->Digest());
  ReplayDispute dispute;
  dispute.progress = dispute.step = 12;
  dispute.ranks = {0, 1};
  dispute.had = {{now, digest}, {now ^ 1, digest}};
  dispute.from = replay.Facts().known.version;
  dispute.from_step = replay.Facts().known.step;
  dispute.replays = 1;
  return dispute;
}

class ReplayTest : public ::testing::Test {
 protected:
  ReplayTest() { replay_.Begin(GenerationOf(4, 0)); }
  // Ends the generation at step 12, and goes back.
  void GoBack() {
    TrainTo(12, &state_, &replay_);
    const ReplayDispute dispute = DisputeOf(replay_, &state_);
    replay_.NoteDispute(dispute, /*rank=*/0, /*generation=*/5);
    ASSERT_OK(replay_.Find(dispute.from)->copy.Restore(&state_));
  }

  CountingState state_;
  Replay replay_;
};

TEST_F(ReplayTest, KeepsTheStateOfTheLastStepThatWasConfirmed) {
  TrainTo(0, &state_, &replay_);
  EXPECT_EQ(replay_.Facts().known.step, 0);
  EXPECT_EQ(replay_.Facts().known.confirmed, 1);
  EXPECT_EQ(replay_.Facts().known.version, (StateVersion{7, 3, 0}));
  EXPECT_EQ(replay_.Facts().waiting.intact, 0);
  TrainTo(8, &state_, &replay_);
  const ReplayFacts facts = replay_.Facts();
  EXPECT_EQ(facts.known.step, 4);
  EXPECT_EQ(facts.known.confirmed, 1);
  EXPECT_EQ(facts.known.version, (StateVersion{7, 4, 4}));
  EXPECT_EQ(facts.waiting.step, 8);
  EXPECT_EQ(facts.waiting.confirmed, 0);
  TrainTo(11, &state_, &replay_);
  EXPECT_EQ(replay_.Facts().known.step, 8);

  const KeptState* const kept = replay_.Find({7, 4, 8});
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->hook_world, 2);
  ASSERT_OK(kept->copy.Restore(&state_));
  EXPECT_EQ(state_.step(), 8);
  EXPECT_EQ(state_.value, 8);
  EXPECT_EQ(state_.extra, "after 8");
  EXPECT_EQ(replay_.Find({7, 4, 4}), nullptr);
}

TEST_F(ReplayTest, KeepsNothingWhereNothingIsCompared) {
  TrainTo(5, &state_, &replay_);
  replay_.BeforeStep(/*every=*/0, &state_, SaveHook);
  EXPECT_EQ(replay_.Facts().known.intact, 0);
  Replay::Generation generation = GenerationOf(5, 5);
  generation.keep = false;
  replay_.Begin(generation);
  TrainTo(9, &state_, &replay_);
  EXPECT_EQ(replay_.Facts().known.intact, 0);
  EXPECT_EQ(replay_.Facts().waiting.intact, 0);
}

TEST_F(ReplayTest, ABitThatChangesInTheCopyIsFound) {
  TrainTo(4, &state_, &replay_);
  EXPECT_EQ(replay_.Facts().known.intact, 1);
  // As a fault of the memory does.
  auto* const kept = const_cast<KeptState*>(replay_.Find({7, 3, 0}));
  for (const auto& flip : std::vector<std::function<void()>>{
           [=] { kept->hook_state->tensors[0].data[2] ^= 1; },
           [=] { kept->tensors ^= 1; },
           [=] { kept->rest ^= 1; },
       }) {
    flip();
    EXPECT_EQ(replay_.Facts().known.intact, 0);
    EXPECT_EQ(replay_.Find({7, 3, 0}), nullptr);
    flip();
    EXPECT_EQ(replay_.Facts().known.intact, 1);
  }
}

TEST_F(ReplayTest, ACopyHasTheChecksumsOfWhatItHolds) {
  state_.StepTo(3);
  StateCopy copy;
  ASSERT_OK(copy.Take(&state_));
  EXPECT_EQ(copy.TensorsChecksum(), ChecksumOf(state_.Tensors()));
  StateCopy other;
  state_.extra[0] ^= 1;
  ASSERT_OK(other.Take(&state_));
  EXPECT_EQ(copy.TensorsChecksum(), other.TensorsChecksum());
  EXPECT_NE(copy.RestChecksum(), other.RestChecksum());
}

TEST_F(ReplayTest, AStateThatCannotBeSavedLeavesItWithoutCopies) {
  TrainTo(5, &state_, &replay_);
  state_.refuse_save = true;
  TrainTo(9, &state_, &replay_);
  EXPECT_EQ(replay_.Facts().known.intact, 0);
  EXPECT_EQ(replay_.Facts().waiting.intact, 0);
}

TEST_F(ReplayTest, AnExceptionLeavesItWithoutCopies) {
  TrainTo(5, &state_, &replay_);
  state_.throws = true;
  TrainTo(9, &state_, &replay_);
  EXPECT_EQ(replay_.Facts().known.intact, 0);
  EXPECT_EQ(replay_.Facts().waiting.intact, 0);
}

TEST_F(ReplayTest, NamesTheRankOnceAllHoldTheSameBitsAgain) {
  GoBack();
  Replay::Generation again = GenerationOf(5, 8);
  EXPECT_EQ(replay_.Begin(again), std::nullopt);
  EXPECT_THAT(TrainTo(12, &state_, &replay_), IsEmpty());
  EXPECT_EQ(replay_.Facts().generation, 5);
  EXPECT_EQ(replay_.Facts().replays, 1);
  const std::vector<ReplayResult> results = TrainTo(20, &state_, &replay_);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].step, 12);
  EXPECT_EQ(results[0].from_step, 8);
  EXPECT_THAT(results[0].wrong, ElementsAre(1));
  EXPECT_EQ(replay_.Facts().progress, 0);
  EXPECT_EQ(replay_.Facts().replays, 0);
}

TEST_F(ReplayTest, AnExceptionWhereTheRanksDifferedLeavesTheRankUnnamed) {
  GoBack();
  replay_.Begin(GenerationOf(5, 8));
  TrainTo(11, &state_, &replay_);
  state_.StepTo(12);
  state_.throws = true;
  replay_.BeforeStep(4, &state_, SaveHook);
  state_.throws = false;
  state_.StepTo(13);
  const std::vector<ReplayResult> results = TrainTo(20, &state_, &replay_);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_THAT(results[0].wrong, IsEmpty());
}

TEST_F(ReplayTest, GivesUpWhenTheGenerationEndsBefore) {
  GoBack();
  EXPECT_EQ(replay_.Begin(GenerationOf(5, 8)), std::nullopt);
  TrainTo(10, &state_, &replay_);
  const auto why = replay_.Begin(GenerationOf(6, 10));
  ASSERT_TRUE(why.has_value());
  EXPECT_THAT(*why, HasSubstr("before the ranks were at step 12 again"));
  // It counts as one until the ranks are past that step.
  EXPECT_THAT(TrainTo(12, &state_, &replay_), IsEmpty());
  EXPECT_EQ(replay_.Facts().replays, 1);
  EXPECT_THAT(TrainTo(20, &state_, &replay_), IsEmpty());
  EXPECT_EQ(replay_.Facts().replays, 0);
}

// Ranks that take a step without a call of BeforeStep may differ since.
TEST_F(ReplayTest, OnlyWhatWasComparedIsKeptAsConfirmed) {
  state_.StepTo(1);
  replay_.AfterStep(1);
  TrainTo(3, &state_, &replay_);
  EXPECT_EQ(replay_.Facts().known.intact, 0);
  EXPECT_EQ(replay_.Facts().waiting.intact, 0);
  TrainTo(4, &state_, &replay_);
  EXPECT_EQ(replay_.Facts().known.intact, 0);
  EXPECT_EQ(replay_.Facts().waiting.intact, 1);
}

// The steps are divided anew, and give other bits.
TEST_F(ReplayTest, NamesNoRankWhereTheMembersWereOthers) {
  Replay::Generation more = GenerationOf(5, 0);
  more.world_size = 3;
  replay_.Begin(more);
  GoBack();
  replay_.Begin(GenerationOf(5, 8));
  const std::vector<ReplayResult> results = TrainTo(20, &state_, &replay_);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_THAT(results[0].wrong, IsEmpty());
}

}  // namespace
}  // namespace coxswain::replay_test
