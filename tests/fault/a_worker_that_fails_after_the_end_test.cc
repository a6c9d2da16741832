#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/fault/crew.h"
#include "tests/scenarios/scenario.h"

namespace coxswain {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

// A worker trains to the end and leaves; then its process fails, in what the
// program does after that. Its launcher starts it again, into a job that is
// done, or that ends in a moment: there is nothing to do, and all is well.
class FailsAfterTheEndTest : public testing::TestWithParam<const char*> {};

TEST_P(FailsAfterTheEndTest, HasNothingToDoWhenItIsStartedAgain) {
  const TemporaryFolder folder;
  // The first process of slot 0 fails, once.
  const std::string script = absl::StrCat(
      "tests/fault/elastic_toy/elastic_toy --steps 50 || exit 9; "
      "[ $COXSWAIN_LOCAL_RANK != 0 ] || ! mkdir ",
      folder.path("failed"), " 2>/dev/null || exit 3");
  Crew crew;
  crew.Serve();
  Crew::Launch launch;
  launch.node = "bow";
  launch.nproc = 2;
  launch.run = {"--min-workers", GetParam(), "--max-restarts", "1"};
  launch.program = "/bin/sh";
  launch.toy = {"-c", script};
  const auto launcher = crew.Start(launch);
  crew.Finish({{launcher, 0}});
  EXPECT_THAT(crew.Transcript(),
              HasSubstr("exited with code 3; it is started again (1 of 1)"));
  EXPECT_THAT(crew.lives(), SizeIs(2)) << "somebody has trained once more\n"
                                       << crew.Transcript();
}

INSTANTIATE_TEST_SUITE_P(MinWorkers, FailsAfterTheEndTest,
                         testing::Values("1", "2"), [](const auto& least) {
                           return std::string(least.param);
                         });

}  // namespace
}  // namespace coxswain
