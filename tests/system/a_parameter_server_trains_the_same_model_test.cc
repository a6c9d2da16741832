#include <signal.h>

#include <map>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/system/scenario.h"

namespace coxswain {
namespace {

using testing::SizeIs;

using Digests = std::map<int, std::map<int64_t, std::string>>;
using Case = std::tuple<const char*, int>;  // hook, workers

class SameModelTest : public testing::TestWithParam<Case> {};

// Of the parameters, by rank and step.
Digests Train(const std::string& backend, const Case& training) {
  const auto [hook, workers] = training;
  const Ended ended = RunToEnd(
      Launcher({"--nproc", absl::StrCat(workers), "--backend", backend},
               {"--hook", hook, "--steps", "10", "--digest"}));
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_THAT(LinesWith(ended.out, absl::StrCat("through ", backend)),
              SizeIs(workers))
      << ended.out;
  return DigestsByRank(ended.out);
}

// Both form sums in the order of the ranks.
TEST_P(SameModelTest, BitForBitAfterEveryStep) {
  const Digests collective = Train("shm", GetParam());
  const Digests server = Train("parameter_server", GetParam());
  ASSERT_THAT(server, SizeIs(std::get<1>(GetParam())));
  EXPECT_THAT(server.at(0), SizeIs(10));
  EXPECT_EQ(server, collective);
}

INSTANTIATE_TEST_SUITE_P(
    All, SameModelTest,
    testing::Combine(testing::Values("allreduce",
                                     "powersgd(rank=2,start_step=2)"),
                     testing::Values(2, 3)),
    [](const testing::TestParamInfo<Case>& info) {
      const bool plain = std::string(std::get<0>(info.param)) == "allreduce";
      return absl::StrCat(plain ? "AllReduce" : "PowerSgd", "Workers",
                          std::get<1>(info.param));
    });

// The error of a worker that has lost the coordinator that it exchanged
// through.
TEST(ParameterServerTest, WithoutItsCoordinatorAJobEndsWithAReason) {
  ServedCoordinator coordinator;
  const auto launcher =
      Start(Launcher({"--nproc", "2", "--nnodes", "1", "--coordinator",
                      coordinator.address(), "--job", "lost", "--backend",
                      "parameter_server", "--reattach-grace", "2s"},
                     {"--steps", "100000"}));
  ASSERT_OK(launcher->WaitForStdout("through parameter_server", kTimeout));
  coordinator.process().Signal(SIGKILL);
  const Ended ended = EndOf(*launcher);
  EXPECT_NE(ended.status, 0);
  EXPECT_THAT(ended.err, testing::HasSubstr("coordinator")) << ended.out;
}

}  // namespace
}  // namespace coxswain
