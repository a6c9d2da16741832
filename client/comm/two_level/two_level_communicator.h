#ifndef COXSWAIN_CLIENT_COMM_TWO_LEVEL_TWO_LEVEL_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_TWO_LEVEL_TWO_LEVEL_COMMUNICATOR_H_

#include <memory>

#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/comm/hosts.h"

namespace coxswain {

// Ranks on several hosts, equally many on each: an all-reduce is a
// reduce-scatter within the host, an all-reduce of each rank's slice between
// the ranks in the same place on all hosts, and an all-gather within the host.
// So each byte leaves a host once, instead of once for each of its ranks. Data
// passes through in pieces, so that the hosts' memory and the network work at
// the same time. All other operations use the flat communicator. A communicator
// split off is one of the host's if all its ranks are on one, and otherwise one
// of the flat communicator's.
struct TwoLevelParts {
  std::unique_ptr<Communicator> local;   // hosts.ranks(this one), in that order
  std::unique_ptr<Communicator> across;  // hosts.ranks_in_place(this one's)
  std::unique_ptr<Communicator> flat;    // all
  Hosts hosts;                           // even
};

// Returns the communicator of parts that belong together on all ranks. A
// failure of one part, or an abort, ends them all; a rank that is destroyed
// with nothing in flight does not disturb its peers' operations. Headers are
// compared among all ranks, by the flat communicator.
std::unique_ptr<Communicator> MakeTwoLevel(TwoLevelParts parts,
                                           absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TWO_LEVEL_TWO_LEVEL_COMMUNICATOR_H_
