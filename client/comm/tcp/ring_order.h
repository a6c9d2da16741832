#ifndef COXSWAIN_CLIENT_COMM_TCP_RING_ORDER_H_
#define COXSWAIN_CLIENT_COMM_TCP_RING_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/comm/hosts.h"

namespace coxswain {

// What each link between two of some hosts costs, the same both ways: in
// picoseconds a byte, as integers give the same order on every machine.
class LinkCosts {
 public:
  explicit LinkCosts(int hosts)
      : hosts_(hosts), costs_(static_cast<size_t>(hosts) * hosts) {}

  int hosts() const { return hosts_; }
  int64_t at(int a, int b) const { return costs_[IndexOf(a, b)]; }
  void Set(int a, int b, int64_t cost) {
    costs_[IndexOf(a, b)] = cost;
    costs_[IndexOf(b, a)] = cost;
  }

 private:
  size_t IndexOf(int a, int b) const {
    return static_cast<size_t>(a) * hosts_ + b;
  }

  int hosts_;
  std::vector<int64_t> costs_;
};

// All hosts in a ring. A ring is as fast as its slowest edge, whatever the
// others are.
struct HostRing {
  std::vector<int> hosts;  // from host 0 on
  int64_t slowest = 0;     // the cost of its slowest edge
  int64_t bound = 0;       // no ring of these hosts has a lower one
};

// Returns the ring of hosts 0, 1, 2 and so on.
HostRing RingByNumber(const LinkCosts& costs);

// Returns a ring whose slowest edge costs as little as can be found; it depends
// on the costs alone. Up to kExactHosts no ring has a lower slowest edge, and
// of those with the same it is the first in the order of numbers. Rings of more
// hosts are searched for, with a bounded number of steps.
HostRing FindRing(const LinkCosts& costs);
constexpr int kExactHosts = 12;

// Returns the lowest cost t for which the links of at most t connect all hosts,
// and still do so without any one of them. A ring connects them like that, so
// its slowest edge costs t or more.
int64_t BoundOfRings(const LinkCosts& costs);

// Returns the ring of the ranks of these hosts: those of a host side by side,
// ascending.
std::vector<int> RanksOfRing(const std::vector<int>& ring, const Hosts& hosts);
// The same of hosts in the order of their first ranks.
std::vector<int> RingByRank(const Hosts& hosts);
// Returns the hosts of ranks with these ids of hosts.
Hosts HostsOf(const std::vector<uint64_t>& host_ids);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_RING_ORDER_H_
