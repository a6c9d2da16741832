#include "client/comm/tcp/ring_order.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::ElementsAre;

// Costs as links may have them, from a seed.
class Network {
 public:
  explicit Network(uint64_t seed) : random_(seed) {}

  LinkCosts Uniform(int hosts) {
    return Fill(hosts, [&](int, int) { return Between(100, 100'000); });
  }
  // Few different costs, so that many rings are equal.
  LinkCosts Coarse(int hosts) {
    return Fill(hosts, [&](int, int) { return 1000 * Between(1, 4); });
  }
  // Racks with fast links within, and slower ones between them.
  LinkCosts Racks(int hosts) {
    std::vector<int64_t> rack(static_cast<size_t>(hosts));
    for (int64_t& one : rack) one = Between(0, hosts / 16);
    LinkCosts between = Uniform(hosts);
    return Fill(hosts, [&](int a, int b) {
      return rack[a] == rack[b] ? Between(1000, 2000)
                                : 5000 + between.at(static_cast<int>(rack[a]),
                                                    static_cast<int>(rack[b]));
    });
  }
  LinkCosts OneSlowHost(int hosts) {
    const int64_t slow = Between(0, hosts - 1);
    return Fill(hosts, [&](int a, int b) {
      return (a == slow || b == slow ? 10 : 1) * Between(1000, 1300);
    });
  }
  LinkCosts SomeSlowLinks(int hosts) {
    return Fill(hosts, [&](int, int) {
      return Between(1, 3) == 1 ? 8 * Between(1000, 1300) : Between(1000, 1300);
    });
  }
  // As far apart as points of a square are.
  LinkCosts Plane(int hosts) {
    std::vector<double> x;
    std::vector<double> y;
    for (int host = 0; host < hosts; ++host) {
      x.push_back(static_cast<double>(Between(0, 100'000)));
      y.push_back(static_cast<double>(Between(0, 100'000)));
    }
    return Fill(hosts, [&](int a, int b) {
      return static_cast<int64_t>(std::hypot(x[a] - x[b], y[a] - y[b])) + 1;
    });
  }

 private:
  int64_t Between(int64_t low, int64_t high) {
    const auto range = static_cast<uint64_t>(high - low + 1);
    return low + static_cast<int64_t>(random_() % range);
  }
  static LinkCosts Fill(int hosts,
                        const std::function<int64_t(int, int)>& cost) {
    LinkCosts costs(hosts);
    for (int a = 0; a < hosts; ++a) {
      for (int b = 0; b < a; ++b) costs.Set(a, b, cost(a, b));
    }
    return costs;
  }

  std::mt19937_64 random_;
};

struct Kind {
  const char* name;
  LinkCosts (Network::*make)(int hosts);
};
constexpr Kind kKinds[] = {{"uniform", &Network::Uniform},
                           {"coarse", &Network::Coarse},
                           {"racks", &Network::Racks},
                           {"one slow host", &Network::OneSlowHost},
                           {"some slow links", &Network::SomeSlowLinks},
                           {"plane", &Network::Plane}};

int64_t SlowestOf(const LinkCosts& costs, const std::vector<int>& ring) {
  int64_t slowest = 0;
  for (size_t i = 0; i < ring.size(); ++i) {
    slowest = std::max(slowest, costs.at(ring[i], ring[(i + 1) % ring.size()]));
  }
  return slowest;
}

std::vector<int> ByNumber(int hosts) {
  std::vector<int> ring(static_cast<size_t>(hosts));
  std::iota(ring.begin(), ring.end(), 0);
  return ring;
}

// Returns the best of all rings, the first in the order of numbers.
std::vector<int> BestOfAll(const LinkCosts& costs) {
  std::vector<int> ring = ByNumber(costs.hosts());
  std::vector<int> best = ring;
  while (std::next_permutation(ring.begin() + 1, ring.end())) {
    if (SlowestOf(costs, ring) < SlowestOf(costs, best)) best = ring;
  }
  return best;
}

void ExpectRing(const LinkCosts& costs, const HostRing& ring) {
  std::vector<int> sorted = ring.hosts;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, ByNumber(costs.hosts()));
  EXPECT_EQ(ring.hosts[0], 0);
  EXPECT_EQ(ring.slowest, SlowestOf(costs, ring.hosts));
  EXPECT_EQ(ring.bound, BoundOfRings(costs));
  EXPECT_GE(ring.slowest, ring.bound);
}

TEST(RingOrder, IsTheBestOfAllRingsOfFewHosts) {
  for (const Kind& kind : kKinds) {
    for (int hosts = 2; hosts <= 8; ++hosts) {
      for (uint64_t seed = 0; seed < 5; ++seed) {
        SCOPED_TRACE(testing::Message()
                     << kind.name << ", " << hosts << " hosts, seed " << seed);
        Network network(seed);
        const LinkCosts costs = (network.*kind.make)(hosts);
        const HostRing ring = FindRing(costs);
        ExpectRing(costs, ring);
        EXPECT_EQ(ring.hosts, BestOfAll(costs));
      }
    }
  }
}

// A ring of fast links, hidden among slow ones.
TEST(RingOrder, FindsTheOnlyFastRing) {
  for (const int hosts : {9, kExactHosts, kExactHosts + 1, 24}) {
    SCOPED_TRACE(hosts);
    Network network(7);
    LinkCosts costs = network.OneSlowHost(hosts);
    std::vector<int> fast = ByNumber(hosts);
    std::shuffle(fast.begin(), fast.end(), std::mt19937_64(3));
    for (int i = 0; i < hosts; ++i) {
      costs.Set(fast[i], fast[(i + 1) % hosts], 100 + i);
    }
    const HostRing ring = FindRing(costs);
    ExpectRing(costs, ring);
    EXPECT_EQ(ring.slowest, 100 + hosts - 1);
  }
}

TEST(RingOrder, IsNearTheBoundForManyHosts) {
  for (const Kind& kind : kKinds) {
    for (const int hosts : {64, 256}) {
      for (uint64_t seed = 0; seed < 3; ++seed) {
        SCOPED_TRACE(testing::Message()
                     << kind.name << ", " << hosts << " hosts, seed " << seed);
        Network network(seed);
        const LinkCosts costs = (network.*kind.make)(hosts);
        const HostRing ring = FindRing(costs);
        ExpectRing(costs, ring);
        EXPECT_LE(ring.slowest * 100, ring.bound * 105);
      }
    }
  }
}

TEST(RingOrder, IsTheSameEachTime) {
  for (const int hosts : {8, 64}) {
    const LinkCosts costs = Network(5).Racks(hosts);
    EXPECT_EQ(FindRing(costs).hosts, FindRing(costs).hosts);
  }
}

TEST(RingOrder, IsByNumberWhereAllLinksAreEqual) {
  for (const int hosts : {1, 2, 3, 4, kExactHosts, kExactHosts + 1, 100}) {
    SCOPED_TRACE(hosts);
    LinkCosts costs(hosts);
    for (int a = 0; a < hosts; ++a) {
      for (int b = 0; b < a; ++b) costs.Set(a, b, 80);
    }
    EXPECT_EQ(FindRing(costs).hosts, ByNumber(hosts));
    EXPECT_EQ(RingByNumber(costs).slowest, hosts == 1 ? 0 : 80);
  }
}

// Each of the outer hosts has one fast link, so one slow one is needed.
TEST(RingOrder, TheBoundCountsHostsWithOneFastLink) {
  LinkCosts costs(4);
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < a; ++b) costs.Set(a, b, b == 0 ? 10 : 500 + a);
  }
  EXPECT_EQ(BoundOfRings(costs), 503);
  EXPECT_EQ(FindRing(costs).slowest, 503);
}

// Two halves that are joined by one host: no ring could pass it twice.
TEST(RingOrder, TheBoundCountsAHostThatJoinsAllOthers) {
  LinkCosts costs(5);
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < a; ++b) costs.Set(a, b, 900);
  }
  for (const auto& [a, b] :
       {std::pair{0, 1}, {0, 2}, {1, 2}, {0, 3}, {0, 4}, {3, 4}}) {
    costs.Set(a, b, 10);
  }
  EXPECT_EQ(BoundOfRings(costs), 900);
}

TEST(RingOrder, RanksOfAHostAreSideBySide) {
  const Hosts hosts({0, 1, 2, 0, 1, 2, 0});
  EXPECT_THAT(RanksOfRing({0, 2, 1}, hosts), ElementsAre(0, 3, 6, 2, 5, 1, 4));
  EXPECT_THAT(RingByRank(HostsOf({70, 80, 70, 9, 80})),
              ElementsAre(0, 2, 1, 4, 3));
}

}  // namespace
}  // namespace coxswain
