// examples/gpt, with the commands of docs/gpt.md, made small.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "examples/gpt/result.h"
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
constexpr char kReport[] = "examples/gpt/report";
// Of what a mesh may change by rounding.
constexpr double kRounding = 1e-10;

// Trains on a mesh of so many ranks, as compare.sh does; appends the run's
// events to a file.
void Train(int ranks, const std::string& mesh, const std::string& options,
           const std::string& events, const std::string& launcher = "") {
  const Ended ended = RunToEnd(
      {"bash", "-c",
       absl::StrCat("set -o pipefail; ", kCoxswain, " run --nproc ", ranks,
                    " --mesh ", mesh, " --log-level warning ", launcher, " -- ",
                    kGpt,
                    " --events --dtype float64 --layers 2 --features 32"
                    " --length 32 --texts 2 --micro-batches 4 --held-out 6 ",
                    options, " | ", kReport, " progress --name ", mesh,
                    " --into ", events)});
  ASSERT_EQ(ended.status, 0) << mesh << ": " << ended.err;
  EXPECT_THAT(ended.out, HasSubstr(absl::StrCat(mesh, ": step ")));
}

TEST(GptExampleTest, HasTheSameLossesOnAnyMesh) {
  const TemporaryFolder folder;
  const std::string events = folder.path("events");
  Train(1, "dp=1", "--steps 5", events);
  Train(4, "pp=2,tp=2", "--steps 5", events);
  Train(4, "dp=2,tp=2", "--steps 5 --zero 1 --sequence", events);
  ASSERT_OK_AND_ASSIGN(const std::vector<TrainedRun> runs, ReadRuns(events));
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

  const Ended report = RunToEnd({kReport, "table", events});
  EXPECT_EQ(report.status, 0) << report.err;
  EXPECT_THAT(report.out, HasSubstr("a  dp=1, zero=0, allreduce"));
  EXPECT_THAT(report.out, HasSubstr("dp=2,tp=2 seq "));
  EXPECT_THAT(report.out, HasSubstr("are those of one rank"));
}

TEST(GptExampleTest, TheReportFailsWhereLossesDiffer) {
  const TemporaryFolder folder;
  const std::string events = folder.path("events");
  Train(1, "dp=1", "--steps 2", events);
  Train(2, "tp=2", "--steps 2 --seed 2", events);
  const Ended report = RunToEnd({kReport, "table", events});
  EXPECT_EQ(report.status, 1);
  EXPECT_THAT(report.out, HasSubstr("tp=2"));
  EXPECT_THAT(report.err, HasSubstr("tp=2, zero=0, allreduce: "));
}

TEST(GptExampleTest, GoesOnFromACheckpointOnAnotherMesh) {
  ServedCoordinator coordinator;
  const std::string launcher =
      absl::StrCat("--coordinator ", coordinator.address(), " --job gpt");
  const TemporaryFolder folder;
  const std::string events = folder.path("events");
  Train(1, "dp=1", "--steps 6", events);
  Train(4, "pp=2,tp=2", "--steps 3 --checkpoint-every 3", events, launcher);
  Train(4, "dp=2,tp=2", "--steps 6 --zero 1 --resume newest", events, launcher);
  ASSERT_OK_AND_ASSIGN(const std::vector<TrainedRun> runs, ReadRuns(events));
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
