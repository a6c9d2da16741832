#include <algorithm>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"
#include "tests/system/toy/toy_dump.h"

namespace coxswain {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSavedAt = 8;
constexpr int64_t kStepsAfter = 11;
constexpr char kHook[] = "powersgd(rank=2,start_step=3)";

struct Tolerance {
  double first_step;
  double later_steps;
};

struct Case {
  std::string name;
  std::string dtype;
  int workers_before;
  int workers_after;
  Tolerance tolerance;
};

std::ostream& operator<<(std::ostream& out, const Case& test) {
  return out << test.name;
}

class ReplayTest : public testing::Test {
 protected:
  // Runs a job in processes of its own, to its end.
  ToyDump Run(const std::string& hook, const std::string& dtype, int workers,
              std::vector<std::string> toy_options) {
    const std::string path = folder_.path("dump");
    toy_options.insert(toy_options.end(),
                       {"--hook", hook, "--dtype", dtype, "--replay",
                        "--digest", "--dump", path});
    auto launcher =
        Start(Launcher({"--nproc", absl::StrCat(workers), "--job", "rows",
                        "--coordinator", coordinator_.address()},
                       toy_options));
    const auto exit = launcher->Wait(kTimeout);
    EXPECT_OK(exit);
    if (exit.ok()) {
      EXPECT_EQ(exit->Status(), 0) << launcher->err();
    }
    const auto digests = DigestsByRank(launcher->out());
    EXPECT_THAT(digests, SizeIs(workers));
    for (const auto& [rank, steps] : digests) {
      EXPECT_EQ(steps, digests.begin()->second) << "rank " << rank;
    }
    auto dump = ReadToyDump(path);
    EXPECT_OK(dump);
    return std::move(dump).value_or(ToyDump());
  }

  ServedCoordinator coordinator_;
  TemporaryFolder folder_;
};

class RestartTest : public ReplayTest,
                    public testing::WithParamInterface<Case> {};

TEST_P(RestartTest, TheGradientsGoOnAsIfNothingHadHappened) {
  const Case& test = GetParam();
  const std::string end = absl::StrCat(kSavedAt + kStepsAfter);
  const std::string half = absl::StrCat(kSavedAt);
  const auto run = [&](int workers, const std::vector<std::string>& options) {
    return Run(kHook, test.dtype, workers, options);
  };
  const ToyDump uninterrupted = run(test.workers_before, {"--steps", end});
  run(test.workers_before, {"--steps", half, "--save-at", half});
  const ToyDump resumed =
      run(test.workers_after, {"--steps", end, "--restore"});

  ASSERT_THAT(resumed, SizeIs(4 * kStepsAfter));
  double first = 0;
  double later = 0;
  for (const auto& [key, gradient] : resumed) {
    ASSERT_EQ(uninterrupted.count(key), 1u);
    const double difference =
        RelativeDifference(uninterrupted.at(key), gradient);
    double& worst = key.first == kSavedAt ? first : later;
    worst = std::max(worst, difference);
  }
  std::printf("worst relative difference: first step %.2g, later steps %.2g\n",
              first, later);
  EXPECT_LE(first, test.tolerance.first_step);
  EXPECT_LE(later, test.tolerance.later_steps);
  coordinator_.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
}

// The tests above would not notice if compression never began, or if what was
// kept did not matter.
TEST_F(ReplayTest, WithoutTheStateTheGradientsDiffer) {
  const std::string end = absl::StrCat(kSavedAt + 1);
  const ToyDump kept = Run(kHook, "float64", 2, {"--steps", end});
  const ToyDump forgotten = Run(
      "powersgd(rank=2,start_step=0,error_feedback=false,warm_start=false)",
      "float64", 2, {"--first-step", absl::StrCat(kSavedAt), "--steps", end});
  for (const char* matrix : {"layer1.weight", "layer2.weight"}) {
    const std::pair<int64_t, std::string> key = {kSavedAt, matrix};
    ASSERT_EQ(kept.count(key), 1u);
    ASSERT_EQ(forgotten.count(key), 1u);
    EXPECT_GT(RelativeDifference(kept.at(key), forgotten.at(key)), 0.1);
  }
}

constexpr Tolerance kFloat32 = {1e-6, 1e-4};
constexpr Tolerance kFloat64 = {1e-12, 1e-12};

INSTANTIATE_TEST_SUITE_P(
    All, RestartTest,
    testing::Values(Case{"SameWorldFloat32", "float32", 4, 4, kFloat32},
                    Case{"SameWorldFloat64", "float64", 4, 4, kFloat64},
                    Case{"FourToTwoFloat32", "float32", 4, 2, kFloat32},
                    Case{"FourToTwoFloat64", "float64", 4, 2, kFloat64},
                    Case{"TwoToThreeFloat32", "float32", 2, 3, kFloat32},
                    Case{"TwoToThreeFloat64", "float64", 2, 3, kFloat64}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace coxswain
