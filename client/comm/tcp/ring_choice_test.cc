#include "client/comm/tcp/ring_choice.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/tcp/link_probe.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/comm/work.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Group = std::vector<std::unique_ptr<Communicator>>;

constexpr absl::Duration kChoiceTimeout = absl::Minutes(1);

// Links between hosts 101, 102 and so on: those between neighbours are slow but
// for 101 and 102, others fast.
MeasuredLinks::Costs SlowNeighbours(int hosts) {
  MeasuredLinks::Costs costs;
  for (uint64_t a = 0; a < static_cast<uint64_t>(hosts); ++a) {
    for (uint64_t b = 0; b < a; ++b) {
      costs[MeasuredLinks::LinkOf(101 + a, 101 + b)] =
          a - b == 1 && a > 1 ? 16000 : 8000;
    }
  }
  return costs;
}

TEST(RingChoiceTest, ASlowLinkIsLeftOut) {
  const RingChoice choice =
      ChooseRing({101, 102, 103, 104, 105}, SlowNeighbours(5));
  EXPECT_THAT(choice.ranks, ElementsAre(0, 2, 4, 1, 3));
  EXPECT_EQ(Describe(choice),
            "0 2 4 1 3; by measured links: the slowest link from the host of "
            "rank 0 to that of rank 2 has 125 MB/s, by rank it would have 62.5 "
            "MB/s");
}

TEST(RingChoiceTest, RanksOfOneHostStayTogether) {
  EXPECT_THAT(
      ChooseRing({101, 102, 103, 101, 104, 105, 103}, SlowNeighbours(5)).ranks,
      ElementsAre(0, 3, 2, 6, 5, 1, 4));
}

TEST(RingChoiceTest, WithoutMeasurementsItGoesByRank) {
  const RingChoice choice = ChooseRing({7, 8, 7, 8}, SlowNeighbours(5));
  EXPECT_EQ(Describe(choice),
            "0 2 1 3; by rank: no link among these hosts has been measured");
}

TEST(RingChoiceTest, AGainWithinTheErrorOfMeasuringChangesNothing) {
  MeasuredLinks::Costs costs = SlowNeighbours(5);
  for (auto& [link, cost] : costs) cost = cost == 8000 ? 15000 : cost;
  const RingChoice choice = ChooseRing({101, 102, 103, 104, 105}, costs);
  EXPECT_THAT(choice.ranks, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(choice.reason, HasSubstr("by rank: its slowest link"));
}

TEST(RingChoiceTest, ANewHostHindersNone) {
  const RingChoice choice =
      ChooseRing({101, 102, 103, 104, 105, 999}, SlowNeighbours(5));
  EXPECT_THAT(choice.reason, HasSubstr("by measured links"));
  EXPECT_THAT(choice.reason, HasSubstr("5 of 15 links were not measured"));
}

TEST(LinkProbeTest, EachHostMeetsEachOtherOneOnce) {
  for (int hosts = 2; hosts <= 9; ++hosts) {
    std::vector<std::vector<int>> met(static_cast<size_t>(hosts),
                                      std::vector<int>(hosts));
    for (int round = 0; round < LinkProbe::RoundsOf(hosts); ++round) {
      for (int host = 0; host < hosts; ++host) {
        const int partner = LinkProbe::PartnerOf(host, round, hosts);
        if (partner < 0) continue;
        ASSERT_NE(partner, host);
        ASSERT_EQ(LinkProbe::PartnerOf(partner, round, hosts), host);
        ++met[host][partner];
      }
    }
    for (int host = 0; host < hosts; ++host) {
      for (int other = 0; other < hosts; ++other) {
        EXPECT_EQ(met[host][other], host == other ? 0 : 1) << hosts;
      }
    }
  }
}

// A group of one generation: rank r is on host hosts[r], and knows links[r].
class Generation {
 public:
  Generation(const std::vector<uint64_t>& hosts,
             const std::vector<std::shared_ptr<MeasuredLinks>>& links,
             bool measures) {
    group_ = ConnectGroup(static_cast<int>(hosts.size()), kChoiceTimeout,
                          [&](CommunicatorOptions options) {
                            const auto rank = static_cast<size_t>(options.rank);
                            options.links = links[rank];
                            options.measures_links = measures;
                            TcpTuning tuning;
                            tuning.small_bytes = 0;
                            tuning.direct_ranks = 1;
                            tuning.host_id = hosts[rank];
                            return ConnectTcpTuned(options, tuning);
                          });
  }

  // Sums up on all ranks, and checks the sums.
  void Train() {
    std::vector<std::thread> threads;
    for (const auto& comm : group_) {
      threads.emplace_back([&] {
        std::vector<float> data(50000, 1);
        Span span;
        span.data = data.data();
        span.count = static_cast<int64_t>(data.size());
        ASSERT_OK(comm->AllReduce(span)->Wait(kChoiceTimeout));
        EXPECT_EQ(data,
                  std::vector<float>(50000, static_cast<float>(group_.size())));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Group& group() { return group_; }

 private:
  Group group_;
};

std::vector<std::shared_ptr<MeasuredLinks>> LinksOf(int ranks) {
  std::vector<std::shared_ptr<MeasuredLinks>> links;
  for (int i = 0; i < ranks; ++i) {
    links.push_back(std::make_shared<MeasuredLinks>());
  }
  return links;
}

TEST(LinkProbeTest, OneGenerationMeasuresForTheNext) {
  // Four hosts, two of them with two ranks.
  const std::vector<uint64_t> hosts = {101, 102, 101, 103, 104, 102};
  const auto links = LinksOf(6);
  {
    Generation first(hosts, links, /*measures=*/true);
    EXPECT_EQ(links[0]->ring(),
              "communicator 'under-test': 0 2 1 5 3 4; by rank: no link among "
              "these hosts has been measured");
    for (const auto& known : links) {
      while (known->costs().empty()) first.Train();
    }
  }
  for (const auto& known : links) {
    EXPECT_EQ(known->costs().size(), 6u);
    EXPECT_EQ(known->costs(), links[0]->costs());
    for (const auto& [link, cost] : known->costs()) EXPECT_GT(cost, 0);
  }
  EXPECT_EQ(links[1]->ring(), "");
  Generation second(hosts, links, /*measures=*/false);
  EXPECT_THAT(links[0]->ring(), Not(HasSubstr("has been measured")));
  second.Train();
}

TEST(LinkProbeTest, AllRanksFollowWhatRankZeroKnows) {
  const auto links = LinksOf(5);
  links[0]->Replace(SlowNeighbours(5));
  links[3]->Replace({{{101, 102}, 1}, {{102, 103}, 100000}});
  Generation generation({101, 102, 103, 104, 105}, links, false);
  EXPECT_THAT(links[0]->ring(), HasSubstr("0 2 4 1 3; by measured links"));
  generation.Train();
}

TEST(LinkProbeTest, SplitsAreOrderedToo) {
  const auto links = LinksOf(6);
  links[0]->Replace(SlowNeighbours(6));
  Generation generation({101, 102, 103, 104, 105, 106}, links, false);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 5; ++rank) {
    threads.emplace_back([&, rank] {
      EXPECT_OK(generation.group()[rank]->Split({0, 1, 2, 3, 4}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(links[0]->ring(), HasSubstr("0 2 4 1 3; by measured links"));
}

TEST(LinkProbeTest, RanksThatEndWhileItRunsDisturbNoOther) {
  const auto links = LinksOf(4);
  Generation generation({101, 102, 103, 104}, links, /*measures=*/true);
  generation.Train();
  generation.group()[1].reset();
  generation.group()[3]->Abort("enough");
}

TEST(LinkProbeTest, ItsTagIsNotForUsers) {
  Generation generation({101, 101}, LinksOf(2), false);
  std::vector<float> data(10);
  Span span;
  span.data = data.data();
  span.count = 10;
  EXPECT_THAT(
      generation.group()[0]
          ->Send(span, 1, TcpMessages::kOwnTag)
          ->Wait(kChoiceTimeout),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use another")));
}

}  // namespace
}  // namespace coxswain
