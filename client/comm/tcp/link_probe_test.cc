#include "client/comm/tcp/link_probe.h"

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/comm/tcp/connections.h"
#include "client/comm/tcp/peer_ends.h"
#include "client/comm/tcp/ring_choice.h"
#include "client/comm/tcp/tcp_messages.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Lt;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr int kProbedRanks = 4;
constexpr int kSilentRank = 3;
constexpr int64_t kSlow = int64_t{1} << 40;  // picoseconds a byte
constexpr absl::Duration kProbed = absl::Minutes(1);

// The messages of a rank, and the probe that uses them.
struct ProbedRank {
  PeerEnds ends;
  std::unique_ptr<TcpMessages> messages;
  std::shared_ptr<MeasuredLinks> links = std::make_shared<MeasuredLinks>();
  std::unique_ptr<LinkProbe> probe;
};

// Four ranks of a host each, of which the last takes no part in measuring: it
// reads what comes, and answers nothing.
class SilentHostTest : public testing::Test {
 protected:
  SilentHostTest() : ranks_(kProbedRanks) {
    auto store = std::make_shared<MemoryStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kProbedRanks; ++rank) {
      threads.emplace_back([&, rank] { Connect(rank, store); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ~SilentHostTest() override {
    ended_->Raise(absl::CancelledError("the test is over"));
    for (ProbedRank& rank : ranks_) rank.messages->Stop("the test is over");
    for (ProbedRank& rank : ranks_) rank.probe.reset();
  }

  void Connect(int rank, std::shared_ptr<RendezvousStore> store) {
    auto connections = ConnectRanks(
        TestGroupOptions(rank, kProbedRanks, std::move(store), kProbed),
        /*stripes=*/1, host_ids_[static_cast<size_t>(rank)]);
    ASSERT_OK(connections);
    std::vector<TcpStream> control;
    for (TcpLinks& links : connections->links) {
      control.push_back(std::move(links.control));
    }
    ProbedRank& own = ranks_[static_cast<size_t>(rank)];
    own.messages = std::make_unique<TcpMessages>(
        std::move(control), rank, "under-test",
        std::make_shared<ByteCounter>(nullptr), &own.ends);
    ASSERT_OK(own.messages->Start());
  }

  void Probe(const LinkProbe::Timeouts& timeouts) {
    for (int rank = 0; rank < kProbedRanks; ++rank) {
      if (rank == kSilentRank) continue;
      ProbedRank& own = ranks_[static_cast<size_t>(rank)];
      own.probe = std::make_unique<LinkProbe>(
          own.messages.get(), rank, host_ids_, ended_, own.links, timeouts);
    }
  }

  // A message of a user, from one rank to another.
  void ExpectMessage(int from, int to) {
    std::vector<int64_t> sent = {1, 2, 3};
    std::vector<int64_t> received(sent.size());
    TcpMessages& sender = *ranks_[static_cast<size_t>(from)].messages;
    TcpMessages& receiver = *ranks_[static_cast<size_t>(to)].messages;
    const auto send = sender.PostSend(to, /*tag=*/1, SpanOfValues(&sent));
    const auto receive =
        receiver.PostReceive(from, /*tag=*/1, SpanOfValues(&received));
    EXPECT_OK(receiver.Await(receive, kProbed));
    EXPECT_OK(sender.Await(send, kProbed));
    EXPECT_EQ(received, sent);
  }

  const std::vector<uint64_t> host_ids_ = {101, 102, 103, 104};
  const std::shared_ptr<CancelSignal> ended_ = std::make_shared<CancelSignal>();
  std::vector<ProbedRank> ranks_;
};

TEST_F(SilentHostTest, EndsTheProbeByItsDeadlines) {
  ranks_[0].links->Replace({{{101, 104}, 5}, {{102, 103}, kSlow}});
  LinkProbe::Timeouts timeouts;
  timeouts.answer = timeouts.collect = absl::Seconds(1);
  Probe(timeouts);
  // Nothing stops them: each ends by itself.
  for (ProbedRank& rank : ranks_) rank.probe.reset();

  // In the first round 0 meets 3, and 1 meets 2; then 0 is not there any more.
  const MeasuredLinks::Costs costs = ranks_[0].links->costs();
  EXPECT_THAT(costs, ElementsAre(Pair(Pair(101, 104), 5),
                                 Pair(Pair(102, 103), AllOf(Gt(0), Lt(kSlow)))))
      << "what was known stays, but for what was measured";
  for (const int rank : {1, 2}) {
    EXPECT_THAT(ranks_[static_cast<size_t>(rank)].links->costs(),
                ElementsAre(Pair(Pair(102, 103), costs.at({102, 103}))));
  }
  EXPECT_THAT(ranks_[kSilentRank].links->costs(), IsEmpty());
  const RingChoice choice = ChooseRing(host_ids_, costs);
  EXPECT_THAT(choice.ranks, UnorderedElementsAre(0, 1, 2, 3));
  EXPECT_THAT(choice.reason, HasSubstr("4 of 6 links were not measured"));
}

TEST_F(SilentHostTest, DelaysNoOtherMessage) {
  LinkProbe::Timeouts timeouts;
  timeouts.answer = absl::Hours(1);
  Probe(timeouts);
  // While all of them wait for it.
  for (int from = 0; from < kProbedRanks; ++from) {
    for (int to = 0; to < kProbedRanks; ++to) {
      if (from != to) ExpectMessage(from, to);
    }
  }
  EXPECT_THAT(ranks_[0].links->costs(), IsEmpty()) << "it has not ended";
}

}  // namespace
}  // namespace coxswain
