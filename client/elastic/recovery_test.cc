#include "client/elastic/recovery.h"

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/status_matchers.h"
#include "client/comm/held/held_communicator.h"
#include "client/comm/in_process/in_process_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::recovery_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kSoon = absl::Seconds(20);
// Where ranks copy, the collective by which they compare what they have then:
// after that of the facts, and those of tensors, length and bytes.
constexpr int64_t kCheck = 4;

class FakeState : public ElasticState {
 public:
  explicit FakeState(int64_t step = 0, double value = 0,
                     std::string extra = "fresh")
      : step_(step), values_(5, value), extra_(std::move(extra)) {}

  int64_t step() const override { return step_; }
  void Rollback() override {}
  std::vector<Span> Tensors() override {
    Span doubles;
    doubles.data = values_.data();
    doubles.count = static_cast<int64_t>(values_.size());
    doubles.dtype = DType::kFloat64;
    Span none;
    return {doubles, none};
  }
  std::vector<Span> LooseTensors() override {
    Span mean;
    mean.data = &mean_;
    mean.count = 1;
    Span more;
    more.data = more_means.data();
    more.count = static_cast<int64_t>(more_means.size());
    return {mean, more};
  }
  absl::StatusOr<std::string> Save() override {
    if (changes_when_saved) values_.back() += 1;
    if (refuse_save) return absl::ResourceExhaustedError("no memory");
    if (throw_in_save) throw std::runtime_error("no memory of the framework's");
    return extra_;
  }
  absl::Status Load(absl::string_view bytes, int64_t step) override {
    if (!refuse_load.empty() && bytes == refuse_load) {
      return absl::InternalError("no room for it");
    }
    if (!throw_in_load.empty() && bytes == throw_in_load) {
      throw std::runtime_error("no tensor for it");
    }
    extra_ = std::string(bytes);
    step_ = step;
    return absl::OkStatus();
  }
  absl::StatusOr<uint64_t> Digest() override {
    ++digests_;
    if (fixed_digest != 0) return fixed_digest;
    return ElasticState::Digest();
  }

  void Resize(size_t size) { values_.resize(size); }
  double value() const { return values_.back(); }
  void set_value(double value) { values_.back() = value; }
  const std::string& extra() const { return extra_; }
  float mean() const { return mean_; }
  void set_mean(float mean) { mean_ = mean; }
  int digests() const { return digests_; }

  std::string LooseBytes() override { return loose; }
  absl::Status LoadLooseBytes(absl::string_view bytes) override {
    loose = std::string(bytes);
    return absl::OkStatus();
  }

  std::vector<float> more_means;
  std::string loose;
  bool refuse_save = false;
  bool changes_when_saved = false;  // as damaged memory does
  std::string refuse_load;
  bool throw_in_save = false;
  std::string throw_in_load;
  uint64_t fixed_digest = 0;

 private:
  int64_t step_;
  std::vector<double> values_;
  std::string extra_;
  float mean_ = 0;
  int digests_ = 0;
};

// What is kept of a newcomer's own state, and whether it has gone back to it.
class FakeCatchUp : public CatchUpTarget {
 public:
  explicit FakeCatchUp(FakeState* state) : state_(*state) {}

  absl::Status Begin(absl::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<Part>> State() override {
    return std::vector<Part>();
  }
  absl::StatusOr<std::vector<Part>> Averages(absl::string_view) override {
    return std::vector<Part>();
  }
  absl::Status Step(absl::string_view, bool) override {
    return absl::OkStatus();
  }
  absl::Status Undo() override {
    if (throws) throw std::runtime_error("no tensor to go back to");
    state_ = FakeState();
    undone = true;
    return absl::OkStatus();
  }
  void Forget() override { forgotten = true; }

  bool throws = false;
  bool undone = false;
  bool forgotten = false;

 private:
  FakeState& state_;
};

// A rank that has trained in generation 4, of three, up to this step.
struct Rank {
  FakeState state;
  RankStanding standing;
  RecoveryOptions options;
  std::unique_ptr<FakeCatchUp> catch_up;
  int64_t dies_at = -1;  // the collective, from 0, that it does not start
};

HookState HookStateOf(int64_t step, double error, const std::string& q) {
  HookState state;
  state.spec = "powersgd";
  state.step = step;
  StateTensor shared;
  shared.kind = "q";
  shared.parameter = "w";
  shared.shape = {static_cast<int64_t>(q.size())};
  shared.dtype = DType::kUInt8;
  shared.data = q;
  StateTensor own;
  own.kind = "own_error";
  own.parameter = "w";
  own.shape = {1};
  own.dtype = DType::kFloat64;
  own.data.resize(sizeof(error));
  std::memcpy(own.data.data(), &error, sizeof(error));
  state.tensors = {shared, own};
  return state;
}

double ErrorOf(const HookState& state) {
  double error = 0;
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.kind != "own_error") continue;
    std::memcpy(&error, tensor.data.data(), sizeof(error));
  }
  return error;
}

std::string FactorOf(const HookState& state) {
  for (const StateTensor& tensor : state.tensors) {
    if (tensor.kind == "q") return tensor.data;
  }
  return "";
}

std::unique_ptr<Rank> Survivor(int64_t step, double error) {
  auto rank = std::make_unique<Rank>();
  rank->state = FakeState(step, 0.1 * static_cast<double>(step),
                          absl::StrCat("after ", step));
  rank->standing.has_state = true;
  rank->standing.lineage = 7;
  rank->standing.recovered = 4;
  rank->standing.trained = 4;
  rank->standing.hook_state = HookStateOf(step, error, absl::StrCat("q", step));
  rank->standing.hook_world = 3;
  return rank;
}

std::unique_ptr<Rank> Newcomer(double value = 0) {
  auto rank = std::make_unique<Rank>();
  rank->state = FakeState(0, value);
  return rank;
}

using Ranks = std::vector<std::unique_ptr<Rank>>;
using Results = std::vector<absl::StatusOr<Recovered>>;

Ranks RanksOf(std::unique_ptr<Rank> a, std::unique_ptr<Rank> b,
              std::unique_ptr<Rank> c = nullptr) {
  Ranks ranks;
  ranks.push_back(std::move(a));
  ranks.push_back(std::move(b));
  if (c != nullptr) ranks.push_back(std::move(c));
  return ranks;
}

// Recovers into generation 5, or the one that is given. By rank.
Results RecoverAll(Ranks& ranks, int64_t generation = 5,
                   std::vector<int64_t>* collectives = nullptr) {
  const int size = static_cast<int>(ranks.size());
  const auto world = InProcessWorld::Create(size, kSoon);
  Results results(ranks.size(), absl::UnknownError("not run"));
  if (collectives != nullptr) collectives->resize(ranks.size());
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      Rank& rank = *ranks[static_cast<size_t>(i)];
      rank.options.timeout = kSoon;
      const auto communicator =
          std::make_unique<HeldCommunicator>(world->MakeRank(i));
      communicator->Open();
      if (rank.dies_at >= 0) {
        communicator->Fail(rank.dies_at,
                           absl::InternalError("the worker was killed"));
      }
      results[static_cast<size_t>(i)] = Recover(
          *communicator, generation, rank.options, &rank.state, &rank.standing);
      if (collectives == nullptr) return;
      (*collectives)[static_cast<size_t>(i)] = communicator->sequence();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

void ExpectOk(const Results& results) {
  for (const auto& result : results) EXPECT_OK(result);
}

std::vector<std::string> MessagesOf(const Results& results) {
  std::vector<std::string> messages;
  for (const auto& result : results) {
    messages.push_back(std::string(result.status().message()));
  }
  return messages;
}

TEST(RecoveryTest, TheFirstGenerationBeginsWithRankZero) {
  Ranks ranks = RanksOf(Newcomer(1), Newcomer(2), Newcomer(3));
  ranks[0]->state.set_mean(7);
  const Results results = RecoverAll(ranks, 1);
  ExpectOk(results);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->state.value(), 1);
    EXPECT_EQ(rank->state.mean(), 7);
    EXPECT_TRUE(rank->standing.has_state);
    EXPECT_EQ(rank->standing.recovered, 1);
  }
  EXPECT_EQ(results[0]->source, 0);
  EXPECT_FALSE(results[0]->copied);
  EXPECT_TRUE(results[2]->copied);
  EXPECT_EQ(results[2]->error_scale, 1);
  EXPECT_FALSE(results[2]->hook_state.has_value());
}

TEST(RecoveryTest, AFirstGenerationContinuesFromTheLatestCheckpoint) {
  Ranks ranks = RanksOf(Newcomer(1), Newcomer());
  ranks[1]->state = FakeState(20, 2, "loaded");
  ExpectOk(RecoverAll(ranks, 1));
  EXPECT_EQ(ranks[0]->state.step(), 20);
  EXPECT_EQ(ranks[0]->state.extra(), "loaded");
}

TEST(RecoveryTest, RanksInStepExchangeNothingButFacts) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25));
  std::vector<int64_t> collectives;
  const Results results = RecoverAll(ranks, 5, &collectives);
  ExpectOk(results);
  // One for the facts, one for the loose tensors.
  EXPECT_THAT(collectives, Each(2));
  EXPECT_EQ(results[0]->source, -1);
  EXPECT_EQ(results[1]->step, 9);
  EXPECT_EQ(ranks[1]->standing.recovered, 5);
}

// What 3 ranks had left unsent was a third of its sum; two survivors keep their
// part of that.
TEST(RecoveryTest, TheSurvivorsErrorsKeepTheirWeightInTheMean) {
  Ranks ranks = RanksOf(Survivor(9, 0.75), Survivor(9, 1.5));
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  double mean = 0;
  for (const auto& result : results) {
    mean += result->error_scale * ErrorOf(*result->hook_state) / 2;
  }
  EXPECT_EQ(mean, (0.75 + 1.5) / 3);
}

TEST(RecoveryTest, ARankThatWasBehindCopiesAndKeepsItsErrors) {
  Ranks ranks = RanksOf(Survivor(8, 0.5), Survivor(9, 0.25));
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  EXPECT_EQ(results[0]->source, 1);
  EXPECT_TRUE(results[0]->copied);
  EXPECT_EQ(results[0]->step, 9);
  EXPECT_EQ(ranks[0]->state.extra(), "after 9");
  EXPECT_EQ(ranks[0]->state.value(), ranks[1]->state.value());
  EXPECT_EQ(results[0]->hook_state->step, 9);
  EXPECT_EQ(FactorOf(*results[0]->hook_state), "q9");
  EXPECT_EQ(ErrorOf(*results[0]->hook_state), 0.5);
  EXPECT_EQ(results[0]->error_scale, 2.0 / 3);
  EXPECT_FALSE(results[1]->copied);
}

TEST(RecoveryTest, ANewcomerGetsAllButErrors) {
  Ranks ranks = RanksOf(Newcomer(), Survivor(9, 0.25), Survivor(9, 0.5));
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  EXPECT_EQ(results[0]->source, 1);
  EXPECT_EQ(ranks[0]->state.extra(), "after 9");
  EXPECT_EQ(results[0]->hook_state->step, 9);
  EXPECT_EQ(FactorOf(*results[0]->hook_state), "q9");
  EXPECT_EQ(results[0]->error_scale, 0);
  EXPECT_EQ(results[1]->error_scale, 1);
  EXPECT_EQ(results[2]->error_scale, 1);
  EXPECT_EQ(ranks[0]->standing.trained, 4);
}

TEST(RecoveryTest, OnlyWhatWasCopiedIsReadAgain) {
  Ranks ranks = RanksOf(Survivor(9, 0.25), Survivor(9, 0.5), Newcomer());
  ExpectOk(RecoverAll(ranks));
  for (const auto& rank : ranks) EXPECT_EQ(rank->state.digests(), 1);
}

// A newcomer that has taken the state of this step while it waited.
std::unique_ptr<Rank> CaughtUpAt(int64_t step) {
  auto rank = Newcomer();
  rank->state = FakeState(step, 0.1 * static_cast<double>(step),
                          absl::StrCat("after ", step));
  rank->standing.caught_up = CaughtUp{7, 4, step};
  rank->catch_up = std::make_unique<FakeCatchUp>(&rank->state);
  rank->standing.catch_up = rank->catch_up.get();
  return rank;
}

TEST(RecoveryTest, ANewcomerThatHasTheStateCopiesNothing) {
  Ranks ranks = RanksOf(CaughtUpAt(9), Survivor(9, 0.25), Survivor(9, 0.5));
  ranks[1]->state.loose = ranks[2]->state.loose = "counters";
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  for (const auto& result : results) {
    EXPECT_EQ(result->source, -1);
    EXPECT_FALSE(result->copied);
    EXPECT_THAT(result->warnings, IsEmpty());
  }
  EXPECT_TRUE(results[0]->caught_up);
  EXPECT_FALSE(results[1]->caught_up);
  EXPECT_TRUE(ranks[0]->catch_up->forgotten);
  EXPECT_FALSE(ranks[0]->catch_up->undone);
  EXPECT_EQ(ranks[0]->state.loose, "counters");
  EXPECT_EQ(FactorOf(*results[0]->hook_state), "q9");
  EXPECT_EQ(results[0]->error_scale, 0);
  EXPECT_TRUE(ranks[0]->standing.has_state);
  EXPECT_EQ(ranks[0]->standing.trained, 4);
  EXPECT_EQ(ranks[0]->standing.lineage, 7);
}

// It is none of those that have a majority, nor named as one that is damaged.
TEST(RecoveryTest, ANewcomerWithOtherBitsCopiesAsAnyOther) {
  Ranks ranks = RanksOf(CaughtUpAt(9), CaughtUpAt(9), Survivor(9, 0.5));
  for (const size_t rank : {0, 1}) ranks[rank]->state.set_value(3.25);
  const double value = ranks[2]->state.value();
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  for (const size_t rank : {0, 1}) {
    EXPECT_TRUE(results[rank]->copied);
    EXPECT_FALSE(results[rank]->caught_up);
    EXPECT_EQ(results[rank]->source, 2);
    EXPECT_THAT(results[rank]->warnings, IsEmpty());
    EXPECT_TRUE(ranks[rank]->catch_up->undone);
    EXPECT_EQ(ranks[rank]->state.value(), value);
  }
}

TEST(RecoveryTest, ANewcomerOfAnotherStepCopies) {
  Ranks ranks = RanksOf(CaughtUpAt(10), Survivor(9, 0.25), Survivor(9, 0.5));
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  EXPECT_TRUE(results[0]->copied);
  EXPECT_EQ(results[0]->source, 1);
  EXPECT_EQ(ranks[0]->state.step(), 9);
}

TEST(RecoveryTest, WithoutMembersANewcomerGoesBackToWhatItHad) {
  Ranks ranks = RanksOf(CaughtUpAt(9), Newcomer(2));
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  EXPECT_TRUE(ranks[0]->catch_up->undone);
  EXPECT_TRUE(results[0]->began);
  for (const auto& rank : ranks) EXPECT_EQ(rank->state.value(), 0);
}

// The members were only away: what has begun without them is not what they have
// trained, whenever that was.
TEST(RecoveryTest, WithoutMembersANewcomerBeginsALineageOfItsOwn) {
  Ranks ranks = RanksOf(CaughtUpAt(9), CaughtUpAt(9));
  ExpectOk(RecoverAll(ranks));
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->standing.lineage, ranks[0]->standing.lineage);
    EXPECT_NE(rank->standing.lineage, 7);
    // They take a step.
    rank->standing.trained = 5;
    ASSERT_OK(rank->state.Load("after 1", 1));
  }
  ranks.push_back(Survivor(9, 0.25));
  const Results results = RecoverAll(ranks, 6);
  ExpectOk(results);
  for (const auto& result : results) {
    EXPECT_EQ(result->source, 2);
    EXPECT_EQ(result->step, 9);
    EXPECT_THAT(result->warnings,
                ElementsAre(HasSubstr("trained apart from the others")));
  }
}

TEST(RecoveryTest, ARankThatWasAwayHasNoErrorsAndIsNoSource) {
  Ranks ranks = RanksOf(Survivor(10, 0.5), Survivor(9, 0.25));
  // Rank 0 was ahead when it was lost; rank 1 went on without it.
  ranks[1]->standing.recovered = 6;
  ranks[1]->standing.trained = 6;
  const Results results = RecoverAll(ranks, 7);
  ExpectOk(results);
  EXPECT_EQ(results[0]->source, 1);
  EXPECT_EQ(ranks[0]->state.step(), 9);
  EXPECT_EQ(results[0]->error_scale, 0);
}

TEST(RecoveryTest, AGenerationThatCommittedNothingCostsNoErrors) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25));
  ranks[1]->standing.recovered = 5;  // rank 0's recovery failed there
  const Results results = RecoverAll(ranks, 6);
  ExpectOk(results);
  EXPECT_EQ(results[0]->source, -1);
  EXPECT_EQ(results[0]->error_scale, 2.0 / 3);
}

TEST(RecoveryTest, ErrorsThatBelongTogetherAreDroppedTogether) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25), Newcomer());
  for (int i = 0; i < 2; ++i) {
    ranks[i]->standing.hook_state->options["mode"] = "pytorch";
  }
  const Results lost = RecoverAll(ranks);
  ExpectOk(lost);
  for (const auto& result : lost) EXPECT_EQ(result->error_scale, 0);
  // With all of them it is only a matter of weight.
  for (int i = 0; i < 2; ++i) ranks[i]->standing.hook_world = 2;
  const Results grown = RecoverAll(ranks, 6);
  ExpectOk(grown);
  EXPECT_EQ(grown[0]->error_scale, 0) << "the hook drops them";
  for (int i = 0; i < 2; ++i) ranks[i]->standing.hook_world = 3;
  ranks[2]->standing.hook_state = ranks[0]->standing.hook_state;
  ranks[2]->standing.hook_world = 3;
  const Results same = RecoverAll(ranks, 7);
  ExpectOk(same);
  EXPECT_EQ(same[0]->error_scale, 1);
}

// A survivor of four ranks, with the hook's state of a slice of two.
std::unique_ptr<Rank> SurvivorOf(int slice, double error) {
  auto rank = Survivor(9, error);
  rank->standing.hook_world = 4;
  HookState& state = *rank->standing.hook_state;
  state = HookStateOf(9, error, absl::StrCat("q of ", slice));
  state.options["hybrid/shards"] = "2";
  state.options[absl::StrCat("hybrid/", slice, "/pieces")] =
      absl::StrCat("what slice ", slice, " has");
  return rank;
}

Results RecoverOnMesh(Ranks& ranks, const std::string& mesh = "dp=2,shard=2") {
  for (const auto& rank : ranks) {
    rank->options.mesh = Mesh::Parse(mesh).value();
  }
  Results results = RecoverAll(ranks);
  ExpectOk(results);
  return results;
}

TEST(RecoveryTest, ANewcomerGetsTheHooksStateOfItsSlice) {
  Ranks ranks = RanksOf(SurvivorOf(0, 0.5), Newcomer(), SurvivorOf(0, 0.25));
  ranks.push_back(SurvivorOf(1, 0.75));
  const Results results = RecoverOnMesh(ranks);
  const double errors[] = {0.5, 0.75, 0.25, 0.75};
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    const Recovered& one = *results[rank];
    EXPECT_EQ(FactorOf(*one.hook_state), absl::StrCat("q of ", rank % 2));
    EXPECT_EQ(ErrorOf(*one.hook_state), errors[rank]);
    EXPECT_EQ(one.error_scale, rank == 1 ? 0 : 1);
    EXPECT_THAT(one.warnings, IsEmpty());
  }
}

TEST(RecoveryTest, ARankThatHasAnotherSliceNowIsANewcomerToIt) {
  Ranks ranks =
      RanksOf(SurvivorOf(1, 0.5), SurvivorOf(0, 0.25), SurvivorOf(0, 0.125));
  ranks.push_back(SurvivorOf(1, 0.75));
  const Results results = RecoverOnMesh(ranks);
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    EXPECT_EQ(FactorOf(*results[rank]->hook_state),
              absl::StrCat("q of ", rank % 2));
    EXPECT_EQ(results[rank]->error_scale, rank < 2 ? 0 : 1);
  }
}

TEST(RecoveryTest, AHookOfWhichASliceIsLostBeginsAnewWithAWarning) {
  Ranks ranks = RanksOf(SurvivorOf(0, 0.5), Newcomer(), SurvivorOf(0, 0.25));
  ranks.push_back(Newcomer());
  for (const auto& result : RecoverOnMesh(ranks)) {
    EXPECT_FALSE(result->hook_state.has_value());
    EXPECT_THAT(result->warnings,
                ElementsAre(AllOf(
                    HasSubstr("no rank that is left has the hook's state of "
                              "step 9 of the slices that rank 1 (dp 0, shard "
                              "1) has now"),
                    HasSubstr("the hook begins anew"))));
  }
}

TEST(RecoveryTest, SlicesOfAnotherMeshAreDroppedWithAWarning) {
  Ranks ranks = RanksOf(SurvivorOf(0, 0.5), SurvivorOf(1, 0.25), Newcomer());
  ranks.push_back(Newcomer());
  for (const auto& result : RecoverOnMesh(ranks, "dp=1,shard=4")) {
    EXPECT_FALSE(result->hook_state.has_value());
    EXPECT_THAT(result->warnings,
                ElementsAre(HasSubstr("is that of slices of 2 ranks, and the "
                                      "mesh is \"dp=1,shard=4\" now")));
  }
}

TEST(RecoveryTest, ErrorsOfSlicesThatBelongTogetherAreDroppedTogether) {
  Ranks ranks = RanksOf(SurvivorOf(0, 0.5), Newcomer(), SurvivorOf(0, 0.25));
  ranks.push_back(SurvivorOf(1, 0.75));
  for (const int rank : {0, 2, 3}) {
    ranks[rank]->standing.hook_state->options[absl::StrCat(
        "hybrid/", rank % 2, "/option/mode")] = "pytorch";
  }
  for (const auto& result : RecoverOnMesh(ranks)) {
    EXPECT_EQ(result->error_scale, 0);
  }
}

// The second change came before all had taken part in the first one.
TEST(RecoveryTest, WhatIsLostIsCountedFromTheLargestWorld) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25), Newcomer());
  ranks[0]->standing.hook_world = 2;
  for (int i = 0; i < 2; ++i) {
    ranks[i]->standing.hook_state->options["mode"] = "pytorch";
  }
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  for (const auto& result : results) EXPECT_EQ(result->error_scale, 0);
}

TEST(RecoveryTest, ErrorsComeWithTheWorldSizeTheyWereSavedWith) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25));
  ranks[0]->standing.hook_state->options["world_size"] = "2";
  ranks[0]->standing.hook_world = 2;
  ranks[1]->standing.hook_state->options["world_size"] = "3";
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  EXPECT_EQ(results[0]->hook_state->options.at("world_size"), "2");
  EXPECT_EQ(results[1]->hook_state->options.at("world_size"), "3");
  EXPECT_EQ(results[1]->error_scale, 2.0 / 3);
}

// Newcomers that did not find the survivors have begun anew.
std::unique_ptr<Rank> OfAnotherBeginning(int64_t step) {
  auto rank = Survivor(step, 0.125);
  rank->standing.lineage = 8;
  rank->standing.recovered = 6;
  rank->standing.trained = 6;
  rank->state.set_value(1e6);
  return rank;
}

TEST(RecoveryTest, ARankThatBeganAgainDoesNotReplaceMoreSteps) {
  Ranks ranks =
      RanksOf(OfAnotherBeginning(2), OfAnotherBeginning(3), Survivor(9, 0.5));
  const double value = ranks[2]->state.value();
  const Results results = RecoverAll(ranks, 7);
  ExpectOk(results);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(results[i]->step, 9);
    EXPECT_EQ(ranks[i]->state.value(), value);
    EXPECT_EQ(ranks[i]->standing.lineage, 7);
    EXPECT_THAT(results[i]->warnings,
                ElementsAre(AllOf(HasSubstr("rank 1 and its peers"),
                                  HasSubstr("were at step 3"),
                                  HasSubstr("rank 2, of step 9"))));
  }
  EXPECT_EQ(results[0]->error_scale, 0) << "an error of another training";
  EXPECT_EQ(results[2]->error_scale, 1);
}

TEST(RecoveryTest, OfTwoLineagesTheLongerOneStays) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), OfAnotherBeginning(20));
  const Results results = RecoverAll(ranks, 7);
  ExpectOk(results);
  EXPECT_EQ(results[0]->source, 1);
  EXPECT_EQ(results[0]->step, 20);
  EXPECT_EQ(ranks[0]->standing.lineage, 8);
  EXPECT_THAT(results[0]->warnings,
              ElementsAre(HasSubstr("rank 0 and its peers")));
}

// Equal numbers mean nothing for states that have nothing in common.
TEST(RecoveryTest, LineagesAreNotComparedBitByBit) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), OfAnotherBeginning(9));
  ranks[1]->standing.trained = 4;
  const Results results = RecoverAll(ranks, 7);
  ExpectOk(results);
  EXPECT_EQ(results[1]->source, 0);
  EXPECT_TRUE(results[1]->copied);
  EXPECT_EQ(ranks[1]->state.value(), ranks[0]->state.value());
}

TEST(RecoveryTest, TrainingThatBeginsIsOneLineage) {
  Ranks ranks = RanksOf(Newcomer(1), Newcomer(2));
  const Results results = RecoverAll(ranks, 1);
  ExpectOk(results);
  EXPECT_TRUE(results[1]->began);
  EXPECT_NE(ranks[0]->standing.lineage, 0);
  EXPECT_EQ(ranks[0]->standing.lineage, ranks[1]->standing.lineage);
  const Results again = RecoverAll(ranks, 2);
  ExpectOk(again);
  EXPECT_FALSE(again[0]->began);
  EXPECT_EQ(again[0]->source, -1);
}

TEST(RecoveryTest, CountersThatDifferAreTakenFromOneRank) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25), Newcomer());
  ranks[0]->state.loose = "seen 40";
  ranks[1]->state.loose = "seen 39";
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  EXPECT_EQ(ranks[1]->state.loose, "seen 40");
  EXPECT_THAT(results[0]->warnings,
              ElementsAre(HasSubstr("the counters or positions of rank 1")));
}

TEST(RecoveryTest, ARankThatCannotBackUpItsStateStillHasIt) {
  Ranks ranks = RanksOf(Survivor(8, 0.5), Survivor(9, 0.25));
  ranks[0]->state.refuse_save = true;
  // Its digest is asked for, which is not what is to fail.
  ranks[0]->state.fixed_digest = 1;
  const Results results = RecoverAll(ranks);
  EXPECT_THAT(MessagesOf(results)[0], HasSubstr("keeping its own state"));
  EXPECT_TRUE(ranks[0]->standing.has_state);
  EXPECT_EQ(ranks[0]->state.step(), 8);
}

TEST(RecoveryTest, RanksWithOtherBitsAreNamed) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25));
  ranks[1]->state.set_value(3.25);
  std::vector<int64_t> collectives;
  Results results = RecoverAll(ranks, 5, &collectives);
  for (const auto& result : results) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_THAT(MessagesOf(results),
              Each(AllOf(HasSubstr("the tensors of rank 1 are not those of "
                                   "rank 0 after the same step 9"))));
  // The facts, those of a replay, and one after which both are known to have
  // found the error, so that neither ends the generation for the other before.
  EXPECT_THAT(collectives, Each(3));
  ranks[1]->state.set_value(ranks[0]->state.value());
  ASSERT_OK(ranks[1]->state.Load("other counters", 9));
  results = RecoverAll(ranks);
  EXPECT_THAT(MessagesOf(results), Each(HasSubstr("the counters of rank 1")));
}

TEST(RecoveryTest, ASourceThatChangesWhileItSendsIsNamed) {
  // Of one copy it is not known which end has changed it.
  for (const bool second : {true, false}) {
    Ranks ranks =
        RanksOf(Survivor(9, 0.5), Newcomer(), second ? Newcomer() : nullptr);
    ranks[0]->state.changes_when_saved = true;
    const Results results = RecoverAll(ranks);
    for (const auto& result : results) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
    }
    EXPECT_THAT(MessagesOf(results),
                Each(HasSubstr(second ? "the state that rank 0 has sent after "
                                        "step 9 is not the one that it had"
                                      : "the tensors of rank 1 are not those "
                                        "of rank 0")));
  }
}

TEST(RecoveryTest, OfThreeTheOneWithOtherBitsIsReplaced) {
  for (const size_t damaged : {0, 1, 2}) {
    SCOPED_TRACE(damaged);
    Ranks ranks =
        RanksOf(Survivor(9, 0.5), Survivor(9, 0.25), Survivor(9, 0.125));
    const double value = ranks[0]->state.value();
    ranks[damaged]->state.set_value(3.25);
    const Results results = RecoverAll(ranks);
    ExpectOk(results);
    for (size_t rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(ranks[rank]->state.value(), value);
      EXPECT_EQ(results[rank]->copied, rank == damaged);
      EXPECT_EQ(results[rank]->source, damaged == 0 ? 1 : 0);
      EXPECT_THAT(
          results[rank]->warnings,
          ElementsAre(AllOf(HasSubstr(absl::StrCat("rank ", damaged,
                                                   " had other bits than the "
                                                   "other 2 ranks after the "
                                                   "same step 9")))));
    }
  }
}

TEST(RecoveryTest, ADamagedRankDoesNotCountOnceFewerAreLeft) {
  Ranks ranks =
      RanksOf(Survivor(9, 0.5), Survivor(9, 0.25), Survivor(9, 0.125));
  const double value = ranks[2]->state.value();
  ranks[0]->dies_at = kCheck;  // while its state is copied
  ranks[1]->state.set_value(3.25);
  EXPECT_FALSE(RecoverAll(ranks)[1].ok());
  EXPECT_FALSE(ranks[1]->standing.has_state);
  EXPECT_TRUE(ranks[2]->standing.has_state);

  ranks.erase(ranks.begin());
  const Results again = RecoverAll(ranks, 6);
  ExpectOk(again);
  EXPECT_EQ(again[0]->source, 1);
  EXPECT_EQ(ranks[0]->state.value(), value);
}

TEST(RecoveryTest, WithoutAMajorityNoRankIsReplaced) {
  Ranks ranks =
      RanksOf(Survivor(9, 0.5), Survivor(9, 0.25), Survivor(9, 0.125));
  ranks[1]->state.set_value(3.25);
  ranks[2]->state.set_value(3.5);
  for (const auto& result : RecoverAll(ranks)) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  }
}

// Two ranks that have begun generation 5 with copies of step 9, and hold other
// bits than each other after step 10.
Ranks RanksThatDiffer() {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25));
  ExpectOk(RecoverAll(ranks, 5));
  for (const auto& rank : ranks) {
    rank->state.set_mean(7);
    rank->standing.replay.BeforeStep(/*every=*/1, &rank->state, [] {
      return absl::StatusOr<HookState>(HookStateOf(9, 2, "q9"));
    });
    rank->state.set_mean(8);
    rank->state.set_value(10);
    EXPECT_OK(rank->state.Load("after 10", 10));
    rank->standing.trained = 5;
    rank->standing.hook_state = HookStateOf(10, 3, "q10");
    rank->standing.hook_world = 2;
  }
  ranks[1]->state.set_value(10.5);
  return ranks;
}

TEST(RecoveryTest, TwoRanksThatDifferGoBackToWhereTheyDidNot) {
  Ranks ranks = RanksThatDiffer();
  const Results results = RecoverAll(ranks, 6);
  ExpectOk(results);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks[rank]->state.step(), 9);
    EXPECT_EQ(ranks[rank]->state.value(), 0.9);
    EXPECT_EQ(ranks[rank]->state.extra(), "after 9");
    EXPECT_EQ(ranks[rank]->state.mean(), 7);
    EXPECT_EQ(ranks[rank]->standing.trained, 6);
    EXPECT_EQ(results[rank]->step, 9);
    EXPECT_FALSE(results[rank]->copied);
    EXPECT_EQ(ErrorOf(*results[rank]->hook_state), 2);
    EXPECT_EQ(results[rank]->error_scale, 1);
    EXPECT_THAT(results[rank]->warnings,
                ElementsAre(HasSubstr("all go back to step 9")));
  }
}

TEST(RecoveryTest, ARankWhoseCopyIsDamagedTakesOverThatOfAnother) {
  Ranks ranks = RanksThatDiffer();
  auto* const kept =
      const_cast<KeptState*>(ranks[0]->standing.replay.Find({7, 4, 9}));
  ASSERT_NE(kept, nullptr);
  kept->hook_state->tensors[0].data[0] ^= 1;
  const Results results = RecoverAll(ranks, 6);
  ExpectOk(results);
  EXPECT_TRUE(results[0]->copied);
  EXPECT_FALSE(results[1]->copied);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->state.step(), 9);
    EXPECT_EQ(rank->state.value(), 0.9);
  }
  // Its errors are those of step 10.
  EXPECT_EQ(FactorOf(*results[0]->hook_state), "q9");
  EXPECT_EQ(results[0]->error_scale, 0);
  EXPECT_EQ(results[1]->error_scale, 1);
}

TEST(RecoveryTest, ADeathAfterRanksHaveGoneBackLeavesThemThere) {
  Ranks ranks = RanksThatDiffer();
  // After the facts, and what each has kept.
  ranks[1]->dies_at = 2;
  for (const auto& result : RecoverAll(ranks, 6)) EXPECT_FALSE(result.ok());
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->standing.has_state);
    EXPECT_EQ(rank->state.step(), 9);
  }
  ranks[1]->dies_at = -1;
  const Results again = RecoverAll(ranks, 7);
  ExpectOk(again);
  for (const auto& result : again) {
    EXPECT_EQ(result->step, 9);
    EXPECT_THAT(result->warnings,
                ElementsAre(HasSubstr("it is not found out which")));
  }
}

TEST(RecoveryTest, ARankThatHasNotGoneBackTakesOverWhatTheOthersHave) {
  Ranks ranks = RanksThatDiffer();
  const FakeState other = ranks[1]->state;
  ExpectOk(RecoverAll(ranks, 6));
  // As if the facts had not reached rank 1.
  ranks[1]->state = other;
  ranks[1]->standing.trained = 5;
  const Results again = RecoverAll(ranks, 7);
  ExpectOk(again);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->state.step(), 9);
    EXPECT_EQ(rank->state.value(), 0.9);
  }
}

TEST(RecoveryTest, OtherSizesAreRefused) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Newcomer());
  ranks[1]->state.Resize(6);
  const Results results = RecoverAll(ranks);
  // Rank 0 goes on without it.
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessagesOf(results),
              Each(HasSubstr("the tensors of rank 1 have other sizes")));
}

TEST(RecoveryTest, OtherSizesAtTheBeginningAreAnErrorOnAllRanks) {
  Ranks ranks = RanksOf(Newcomer(), Newcomer());
  ranks[1]->state.Resize(6);
  for (const auto& result : RecoverAll(ranks, 1)) {
    EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(RecoveryTest, MoreBytesThanAllowedAreRefusedByAll) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Newcomer());
  for (const auto& rank : ranks) rank->options.max_bytes = 6;
  const Results results = RecoverAll(ranks);
  EXPECT_THAT(MessagesOf(results),
              Each(AllOf(HasSubstr("has 7 bytes"), HasSubstr("max_bytes"))));
}

TEST(RecoveryTest, LargeBytesTravelInPieces) {
  Ranks ranks = RanksOf(Newcomer(), Newcomer());
  std::string large(9 << 20, 'x');
  large.back() = 'y';
  ranks[0]->state = FakeState(3, 1, large);
  ExpectOk(RecoverAll(ranks, 1));
  EXPECT_TRUE(ranks[1]->state.extra() == large);
}

// The source dies when the others have copied, but not reported it yet.
TEST(RecoveryTest, ADeathWhileCopyingLeavesTheOthersAsTheyWere) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(8, 0.25), Newcomer(11));
  ranks[0]->dies_at = kCheck;
  const Results results = RecoverAll(ranks);
  EXPECT_THAT(MessagesOf(results)[0], HasSubstr("the worker was killed"));
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(ranks[1]->standing.has_state);
  EXPECT_EQ(ranks[1]->state.step(), 8);
  EXPECT_EQ(ranks[1]->state.extra(), "after 8");
  EXPECT_EQ(ranks[1]->state.value(), 0.1 * 8);
  EXPECT_FALSE(ranks[2]->standing.has_state);

  ranks.erase(ranks.begin());
  const Results again = RecoverAll(ranks, 6);
  ExpectOk(again);
  EXPECT_EQ(again[0]->source, 0);
  EXPECT_EQ(again[0]->step, 8);
  EXPECT_EQ(again[0]->error_scale, 2.0 / 3);
  EXPECT_EQ(ranks[1]->state.extra(), "after 8");
}

// Of a step, the mean has its number.
std::unique_ptr<Rank> WithMean(std::unique_ptr<Rank> rank) {
  rank->state.set_mean(static_cast<float>(rank->state.step()));
  return rank;
}

void ExpectAllOfOneStep(FakeState& state, int64_t step) {
  EXPECT_EQ(state.step(), step);
  EXPECT_EQ(state.value(), 0.1 * static_cast<double>(step));
  EXPECT_EQ(state.mean(), static_cast<float>(step));
  EXPECT_EQ(state.extra(), step == 0 ? "fresh" : absl::StrCat("after ", step));
}

// Loses the last rank, which is the source, at each of its collectives in turn,
// and lets the others go on: with all of its step 9, or all of `earlier`.
void LoseTheSourceAnywhere(const std::function<Ranks()>& make,
                           int64_t earlier) {
  std::map<int64_t, int> ended;  // by the step that the others went on from
  for (int64_t death = 0;; ++death) {
    SCOPED_TRACE(absl::StrCat("the source does not start collective ", death));
    Ranks ranks = make();
    ranks.back()->dies_at = death;
    if (RecoverAll(ranks).back().ok()) break;
    ranks.pop_back();
    const Results again = RecoverAll(ranks, 6);
    ExpectOk(again);
    const int64_t step = ranks[0]->state.step();
    EXPECT_TRUE(step == 9 || step == earlier) << step;
    for (const auto& rank : ranks) ExpectAllOfOneStep(rank->state, step);
    ++ended[step];
  }
  EXPECT_GE(ended[earlier], 5) << "facts, tensors, bytes, check, loose tensors";
  EXPECT_GE(ended[9], 1) << "the hook's state";
}

TEST(RecoveryTest, WhereverTheSourceDiesNoRankHoldsHalfOfItsState) {
  LoseTheSourceAnywhere(
      [] {
        return RanksOf(WithMean(Newcomer()), WithMean(Survivor(8, 0.25)),
                       WithMean(Survivor(9, 0.5)));
      },
      8);
}

TEST(RecoveryTest, NewcomersThatAreLeftAloneDoNotBeginWithHalfAState) {
  LoseTheSourceAnywhere(
      [] {
        return RanksOf(WithMean(Newcomer()), WithMean(Newcomer()),
                       WithMean(Survivor(9, 0.5)));
      },
      0);
}

// What is too large to travel with the rest is written in place.
TEST(RecoveryTest, ARankInStepKeepsItsOwnBuffersOrGetsAllOfThem) {
  const size_t large = 7 << 20;
  for (int64_t death = 0;; ++death) {
    SCOPED_TRACE(absl::StrCat("the source does not start collective ", death));
    Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25));
    for (size_t i = 0; i < 2; ++i) {
      const auto mean = static_cast<float>(1 + i);
      ranks[i]->state.set_mean(mean);
      ranks[i]->state.more_means.assign(large, mean);
      ranks[i]->state.loose = absl::StrCat("seen ", mean);
    }
    ranks[0]->dies_at = death;
    const Results results = RecoverAll(ranks);
    const FakeState& state = ranks[1]->state;
    EXPECT_TRUE(ranks[1]->standing.has_state);
    EXPECT_EQ(state.mean(), results[1].ok() ? 1 : 2);
    EXPECT_EQ(state.more_means[0], state.mean());
    EXPECT_EQ(state.loose, absl::StrCat("seen ", state.mean()));
    if (results[0].ok()) break;
  }
}

TEST(RecoveryTest, ARankThatCannotGoBackToItsOwnStateEnds) {
  Ranks ranks = RanksOf(Newcomer(), Newcomer(), Survivor(9, 0.5));
  ranks[0]->state.refuse_load = "fresh";
  ranks[2]->dies_at = 3;
  const Results results = RecoverAll(ranks);
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      MessagesOf(results)[0],
      AllOf(HasSubstr("rank 0, going back to its own state"),
            HasSubstr("no room for it"), HasSubstr("start this worker again")));
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(ranks[0]->standing.has_state);
}

TEST(RecoveryTest, ARankThatCannotLoadTheCopyIsNamedAndTheOthersContinue) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25), Newcomer());
  ranks[2]->state.refuse_load = "after 9";
  const Results results = RecoverAll(ranks);
  EXPECT_THAT(MessagesOf(results)[2],
              HasSubstr("rank 2, loading the copied state: no room for it"));
  EXPECT_FALSE(results[0].ok());
  EXPECT_FALSE(ranks[2]->standing.has_state);
  ranks.pop_back();
  ExpectOk(RecoverAll(ranks, 6));
}

TEST(RecoveryTest, AnExceptionOfTheStateIsAnErrorThatNoPeerWaitsFor) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25));
  ranks[1]->state.throw_in_save = true;
  const Results results = RecoverAll(ranks);
  EXPECT_EQ(results[1].status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(MessagesOf(results)[1],
              AllOf(HasSubstr("rank 1, recovering its state"),
                    HasSubstr("no memory of the framework's")));
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kUnavailable);
  ranks[1]->state.throw_in_save = false;
  ExpectOk(RecoverAll(ranks, 6));
}

TEST(RecoveryTest, ARankWhoseStateThrowsHasWhatItHad) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25), Newcomer(2));
  ranks[2]->state.throw_in_load = "after 9";
  const Results results = RecoverAll(ranks);
  EXPECT_THAT(MessagesOf(results)[2], HasSubstr("no tensor for it"));
  EXPECT_FALSE(results[0].ok());
  EXPECT_EQ(ranks[2]->state.value(), 2);
  EXPECT_FALSE(ranks[2]->standing.has_state);
}

TEST(RecoveryTest, ANewcomerThatThrowsInGoingBackEnds) {
  Ranks ranks = RanksOf(CaughtUpAt(10), Survivor(9, 0.25));
  ranks[0]->catch_up->throws = true;
  const Results results = RecoverAll(ranks);
  EXPECT_EQ(results[0].status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(MessagesOf(results)[0],
              AllOf(HasSubstr("no tensor to go back to"),
                    HasSubstr("start this worker again")));
  EXPECT_FALSE(results[1].ok());
}

TEST(RecoveryTest, AJobWithoutAnyWholeStateDoesNotBeginAgainSilently) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Newcomer());
  ranks[0]->standing.has_state = false;
  const Results results = RecoverAll(ranks);
  EXPECT_THAT(MessagesOf(results),
              Each(AllOf(HasSubstr("rank 0 has trained before"),
                         HasSubstr("from a checkpoint"))));
}

// With sync_each_batch a hook's steps are parts of an optimizer step.
TEST(RecoveryTest, AllTakeTheHookStateThatIsFarthest) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25));
  ranks[1]->standing.hook_state = HookStateOf(31, 0.25, "later");
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  EXPECT_EQ(results[0]->source, -1);
  EXPECT_EQ(FactorOf(*results[0]->hook_state), "later");
  EXPECT_EQ(results[0]->hook_state->step, 31);
  EXPECT_EQ(ErrorOf(*results[0]->hook_state), 0.5);
}

TEST(RecoveryTest, ErrorsOfAnotherHookAreDropped) {
  Ranks ranks = RanksOf(Survivor(9, 0.5), Survivor(9, 0.25));
  ranks[1]->standing.hook_state->spec = "int8";
  const Results results = RecoverAll(ranks);
  ExpectOk(results);
  EXPECT_EQ(results[1]->hook_state->spec, "powersgd");
  EXPECT_EQ(results[1]->error_scale, 0);
  EXPECT_EQ(results[0]->error_scale, 2.0 / 3);
}

}  // namespace
}  // namespace coxswain::recovery_test
