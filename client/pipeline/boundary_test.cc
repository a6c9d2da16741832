#include "client/pipeline/boundary.h"

#include <memory>
#include <utility>

#include "base/status_matchers.h"
#include "client/comm/shm/shm_communicator.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {
namespace {

constexpr absl::Duration kLongestWait = absl::Minutes(1);

Activation OneDouble() {
  auto memory = std::make_shared<double>(0.5);
  double* const data = memory.get();
  return {DType::kFloat64, {1}, std::shared_ptr<void>(memory, data)};
}

// Its threads wait for messages while the stage computes.
TEST(BoundaryTest, OnlyTheThreadThatComputesWaits) {
  const auto group = ConnectGroup(2, kLongestWait, ConnectShm);
  const auto sends = std::make_shared<WaitCount>();
  const auto receives = std::make_shared<WaitCount>();
  group[0]->CountWaitsIn(sends);
  group[1]->CountWaitsIn(receives);
  BoundaryOptions options;
  options.peer = 1;
  ASSERT_OK_AND_ASSIGN(const auto sender,
                       BoundarySender::Open(group[0].get(), options));
  options.peer = 0;
  ASSERT_OK_AND_ASSIGN(const auto receiver,
                       BoundaryReceiver::Open(group[1].get(), options));
  receiver->Expect(1);
  ASSERT_OK(sender->Send(0, {OneDouble()}));
  ASSERT_OK(receiver->Receive(0));
  ASSERT_OK(sender->Flush());
  EXPECT_EQ(receives->ended(), 1);
  // Send, Flush, and what Flush does with the channel.
  EXPECT_EQ(sends->ended(), 3);
  EXPECT_FALSE(sends->any());
  EXPECT_FALSE(receives->any());
}

}  // namespace
}  // namespace coxswain
