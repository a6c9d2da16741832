#include "schedule/pipeline/generate.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/pipeline/proof.h"
#include "schedule/pipeline/timing.h"

namespace coxswain::pipeline {
namespace {

using testing::HasSubstr;
using SpecKind = ScheduleSpec::Kind;

std::string CsvOf(const std::string& spec, int ranks, int micro_batches) {
  const auto parsed = ScheduleSpec::Parse(spec);
  if (!parsed.ok()) return parsed.status().ToString();
  const auto schedule = Generate(*parsed, ranks, micro_batches);
  return schedule.ok() ? schedule->ToCsv() : schedule.status().ToString();
}

TEST(GenerateTest, GpipeRunsAllForwardPassesFirst) {
  EXPECT_EQ(CsvOf("gpipe", 2, 3),
            "0F0,0F1,0F2,0B2,0B1,0B0\n1F0,1F1,1F2,1B2,1B1,1B0\n");
  EXPECT_EQ(CsvOf("gpipe(order=fifo)", 1, 3), "0F0,0F1,0F2,0B0,0B1,0B2\n");
}

TEST(GenerateTest, OneForwardOneBackwardHoldsFewActivations) {
  EXPECT_EQ(CsvOf("1f1b", 3, 4),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  EXPECT_EQ(CsvOf("1f1b", 3, 1), "0F0,0B0\n1F0,1B0\n2F0,2B0\n");
}

TEST(GenerateTest, ZbH1FillsWaitsWithWeights) {
  EXPECT_EQ(CsvOf("zb_h1", 2, 3),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
}

std::string ReadTestData(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream("schedule/pipeline/testdata/" + name).rdbuf();
  return text.str();
}

TEST(GenerateTest, InterleavedIsThatOfTorch) {
  ASSERT_OK_AND_ASSIGN(
      const Schedule torch,
      Schedule::FromCsv(ReadTestData("torch_2.15.0_interleaved_1f1b.csv")));
  ASSERT_OK_AND_ASSIGN(const Schedule ours,
                       Generate({SpecKind::kInterleaved, 2, false}, 2, 4));
  EXPECT_EQ(ours, torch);
}

TEST(GenerateTest, InterleavedTakesAnyNumberOfMicroBatches) {
  EXPECT_EQ(CsvOf("interleaved", 2, 3),
            "0F0,0F1,0F2,2F0,2F1,2F2,2B0,2B1,2B2,0B0,0B1,0B2\n"
            "1F0,1F1,1F2,3F0,3B0,3F1,3B1,3F2,3B2,1B0,1B1,1B2\n");
}

// The formulas of the schedules' papers, and what they are with fewer
// micro-batches than ranks. The unit is a forward pass through a stage; a
// backward pass takes two.
struct Expected {
  int makespan = 0;
  std::vector<int> peaks;
  int capacity = 1;  // that it needs for that
};

Expected Formulas(const ScheduleSpec& spec, int p, int m) {
  Expected expected;
  const int v = spec.chunks;
  // Of the micro-batches that go through one chunk after the other.
  const int groups = std::max(1, m / p);
  const int largest = (m + groups - 1) / groups;
  for (int r = 0; r < p; ++r) {
    switch (spec.kind) {
      case SpecKind::kGpipe:
        expected.peaks.push_back(m);
        break;
      case SpecKind::k1f1b:
        expected.peaks.push_back(std::min(m, p - r));
        break;
      case SpecKind::kInterleaved:
        expected.peaks.push_back(
            std::min(v * m, 2 * (p - 1 - r) + (v - 1) * largest + 1));
        break;
      case SpecKind::kZbH1:
        expected.peaks.push_back(std::min(m, p));
        break;
    }
  }
  expected.makespan = 3 * (m + p - 1);
  if (spec.kind == SpecKind::kZbH1) {
    expected.makespan = 3 * m + p - 1 + std::max(0, p - m);
  }
  if (spec.kind == SpecKind::kInterleaved) {
    expected.makespan = 3 * (v * std::max(m, p) + std::min(m, p) - 1);
    expected.capacity = std::max(1, largest - p + 1);
  }
  return expected;
}

TEST(GenerateTest, EverySizeIsProvedAndHasTheFormulasBubbleAndPeaks) {
  std::vector<ScheduleSpec> specs = {{SpecKind::kGpipe, 1, false},
                                     {SpecKind::kGpipe, 1, true},
                                     {SpecKind::k1f1b, 1, false},
                                     {SpecKind::kZbH1, 1, false}};
  for (int chunks = 2; chunks <= 4; ++chunks) {
    specs.push_back({SpecKind::kInterleaved, chunks, false});
  }
  for (const ScheduleSpec& spec : specs) {
    for (int p = 1; p <= 16; ++p) {
      for (int m = 1; m <= 64; ++m) {
        SCOPED_TRACE(absl::StrCat(spec.ToString(), " p ", p, " m ", m));
        ASSERT_OK_AND_ASSIGN(const Schedule compute, Generate(spec, p, m));
        ASSERT_EQ(compute.stages(), p * spec.chunks);
        ASSERT_OK_AND_ASSIGN(const Schedule schedule, WithTransfers(compute));
        const Expected expected = Formulas(spec, p, m);
        ASSERT_OK(Prove(schedule, expected.capacity));
        TimingOptions options;
        options.capacity = expected.capacity;
        ASSERT_OK_AND_ASSIGN(const Timing timing, Time(schedule, options));
        ASSERT_EQ(timing.makespan, expected.makespan);
        ASSERT_EQ(timing.peak_activations, expected.peaks);
        const double work = 3.0 * m * spec.chunks;
        ASSERT_NEAR(timing.Bubble(), 1 - work / expected.makespan, 1e-12);
      }
    }
  }
}

TEST(GenerateTest, SpecsAreReadAsTheyAreWritten) {
  for (const char* text :
       {"gpipe", "gpipe(order=fifo)", "1f1b", "interleaved(chunks=2)",
        "interleaved(chunks=64)", "zb_h1"}) {
    ASSERT_OK_AND_ASSIGN(const ScheduleSpec spec, ScheduleSpec::Parse(text));
    EXPECT_EQ(spec.ToString(), text);
  }
  ASSERT_OK_AND_ASSIGN(ScheduleSpec spec, ScheduleSpec::Parse("interleaved"));
  EXPECT_EQ(spec.ToString(), "interleaved(chunks=2)");
  ASSERT_OK_AND_ASSIGN(spec, ScheduleSpec::Parse("gpipe(order=lifo)"));
  EXPECT_EQ(spec.ToString(), "gpipe");
}

TEST(GenerateTest, OtherSpecsAreRefused) {
  const auto refused = [](const std::string& text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(ScheduleSpec::Parse("1f1d"), refused("did you mean '1f1b'?"));
  EXPECT_THAT(ScheduleSpec::Parse(""), refused("is not known"));
  EXPECT_THAT(ScheduleSpec::Parse("1f1b(chunks=2)"), refused("takes none"));
  EXPECT_THAT(ScheduleSpec::Parse("gpipe(order=fifo"), refused("no ) at"));
  EXPECT_THAT(ScheduleSpec::Parse("gpipe(order=up)"), refused("order=fifo"));
  for (const char* text : {"interleaved(chunks=1)", "interleaved(chunks=65)",
                           "interleaved(chunks=x)", "interleaved(2)"}) {
    EXPECT_THAT(ScheduleSpec::Parse(text), refused("write chunks=2 to 64"));
  }
}

TEST(GenerateTest, SizesAreBounded) {
  const auto refused = [](const std::string& text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  const ScheduleSpec one;
  EXPECT_THAT(Generate(one, 0, 4), refused("not 0 and 4"));
  EXPECT_THAT(Generate(one, 4, 0), refused("not 4 and 0"));
  EXPECT_THAT(Generate(one, kMaxRanks + 1, 1), refused("not 4097 and 1"));
  EXPECT_THAT(Generate(one, 1, kMaxMicroBatches + 1), refused("not 1 and"));
  EXPECT_THAT(Generate(one, kMaxRanks, kMaxMicroBatches),
              refused("has 536870912 passes"));
  EXPECT_THAT(Generate({SpecKind::kInterleaved, 64, false}, kMaxRanks, 1),
              refused("has 262144 stages; at most 65536"));
}

}  // namespace
}  // namespace coxswain::pipeline
