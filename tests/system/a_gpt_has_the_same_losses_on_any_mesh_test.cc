// examples/gpt, with the commands of docs/gpt.md, made small.
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "examples/gpt/result.h"
#include "examples/progress/step_event.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/system/scenario.h"

namespace coxswain::gpt_on_meshes {
namespace {

using examples::gpt::CompareLosses;
using examples::gpt::ReadRuns;
using examples::gpt::TrainedRun;
using testing::HasSubstr;
using testing::SizeIs;

constexpr char kGpt[] = "examples/gpt/gpt";
// Of what a mesh may change by rounding.
constexpr double kRounding = 1e-10;

// Trains on a mesh of so many ranks; appends the run to `runs`.
void Train(int ranks, const std::string& mesh,
           const std::vector<std::string>& options,
           std::vector<TrainedRun>* runs,
           const std::vector<std::string>& launcher = {}) {
  SCOPED_TRACE(mesh);
  std::vector<std::string> command = {
      kCoxswain,           "run",         "--nproc",
      absl::StrCat(ranks), "--mesh",      mesh,
      "--no-prefix",       "--log-level", "warning"};
  command.insert(command.end(), launcher.begin(), launcher.end());
  for (const char* word :
       {"--", kGpt, "--events", "--dtype", "float64", "--layers", "2",
        "--features", "32", "--length", "32", "--texts", "2", "--micro-batches",
        "4", "--held-out", "6"}) {
    command.push_back(word);
  }
  command.insert(command.end(), options.begin(), options.end());
  const Ended ended = RunToEnd(command);
  ASSERT_EQ(ended.status, 0) << ended.err;
  const TemporaryFolder folder;
  std::ofstream file(folder.path("events"));
  for (std::string line : LinesWith(ended.out, "{")) {
    if (!examples::KindOfEvent(&line).empty()) file << line << "\n";
  }
  file.close();
  const auto read = ReadRuns(folder.path("events"));
  ASSERT_OK(read.status());
  ASSERT_THAT(*read, SizeIs(1));
  runs->push_back(read->front());
}

TEST(GptExampleTest, HasTheSameLossesOnAnyMesh) {
  std::vector<TrainedRun> runs;
  const std::vector<std::string> steps = {"--steps", "5"};
  Train(1, "dp=1", steps, &runs);
  Train(4, "pp=2,tp=2", steps, &runs);
  Train(4, "dp=2,tp=2", {"--steps", "5", "--zero", "1", "--sequence"}, &runs);
  ASSERT_THAT(runs, SizeIs(3));
  ASSERT_OK_AND_ASSIGN(const double difference, CompareLosses(runs));
  EXPECT_LE(difference, kRounding);

  // It learns: a guess has ln 256.
  EXPECT_THAT(runs[0].curve.points, SizeIs(5));
  EXPECT_NEAR(runs[0].curve.points.front().second, 5.545, 0.1);
  EXPECT_LT(runs[0].result.held_out_loss, 5.4);
  // Bytes are those of the axes that there are.
  EXPECT_EQ(runs[0].result.pp_bytes + runs[0].result.dp_bytes +
                runs[0].result.tp_bytes,
            0);
  EXPECT_GT(runs[1].result.pp_bytes, 0);
  EXPECT_EQ(runs[1].result.dp_bytes, 0);
  EXPECT_GT(runs[1].result.tp_bytes, 0);
  EXPECT_EQ(runs[2].result.pp_bytes, 0);
  EXPECT_GT(runs[2].result.dp_bytes, 0);
  EXPECT_GT(runs[2].result.tp_bytes, 0);
  EXPECT_GT(runs[1].result.bubble, 0);
  EXPECT_LT(runs[1].result.bubble, 1);
}

TEST(GptExampleTest, GoesOnFromACheckpointOnAnotherMesh) {
  ServedCoordinator coordinator;
  const std::vector<std::string> launcher = {
      "--coordinator", coordinator.address(), "--job", "gpt"};
  std::vector<TrainedRun> runs;
  Train(1, "dp=1", {"--steps", "6"}, &runs);
  Train(4, "pp=2,tp=2", {"--steps", "3", "--checkpoint-every", "3"}, &runs,
        launcher);
  Train(4, "dp=2,tp=2", {"--steps", "6", "--zero", "1", "--resume", "newest"},
        &runs, launcher);
  ASSERT_THAT(runs, SizeIs(3));
  ASSERT_THAT(runs[0].curve.points, SizeIs(6));
  ASSERT_THAT(runs[2].curve.points, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    const auto& [step, loss] = runs[2].curve.points[i];
    EXPECT_EQ(step, 4 + static_cast<int64_t>(i));
    EXPECT_NEAR(loss, runs[0].curve.points[3 + i].second, kRounding);
  }
  EXPECT_NEAR(runs[2].result.held_out_loss, runs[0].result.held_out_loss,
              kRounding);
}

TEST(GptExampleTest, NamesThePackageOfATextThatIsMissing) {
  const Ended ended = RunToEnd({kGpt, "--text", "/nonexistent/text"});
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.err, HasSubstr("install the Debian package jargon-text"));
}

TEST(GptExampleTest, NamesMicroBatchesThatDoNotComeOutEven) {
  const Ended ended = RunToEnd({kCoxswain, "run", "--nproc", "2", "--mesh",
                                "dp=2", "--", kGpt, "--micro-batches", "3"});
  EXPECT_NE(ended.status, 0);
  EXPECT_THAT(ended.err,
              HasSubstr("--micro-batches 3 cannot be divided by the 2 ranks"));
}

}  // namespace
}  // namespace coxswain::gpt_on_meshes
