#include "client/session/session_options.h"

#include <map>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain::session_options_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<SessionOptions> Read(
    const std::map<std::string, std::string>& changes) {
  std::map<std::string, std::string> variables = {
      {"COXSWAIN_COORDINATOR", "head:4711"}, {"COXSWAIN_JOB", "mnist"}};
  for (const auto& [name, value] : changes) variables[name] = value;
  return SessionOptions::FromVariables([&variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(SessionOptionsTest, CoordinatorAndJobAreEnough) {
  ASSERT_OK_AND_ASSIGN(const SessionOptions options, Read({}));
  EXPECT_EQ(options.coordinator, "head:4711");
  EXPECT_EQ(options.job, "mnist");
  EXPECT_EQ(options.backend, "auto");
  EXPECT_FALSE(options.plain_data);
  EXPECT_EQ(options.join_timeout, absl::Minutes(5));
  EXPECT_EQ(options.local_rank, 0);
  EXPECT_EQ(options.world_size, 0);
  EXPECT_EQ(options.min_world_size, 0);
  EXPECT_EQ(options.attempt, 0);
  EXPECT_TRUE(options.topology.empty());
  EXPECT_EQ(options.trace_file, "");
  EXPECT_EQ(options.device, Device());
  EXPECT_EQ(options.ras_address, "");
}

TEST(SessionOptionsTest, ReadsEveryVariable) {
  ASSERT_OK_AND_ASSIGN(const SessionOptions options,
                       Read({{"COXSWAIN_NODE", "host-a"},
                             {"COXSWAIN_LOCAL_RANK", "2"},
                             {"COXSWAIN_LOCAL_WORLD_SIZE", "4"},
                             {"COXSWAIN_WORLD_SIZE", "8"},
                             {"COXSWAIN_MIN_WORLD_SIZE", "3"},
                             {"COXSWAIN_MESH", "dp=*,shard=02"},
                             {"COXSWAIN_LOCAL_DEVICE", "3"},
                             {"NCCL_RAS_ADDR", "localhost:9999"},
                             {"COXSWAIN_ATTEMPT", "5000000000"},
                             {"COXSWAIN_TOPOLOGY", "rack-3,node-12"},
                             {"COXSWAIN_LAUNCHER_ID", "18446744073709551615"},
                             {"COXSWAIN_INCARNATION", "0xff"},
                             {"COXSWAIN_BACKEND", "two_level(tcp)"},
                             {"COXSWAIN_PLAIN_DATA", "true"},
                             {"COXSWAIN_BIND_ADDRESS", "10.0.0.1"},
                             {"COXSWAIN_JOIN_TIMEOUT", "90s"},
                             {"COXSWAIN_REATTACH_GRACE", "2m"},
                             {"COXSWAIN_PLAN", "accumulation=4 tail=drop"},
                             {"COXSWAIN_TRACE", "runs/trace.json"}}));
  EXPECT_EQ(options.identity.ToString(), "host-a/2");
  EXPECT_EQ(options.local_rank, 2);
  EXPECT_EQ(options.local_world_size, 4);
  EXPECT_EQ(options.world_size, 8);
  EXPECT_EQ(options.min_world_size, 3);
  EXPECT_EQ(options.mesh, "dp=*,shard=2");
  EXPECT_EQ(options.device, (Device{Device::Kind::kCuda, 3}));
  EXPECT_EQ(options.ras_address, "localhost:9999");
  EXPECT_EQ(options.attempt, 5000000000);
  EXPECT_EQ(options.topology, (std::vector<std::string>{"rack-3", "node-12"}));
  EXPECT_EQ(options.launcher_id, ~uint64_t{0});
  EXPECT_EQ(options.incarnation, Incarnation(255));
  EXPECT_EQ(options.backend, "two_level");
  EXPECT_TRUE(options.plain_data);
  EXPECT_EQ(options.address, "10.0.0.1");
  EXPECT_EQ(options.join_timeout, absl::Seconds(90));
  EXPECT_EQ(options.reattach_grace, absl::Minutes(2));
  EXPECT_EQ(options.trace_file, "runs/trace.json");
  const std::map<std::string, std::string> overrides = {{"accumulation", "4"},
                                                        {"tail", "drop"}};
  EXPECT_EQ(options.plan_overrides, overrides);
}

TEST(SessionOptionsTest, ADeviceIsTheCpuOrTheNumberOfAGpu) {
  ASSERT_OK_AND_ASSIGN(const SessionOptions cpu,
                       Read({{"COXSWAIN_LOCAL_DEVICE", "cpu"}}));
  EXPECT_EQ(cpu.device, Device());
  for (const char* wrong : {"cuda", "-1", "1,2", "GPU-8a5c"}) {
    EXPECT_THAT(
        Read({{"COXSWAIN_LOCAL_DEVICE", wrong}}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("COXSWAIN_LOCAL_DEVICE"), HasSubstr(wrong),
                       HasSubstr("cpu or the number of a GPU"))));
  }
}

TEST(SessionOptionsTest, AWrongPlanNamesTheVariable) {
  EXPECT_THAT(Read({{"COXSWAIN_PLAN", "tail=cut"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("COXSWAIN_PLAN='tail=cut'"),
                             HasSubstr("flush|carry|drop"))));
}

TEST(SessionOptionsTest, PlainNumbersOfTheJoinTimeoutAreSeconds) {
  ASSERT_OK_AND_ASSIGN(const SessionOptions options,
                       Read({{"COXSWAIN_JOIN_TIMEOUT", "20"}}));
  EXPECT_EQ(options.join_timeout, absl::Seconds(20));
}

TEST(SessionOptionsTest, AMissingCoordinatorIsAnErrorWithWhatToSet) {
  EXPECT_THAT(Read({{"COXSWAIN_COORDINATOR", ""}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("COXSWAIN_COORDINATOR"),
                             HasSubstr("coxswain run"))));
}

class InvalidVariableTest
    : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(InvalidVariableTest, IsAnErrorThatNamesItAndItsValue) {
  const auto& [name, value] = GetParam();
  EXPECT_THAT(Read({{name, value}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(name), HasSubstr("'" + value + "'"))));
}

INSTANTIATE_TEST_SUITE_P(
    All, InvalidVariableTest,
    ::testing::Values(std::pair("COXSWAIN_COORDINATOR", "head"),
                      std::pair("COXSWAIN_COORDINATOR", "head:0"),
                      std::pair("COXSWAIN_COORDINATOR", "head:70000"),
                      std::pair("COXSWAIN_LOCAL_RANK", "-1"),
                      std::pair("COXSWAIN_LOCAL_RANK", "two"),
                      std::pair("COXSWAIN_LOCAL_WORLD_SIZE", "0"),
                      std::pair("COXSWAIN_WORLD_SIZE", "4.5"),
                      std::pair("COXSWAIN_MIN_WORLD_SIZE", "0"),
                      std::pair("COXSWAIN_MESH", "dp=two"),
                      std::pair("COXSWAIN_ATTEMPT", "-1"),
                      std::pair("COXSWAIN_TOPOLOGY", "rack-3,,node-12"),
                      std::pair("COXSWAIN_COORDINATOR", "head:4711,other"),
                      std::pair("COXSWAIN_LAUNCHER_ID", "0"),
                      std::pair("COXSWAIN_INCARNATION", "0xzz"),
                      std::pair("COXSWAIN_BACKEND", "nccl2"),
                      std::pair("COXSWAIN_JOIN_TIMEOUT", "soon"),
                      std::pair("COXSWAIN_JOIN_TIMEOUT", "-5s")));

TEST(SessionOptionsTest, AtLeastMoreThanAtMostIsAnError) {
  EXPECT_THAT(
      Read({{"COXSWAIN_WORLD_SIZE", "2"}, {"COXSWAIN_MIN_WORLD_SIZE", "3"}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("at most COXSWAIN_WORLD_SIZE=2")));
}

TEST(SessionOptionsTest, SeveralCoordinatorsAreAList) {
  ASSERT_OK_AND_ASSIGN(
      const SessionOptions options,
      Read({{"COXSWAIN_COORDINATOR", "head:4711,standby:4711"}}));
  EXPECT_EQ(options.coordinator, "head:4711,standby:4711");
}

TEST(SessionOptionsTest, AnUnknownBackendListsThoseOfTheRegistry) {
  EXPECT_THAT(Read({{"COXSWAIN_BACKEND", "nccl2"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("one of: auto, loopback, nccl")));
}

TEST(SessionOptionsTest, ABackendThatIsGoneNamesWhatReplacedIt) {
  EXPECT_THAT(
      Read({{"COXSWAIN_BACKEND", "gloo"}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("COXSWAIN_BACKEND: the back end 'gloo' was replaced "
                         "by 'tcp'")));
}

TEST(SessionOptionsTest, ALocalRankPastTheLocalWorldIsAnError) {
  EXPECT_THAT(
      Read({{"COXSWAIN_LOCAL_RANK", "2"}, {"COXSWAIN_LOCAL_WORLD_SIZE", "2"}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("COXSWAIN_LOCAL_WORLD_SIZE=2")));
}

TEST(LocalAddressTest, TowardsLoopbackIsLoopback) {
  ASSERT_OK_AND_ASSIGN(const std::string address,
                       LocalAddressTowards("127.0.0.1:4711"));
  EXPECT_EQ(address, "127.0.0.1");
}

TEST(LocalAddressTest, TheFirstOfSeveralThatHasARouteCounts) {
  ASSERT_OK_AND_ASSIGN(
      const std::string address,
      LocalAddressTowards("no-such-host.invalid:4711,127.0.0.1:4711"));
  EXPECT_EQ(address, "127.0.0.1");
}

TEST(LocalAddressTest, WithoutAPortIsAnError) {
  EXPECT_THAT(
      LocalAddressTowards("127.0.0.1"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("HOST:PORT")));
}

}  // namespace
}  // namespace coxswain::session_options_test
