// A small GPT on every mesh of eight ranks comes to what one process of plain
// libtorch does: losses, norms and parameters, from the same first bits.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/gpt_model_for_test.h"

namespace coxswain::torch::gpt_matrix_test {
namespace {

constexpr int kSteps = 20;

// Once for all cases of a process.
const GptInOneProcess& Alone() {
  static const auto* const alone =
      new GptInOneProcess(TrainGptInOneProcess(GptForTest(), kSteps));
  return *alone;
}

struct GptMesh {
  std::string mesh;
  int data_ranks = 1;
  bool sequence = false;
  std::string pipeline = {};
  std::string joined = {};  // as ranks join; empty: `mesh`
};

std::string NameOfMesh(const GptMesh& mesh) {
  std::string name = absl::StrReplaceAll(
      absl::StrCat(mesh.joined.empty() ? mesh.mesh : mesh.joined),
      {{"=", ""}, {",", ""}, {"*", "Free"}});
  if (mesh.sequence) name += "Sequence";
  if (!mesh.pipeline.empty()) {
    name += absl::StrReplaceAll(mesh.pipeline,
                                {{"(", ""}, {")", ""}, {"=", ""}, {"_", ""}});
  }
  return name;
}

class GptMatrixTest
    : public testing::TestWithParam<std::tuple<GptMesh, int /*zero*/>> {};

TEST_P(GptMatrixTest, ComesToWhatOneProcessDoes) {
  const auto& [mesh, zero] = GetParam();
  const GptForTest gpt;
  PipelineProgram program = GptProgramOf(
      gpt, mesh.joined.empty() ? mesh.mesh : mesh.joined, mesh.data_ranks);
  program.options.ddp.zero = zero;
  program.options.sequence = mesh.sequence;
  program.options.ddp.terms.pipeline = mesh.pipeline;
  PipelineJob job;
  ExpectAsInOneProcess(gpt, TrainGpt(job, 8, program, kSteps), Alone());
}

std::string NameOfCase(
    const testing::TestParamInfo<std::tuple<GptMesh, int>>& info) {
  return absl::StrCat(NameOfMesh(std::get<0>(info.param)), "Zero",
                      std::get<1>(info.param));
}

// Every factorisation with pp and tp of at most 4.
INSTANTIATE_TEST_SUITE_P(
    Eight, GptMatrixTest,
    testing::Combine(
        testing::Values(GptMesh{"dp=8", 8}, GptMesh{"dp=4,tp=2", 4},
                        GptMesh{"dp=2,tp=4", 2}, GptMesh{"pp=2,dp=4", 4},
                        GptMesh{"pp=2,dp=2,tp=2", 2}, GptMesh{"pp=2,tp=4", 1},
                        GptMesh{"pp=4,dp=2", 2}, GptMesh{"pp=4,tp=2", 1}),
        testing::Values(0, 1)),
    NameOfCase);

// Other ways to the same numbers.
INSTANTIATE_TEST_SUITE_P(
    Ways, GptMatrixTest,
    testing::Values(
        std::make_tuple(GptMesh{"dp=2,tp=4", 2, /*sequence=*/true}, 0),
        std::make_tuple(GptMesh{"pp=2,dp=2,tp=2", 2, /*sequence=*/true}, 1),
        std::make_tuple(GptMesh{"pp=4,tp=2", 1, false, "interleaved(chunks=2)"},
                        0),
        std::make_tuple(GptMesh{"pp=2,tp=4", 1, /*sequence=*/true, "zb_h1"}, 0),
        std::make_tuple(GptMesh{"pp=2,shard=2,tp=2", 2}, 1),
        std::make_tuple(GptMesh{"dp=2,shard=2,tp=2", 4}, 1),
        std::make_tuple(
            GptMesh{"pp=2,dp=2,tp=2", 2, false, "", "pp=2,dp=*,tp=2"}, 1)),
    NameOfCase);

// What the matrix shows, if there is something to show.
TEST(GptMatrixTest, OneProcessClipsAndLearns) {
  const GptInOneProcess& alone = Alone();
  const auto [least, most] =
      std::minmax_element(alone.norms.begin(), alone.norms.end());
  EXPECT_LT(*least, GptForTest().max_norm);
  EXPECT_GT(*most, GptForTest().max_norm);
  EXPECT_EQ(alone.losses.size(), kSteps * 8);
  EXPECT_EQ(alone.losses[7], 0) << "no target counts";
  // Of those of a step that count.
  const auto mean_of = [&](int step) {
    double sum = 0;
    int count = 0;
    for (int i = step * 8; i < (step + 1) * 8; ++i) {
      sum += alone.losses[static_cast<size_t>(i)];
      if (alone.losses[static_cast<size_t>(i)] > 0) ++count;
    }
    return sum / count;
  };
  EXPECT_LT(mean_of(kSteps - 1), mean_of(0));
  GptForTest without;
  without.dropout = 0;
  EXPECT_NE(TrainGptInOneProcess(without, 1).losses[0], alone.losses[0]);
}

// ---- sizes that do not come out even ----

struct OddMesh {
  std::string mesh;
  int ranks;
  int data_ranks;
  void (*change)(GptForTest&);
  void (*options)(PipelineOptions&);
};

class GptOddMeshTest : public testing::TestWithParam<OddMesh> {};

TEST_P(GptOddMeshTest, ComesToWhatOneProcessDoes) {
  constexpr int kFew = 5;
  GptForTest gpt;
  gpt.micro_batches = 6;
  GetParam().change(gpt);
  PipelineProgram program =
      GptProgramOf(gpt, GetParam().mesh, GetParam().data_ranks);
  GetParam().options(program.options);
  PipelineJob job;
  ExpectAsInOneProcess(gpt, TrainGpt(job, GetParam().ranks, program, kFew),
                       TrainGptInOneProcess(gpt, kFew));
}

INSTANTIATE_TEST_SUITE_P(
    Odd, GptOddMeshTest,
    testing::Values(
        // Heads, vocabulary and inner features over three ranks.
        OddMesh{"tp=3", 3, 1, [](GptForTest&) {}, [](PipelineOptions&) {}},
        OddMesh{"pp=2,tp=3", 6, 1,
                [](GptForTest& gpt) {
                  gpt.length = 12;
                  gpt.inner = 50;
                },
                [](PipelineOptions& options) { options.sequence = true; }},
        OddMesh{"dp=3,tp=2", 6, 3, [](GptForTest&) {},
                [](PipelineOptions& options) { options.ddp.zero = 1; }},
        OddMesh{"pp=2,dp=3", 6, 3, [](GptForTest&) {}, [](PipelineOptions&) {}},
        OddMesh{"pp=2,tp=2", 4, 1,
                [](GptForTest& gpt) { gpt.lengths_differ = true; },
                [](PipelineOptions& options) { options.sequence = true; }},
        OddMesh{"pp=2,dp=2,tp=2", 8, 2,
                [](GptForTest& gpt) { gpt.lengths_differ = true; },
                [](PipelineOptions& options) {
                  options.ddp.terms.pipeline = "interleaved(chunks=2)";
                }},
        // An odd number of heads, and one for each rank.
        OddMesh{"tp=4", 4, 1,
                [](GptForTest& gpt) {
                  gpt.features = 30;
                  gpt.heads = 5;
                },
                [](PipelineOptions& options) {
                  options.ddp.gradient_as_bucket_view = true;
                }},
        OddMesh{"dp=2,tp=2", 4, 2, [](GptForTest& gpt) { gpt.max_norm = 0; },
                [](PipelineOptions& options) {
                  options.ddp.terms.commit_vote = false;
                  options.stages = "parameters";
                }}),
    [](const testing::TestParamInfo<OddMesh>& info) {
      return absl::StrCat(NameOfMesh({info.param.mesh}), "No", info.index);
    });

}  // namespace
}  // namespace coxswain::torch::gpt_matrix_test
