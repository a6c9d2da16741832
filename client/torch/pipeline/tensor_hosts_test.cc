#include "client/torch/pipeline/tensor_hosts.h"

#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/parallel_linear.h"
#include "client/torch/tensor/vocab_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::torch::tensor_hosts_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Mesh MeshOf(const std::string& text) { return Mesh::Parse(text).value(); }

absl::Status Check(const std::string& mesh,
                   const std::vector<std::string>& hosts) {
  return CheckTensorHosts(
      MeshOf(mesh), hosts, [](int pp) -> absl::StatusOr<TensorTraffic> {
        return TensorTraffic{/*layers=*/3, /*summed_bytes=*/1200 + pp};
      });
}

TEST(TensorHostsTest, GroupsOnOneHostEachArePassed) {
  EXPECT_OK(Check("dp=2,tp=2", {"a", "a", "b", "b"}));
  EXPECT_OK(Check("tp=2", {"a", "a"}));
  // Replicas and stages may be anywhere.
  EXPECT_OK(Check("pp=2,dp=2", {"a", "b", "c", "d"}));
}

TEST(TensorHostsTest, ARefusalNamesHostsRanksBytesAndAnotherStart) {
  const std::vector<std::string> hosts = {"a", "a", "a", "b",
                                          "b", "b", "b", "b"};
  EXPECT_THAT(
      Check("pp=2,dp=2,tp=2", hosts),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(StartsWith("tp=2 spans hosts: 1 of 4 groups, the first of "
                                "ranks 2, 3 on a, b; start a multiple of 2 "
                                "workers on each host"),
                     HasSubstr("sends 1200 bytes for each token of a "
                               "micro-batch, forward and backward: 2 x 1/2 of "
                               "the 1200 bytes that the 3 divided layers of "
                               "pp 0 sum up"),
                     HasSubstr("PipelineOptions::tp_across_hosts"))));
}

TEST(TensorHostsTest, TheBytesAreThoseOfTheFirstSuchGroupsStage) {
  const std::vector<std::string> hosts = {"a", "a", "a", "a", "a", "a",
                                          "b", "b", "b", "b", "b", "b"};
  EXPECT_OK(Check("pp=2,tp=6", hosts));
  EXPECT_THAT(Check("pp=3,tp=4", hosts),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("sends 1801 bytes for each token of a "
                                 "micro-batch, forward and backward: 2 x 3/4 "
                                 "of the 1201 bytes that the 3 divided layers "
                                 "of pp 1")));
}

// Four ranks are nowhere together.
TEST(TensorHostsTest, WhereNoHostHoldsAGroupTheMeshIsToChange) {
  EXPECT_THAT(Check("tp=4", {"a", "a", "b", "b"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("no host has more than 2 workers: start "
                                       "4 on each, or make tp at most 2"),
                             Not(HasSubstr("pp 0")))));
  EXPECT_THAT(Check("shard=2,tp=2", {"a", "b", "c", "d"}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("tp=2 spans hosts: 2 of 2 groups")));
}

// Features of the embedding, of the first one's inputs and of the second one's
// outputs, in float32.
TEST(TensorHostsTest, TrafficIsWhatTheDividedLayersOfTheStagesSumUp) {
  PipelineModel model;
  model.seed = 1;
  model.initial_values = UsualInitialValues;
  model.layers = {
      MeshLayerOf("embedding",
                  [](const LayerContext& context) {
                    return VocabParallelEmbedding::Create(context.parallel, 11,
                                                          24);
                  }),
      MeshLayerOf(
          "up",
          [](const LayerContext& context) {
            return ColumnParallelLinear::Create(context.parallel, {24, 96});
          }),
      MeshLayerOf(
          "down",
          [](const LayerContext& context) {
            return RowParallelLinear::Create(context.parallel, {96, 32});
          }),
      LayerOf("whole",
              [] { return std::make_shared<::torch::nn::LinearImpl>(32, 4); })};
  ASSERT_OK_AND_ASSIGN(const pipeline::StageCut cut,
                       pipeline::StageCut::Parse("0,1-3", 4, 2));
  ASSERT_OK_AND_ASSIGN(const TensorTraffic first,
                       TrafficOf(model, cut, {0}, /*tp=*/4));
  EXPECT_EQ(first.layers, 1);
  EXPECT_EQ(first.summed_bytes, 24 * 4);
  ASSERT_OK_AND_ASSIGN(const TensorTraffic both,
                       TrafficOf(model, cut, {0, 1}, /*tp=*/4));
  EXPECT_EQ(both.layers, 3);
  EXPECT_EQ(both.summed_bytes, (24 + 24 + 32) * 4);
}

}  // namespace
}  // namespace coxswain::torch::tensor_hosts_test
