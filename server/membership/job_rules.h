#ifndef COXSWAIN_SERVER_MEMBERSHIP_JOB_RULES_H_
#define COXSWAIN_SERVER_MEMBERSHIP_JOB_RULES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "base/mesh.h"
#include "server/membership/job_record.h"
#include "server/membership/member.h"
#include "server/membership/member_table.h"
#include "server/membership/membership_records.h"
#include "server/membership/membership_types.h"
#include "server/plan/plan_store.h"

namespace coxswain::server {

// What follows from what is known of one job. Pure functions, but for those
// that change the record that they are given.

// Two processes of one launcher: it has ended the one before it started the
// other. Those without a launcher share none.
bool SameLauncher(uint64_t a, uint64_t b);

// Returns whether no member is left to continue, and the others have done their
// work.
bool IsDone(const RunRecord& run);
// Notes that it is so.
void Finish(RunRecord* run);
// Returns the answer to a process that its launcher has started again when the
// work of the job was done; OK for all others, which may begin it anew.
absl::Status CheckDone(const JoinRequest& request, const JobRecord& job);

// Returns whether it is the process that is, or was, in the last generation,
// and is not known to be dead.
bool Survives(const JoinRequest& request, const JobRecord& job);
// Returns the workers that wait while the generation runs, and are not in it.
std::vector<WorkerIdentity> SparesOf(const JobRecord& job);
// Returns the mesh of a generation, without a free axis; empty: it has none, or
// its manifest is not known any more.
Mesh MeshOf(const RunRecord& run);
// Returns what to change so that groups of its mesh do not span hosts; empty:
// nothing.
std::string PlacementOf(const RunRecord& run);
// Returns the waiting workers, by rank where that is known.
std::vector<Member> PresentIn(const JobRecord& job);
// Returns the ranks that workers keep in the next generation, and that
// processes in their places get.
std::map<WorkerIdentity, int> HeldRanks(const JobRecord& job);
// Returns the first members of the last generation that are not in `next`, and
// in `count` how many there are.
std::vector<LostMember> LostSince(const JobRecord& job, const MemberTable& next,
                                  int* count);
// Returns whether the last generation has proved its plan.
PlanTrial TrialOf(const JobRecord& job);

// To be called after any change of the waiting workers of a round.
void NoteSizes(JobRecord* job);
// Counts the regroups for a larger generation that added no member.
void NoteGrowth(const RunRecord& next, JobRecord* job);
// This process was paused: no member's time has passed.
void RestartTimeouts(absl::Time now, JobRecord* job);

// Returns what is kept of it.
KeptJob KeptOf(const JobRecord& job, const RunRecord& run, bool running);
Departure DepartureOf(const MemberRecord& record);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_JOB_RULES_H_
