#include <functional>
#include <memory>
#include <thread>

#include "base/status_matchers.h"
#include "client/comm/hosts.h"
#include "client/comm/memory_store.h"

namespace coxswain::hosts_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

CommunicatorOptions Options(int rank, int size,
                            std::shared_ptr<RendezvousStore> store) {
  CommunicatorOptions options;
  options.id = "group";
  options.rank = rank;
  options.size = size;
  options.store = std::move(store);
  options.timeout = absl::Seconds(20);
  return options;
}

void OnRanks(int size,
             const std::function<void(const CommunicatorOptions&)>& run) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { run(Options(rank, size, store)); });
  }
  for (auto& thread : threads) thread.join();
}

TEST(HostsTest, RanksAreSortedByWhereTheyAre) {
  const std::vector<std::string> identities = {"b", "a", "b", "a", "c"};
  OnRanks(5, [&](const CommunicatorOptions& options) {
    ASSERT_OK_AND_ASSIGN(
        const Hosts hosts,
        FindHosts(options, identities[static_cast<size_t>(options.rank)]));
    EXPECT_EQ(hosts.count(), 3);
    EXPECT_THAT(hosts.ranks(0), ElementsAre(0, 2));
    EXPECT_THAT(hosts.ranks(1), ElementsAre(1, 3));
    EXPECT_THAT(hosts.ranks(2), ElementsAre(4));
    EXPECT_EQ(hosts.local_rank(3), 1);
  });
}

TEST(HostsTest, RanksInOnePlaceFormABridgeWhereHostsAreEqual) {
  const Hosts hosts({0, 0, 1, 1});
  EXPECT_EQ(hosts.bridges(), 2);
  EXPECT_THAT(hosts.bridge(0), ElementsAre(0, 2));
  EXPECT_THAT(hosts.bridge(1), ElementsAre(1, 3));
  EXPECT_EQ(Hosts({0, 1, 2}).bridges(), 1);
  EXPECT_EQ(Hosts({0, 0, 0}).bridges(), 3);
}

TEST(HostsTest, ARankOfASmallHostIsInSeveralBridges) {
  const Hosts hosts({0, 1, 1, 2, 2, 2});
  EXPECT_EQ(hosts.bridges(), 3);
  EXPECT_THAT(hosts.bridge(0), ElementsAre(0, 1, 3));
  EXPECT_THAT(hosts.bridge(1), ElementsAre(0, 2, 4));
  EXPECT_THAT(hosts.bridge(2), ElementsAre(0, 1, 5));
  // Not in as many as a large host has ranks.
  EXPECT_EQ(Hosts({0, 1, 1, 1, 1, 1, 1}).bridges(), 4);
  // The smallest has more than four.
  EXPECT_EQ(Hosts({0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}).bridges(), 5);
}

TEST(HostsTest, ProcessesOfOneHostHaveOneIdentity) {
  EXPECT_EQ(HostIdentity(), HostIdentity());
  EXPECT_THAT(HostIdentity(), HasSubstr("/net:"));
}

TEST(HostsTest, AFailureOfOneRankIsReportedToAll) {
  OnRanks(3, [](const CommunicatorOptions& options) {
    ASSERT_OK_AND_ASSIGN(const std::string fine,
                         AgreeThatAll(options, "first", absl::OkStatus()));
    EXPECT_EQ(fine, "");
    ASSERT_OK_AND_ASSIGN(
        const std::string verdict,
        AgreeThatAll(options, "second",
                     options.rank == 1 ? absl::InternalError("no memory")
                                       : absl::OkStatus()));
    EXPECT_EQ(verdict, "rank 1: no memory");
  });
}

TEST(HostsTest, ARankThatDoesNotArriveIsNamed) {
  CommunicatorOptions options = Options(0, 3, std::make_shared<MemoryStore>());
  options.timeout = absl::Milliseconds(20);
  EXPECT_THAT(FindHosts(options, "here"),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("rank 1 did not arrive")));
}

}  // namespace

}  // namespace coxswain::hosts_test
