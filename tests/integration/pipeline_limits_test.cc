// What a pipeline's job is refused for unless it asks for it, and what becomes
// of it then; and scaled losses.

#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/torch/tensor/initial_values.h"
#include "client/torch/tensor/parallel_linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"
#include "tests/integration/pipeline_ranks.h"

namespace coxswain::torch::pipeline_limits_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- plain programs ----

// Its ranks would each train the whole model, and two of them on one part of
// the data.
TEST(PipelineLimitsTest, AProgramWithoutStagesIsRefusedWhereThePlanHasSome) {
  const PipelineProgram program = Mlp(4, ::torch::kFloat32);
  const auto ends = PipelineJob().Run(
      4, [&](int) { return program; },
      [&](Pipeline& pipeline, Session& session, PipelineEnd*) -> absl::Status {
        DistributedDataParallelOptions options;
        const auto refused = StatusIs(
            absl::StatusCode::kFailedPrecondition,
            AllOf(HasSubstr("the plan has pipeline=1f1b"),
                  HasSubstr("have one data index"), HasSubstr("a Pipeline")));
        EXPECT_THAT(FollowSession(session, &options), refused);
        options = DistributedDataParallelOptions();
        options.plan = session.plan();
        EXPECT_THAT(DistributedDataParallel::Create(
                        pipeline.module(), &pipeline.ddp().communicator(),
                        MakePlannedHook(session.plan()).value(), options)
                        .status(),
                    refused);
        options = DistributedDataParallelOptions();
        options.runs_pipeline = true;
        EXPECT_OK(FollowSession(session, &options));
        return absl::OkStatus();
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
}

// ---- zero ----

std::string RefusalOf(const PipelineProgram& program, absl::StatusCode code) {
  const auto manifest = DescribeJob(program.model, program.options);
  EXPECT_EQ(manifest.status().code(), code);
  return std::string(manifest.status().message());
}

// Each block has a matrix of 12 x 12 and three vectors: 180 float32.
TEST(PipelineLimitsTest, SlicesOfGradientsAreRefusedWithTheirBytes) {
  PipelineProgram program = Mlp(4, ::torch::kFloat32);
  program.options.ddp.zero = 2;
  program.options.stages = "0,1-3";
  program.options.mesh = "pp=2,dp=4";
  EXPECT_THAT(
      RefusalOf(program, absl::StatusCode::kInvalidArgument),
      AllOf(HasSubstr("pp 1 holds 2160 bytes of them with zero=1"),
            HasSubstr("a slice of 540 bytes and up to 2160 bytes of buckets"),
            HasSubstr("each of 4 micro-batches in place of their sum would "
                      "send 3 x 1620 bytes more a step"),
            HasSubstr("PipelineOptions::force_zero")));
  program.options.mesh = "pp=2,dp=*";
  EXPECT_THAT(RefusalOf(program, absl::StatusCode::kInvalidArgument),
              HasSubstr("3 x nearly 2160 bytes"));
  program.options.force_zero = true;
  EXPECT_OK(DescribeJob(program.model, program.options));
}

TEST(PipelineLimitsTest, SlicesOfParametersAreNotThere) {
  PipelineProgram program = Mlp(4, ::torch::kFloat32);
  program.options.ddp.zero = 3;
  program.options.force_zero = true;
  EXPECT_THAT(RefusalOf(program, absl::StatusCode::kUnimplemented),
              HasSubstr("pp and tp divide"));
}

// Also of tied parameters, and of the norm by which gradients are clipped.
TEST(PipelineLimitsTest, ForcedSlicesOfGradientsComeToTheSame) {
  for (const std::string pipeline : {"1f1b", "interleaved", "zb_h1"}) {
    SCOPED_TRACE(pipeline);
    PipelineProgram program = TiedTokens();
    program.options.ddp.terms.pipeline = pipeline;
    program.options.ddp.terms.commit_vote = true;
    program.options.ddp.reducer.max_norm = 0.05;
    program.options.ddp.zero = 1;
    const auto expected = PipelineJob().Train(4, program, 5);
    program.options.ddp.zero = 2;
    program.options.force_zero = true;
    const auto ends = PipelineJob().Train(4, program, 5);
    ASSERT_EQ(ends.size(), expected.size());
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      EXPECT_EQ(ends[rank].losses, expected[rank].losses);
      EXPECT_FALSE(ends[rank].values.empty());
      for (const auto& [name, value] : expected[rank].values) {
        EXPECT_TRUE(value.equal(ends[rank].values.at(name))) << name;
      }
    }
  }
}

// ---- hosts ----

PipelineProgram Divided() {
  PipelineProgram program = Mlp(2, ::torch::kFloat32);
  program.model.layers = {
      MeshLayerOf(
          "up",
          [](const LayerContext& context) {
            return ColumnParallelLinear::Create(context.parallel, {12, 24});
          }),
      MeshLayerOf("down", [](const LayerContext& context) {
        return RowParallelLinear::Create(context.parallel, {24, 12});
      })};
  program.model.initial_values = UsualInitialValues;
  return program;
}

// The host of each rank is what it says when it joins; all are one here.
std::vector<PipelineEnd> OnHosts(const PipelineProgram& program,
                                 const std::vector<std::string>& hosts) {
  return PipelineJob().Run(
      static_cast<int>(hosts.size()),
      [&](int rank) {
        PipelineProgram own = program;
        own.before_join =
            [host = hosts[static_cast<size_t>(rank)]](SessionOptions& options) {
              options.host = host;
              // Of another host's one that is no loopback is expected.
              options.address = "0.0.0.0";
            };
        return own;
      },
      PipelineJob::Steps(program, 1));
}

// Each rank finds it by itself, or hears of it from the first that has left.
TEST(PipelineLimitsTest, ATensorGroupThatSpansHostsIsRefusedOnAllRanks) {
  PipelineProgram program = Divided();
  program.options.mesh = "dp=2,tp=2";
  const auto ends = OnHosts(program, {"host-a", "host-b", "host-b", "host-b"});
  int found = 0;
  for (const PipelineEnd& end : ends) {
    if (absl::IsFailedPrecondition(end.status)) {
      ++found;
    } else {
      EXPECT_TRUE(absl::IsAborted(end.status)) << end.status;
    }
    EXPECT_THAT(end.status.message(),
                AllOf(HasSubstr("tp=2 spans hosts: 1 of 2 groups, the first "
                                "of ranks 0, 1 on host-a, host-b; start a "
                                "multiple of 2 workers on each host"),
                      HasSubstr("sends 96 bytes for each token")));
  }
  EXPECT_GE(found, 1);
}

TEST(PipelineLimitsTest, ATensorGroupMaySpanHostsIfItIsLetTo) {
  PipelineProgram program = Divided();
  program.options.mesh = "dp=1,tp=2";
  program.options.tp_across_hosts = true;
  for (const PipelineEnd& end : OnHosts(program, {"host-a", "host-b"})) {
    EXPECT_OK(end.status);
  }
}

TEST(PipelineLimitsTest, StagesAndReplicasMaySpanHosts) {
  PipelineProgram program = Divided();
  program.options.mesh = "pp=2,dp=1,tp=2";
  const auto ends = OnHosts(program, {"host-a", "host-a", "host-b", "host-b"});
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
}

// ---- scaled losses ----

PipelineProgram Scaled(const LossScaling& scaling) {
  PipelineProgram program = Mlp(4, ::torch::kFloat32);
  program.options.ddp.skip_non_finite = true;
  program.options.ddp.terms.commit_vote = true;
  program.options.loss_scaling = scaling;
  return program;
}

TEST(PipelineLimitsTest, ScaledLossesComeToTheSameBits) {
  for (const int zero : {0, 1}) {
    SCOPED_TRACE(zero);
    PipelineProgram program = Scaled({});
    program.options.ddp.zero = zero;
    const auto ends = PipelineJob().Train(4, program, 4);
    program.options.loss_scaling.reset();
    const auto expected = PipelineJob().Train(4, program, 4);
    for (size_t rank = 0; rank < ends.size(); ++rank) {
      EXPECT_EQ(ends[rank].losses, expected[rank].losses);
      for (const auto& [name, value] : expected[rank].values) {
        EXPECT_TRUE(value.equal(ends[rank].values.at(name))) << name;
      }
    }
  }
}

// Of one rank's targets in one step, whose true gradients are in range.
TEST(PipelineLimitsTest, AnOverflowOnOneRankHalvesTheScaleOnAll) {
  LossScaling scaling;
  scaling.initial = 1 << 20;
  scaling.growth_every = 3;
  PipelineProgram program = Scaled(scaling);
  program.data = [data = program.data](int data_index, int64_t number) {
    PipelineBatch batch = data(data_index, number);
    // The second step's, of four micro-batches each.
    if (data_index == 1 && number == 6) batch.targets[0] *= 1e34;
    return batch;
  };
  const auto ends = PipelineJob().Run(
      4, [&](int) { return program; },
      [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
        std::vector<double> scales;
        std::vector<bool> stepped;
        for (int step = 0; step < 6; ++step) {
          COXSWAIN_ASSIGN_OR_RETURN(
              const PipelineResult result,
              PipelineJob::Step(pipeline, program, 0, end));
          stepped.push_back(result.stepped);
          scales.push_back(pipeline.loss_scale()->scale());
        }
        const double m = 1 << 20;
        EXPECT_THAT(stepped, ::testing::ElementsAre(true, false, true, true,
                                                    true, true));
        EXPECT_THAT(scales,
                    ::testing::ElementsAre(m, m / 2, m / 2, m / 2, m, m));
        // As from a checkpoint.
        const std::string saved = pipeline.loss_scale()->Save();
        COXSWAIN_RETURN_IF_ERROR(pipeline.LoadLossScale("8 2"));
        EXPECT_EQ(pipeline.loss_scale()->scale(), 8);
        COXSWAIN_RETURN_IF_ERROR(
            PipelineJob::Step(pipeline, program, 0, end).status());
        EXPECT_EQ(pipeline.loss_scale()->scale(), 16);
        return pipeline.LoadLossScale(saved);
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  // No rank has taken over what the others have not.
  EXPECT_TRUE(
      ends[0].values.begin()->second.equal(ends[1].values.begin()->second));
}

TEST(PipelineLimitsTest, AScaleNeedsThatOverflowsAreSkipped) {
  PipelineProgram program = Scaled({});
  program.options.ddp.skip_non_finite = false;
  EXPECT_THAT(RefusalOf(program, absl::StatusCode::kInvalidArgument),
              HasSubstr("loss_scaling without skip_non_finite"));
  program.options.ddp.skip_non_finite = true;
  program.options.loss_scaling->initial = 0;
  EXPECT_THAT(RefusalOf(program, absl::StatusCode::kInvalidArgument),
              HasSubstr("loss_scaling.initial is 0"));
}

}  // namespace
}  // namespace coxswain::torch::pipeline_limits_test
