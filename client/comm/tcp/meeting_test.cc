#include "client/comm/tcp/meeting.h"

#include <poll.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/comm/tcp/connections.h"
#include "client/comm/tcp/raw_tcp_peer_for_test.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Le;

// More than are read at a time, of strangers and of the group.
constexpr int kMostCallers = kMaxStrangers + 1 + kMaxStripes;

// What rank 0 of two accepts, a turn at a time.
class MeetingTest : public testing::Test {
 protected:
  MeetingTest() : pairs_(options_) {
    auto listener = ListenTcp("127.0.0.1");
    EXPECT_OK(listener);
    TcpPlace place;
    place.address = listener->address;
    place.call_token = 7;
    place.answer_token = 8;
    EXPECT_OK(
        options_.store->Set(PlaceLookup::Key(options_, 0), EncodePlace(place)));
    acceptor_.emplace(options_, place, nullptr, *std::move(listener));
    peer_.emplace(options_);
  }

  void Strangers(int count, absl::string_view bytes) {
    for (int i = 0; i < count; ++i) strangers_.push_back(peer_->Call(bytes));
  }
  void CallOfRankOne() {
    peer_->control = peer_->Call(peer_->Hello(0));
    peer_->data = peer_->Call(peer_->Hello(1));
  }

  void Turn() { EXPECT_OK(acceptor_->Advance(now_, &pairs_)); }
  int Dropped() const {
    return static_cast<int>(std::count_if(
        strangers_.begin(), strangers_.end(), [](const UniqueFd& stranger) {
          pollfd entry = {stranger.get(), POLLIN, 0};
          return poll(&entry, 1, 0) == 1;
        }));
  }
  bool Listens() const {
    std::vector<pollfd> entries;
    acceptor_->AddEntries(&entries);
    pollfd first = entries.at(0);
    return poll(&first, 1, 0) == 1;
  }

  const CommunicatorOptions options_ =
      TestGroupOptions(0, 2, std::make_shared<MemoryStore>(), absl::Minutes(1));
  absl::Time now_ = absl::UnixEpoch();
  TcpPairs pairs_;
  std::optional<Acceptor> acceptor_;
  std::optional<RawTcpPeer> peer_;
  std::vector<UniqueFd> strangers_;
};

TEST_F(MeetingTest, ATurnEndsHoweverManyStrangersCall) {
  Strangers(200, std::string(sizeof(TcpHelloBytes), 'x'));
  CallOfRankOne();
  Turn();
  EXPECT_THAT(Dropped(), Le(64));
  EXPECT_THAT(pairs_.Missing(), ElementsAre(1)) << "its turn has not come";
  for (int turn = 0; turn < 5; ++turn) Turn();
  EXPECT_EQ(Dropped(), 200);
  EXPECT_THAT(pairs_.Missing(), IsEmpty());
}

TEST_F(MeetingTest, SilentStrangersKeepARankOutUntilTheyAreDropped) {
  Strangers(kMostCallers, "CXSTCP01");
  CallOfRankOne();
  // These come later, and are as many again.
  Strangers(kMostCallers, "CXSTCP01");
  for (int turn = 0; turn < 5; ++turn) Turn();
  EXPECT_THAT(pairs_.Missing(), ElementsAre(1));
  EXPECT_EQ(Dropped(), 0);
  EXPECT_FALSE(Listens()) << "it would not sleep";
  EXPECT_EQ(acceptor_->NextExpiry(), now_ + kHelloTimeout);

  now_ += kHelloTimeout;
  Turn();
  EXPECT_EQ(Dropped(), kMostCallers);
  EXPECT_THAT(pairs_.Missing(), IsEmpty());
}

TEST_F(MeetingTest, OneThatSpeaksSlowlyHasNoMoreTime) {
  const std::string hello(sizeof(TcpHelloBytes) - 1, 'x');
  Strangers(1, "");
  for (const char letter : hello) {
    Turn();
    now_ += kHelloTimeout / 20;
    RawTcpPeer::Write(strangers_[0], absl::string_view(&letter, 1));
  }
  EXPECT_EQ(Dropped(), 1);
}

}  // namespace
}  // namespace coxswain
