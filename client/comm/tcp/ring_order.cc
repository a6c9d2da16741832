#include "client/comm/tcp/ring_order.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace coxswain {
namespace {

// How much one search does, and all of them: one unit is some nanosecond.
constexpr int64_t kWorkOfSearch = 10'000'000;
constexpr int64_t kWork = 100'000'000;

std::vector<int> ByNumber(int hosts) {
  std::vector<int> ring(static_cast<size_t>(hosts));
  std::iota(ring.begin(), ring.end(), 0);
  return ring;
}

int64_t SlowestEdge(const LinkCosts& costs, const std::vector<int>& hosts) {
  int64_t slowest = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const int next = hosts[(i + 1) % hosts.size()];
    if (next != hosts[i]) {
      slowest = std::max(slowest, costs.at(hosts[i], next));
    }
  }
  return slowest;
}

// Returns the costs of all links, ascending, each once.
std::vector<int64_t> AllCosts(const LinkCosts& costs) {
  std::vector<int64_t> all;
  for (int a = 0; a < costs.hosts(); ++a) {
    for (int b = 0; b < a; ++b) all.push_back(costs.at(a, b));
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// Whether links of at most a limit connect all hosts, and still do so without
// any one of them: a search in depth first, which notes the earliest host that
// is linked to what lies behind each.
class Connectivity {
 public:
  Connectivity(const LinkCosts& costs, int64_t limit)
      : costs_(costs),
        limit_(limit),
        found_(static_cast<size_t>(costs.hosts())),
        earliest_(static_cast<size_t>(costs.hosts())) {}

  bool IsDouble() {
    Visit(0, -1);
    return !cut_ && count_ == costs_.hosts();
  }

 private:
  void Visit(int host, int from) {
    found_[host] = earliest_[host] = ++count_;
    int branches = 0;
    for (int next = 0; next < costs_.hosts() && !cut_; ++next) {
      if (next == host || next == from || costs_.at(host, next) > limit_) {
        continue;
      }
      if (found_[next] != 0) {
        earliest_[host] = std::min(earliest_[host], found_[next]);
        continue;
      }
      ++branches;
      Visit(next, host);
      if (from >= 0 && earliest_[next] >= found_[host]) cut_ = true;
      earliest_[host] = std::min(earliest_[host], earliest_[next]);
    }
    if (from < 0 && branches > 1) cut_ = true;
  }

  const LinkCosts& costs_;
  const int64_t limit_;
  std::vector<int> found_;  // when, from 1
  std::vector<int> earliest_;
  int count_ = 0;
  bool cut_ = false;
};

// Returns the first ring in the order of numbers that has no edge above a
// limit; empty if there is none. `ends` has, by set of hosts other than host 0,
// those at which a path from host 0 through all of the set can end.
std::vector<int> ExactRing(const LinkCosts& costs, int64_t limit) {
  const int others = costs.hosts() - 1;
  std::vector<uint32_t> near(static_cast<size_t>(others));
  uint32_t near_first = 0;
  for (int a = 0; a < others; ++a) {
    if (costs.at(0, a + 1) <= limit) near_first |= 1u << a;
    for (int b = 0; b < others; ++b) {
      if (a != b && costs.at(a + 1, b + 1) <= limit) near[a] |= 1u << b;
    }
  }
  std::vector<uint32_t> ends(size_t{1} << others);
  for (uint32_t set = 1; set < ends.size(); ++set) {
    for (int host = 0; host < others; ++host) {
      const uint32_t bit = 1u << host;
      if ((set & bit) == 0) continue;
      const uint32_t before = set & ~bit;
      const uint32_t reached =
          before == 0 ? near_first & bit : ends[before] & near[host];
      if (reached != 0) ends[set] |= bit;
    }
  }
  // A path from host 0 is one to it as well.
  std::vector<int> ring = {0};
  uint32_t near_last = near_first;
  auto left = static_cast<uint32_t>(ends.size() - 1);
  while (left != 0) {
    const uint32_t possible = near_last & ends[left];
    if (possible == 0) return {};
    int host = 0;
    while ((possible >> host & 1) == 0) ++host;
    ring.push_back(host + 1);
    left &= ~(1u << host);
    near_last = near[host];
  }
  return ring;
}

// Searches for a ring none of whose edges costs more than a limit, by Posa's
// rotations. The ring is held as a path. A link from its end to a host within
// it replaces the edge behind that host, and the other side of that edge
// becomes the end. Edges above the limit are in the path until rotations have
// replaced them; none is added but by a kick, which is what gets the search out
// of a corner. Where several rotations can be done, the one is drawn from a
// sequence that is always the same.
class RingSearch {
 public:
  explicit RingSearch(const LinkCosts& costs)
      : costs_(costs),
        size_(costs.hosts()),
        good_(static_cast<size_t>(size_) * size_),
        near_(static_cast<size_t>(size_)),
        path_(ByNumber(size_)),
        place_(static_cast<size_t>(size_)),
        was_end_(static_cast<size_t>(size_)) {
    NotePlaces(0);
  }

  // Returns whether there is such a ring within reach of the search before.
  bool Find(int64_t limit) {
    SetLimit(limit);
    const int64_t end = work_ + kWorkOfSearch;
    for (int64_t turns = 1; work_ < end; ++turns) {
      if (IsGood(path_.back(), path_.front()) && !OpenAtBadEdge()) return true;
      if (turns % (kTurnsToKick * size_) == 0) Kick();
      // From both ends in turn.
      if (turns % size_ == 0) Flip(0);
      Rotate();
    }
    return false;
  }
  const std::vector<int>& hosts() const { return path_; }
  int64_t work() const { return work_; }

 private:
  static constexpr int64_t kTurnsToKick = 20;  // for each host

  void SetLimit(int64_t limit) {
    for (int a = 0; a < size_; ++a) {
      near_[a].clear();
      for (int b = 0; b < size_; ++b) {
        const bool good = a != b && costs_.at(a, b) <= limit;
        good_[static_cast<size_t>(a) * size_ + b] = good ? 1 : 0;
        if (good) near_[a].push_back(b);
      }
    }
  }
  bool IsGood(int a, int b) const {
    return good_[static_cast<size_t>(a) * size_ + b] != 0;
  }

  // Lets the path begin behind an edge above the limit; false: it has none.
  bool OpenAtBadEdge() {
    work_ += size_;
    for (int i = 0; i + 1 < size_; ++i) {
      if (IsGood(path_[i], path_[i + 1])) continue;
      std::rotate(path_.begin(), path_.begin() + i + 1, path_.end());
      NotePlaces(0);
      return true;
    }
    return false;
  }

  void Rotate() {
    const int first = ChooseFlip();
    Flip(std::max(first, 0));
    was_end_[path_.back()] = work_;
  }

  // Returns where the part of the path begins that is to be turned round; -1:
  // none can be.
  int ChooseFlip() {
    const std::vector<int>& near = near_[path_.back()];
    work_ += 4 * static_cast<int64_t>(near.size());
    int chosen = -1;
    int64_t lowest = std::numeric_limits<int64_t>::max();
    uint32_t equal = 0;
    for (const int host : near) {
      const int first = place_[host] + 1;
      if (first >= size_ - 1) continue;  // that edge is in the path
      const int end = path_[first];
      // From a host that was the end lately the search would repeat itself.
      const int64_t score = IsGood(host, end) ? was_end_[end] : -1;
      if (score > lowest) continue;
      equal = score < lowest ? 1 : equal + 1;
      lowest = score;
      if (Draw(equal) == 0) chosen = first;
    }
    return chosen;
  }

  void Flip(int first) {
    work_ += 10 + size_ - first;
    std::reverse(path_.begin() + first, path_.end());
    NotePlaces(first);
  }

  void Kick() {
    for (int part = 0; part < 2; ++part) {
      auto first = static_cast<int>(Draw(static_cast<uint32_t>(size_)));
      auto last = static_cast<int>(Draw(static_cast<uint32_t>(size_)));
      if (first > last) std::swap(first, last);
      std::reverse(path_.begin() + first, path_.begin() + last + 1);
    }
    NotePlaces(0);
  }

  void NotePlaces(int first) {
    for (int at = first; at < size_; ++at) place_[path_[at]] = at;
  }

  uint32_t Draw(uint32_t below) {
    drawn_ = drawn_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((drawn_ >> 33) % below);
  }

  const LinkCosts& costs_;
  const int size_;
  std::vector<char> good_;  // by pair: within the limit
  std::vector<std::vector<int>> near_;
  std::vector<int> path_;
  std::vector<int> place_;        // in the path, by host
  std::vector<int64_t> was_end_;  // when last
  int64_t work_ = 0;
  uint64_t drawn_ = 1;
};

// Returns the ring that costs least of those found, from host 0 on.
std::vector<int> SearchedRing(const LinkCosts& costs, HostRing known) {
  std::vector<int64_t> limits = AllCosts(costs);
  limits.erase(limits.begin(),
               std::lower_bound(limits.begin(), limits.end(), known.bound));
  RingSearch search(costs);
  // There is a ring with the limit `high`, and none was found below `low`.
  auto low = limits.begin();
  auto high = std::lower_bound(low, limits.end(), known.slowest);
  std::ptrdiff_t step = 0;
  while (low < high && search.work() < kWork) {
    const auto tried = low + std::min(step, (high - low) / 2);
    if (search.Find(*tried)) {
      known.hosts = search.hosts();
      high = tried;
      step = 0;
    } else {
      low = tried + 1;
      step = 2 * step + 1;
    }
  }
  std::vector<int>& ring = known.hosts;
  std::rotate(ring.begin(), std::find(ring.begin(), ring.end(), 0), ring.end());
  if (ring.back() < ring[1]) std::reverse(ring.begin() + 1, ring.end());
  return std::move(ring);
}

}  // namespace

int64_t BoundOfRings(const LinkCosts& costs) {
  const std::vector<int64_t> all = AllCosts(costs);
  if (all.empty()) return 0;
  return *std::partition_point(all.begin(), all.end() - 1, [&](int64_t limit) {
    return !Connectivity(costs, limit).IsDouble();
  });
}

HostRing RingByNumber(const LinkCosts& costs) {
  HostRing ring;
  ring.hosts = ByNumber(costs.hosts());
  ring.slowest = SlowestEdge(costs, ring.hosts);
  ring.bound = BoundOfRings(costs);
  return ring;
}

HostRing FindRing(const LinkCosts& costs) {
  HostRing ring = RingByNumber(costs);
  if (costs.hosts() > kExactHosts) {
    ring.hosts = SearchedRing(costs, ring);
  } else if (costs.hosts() > 2) {
    const std::vector<int64_t> all = AllCosts(costs);
    ring.hosts = ExactRing(
        costs,
        *std::partition_point(all.begin(), all.end() - 1, [&](int64_t limit) {
          return ExactRing(costs, limit).empty();
        }));
  }
  ring.slowest = SlowestEdge(costs, ring.hosts);
  return ring;
}

std::vector<int> RanksOfRing(const std::vector<int>& ring, const Hosts& hosts) {
  std::vector<int> ranks;
  for (const int host : ring) {
    const std::vector<int>& here = hosts.ranks(host);
    ranks.insert(ranks.end(), here.begin(), here.end());
  }
  return ranks;
}

std::vector<int> RingByRank(const Hosts& hosts) {
  return RanksOfRing(ByNumber(hosts.count()), hosts);
}

Hosts HostsOf(const std::vector<uint64_t>& host_ids) {
  std::map<uint64_t, int> first_ranks;
  std::vector<int> host_of;
  for (const uint64_t id : host_ids) {
    const auto rank = static_cast<int>(host_of.size());
    host_of.push_back(first_ranks.emplace(id, rank).first->second);
  }
  return Hosts(host_of);
}

}  // namespace coxswain
