#include "tests/scenarios/join_mismatch.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "tests/scenarios/scenario.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

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
  const auto exit = launcher.Wait(kPatience);
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

}  // namespace

JoinMismatch RunDifferently(const std::vector<std::string>& bow_options,
                            const std::vector<std::string>& stroke_options,
                            int nodes) {
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

void ExpectToldEverywhere(const JoinMismatch& mismatch,
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
      << "a worker has joined, or had to be told to end";

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

}  // namespace coxswain
