#include "schedule/memory/rank_memory.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::memory::rank_memory_test {
namespace {

using ::testing::HasSubstr;

// Each of a matrix of 1000 elements and a vector of 10.
Model Layers(int count) {
  return ParseModel(absl::StrCat(R"({"input": 7, "layers": [{"repeat": )",
                                 count, R"(, "parameters": [1000, 10],
        "activations": 300, "output": 40, "working": 5}]})"))
      .value();
}

Configuration On(const std::string& mesh, int zero) {
  Configuration configuration;
  configuration.mesh = Mesh::Parse(mesh).value();
  configuration.zero = zero;
  return configuration;
}

Estimate Of(const Model& model, const Configuration& configuration) {
  auto estimate = EstimateMemory(model, configuration);
  EXPECT_OK(estimate);
  return *std::move(estimate);
}

std::string ErrorOf(const Configuration& configuration) {
  const auto estimate = EstimateMemory(Layers(2), configuration);
  EXPECT_FALSE(estimate.ok());
  return std::string(estimate.status().message());
}

// The figure of the ZeRO paper, in float32: 16, 8 + 8 / N and 4 + 12 / N.
TEST(RankMemoryTest, ZeroDividesWhatRanksShare) {
  const Model model = Layers(100);
  constexpr int64_t kElements = 101000;
  Configuration view = On("dp=4", 0);
  view.gradient_as_bucket_view = true;
  const RankMemory none = Of(model, view).by_pp[0];
  EXPECT_EQ(none.parameters + none.gradients + none.buckets + none.optimizer,
            16 * kElements);
  const RankMemory one = Of(model, On("shard=4", 1)).by_pp[0];
  EXPECT_EQ(one.parameters + one.gradients + one.buckets + one.optimizer,
            10 * kElements);
  Configuration two = On("shard=4", 2);
  two.bucket_bytes = 4000;
  const RankMemory sliced = Of(model, two).by_pp[0];
  EXPECT_EQ(sliced.parameters + sliced.gradients + sliced.optimizer,
            7 * kElements);
  EXPECT_EQ(sliced.buckets, 3 * 4000);
}

TEST(RankMemoryTest, HybridRanksShareWithinAShardGroup) {
  const Estimate estimate = Of(Layers(4), On("dp=2,shard=2", 1));
  EXPECT_EQ(estimate.sharers, 2);
  EXPECT_EQ(estimate.by_pp[0].optimizer, 4 * 1010 * 8 / 2);
  EXPECT_EQ(Of(Layers(4), On("dp=4", 1)).sharers, 4);
  EXPECT_EQ(Of(Layers(4), On("dp=4", 0)).sharers, 1);
}

// docs/parallelism.md, "Memory of accumulation".
TEST(RankMemoryTest, AWindowsSumsLieWhereTheTableHasThem) {
  const Model model = Layers(100);
  constexpr int64_t kGradients = 101000 * 4;
  const auto gradients = [&](int zero, bool each) {
    Configuration configuration = On("shard=4", zero);
    configuration.gradient_as_bucket_view = true;
    configuration.accumulation = 3;
    configuration.sync_each_batch = each;
    const RankMemory rank = Of(model, configuration).by_pp[0];
    return rank.gradients + (zero < 2 ? rank.buckets : 0);
  };
  EXPECT_EQ(gradients(0, false), kGradients);
  EXPECT_EQ(gradients(0, true), 2 * kGradients);
  EXPECT_EQ(gradients(1, false), kGradients);
  EXPECT_EQ(gradients(1, true), kGradients + kGradients / 4);
  EXPECT_EQ(gradients(2, false), kGradients + kGradients / 4);
  EXPECT_EQ(gradients(2, true), kGradients / 4);
}

// By the table of docs/parallelism.md, "Pipelines".
TEST(RankMemoryTest, AStageKeepsWhatItsScheduleHasUnderWay) {
  const auto activations = [](const std::string& pipeline, int pp) {
    Configuration configuration = On("pp=4", 0);
    configuration.pipeline = pipeline;
    configuration.accumulation = 8;
    configuration.gradient_as_bucket_view = true;
    configuration.optimizer = "sgd";
    // Eight layers of 300 bytes on four ranks.
    const RankMemory rank =
        Of(Layers(8), configuration).by_pp[static_cast<size_t>(pp)];
    return rank.activations - (pp == 0 ? 8 * 7 : 0);
  };
  for (int pp = 0; pp < 4; ++pp) {
    EXPECT_EQ(activations("1f1b", pp), (4 - pp) * 2 * 300) << pp;
    EXPECT_EQ(activations("gpipe", pp), 8 * 2 * 300) << pp;
    EXPECT_EQ(activations("interleaved(chunks=2)", pp),
              (2 * (3 - pp) + 4 + 1) * 300)
        << pp;
  }
}

TEST(RankMemoryTest, NamesTheStagesAndTheLargestRank) {
  Configuration configuration = On("pp=2,dp=3", 0);
  configuration.pipeline = "interleaved(chunks=2)";
  configuration.stages = "0,1,2,3-7";
  configuration.accumulation = 4;
  const Estimate estimate = Of(Layers(8), configuration);
  EXPECT_EQ(estimate.ranks, 6);
  EXPECT_EQ(estimate.ranks_of_each, 3);
  EXPECT_EQ(estimate.by_pp[0].stages, "0,2");
  EXPECT_EQ(estimate.by_pp[1].layers, "1,3-7");
  EXPECT_EQ(estimate.by_pp[1].elements, 6 * 1010);
  EXPECT_EQ(estimate.largest, 1);
}

// An input that is kept for each micro-batch under way, four rings of 4 MiB
// with messages that wait: two each way, and two gradients to be sent.
TEST(RankMemoryTest, StagesHoldMessages) {
  Configuration configuration = On("pp=2", 0);
  configuration.accumulation = 4;
  configuration.optimizer = "sgd";
  const Estimate estimate = Of(Layers(8), configuration);
  EXPECT_EQ(estimate.by_pp[0].messages, (8 << 20) + 2 * 40);
  EXPECT_EQ(estimate.by_pp[1].messages, (8 << 20) + 4 * 40 + 40);
}

TEST(RankMemoryTest, OffloadMovesTheStateToTheHost) {
  Configuration configuration = On("shard=4", 1);
  configuration.offload = true;
  configuration.bucket_bytes = 4000;
  const RankMemory rank = Of(Layers(100), configuration).by_pp[0];
  EXPECT_EQ(rank.optimizer, 0);
  EXPECT_EQ(rank.host, 12 * 101000 / 4 + 4 * 1000);
}

TEST(RankMemoryTest, WithFewActivationsTheStepNeedsTheMost) {
  const RankMemory rank = Of(Layers(1), On("dp=2", 1)).by_pp[0];
  EXPECT_FALSE(rank.in_step);  // the gradient of the matrix is larger
  Configuration alone = On("dp=1", 0);
  alone.gradient_as_bucket_view = true;
  const RankMemory step = Of(Layers(1), alone).by_pp[0];
  EXPECT_TRUE(step.in_step);
  EXPECT_EQ(step.working, 2 * 1000 * 4);  // Adam's
}

// Of 7 heads of 10 elements, 11 rows of 4, and a vector; in float32.
Model Divided() {
  return ParseModel(R"({"layers": [{"repeat": 2, "parameters": [
      {"shape": [70], "tp": 0, "unit": 10}, {"shape": [11, 4], "tp": 0}, 5],
      "activations": {"whole": 100, "tp": 9, "sequence": 1000},
      "output": {"sequence": 40}, "working": {"tp": 8}}]})")
      .value();
}

TEST(RankMemoryTest, ARankHasItsPartOfWhatTpDivides) {
  Configuration configuration = On("dp=2,tp=3", 0);
  configuration.optimizer = "sgd";
  configuration.gradient_as_bucket_view = true;
  const Estimate estimate = Of(Divided(), configuration);
  EXPECT_EQ(estimate.pipeline, "1f1b");
  EXPECT_EQ(estimate.ranks_of_each, 2);
  // Heads: 3, 2, 2; rows: 4, 4, 3.
  ASSERT_EQ(estimate.by_pp.size(), 3);
  const std::vector<int64_t> elements = {2 * (30 + 16 + 5), 2 * (20 + 16 + 5),
                                         2 * (20 + 12 + 5)};
  for (int tp = 0; tp < 3; ++tp) {
    const RankMemory& rank = estimate.Of(0, tp);
    EXPECT_EQ(rank.tp, tp);
    EXPECT_EQ(rank.tp_ranks, 1);
    EXPECT_EQ(rank.elements, elements[static_cast<size_t>(tp)]);
    EXPECT_EQ(rank.parameters, 4 * rank.elements);
    EXPECT_EQ(rank.activations, 2 * (100 + 3 + 1000));
  }
  EXPECT_EQ(estimate.largest, 0);
  configuration.sequence = true;
  EXPECT_EQ(Of(Divided(), configuration).by_pp[0].activations,
            2 * (100 + 3 + 334));
}

TEST(RankMemoryTest, RanksAlongTpThatAreAlikeAreOne) {
  const Model model = ParseModel(R"({"layers": [{"parameters": [
      {"shape": [10, 3], "tp": 0}]}]})")
                          .value();
  const Estimate even = Of(model, On("pp=1,tp=5", 0));
  ASSERT_EQ(even.by_pp.size(), 1);
  EXPECT_EQ(even.by_pp[0].tp_ranks, 5);
  const Estimate uneven = Of(model, On("pp=1,tp=4", 0));
  ASSERT_EQ(uneven.by_pp.size(), 2);
  EXPECT_EQ(uneven.by_pp[0].tp_ranks, 2);
  EXPECT_EQ(&uneven.Of(0, 1), &uneven.by_pp[0]);
  EXPECT_EQ(&uneven.Of(0, 3), &uneven.by_pp[1]);
  EXPECT_EQ(uneven.Of(0, 3).elements, 6);
  EXPECT_THAT(EstimateMemory(model, On("tp=11", 0)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a parameter of 10 parts, which cannot be "
                                 "divided among 11 ranks")));
}

// The sums of a window, a slice, and buckets.
TEST(RankMemoryTest, ForcedSlicesOfGradientsSaveNothing) {
  const Model model = Layers(100);
  Configuration configuration = On("pp=2,dp=4", 1);
  configuration.accumulation = 8;
  configuration.bucket_bytes = 4000;
  const RankMemory one = Of(model, configuration).by_pp[0];
  configuration.zero = 2;
  EXPECT_THAT(ErrorOf(configuration),
              HasSubstr("a slice of 1010 bytes and up to 4040 bytes"));
  configuration.force_zero = true;
  const RankMemory two = Of(model, configuration).by_pp[0];
  EXPECT_EQ(two.optimizer, one.optimizer);
  EXPECT_EQ(two.gradients + two.buckets,
            one.buckets + one.buckets / 4 + 3 * 4000);
}

TEST(RankMemoryTest, RefusesWhatCannotBeTrained) {
  EXPECT_THAT(ErrorOf(On("tp=2", 0)), HasSubstr("says how tp divides it"));
  EXPECT_THAT(ErrorOf(On("dp=2", 3)),
              HasSubstr("parameters stay whole on each rank"));
  EXPECT_THAT(ErrorOf(On("pp=2", 2)), HasSubstr("zero=2 with a pipeline"));
  EXPECT_THAT(ErrorOf(On("dp=*", 0)), HasSubstr("leaves a size open"));
  EXPECT_THAT(ErrorOf(On("pp=4", 0)), HasSubstr("does not make 4 stages"));
  Configuration configuration = On("dp=2", 0);
  configuration.offload = true;
  EXPECT_THAT(ErrorOf(configuration), HasSubstr("zero=0 shards none"));
  configuration = On("dp=2", 0);
  configuration.optimizer = "lbfgs";
  EXPECT_THAT(ErrorOf(configuration), HasSubstr("no optimizer \"lbfgs\""));
  configuration = On("dp=2", 0);
  configuration.sequence = true;
  EXPECT_THAT(ErrorOf(configuration), HasSubstr("sequence divides"));
  configuration = On("pp=2", 0);
  configuration.sync_each_batch = true;
  EXPECT_THAT(ErrorOf(configuration), HasSubstr("sync_each_batch"));
}

}  // namespace
}  // namespace coxswain::memory::rank_memory_test
