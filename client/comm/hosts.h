#ifndef COXSWAIN_CLIENT_COMM_HOSTS_H_
#define COXSWAIN_CLIENT_COMM_HOSTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"

namespace coxswain {

// Returns which host this process is on, to determine who can share memory: the
// kernel's boot id, the network namespace, in which local sockets live, and the
// user, whose number is valid in one user namespace only. Host names do not
// count. Where the system has none, returns an identity that no other process
// has.
std::string HostIdentity();

// Which ranks of a group are on one host.
class Hosts {
 public:
  // `host_of` names each rank's host by a number; hosts are numbered anew, in
  // the order of their first ranks.
  explicit Hosts(const std::vector<int>& host_of);

  int count() const { return static_cast<int>(ranks_.size()); }
  // Returns the ranks of a host, ascending.
  const std::vector<int>& ranks(int host) const {
    return ranks_[static_cast<size_t>(host)];
  }
  int host_of(int rank) const { return host_of_[static_cast<size_t>(rank)]; }
  // Returns a rank's place among those of its host.
  int local_rank(int rank) const;
  // Returns how many bridges there are between the hosts: groups with one rank
  // of each, which exchange at the same time. Where all hosts have as many
  // ranks, each rank is in one bridge. Otherwise a rank of the smallest host is
  // in several, up to four in all: one thread cannot fill a fast network, and
  // more of them would only share the processors of that host.
  int bridges() const;
  // Returns which of a host's ranks is in this bridge, by its place.
  int bridge_end(int bridge, int host) const {
    return bridge % static_cast<int>(ranks(host).size());
  }
  // Returns the ranks of a bridge, by host.
  std::vector<int> bridge(int index) const;

 private:
  std::vector<int> host_of_;
  std::vector<std::vector<int>> ranks_;
};

// Determines the hosts through options.store: each rank sets its host, rank 0
// compares and sets the result, so that each rank accesses the store twice.
// Blocks until all ranks have called it; fails with DEADLINE_EXCEEDED, naming a
// rank that has not.
absl::StatusOr<Hosts> FindHosts(const CommunicatorOptions& options,
                                const std::string& identity);

// Returns whether something succeeded on all ranks: empty, or the reason of the
// first rank on which it did not; the same on all ranks. Through the store,
// like FindHosts; `what` makes the keys.
absl::StatusOr<std::string> AgreeThatAll(const CommunicatorOptions& options,
                                         absl::string_view what,
                                         const absl::Status& own);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_HOSTS_H_
