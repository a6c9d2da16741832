#ifndef COXSWAIN_TESTS_CONFORMANCE_CHANNEL_CONFORMANCE_H_
#define COXSWAIN_TESTS_CONFORMANCE_CHANNEL_CONFORMANCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "client/comm/channel.h"
#include "client/comm/communicator.h"
#include "tests/conformance/communicator_conformance.h"

namespace coxswain {

// What every back end with channels (client/comm/channel.h) must do, as tests:
// as communicator_conformance.h, whose CommunicatorCase they take. Of two
// ranks, with a channel from rank 0 to rank 1.
class ChannelConformance : public testing::TestWithParam<CommunicatorCase> {
 protected:
  static constexpr absl::Duration kMinutes = absl::Minutes(2);
  static constexpr int kSlots = 3;
  static constexpr int64_t kSlotBytes = 4000;

  void SetUp() override { group_ = GetParam().make_group(2, kMinutes); }

  static ChannelOptions Options(int peer) {
    ChannelOptions options;
    options.peer = peer;
    options.tag = 5;
    options.slot_bytes = kSlotBytes;
    options.slots = kSlots;
    return options;
  }
  void Open() {
    ASSERT_OK_AND_ASSIGN(sender_, group_[0]->OpenSender(Options(1)));
    ASSERT_OK_AND_ASSIGN(receiver_, group_[1]->OpenReceiver(Options(0)));
  }

  std::vector<std::unique_ptr<Communicator>> group_;
  std::unique_ptr<ChannelSender> sender_;
  std::unique_ptr<ChannelReceiver> receiver_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_CHANNEL_CONFORMANCE_H_
