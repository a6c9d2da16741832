#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// How a job of four workers ended that two launchers had started.
struct JoinMismatch {
  std::map<std::string, std::string> errors;  // worker "bow/0": its stderr
  std::string launchers;  // what the launchers and these have printed
  std::string log;        // of the coordinator
  std::string present;    // "4 of 4 workers"
};

// From the start of the first process to the end of the last one: much less
// than the workers would wait for each other.
constexpr absl::Duration kAllEnd = absl::Seconds(30);

std::unique_ptr<Process> StartNode(const ServedCoordinator& coordinator,
                                   const std::string& node, int nodes,
                                   const std::vector<std::string>& options) {
  return Start(
      Launcher({"--nnodes", absl::StrCat(nodes), "--nproc", "2", "--node", node,
                "--job", "rows", "--coordinator", coordinator.address()},
               options));
}

void ExpectFailure(Process& launcher) {
  const auto exit = launcher.Wait(kTimeout);
  ASSERT_OK(exit);
  EXPECT_EQ(exit->Status(), 1) << launcher.err();
}

// Takes the launcher's "[bow/0] " from the front of a line.
void Collect(const std::string& err, JoinMismatch* mismatch) {
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(err, '\n'))) {
    const size_t end = line.find("] ");
    if (line.empty() || line[0] != '[' || end == std::string::npos) {
      absl::StrAppend(&mismatch->launchers, line, "\n");
    } else {
      absl::StrAppend(&mismatch->errors[line.substr(1, end - 1)],
                      line.substr(end + 2), "\n");
    }
  }
}

// Starts a coordinator and, for one job, a launcher on node "bow" and another
// one on node "stroke", each with two workers of these options: ranks 0 and 1,
// and 2 and 3. Further nodes do not join. Expects that all processes end by
// themselves within a time, and the launchers with exit code 1.
JoinMismatch RunDifferently(const std::vector<std::string>& bow_options,
                            const std::vector<std::string>& stroke_options,
                            int nodes = 2) {
  ServedCoordinator coordinator;
  const absl::Time start = Clock::Real()->Now();
  const auto bow = StartNode(coordinator, "bow", nodes, bow_options);
  const auto stroke = StartNode(coordinator, "stroke", nodes, stroke_options);
  ExpectFailure(*bow);
  ExpectFailure(*stroke);
  EXPECT_LT(Clock::Real()->Now() - start, kAllEnd);
  JoinMismatch mismatch;
  mismatch.present = absl::StrCat("4 of ", 2 * nodes, " workers");
  for (Process* launcher : {bow.get(), stroke.get()}) {
    Collect(launcher->err(), &mismatch);
    mismatch.launchers += launcher->out();
  }
  mismatch.log = coordinator.Stop();
  EXPECT_THAT(StrayProcesses(), IsEmpty());
  return mismatch;
}

// Expects that each of the four workers, and the coordinator in its log, have
// reported these differences and no others, and that no worker has joined.
void ExpectReportedEverywhere(const JoinMismatch& mismatch,
                              const std::vector<std::string>& differences) {
  std::string lines;
  for (const std::string& line : differences) {
    absl::StrAppend(&lines, "\n  ", line);
  }
  EXPECT_THAT(mismatch.errors, SizeIs(4));
  for (const std::string worker : {"bow/0", "bow/1", "stroke/0", "stroke/1"}) {
    const auto found = mismatch.errors.find(worker);
    ASSERT_NE(found, mismatch.errors.end()) << worker;
    EXPECT_THAT(found->second, HasSubstr("could not join job 'rows'"));
    EXPECT_THAT(found->second,
                HasSubstr(absl::StrCat(
                    "the workers of job 'rows' differ, and all must be alike (",
                    mismatch.present, " had joined):", lines, "\n")))
        << worker;
    EXPECT_THAT(found->second, Not(HasSubstr("waiting")));
  }
  EXPECT_THAT(mismatch.launchers,
              AllOf(Not(HasSubstr("rank ")), Not(HasSubstr("sending SIG"))))
      << "a worker has joined, or had to be stopped";

  std::vector<std::string> logged;
  for (const std::string& line : LinesWith(mismatch.log, "difference=")) {
    logged.push_back(line);
  }
  ASSERT_THAT(logged, SizeIs(differences.size())) << mismatch.log;
  for (size_t i = 0; i < differences.size(); ++i) {
    EXPECT_THAT(logged[i],
                AllOf(HasSubstr(" E manifests_differ job=rows "),
                      HasSubstr(absl::StrCat("\"", differences[i], "\""))));
  }
  EXPECT_THAT(LinesWith(mismatch.log, "generation_began"), IsEmpty());
}

TEST(DifferentHookOptionsTest, EveryRankGetsTheHooksOfAll) {
  ExpectReportedEverywhere(
      RunDifferently({"--hook", "powersgd(rank=4)"},
                     {"--hook", "powersgd(rank=2)"}),
      {"hook: powersgd(rank=4) on rank 0 (bow/0), rank 1 (bow/1); "
       "powersgd(rank=2) on rank 2 (stroke/0), rank 3 (stroke/1)"});
}

TEST(DifferentHookOptionsTest, AnOptionOfAnInnerHookCountsToo) {
  ExpectReportedEverywhere(
      RunDifferently({"--hook", "fp16(powersgd(rank=4, start_step=10))"},
                     {"--hook", "fp16(powersgd(rank=4, start_step=11))"}),
      {"hook: fp16(powersgd(rank=4,start_step=10)) on rank 0 (bow/0), "
       "rank 1 (bow/1); fp16(powersgd(rank=4,start_step=11)) on rank 2 "
       "(stroke/0), rank 3 (stroke/1)"});
}

// Its ranks are not known then.
TEST(DifferentHookOptionsTest, NoWorkerWaitsForALauncherThatIsMissing) {
  ExpectReportedEverywhere(
      RunDifferently({"--hook", "bf16"}, {"--hook", "fp16"},
                     /*nodes=*/3),
      {"hook: bf16 on bow/0, bow/1; fp16 on stroke/0, "
       "stroke/1"});
}

TEST(DifferentParameterDtypeTest, EveryRankGetsWhichParametersDifferAndWhose) {
  ExpectReportedEverywhere(
      RunDifferently({"--dtype", "float32"}, {"--dtype", "float64"}),
      {"parameter 0: layer1.weight float32[48,64] on rank 0 (bow/0), rank 1 "
       "(bow/1); layer1.weight float64[48,64] on rank 2 (stroke/0), rank 3 "
       "(stroke/1)",
       "parameter 1: layer1.bias float32[48] on rank 0 (bow/0), rank 1 "
       "(bow/1); layer1.bias float64[48] on rank 2 (stroke/0), rank 3 "
       "(stroke/1)",
       "parameter 2: layer2.weight float32[32,48] on rank 0 (bow/0), rank 1 "
       "(bow/1); layer2.weight float64[32,48] on rank 2 (stroke/0), rank 3 "
       "(stroke/1)",
       "parameter 3: layer2.bias float32[32] on rank 0 (bow/0), rank 1 "
       "(bow/1); layer2.bias float64[32] on rank 2 (stroke/0), rank 3 "
       "(stroke/1)"});
}

TEST(OffByOneAccumulationTest, NoStepIsMadeAndEveryRankGetsTheCountsOfAll) {
  ExpectReportedEverywhere(
      RunDifferently({"--accumulate", "3"}, {"--accumulate", "4"}),
      {"accumulation_steps: 3 on rank 0 (bow/0), rank 1 (bow/1); 4 on rank 2 "
       "(stroke/0), rank 3 (stroke/1)"});
}

}  // namespace
}  // namespace coxswain
