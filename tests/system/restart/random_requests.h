#ifndef COXSWAIN_TESTS_SYSTEM_RESTART_RANDOM_REQUESTS_H_
#define COXSWAIN_TESTS_SYSTEM_RESTART_RANDOM_REQUESTS_H_

#include <string>

#include "proto/checkpoint.pb.h"
#include "proto/group.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/types.pb.h"
#include "tests/system/restart/dice.h"

namespace coxswain {

// Requests of which many are accepted and some are not: each field is mostly
// what it should be, and else at a bound of what it may be, or anything.

// Fills in what a worker brings: its manifest, topology, and address.
void FillJoin(Dice* dice, int world_size, v1::JoinRequest* request);
v1::Plan RandomPlan(Dice* dice);
v1::CreateGroupRequest RandomGroup(Dice* dice);
v1::CreateMeshRequest RandomMesh(Dice* dice);
v1::BeginRequest RandomCheckpoint(Dice* dice);
// Returns the final state of a rank that has been in a fallback epoch, so that
// its positions are news. `plan_version` is that of the plan in force.
v1::LeaveRequest RandomLeave(Dice* dice, int64_t plan_version);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_RESTART_RANDOM_REQUESTS_H_
