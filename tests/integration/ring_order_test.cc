#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "client/comm/measured_links.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/session/session.h"
#include "server/components/components.h"
#include "server/coordinator.h"
#include "tests/support/in_threads.h"
#include "tests/support/quick_coordinator.h"

// A job's ring through two generations, over a real coordinator: each worker, a
// thread, is on a host of its own as far as its communicators know.

namespace coxswain::ring_order_test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int kWorkers = 5;
constexpr size_t kLinks = kWorkers * (kWorkers - 1) / 2;

uint64_t HostOf(int slot) { return 101 + static_cast<uint64_t>(slot); }

// Makes the links of neighbours slow but for that of the first two, against all
// others. One ring has none of them: 0 2 4 1 3.
MeasuredLinks::Costs WithSlowNeighbours(MeasuredLinks::Costs costs) {
  int64_t most = 0;
  for (const auto& [link, cost] : costs) most = std::max(most, cost);
  for (int slot = 2; slot < kWorkers; ++slot) {
    costs[MeasuredLinks::LinkOf(HostOf(slot), HostOf(slot - 1))] = 1000 * most;
  }
  return costs;
}

class RingOrderTest : public ::testing::Test {
 protected:
  using Sessions = std::vector<std::unique_ptr<Session>>;

  RingOrderTest() {
    server::CoordinatorOptions options = QuickCoordinator();
    options.membership.heartbeat_interval = absl::Milliseconds(20);
    auto started = server::Coordinator::Start(options);
    EXPECT_OK(started);
    if (started.ok()) coordinator_ = *std::move(started);
  }

  SessionOptions OptionsOf(int slot) {
    SessionOptions options;
    options.coordinator = absl::StrCat("127.0.0.1:", coordinator_->port());
    options.job = "rings";
    options.identity = {"host-a", slot};
    options.host = "host-a";
    options.world_size = kWorkers;
    options.min_world_size = 1;
    options.join_timeout = options.collective_timeout = kTimeout;
    options.backend = "tcp";
    options.connect = [this, slot](const std::string&,
                                   const CommunicatorOptions& group) {
      links_[static_cast<size_t>(slot)] = group.links;
      TcpTuning tuning;
      tuning.small_bytes = 0;
      tuning.direct_ranks = 1;
      tuning.host_id = HostOf(slot);
      return ConnectTcpTuned(group, tuning);
    };
    return options;
  }

  // Joins, or joins the generation after `former`; by rank, which is the slot.
  Sessions JoinAll(const Sessions& former = {}) {
    Sessions joined(kWorkers);
    InThreads(kWorkers, [&](int slot) {
      auto& session = joined[static_cast<size_t>(slot)];
      auto next = former.empty() ? Session::Join(OptionsOf(slot), {})
                                 : former[static_cast<size_t>(slot)]->Rejoin();
      ASSERT_OK(next);
      session = *std::move(next);
      ASSERT_EQ(session->rank(), slot);
      ASSERT_EQ(session->world_size(), kWorkers);
      ASSERT_OK(session->World());
    });
    return joined;
  }

  // Exchanges on all ranks until this is so; returns false if it never is.
  template <typename Condition>
  static bool TrainUntil(const Sessions& sessions, const Condition& condition) {
    const absl::Time end = Clock::Real()->Now() + kTimeout;
    while (!condition() && !HasFailure()) {
      if (Clock::Real()->Now() > end) return false;
      InThreads(kWorkers, [&](int rank) {
        const auto world = sessions[static_cast<size_t>(rank)]->World();
        ASSERT_OK(world);
        std::vector<float> data(10000, 1);
        const Span span{data.data(), 10000, DType::kFloat32, {}};
        ASSERT_OK((*world)->communicator().AllReduce(span)->Wait(kTimeout));
        ASSERT_EQ(data, std::vector<float>(10000, kWorkers));
      });
    }
    return !HasFailure();
  }

  bool AllKnowTheirLinks() const {
    return std::all_of(links_.begin(), links_.end(), [](const auto& links) {
      return links->costs().size() == kLinks;
    });
  }

  // Returns the ring that the journal has of this generation; empty: none.
  std::string LoggedRing(int64_t generation) const {
    for (const auto& event :
         coordinator_->view().journal->Read("rings", 0, 1000)) {
      if (event.event != "ring_ordered" || event.generation != generation) {
        continue;
      }
      EXPECT_EQ(event.rank, 0);
      for (const auto& [name, value] : event.fields) {
        if (name == "ring") return value;
      }
    }
    return "";
  }

  std::unique_ptr<server::Coordinator> coordinator_;
  // By slot: what its session keeps from one generation to the next.
  std::vector<std::shared_ptr<MeasuredLinks>> links_ =
      std::vector<std::shared_ptr<MeasuredLinks>>(kWorkers);
};

TEST_F(RingOrderTest, OneGenerationMeasuresAndTheNextHasAnotherRing) {
  const Sessions first = JoinAll();
  ASSERT_FALSE(HasFailure());
  ASSERT_TRUE(TrainUntil(
      first, [&] { return !LoggedRing(first[0]->generation()).empty(); }));
  EXPECT_THAT(LoggedRing(first[0]->generation()),
              AllOf(StartsWith("communicator '"),
                    EndsWith(": 0 1 2 3 4; by rank: no link among these hosts "
                             "has been measured")));
  ASSERT_TRUE(TrainUntil(first, [&] { return AllKnowTheirLinks(); }));
  const std::shared_ptr<MeasuredLinks> known = links_[0];
  known->Replace(WithSlowNeighbours(known->costs()));

  const Sessions next = JoinAll(first);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(links_[0], known);
  EXPECT_GT(next[0]->generation(), first[0]->generation());
  ASSERT_TRUE(TrainUntil(
      next, [&] { return !LoggedRing(next[0]->generation()).empty(); }));
  EXPECT_THAT(LoggedRing(next[0]->generation()),
              AllOf(StartsWith("communicator '"),
                    HasSubstr(": 0 2 4 1 3; by measured links: the slowest "
                              "link from the host of rank "),
                    HasSubstr(", by rank it would have ")));
  InThreads(kWorkers, [&](int rank) {
    EXPECT_OK(next[static_cast<size_t>(rank)]->Leave("done"));
  });
}

}  // namespace
}  // namespace coxswain::ring_order_test
