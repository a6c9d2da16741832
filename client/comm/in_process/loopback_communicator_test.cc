#include "client/comm/in_process/loopback_communicator.h"

#include <memory>
#include <vector>

#include "base/status_matchers.h"
#include "tests/conformance/communicator_conformance.h"

namespace coxswain::loopback_communicator_test {
namespace {

using testing::HasSubstr;

CommunicatorCase LoopbackCase() {
  CommunicatorCase result;
  result.name = "Loopback";
  result.sizes = {1};
  result.waits = false;
  result.make_group = [](int, absl::Duration) {
    std::vector<std::unique_ptr<Communicator>> group;
    group.push_back(std::make_unique<LoopbackCommunicator>());
    return group;
  };
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         testing::Values(LoopbackCase()), CaseName);

TEST(LoopbackCommunicatorTest, IsForOneRank) {
  CommunicatorOptions options;
  EXPECT_OK(ConnectLoopback(options));
  options.size = 2;
  EXPECT_THAT(
      ConnectLoopback(options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group of 1")));
}

}  // namespace
}  // namespace coxswain::loopback_communicator_test
