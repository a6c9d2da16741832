// Pipelines come to what one process does, whatever their schedule, cut, data
// and plan.

#include <torch/nn/modules/dropout.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/pipeline_ranks.h"

namespace coxswain::torch::pipeline_training_test {
namespace {

using ::torch::Tensor;

constexpr int kSteps = 10;
constexpr double kExact = 1e-12;
constexpr double kBits = 0;

// So many steps of so many micro-batches on each of so many data indices.
Windows Even(int steps, int micro_batches, int data_ranks = 1) {
  return Windows(
      static_cast<size_t>(steps),
      std::vector<int>(static_cast<size_t>(data_ranks), micro_batches));
}

void ExpectLosses(const std::vector<double>& losses,
                  const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], tolerance * std::abs(expected[i]))
        << "loss " << i;
  }
}

struct Case {
  std::string pipeline;
  std::string stages;
};
std::string NameOf(const testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char c : info.param.pipeline) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) name.push_back(c);
  }
  return name;
}

class BitsTest : public testing::TestWithParam<Case> {};

TEST_P(BitsTest, AreThoseOfAccumulationInOneProcess) {
  for (const int micro_batches : {4, 3}) {
    PipelineProgram program = Mlp(6, ::torch::kFloat32);
    program.options.ddp.terms.pipeline = GetParam().pipeline;
    program.options.ddp.accumulation_steps = micro_batches;
    program.options.stages = GetParam().stages;
    const auto ends = PipelineJob().Train(2, program, kSteps);
    const OneProcess alone = InOneProcess(program, Even(kSteps, micro_batches));
    ExpectValues(ends, alone.values, kBits);
    EXPECT_EQ(ends[1].losses, alone.losses);
    EXPECT_TRUE(ends[0].losses.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, BitsTest,
    testing::Values(Case{"1f1b", "0-1,2-5"}, Case{"gpipe(order=fifo)", ""},
                    Case{"interleaved(chunks=2)", "parameters"}),
    NameOf);

class ClosenessTest : public testing::TestWithParam<Case> {};

TEST_P(ClosenessTest, IsToAccumulationInOneProcess) {
  PipelineProgram program = Mlp(6, ::torch::kFloat64);
  program.options.ddp.terms.pipeline = GetParam().pipeline;
  const auto ends = PipelineJob().Train(2, program, kSteps);
  const OneProcess alone = InOneProcess(program, Even(kSteps, 4));
  ExpectValues(ends, alone.values, kExact);
  ExpectLosses(ends[1].losses, alone.losses, kExact);
}

INSTANTIATE_TEST_SUITE_P(Schedules, ClosenessTest,
                         testing::Values(Case{"gpipe", ""}, Case{"zb_h1", ""}),
                         NameOf);

TEST(PipelineTrainingTest, OneRankRunsAllStages) {
  PipelineProgram program = Mlp(4, ::torch::kFloat32);
  program.options.mesh = "";
  const auto ends = PipelineJob().Train(1, program, 3);
  ExpectValues(ends, InOneProcess(program, Even(3, 4)).values, kBits);
}

TEST(PipelineTrainingTest, TiedWeightsAreOneOnSeveralRanks) {
  for (const std::string pipeline : {"1f1b", "zb_h1"}) {
    PipelineProgram program = TiedTokens();
    program.options.ddp.terms.pipeline = pipeline;
    const auto ends = PipelineJob().Train(2, program, kSteps);
    const OneProcess alone = InOneProcess(TiedTokensByHand(), Even(kSteps, 4));
    ExpectValues(ends, alone.values, kExact);
    ExpectLosses(ends[1].losses, alone.losses, kExact);
    EXPECT_TRUE(::torch::equal(ends[0].values.at("embedding.weight"),
                               ends[1].values.at("head.weight")));
  }
}

// One of the first and the last of three stages, and one of neighbours.
TEST(PipelineTrainingTest, TiesMayBeAcrossStages) {
  PipelineProgram program = TiedTokens();
  program.model.ties.push_back({"first.linear.weight", "second.linear.weight"});
  program.options.mesh = "pp=3,dp=*";
  program.options.stages = "0,1,2-3";
  const auto ends = PipelineJob().Train(3, program, kSteps);
  const OneProcess alone = InOneProcess(program, Even(kSteps, 4));
  ExpectValues(ends, alone.values, kExact);
  ExpectLosses(ends[2].losses, alone.losses, kExact);
  EXPECT_TRUE(::torch::equal(ends[0].values.at("embedding.weight"),
                             ends[2].values.at("head.weight")));
  EXPECT_TRUE(::torch::equal(ends[1].values.at("first.linear.weight"),
                             ends[2].values.at("second.linear.weight")));
}

// A hook draws by a parameter's name, also where there are no replicas.
TEST(PipelineTrainingTest, TiedWeightsStayOneWithCompression) {
  PipelineProgram program = TiedTokens();
  program.options.hook = "powersgd(rank=2,start_step=2)";
  const auto ends = PipelineJob().Train(2, program, 6);
  EXPECT_TRUE(::torch::equal(ends[0].values.at("embedding.weight"),
                             ends[1].values.at("head.weight")));
  // It does compress.
  const Tensor alone =
      InOneProcess(program, Even(6, 4)).values.at("embedding.weight");
  EXPECT_GT((ends[0].values.at("embedding.weight") - alone)
                .abs()
                .max()
                .item<double>(),
            1e-6);
}

TEST(PipelineTrainingTest, ATieWithinARankIsOneTensor) {
  PipelineProgram program = TiedTokens();
  program.model.ties = {{"first.linear.weight", "second.linear.weight"}};
  for (const std::string pipeline : {"1f1b", "zb_h1", "interleaved"}) {
    program.options.ddp.terms.pipeline = pipeline;
    program.options.stages = pipeline == "interleaved" ? "" : "0-2,3";
    const auto ends = PipelineJob().Train(2, program, kSteps);
    ExpectValues(ends, InOneProcess(program, Even(kSteps, 4)).values, kExact);
  }
}

// Data indices have other tokens, and the second one has fewer micro-batches:
// in the last window of the first epoch, and no such window in the second
// epoch.
TEST(PipelineTrainingTest, UnevenTokensAndShortTailsCountAsInOneProcess) {
  PipelineProgram program = TiedTokens();
  program.options.ddp.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  const auto ends = PipelineJob().Run(
      4, [&](int) { return program; },
      [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
        EXPECT_EQ(pipeline.data_ranks(), 2);
        const bool second = pipeline.data_index() == 1;
        for (int epoch = 0; epoch < 2; ++epoch) {
          std::vector<int> windows = {4, 3};
          if (second)
            windows = epoch == 0 ? std::vector<int>{4, 2} : std::vector<int>{4};
          for (const int count : windows) {
            EXPECT_EQ(pipeline.window(), 4);
            COXSWAIN_RETURN_IF_ERROR(
                PipelineJob::Step(pipeline, program, count, end).status());
          }
          int without = 0;
          while (true) {
            COXSWAIN_ASSIGN_OR_RETURN(const bool more,
                                      pipeline.StepWithoutData());
            if (!more) break;
            ++without;
          }
          EXPECT_EQ(without, second ? epoch : 0);
        }
        EXPECT_EQ(pipeline.ddp().optimizer_steps(), 4);
        return absl::OkStatus();
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  const OneProcess alone =
      InOneProcess(program, {{4, 4}, {3, 2}, {4, 4}, {3, 0}});
  ExpectValues(ends, alone.values, kExact);
  ExpectLosses(ends[2].losses, alone.losses, kExact);
}

TEST(PipelineTrainingTest, AWindowIsCarriedIntoTheNextEpoch) {
  PipelineProgram program = TiedTokens();
  program.options.ddp.terms.tail = schedule::TailPolicy::kCarry;
  const auto ends = PipelineJob().Run(
      4, [&](int) { return program; },
      [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
        const auto step = [&](int count) -> absl::Status {
          EXPECT_EQ(pipeline.window(), count > 0 ? 4 : pipeline.window());
          return PipelineJob::Step(pipeline, program, count, end).status();
        };
        COXSWAIN_RETURN_IF_ERROR(step(4));
        COXSWAIN_RETURN_IF_ERROR(step(2));
        EXPECT_EQ(pipeline.ddp().optimizer_steps(), 1);
        EXPECT_EQ(pipeline.window(), 2);
        COXSWAIN_RETURN_IF_ERROR(step(0));
        EXPECT_EQ(pipeline.ddp().optimizer_steps(), 2);
        return step(4);
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  ExpectValues(ends, InOneProcess(program, Even(3, 4, 2)).values, kExact);
}

// Each epoch of seven micro-batches gives its last three up.
TEST(PipelineTrainingTest, ATailIsDropped) {
  PipelineProgram program = TiedTokens();
  program.options.ddp.terms.tail = schedule::TailPolicy::kDrop;
  const auto ends = PipelineJob().Run(
      4, [&](int) { return program; },
      [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
        for (int epoch = 0; epoch < 3; ++epoch) {
          for (const int count : {4, 3}) {
            COXSWAIN_ASSIGN_OR_RETURN(
                const PipelineResult result,
                PipelineJob::Step(pipeline, program, count, end));
            EXPECT_EQ(result.stepped, count == 4);
          }
        }
        EXPECT_EQ(pipeline.ddp().optimizer_steps(), 3);
        return absl::OkStatus();
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  PipelineProgram without = program;
  without.data = [&](int data_index, int64_t number) {
    return program.data(data_index, number / 4 * 7 + number % 4);
  };
  ExpectValues(ends, InOneProcess(without, Even(3, 4, 2)).values, kExact);
}

// The second data index takes part in the first one's last steps.
TEST(PipelineTrainingTest, ADataIndexWithoutDataWaitsForAll) {
  PipelineProgram program = TiedTokens();
  program.options.ddp.terms.uneven_data = schedule::UnevenData::kWaitForAll;
  const auto ends = PipelineJob().Run(
      4, [&](int) { return program; },
      [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
        const int own = pipeline.data_index() == 0 ? 4 : 2;
        for (int step = 0; step < own; ++step) {
          COXSWAIN_RETURN_IF_ERROR(
              PipelineJob::Step(pipeline, program, 0, end).status());
        }
        int without = 0;
        while (true) {
          COXSWAIN_ASSIGN_OR_RETURN(const bool more,
                                    pipeline.StepWithoutData());
          if (!more) break;
          ++without;
        }
        EXPECT_EQ(without, 4 - own);
        return absl::OkStatus();
      });
  for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
  const OneProcess alone =
      InOneProcess(program, {{4, 4}, {4, 4}, {4, 0}, {4, 0}});
  ExpectValues(ends, alone.values, kExact);
  ExpectLosses(ends[2].losses, alone.losses, kExact);
}

// One of 0 counts for nothing, even as the last one, and if its loss is none.
TEST(PipelineTrainingTest, AnEmptyMicroBatchCountsForNothing) {
  for (const std::string pipeline : {"1f1b", "zb_h1"}) {
    PipelineProgram program = TiedTokens();
    program.options.ddp.terms.pipeline = pipeline;
    program.data = [data = program.data](int data_index, int64_t number) {
      PipelineBatch batch = data(data_index, number);
      if (number % 4 == 3) batch.weight = 0;
      return batch;
    };
    const auto ends = PipelineJob().Train(2, program, 5);
    const OneProcess alone = InOneProcess(program, Even(5, 4));
    ExpectValues(ends, alone.values, kExact);
    ExpectLosses(ends[1].losses, alone.losses, kExact);
  }
}

TEST(PipelineTrainingTest, AnEncoderAndADecoderTravelTogether) {
  for (const std::string pipeline : {"1f1b", "interleaved", "zb_h1"}) {
    PipelineProgram program = EncoderDecoder();
    program.options.ddp.terms.pipeline = pipeline;
    program.options.stages =
        pipeline == "interleaved" ? "0-1,2-3,4,5-6" : "0-3,4-6";
    const auto ends = PipelineJob().Train(2, program, 5);
    const OneProcess alone = InOneProcess(program, Even(5, 4));
    ExpectValues(ends, alone.values, kExact);
    ExpectLosses(ends[1].losses, alone.losses, kExact);
  }
}

// ---- with data parallelism ----

TEST(PipelineTrainingTest, ShardedOptimizersComeToTheSame) {
  PipelineProgram program = TiedTokens();
  program.options.ddp.zero = 1;
  const auto ends = PipelineJob().Train(4, program, 5);
  ExpectValues(ends, InOneProcess(program, Even(5, 4, 2)).values, kExact);
}

// Each element counts once: also those of ties, and of replicas.
TEST(PipelineTrainingTest, ClippingIsThatOfOneProcess) {
  constexpr double kMaxNorm = 0.05;
  for (const int zero : {0, 1}) {
    PipelineProgram program = TiedTokens();
    program.options.ddp.zero = zero;
    program.options.ddp.terms.commit_vote = true;
    program.options.ddp.reducer.max_norm = kMaxNorm;
    const auto ends = PipelineJob().Train(4, program, 5);
    ExpectValues(ends, InOneProcess(program, Even(5, 4, 2), kMaxNorm).values,
                 1e-9);
  }
}

// Ranks along shard have other data, and share the optimizer's state.
TEST(PipelineTrainingTest, SlicesAlongShardClipAsOneProcess) {
  constexpr double kMaxNorm = 0.05;
  PipelineProgram program = TiedTokens();
  program.options.mesh = "pp=2,shard=2";
  program.options.ddp.zero = 1;
  program.options.ddp.terms.commit_vote = true;
  program.options.ddp.reducer.max_norm = kMaxNorm;
  const auto ends = PipelineJob().Train(4, program, 5);
  ExpectValues(ends, InOneProcess(program, Even(5, 4, 2), kMaxNorm).values,
               1e-9);
}

// A pipeline's stages compress their gradients as replicas of the whole model
// do.
TEST(PipelineTrainingTest, CompressionIsByStage) {
  PipelineProgram program = Mlp(4, ::torch::kFloat64);
  program.options.hook = "powersgd(rank=2,start_step=2)";
  const auto ends = PipelineJob().Train(4, program, 6);
  PipelineProgram replicas = program;
  replicas.options.mesh = "dp=*";
  const auto whole = PipelineJob().Train(2, replicas, 6);
  ExpectValues(ends, whole[0].values, 1e-9);
  // Which is not what comes without.
  const OneProcess alone = InOneProcess(program, Even(6, 4, 2));
  const std::string name = "block0.linear.weight";
  EXPECT_GT((whole[0].values.at(name) - alone.values.at(name))
                .abs()
                .max()
                .item<double>(),
            1e-6);
}

TEST(PipelineTrainingTest, AnEvaluationChangesNothing) {
  for (const std::string pipeline : {"1f1b", "zb_h1"}) {
    PipelineProgram program = Mlp(4, ::torch::kFloat64);
    program.options.ddp.terms.pipeline = pipeline;
    const auto ends = PipelineJob().Run(
        2, [&](int) { return program; },
        [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
          for (int step = 0; step < 3; ++step) {
            PipelineEnd aside;
            COXSWAIN_ASSIGN_OR_RETURN(
                const PipelineResult seen,
                pipeline.Evaluate(
                    PipelineJob::NextOf(pipeline, program, 3 + step, &aside)));
            EXPECT_EQ(seen.losses.size(),
                      pipeline.has_targets() ? 3u + step : 0u);
            COXSWAIN_RETURN_IF_ERROR(
                PipelineJob::Step(pipeline, program, 0, end).status());
            if (step == 0 && pipeline.has_targets()) {
              EXPECT_EQ(seen.losses[0], end->losses[0]);
            }
          }
          return absl::OkStatus();
        });
    for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
    ExpectValues(ends, InOneProcess(program, Even(3, 4)).values, kExact);
  }
}

// Half of the first layer's outputs are dropped while it trains.
TEST(PipelineTrainingTest, LayersEvaluateAsTheirModuleDoes) {
  PipelineProgram program = Mlp(4, ::torch::kFloat64);
  program.model.layers.insert(
      program.model.layers.begin() + 1, LayerOf("dropout", [] {
        return std::make_shared<::torch::nn::DropoutImpl>(0.5);
      }));
  program.options.stages = "0-2,3-4";
  const auto losses = [](const PipelineProgram& own, bool evaluates) {
    std::vector<double> result;
    const auto ends = PipelineJob().Run(
        2, [&](int) { return own; },
        [&](Pipeline& pipeline, Session&, PipelineEnd* end) -> absl::Status {
          if (evaluates) pipeline.module()->eval();
          COXSWAIN_ASSIGN_OR_RETURN(
              const PipelineResult seen,
              pipeline.Evaluate(PipelineJob::NextOf(pipeline, own, 3, end)));
          if (pipeline.has_targets()) result = seen.losses;
          pipeline.module()->train();
          return PipelineJob::Step(pipeline, own, 0, end).status();
        });
    for (const PipelineEnd& end : ends) EXPECT_OK(end.status);
    return result;
  };
  // Each layer's numbers are its own, by its place.
  PipelineProgram without = program;
  without.model.layers[1] = {
      "dropout", nullptr,
      [](::torch::nn::Module*, const Tensors& x) -> Tensors { return x; }};
  const std::vector<double> expected = losses(without, false);
  EXPECT_EQ(losses(program, true), expected);
  EXPECT_NE(losses(program, false), expected);
}

}  // namespace
}  // namespace coxswain::torch::pipeline_training_test
