// What becomes of a job on a mesh with tp where a rank's numbers go wrong.

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/gpt_model_for_test.h"
#include "transport/error_detail.h"

namespace coxswain::torch::gpt_job_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;
using ::torch::Tensor;

constexpr char kMesh[] = "pp=2,dp=2,tp=2";
constexpr int kRanks = 8;
constexpr int kDataRanks = 2;
constexpr int kSteps = 5;

// Makes the gradient of this parameter not a number, in all passes from now on
// until it is removed.
unsigned Poison(Pipeline& pipeline, const std::string& name) {
  const Tensor* const parameter =
      pipeline.module()->named_parameters().find(name);
  EXPECT_NE(parameter, nullptr) << name;
  return parameter->register_hook([](const Tensor& gradient) {
    return gradient * std::numeric_limits<double>::quiet_NaN();
  });
}

struct Poisoned {
  std::string mesh;
  int data_ranks;
  int rank;
  std::string parameter;
  std::vector<std::string> words;  // of the reason
  std::string other;               // not among them
};

class GptSkipTest : public testing::TestWithParam<std::tuple<Poisoned, int>> {};

// In one step, on one rank along tp of one stage. Its replicas see averages
// that are no numbers either; its gradient is named.
TEST_P(GptSkipTest, AllRanksSkipWhatIsNotANumberOnOne) {
  constexpr int kSkipped = 2;
  const auto& [poisoned, zero] = GetParam();
  GptForTest gpt;
  gpt.skipped = {kSkipped};
  PipelineProgram program =
      GptProgramOf(gpt, poisoned.mesh, poisoned.data_ranks);
  program.options.ddp.skip_non_finite = true;
  program.options.ddp.zero = zero;
  GptRun run;
  run.steps = kSteps;
  run.before_step = [poisoned = poisoned, hook = unsigned{0}](
                        Pipeline& pipeline, int rank, int step) mutable {
    if (rank != poisoned.rank) return;
    if (step == kSkipped) hook = Poison(pipeline, poisoned.parameter);
    if (step == kSkipped + 1) {
      pipeline.module()->named_parameters()[poisoned.parameter].remove_hook(
          hook);
    }
  };
  PipelineJob job;
  const std::vector<GptRank> ranks = RunGpt(job, kRanks, program, run);
  for (const GptRank& one : ranks) {
    EXPECT_OK(one.end.status);
    ASSERT_EQ(one.reasons.size(), kSteps);
    for (int step = 0; step < kSteps; ++step) {
      const std::string& reason = one.reasons[static_cast<size_t>(step)];
      if (step != kSkipped) {
        EXPECT_EQ(reason, "");
        continue;
      }
      for (const std::string& word : poisoned.words) {
        EXPECT_THAT(reason, HasSubstr(word));
      }
      EXPECT_THAT(reason, Not(HasSubstr(poisoned.other)));
    }
  }
  ExpectAsInOneProcess(gpt, ranks, TrainGptInOneProcess(gpt, kSteps));
}

INSTANTIATE_TEST_SUITE_P(
    Parameters, GptSkipTest,
    testing::Combine(
        testing::Values(Poisoned{kMesh,
                                 kDataRanks,
                                 5,
                                 "block2.up.weight",
                                 {"the gradient of \"block2.up.weight\" on "
                                  "rank 5 (pp 1, dp 0, tp 1)"},
                                 "tp 0)"},
                        Poisoned{kMesh,
                                 kDataRanks,
                                 3,
                                 "block0.norm1.bias",
                                 {"the gradient of \"block0.norm1.bias\" on "
                                  "rank 3 (pp 0, dp 1, tp 1)"},
                                 "tp 0)"},
                        // Of tied ones the sum counts, where the first one is.
                        Poisoned{kMesh,
                                 kDataRanks,
                                 4,
                                 "head.weight",
                                 {"the gradient of \"embedding.weight\" on "
                                  "rank 0 (pp 0, dp 0, tp 0)",
                                  "the gradient of \"head.weight\" on rank 4 "
                                  "(pp 1, dp 0, tp 0)"},
                                 "tp 1)"},
                        Poisoned{"pp=4,tp=2",
                                 1,
                                 3,
                                 "block1.norm2.weight",
                                 {"the gradient of \"block1.norm2.weight\" on "
                                  "rank 3 (pp 1, tp 1)"},
                                 "tp 0)"}),
        testing::Values(0, 1)));

// A scale follows from the decisions: it is the same on all ranks, and leaves
// no trace in what is trained.
TEST(GptSkipTest, TheLossScaleTakesTheSamePathOnAllRanks) {
  GptForTest gpt;
  gpt.skipped = {1, 2};
  PipelineProgram program = GptProgramOf(gpt, kMesh, kDataRanks);
  program.options.ddp.skip_non_finite = true;
  LossScaling scaling;
  scaling.initial = 1024;
  scaling.growth_every = 2;
  program.options.loss_scaling = scaling;
  GptRun run;
  run.steps = 6;
  const std::string name = "block3.attention.out.weight";
  run.before_step = [name, hook = unsigned{0}](Pipeline& pipeline, int rank,
                                               int step) mutable {
    if (rank != 7) return;
    if (step == 1) hook = Poison(pipeline, name);
    if (step == 3) {
      pipeline.module()->named_parameters()[name].remove_hook(hook);
    }
  };
  PipelineJob job;
  const std::vector<GptRank> scaled = RunGpt(job, kRanks, program, run);
  for (const GptRank& one : scaled) {
    EXPECT_OK(one.end.status);
    EXPECT_THAT(one.scales, ElementsAre(1024, 512, 256, 256, 512, 512));
  }
  ExpectAsInOneProcess(gpt, scaled, TrainGptInOneProcess(gpt, run.steps));
  program.options.loss_scaling.reset();
  const std::vector<GptRank> plain = RunGpt(job, kRanks, program, run);
  for (size_t rank = 0; rank < plain.size(); ++rank) {
    EXPECT_OK(plain[rank].end.status);
    for (const auto& [parameter, value] : plain[rank].end.values) {
      EXPECT_TRUE(value.equal(scaled[rank].end.values.at(parameter)))
          << parameter << " on rank " << rank;
    }
  }
}

// ---- bits that are flipped ----

struct Flipped {
  std::string mesh;
  int ranks;
  int data_ranks;
  int rank;
  std::string parameter;
  std::vector<int> named;
  std::string where;  // the flipped one, in words
  bool sequence = false;
};

class GptChecksumTest : public testing::TestWithParam<Flipped> {};

TEST_P(GptChecksumTest, FindsOneBitAndNamesWhoMayHaveIt) {
  const Flipped& flipped = GetParam();
  const GptForTest gpt;
  PipelineProgram program = GptProgramOf(gpt, flipped.mesh, flipped.data_ranks);
  program.options.ddp.terms.checksum_every = 1;
  program.options.sequence = flipped.sequence;
  GptRun run;
  run.steps = kSteps;
  run.before_step = [&flipped](Pipeline& pipeline, int rank, int step) {
    if (rank != flipped.rank || step != 2) return;
    const auto parameters = pipeline.module()->named_parameters();
    auto* const bits = reinterpret_cast<uint64_t*>(
        parameters[flipped.parameter].data_ptr<double>());
    bits[3] ^= 1;
  };
  PipelineJob job;
  const std::vector<GptRank> ranks = RunGpt(job, flipped.ranks, program, run);
  for (const GptRank& one : ranks) {
    EXPECT_EQ(one.norms.size(), 2u) << "steps before it";
    const v1::ErrorDetail detail = DetailOf(one.end.status);
    EXPECT_THAT(detail.schedule_mismatch().odd_ranks(),
                ElementsAreArray(flipped.named))
        << one.end.status;
    EXPECT_THAT(std::string(one.end.status.message()),
                AllOf(HasSubstr("checksum"), HasSubstr(flipped.where)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Bits, GptChecksumTest,
    testing::Values(
        Flipped{"dp=2,tp=2",
                4,
                2,
                1,
                "block1.norm2.weight",
                {1},
                "rank 1 (dp 0, tp 1)"},
        Flipped{kMesh,
                8,
                2,
                6,
                "block3.norm1.weight",
                {6},
                "rank 6 (pp 1, dp 1, tp 0)"},
        Flipped{kMesh,
                8,
                2,
                6,
                "norm.bias",
                {6},
                "rank 6 (pp 1, dp 1, tp 0)",
                /*sequence=*/true},
        Flipped{"pp=2,dp=2,tp=2",
                8,
                2,
                3,
                "block1.down.bias",
                {3},
                "rank 3 (pp 0, dp 1, tp 1)"},
        // Whoever has this part.
        Flipped{
            "dp=2,tp=2", 4, 2, 1, "block1.up.weight", {1, 3}, "1 (dp 0, tp 1)"},
        Flipped{kMesh,
                8,
                2,
                6,
                "block2.attention.qkv.weight",
                {4, 6},
                "6 (pp 1, dp 1, tp 0)"}));

// The checksums themselves agree on every step, also of what is summed up along
// the sequence, clipped, and stepped in slices.
TEST(GptChecksumTest, HonestRanksAgree) {
  for (const bool sequence : {false, true}) {
    for (const int zero : {0, 1}) {
      SCOPED_TRACE(absl::StrCat("sequence ", sequence, ", zero ", zero));
      PipelineProgram program = GptProgramOf(GptForTest(), kMesh, kDataRanks);
      program.options.ddp.terms.checksum_every = 1;
      program.options.sequence = sequence;
      program.options.ddp.zero = zero;
      PipelineJob job;
      TrainGpt(job, kRanks, program, kSteps);
    }
  }
}

// ---- hooks ----

struct Compressed {
  std::string hook;
  bool sequence;
  int zero;
};

class GptHookTest : public testing::TestWithParam<Compressed> {};

// Replicated parameters keep the same bits along tp, whatever a hook makes of
// the gradients: checksums are compared in every step.
TEST_P(GptHookTest, KeepsReplicatedParametersTheSame) {
  for (const char* const mesh : {"pp=2,dp=2,tp=2", "dp=2,tp=3"}) {
    SCOPED_TRACE(mesh);
    GptForTest gpt;
    if (GetParam().sequence) gpt.length = 12;
    PipelineProgram program = GptProgramOf(gpt, mesh, kDataRanks);
    program.options.hook = GetParam().hook;
    program.options.sequence = GetParam().sequence;
    program.options.ddp.zero = GetParam().zero;
    program.options.ddp.terms.checksum_every = 1;
    PipelineJob job;
    const int count = std::string(mesh) == kMesh ? 8 : 6;
    const std::vector<GptRank> ranks = TrainGpt(job, count, program, kSteps);
    const GptInOneProcess alone = TrainGptInOneProcess(gpt, kSteps);
    for (const GptRank& one : ranks) {
      if (!one.has_targets) continue;
      // It trains, and not as without.
      ASSERT_EQ(one.end.losses.size(),
                static_cast<size_t>(kSteps * gpt.micro_batches / kDataRanks));
      for (size_t i = 0; i < one.end.losses.size(); ++i) {
        const double expected =
            alone.losses[i * kDataRanks + static_cast<size_t>(one.data_index)];
        EXPECT_NEAR(one.end.losses[i], expected, 0.3) << "loss " << i;
      }
      // More than sums in another order.
      ASSERT_EQ(one.norms.size(), alone.norms.size());
      double most = 0;
      for (size_t i = 0; i < alone.norms.size(); ++i) {
        most = std::max(most, std::abs(one.norms[i] - alone.norms[i]));
      }
      EXPECT_GT(most, GptTolerances().norms);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Hooks, GptHookTest,
    testing::Values(Compressed{"fp16", false, 0}, Compressed{"bf16", true, 0},
                    Compressed{"powersgd(rank=2,start_step=2)", false, 0},
                    Compressed{"powersgd(rank=2,start_step=2)", true, 1},
                    Compressed{"int8", false, 0}, Compressed{"int8", true, 1}));

}  // namespace
}  // namespace coxswain::torch::gpt_job_test
