#ifndef COXSWAIN_CLIENT_COMM_TWO_LEVEL_TWO_LEVEL_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_TWO_LEVEL_TWO_LEVEL_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/comm/hosts.h"

namespace coxswain {

// Ranks on several hosts, with any number on each. Large all-reduces, means and
// broadcasts (pieces.h), and where that saves bytes reduce-scatters and
// all-gathers (slices.h), go in pieces within the hosts and over bridges
// between them, so that each byte leaves a host once, instead of once for each
// of its ranks. All other operations use the flat communicator, which rounds
// sums of half floats once; it has means, or this one has none.
//
// A communicator split off is the host's if all its ranks are on one, the flat
// one's if each is on another, and otherwise one of two levels.
struct TwoLevelParts {
  std::unique_ptr<Communicator> local;  // hosts.ranks(this one), in that order
  std::unique_ptr<Communicator> flat;   // all
  // hosts.bridge(i), in that order; null where this rank is not in it. Ends
  // before `flat`, which ends what is split off it.
  std::vector<std::unique_ptr<Communicator>> bridges;
  Hosts hosts;
};

// Splits the bridges off parts->flat; blocks until their ranks have met, and
// fails like Split. All ranks call it.
absl::Status SplitBridges(TwoLevelParts* parts);

// Returns the communicator of parts that belong together on all ranks. A
// failure of one part, or an abort, ends them all; a rank that is destroyed
// with nothing in flight does not disturb its peers' operations. Headers are
// compared among all ranks, by the flat communicator.
std::unique_ptr<Communicator> MakeTwoLevel(TwoLevelParts parts,
                                           absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TWO_LEVEL_TWO_LEVEL_COMMUNICATOR_H_
