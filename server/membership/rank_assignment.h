#ifndef COXSWAIN_SERVER_MEMBERSHIP_RANK_ASSIGNMENT_H_
#define COXSWAIN_SERVER_MEMBERSHIP_RANK_ASSIGNMENT_H_

#include <map>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "server/membership/member.h"

namespace coxswain::server {

// Whether `a` comes before `b` where neither holds a rank: by topology keys
// from the first on, then node, then slot. Runs of digits compare as numbers,
// so that "rack2" comes before "rack10" and "host-9" before "host-10".
bool TopologyLess(const Member& a, const Member& b);

// Gives every member its rank, 0 to members.size() - 1, and its local rank (its
// place among those of the same node, by rank), and sorts by rank. Sticky: a
// worker in `held` keeps that rank where it exists; the others fill the holes
// in TopologyLess order. Identities must be unique.
void AssignRanks(const std::map<WorkerIdentity, int>& held,
                 std::vector<Member>* members);

// Gives members that have their ranks their coordinates in this mesh of a
// manifest, as ranks of a generation of so many; none where there is no mesh,
// or they do not fit it.
void AssignCoordinates(absl::string_view mesh, std::vector<Member>* members);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_RANK_ASSIGNMENT_H_
