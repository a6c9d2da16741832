#ifndef COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_RECORDS_H_
#define COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_RECORDS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "server/membership/member.h"
#include "server/state/quarantine.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// The stored records of the membership's jobs (proto/state.proto):
//
//   table                  keys
//   jobs                   the name of a job: its small record
//   members/<generation>   blocks of members, written before the job's record
//                          names the generation, and one small record for each
//                          member that has ended since
//   manifest/<generation>  the manifest in pieces; of the first generation
//                          that had it
//
// The members stay when their generation has ended, until the next one begins:
// they are the workers that may join again. Of a finished job only its record
// stays.

struct KeptMember {
  Member member;
  uint64_t launcher_id = 0;
};

// How a member has ended.
struct Departure {
  bool left = false;     // cleanly, or else it was lost
  bool rejoins = false;  // it wants to be in the next generation
  std::string reason;
  double error_norm = 0;
  int64_t error_step = 0;
  int64_t step = 0;  // the last that it had reported
};

// The generation before one, for its members.
struct PreviousMembers {
  Generation generation;  // 0: none is known
  int world_size = 0;
  std::vector<LostMember> lost;
  int lost_count = 0;  // of all, named in `lost` or not
};

// A process of a finished job: if its launcher starts it again, it has nothing
// to do.
struct FinishedPlace {
  WorkerIdentity identity;
  Incarnation incarnation;
  uint64_t launcher_id = 0;  // 0: without a launcher
  bool left = false;         // cleanly, or else it was lost
};

struct KeptJob {
  std::string name;
  Generation generation;
  int world_size = 0;
  bool running = false;
  bool finished = false;
  bool starts_anew = false;  // no worker continues this generation
  bool regroups = false;     // its members were asked to regroup
  bool unreadable = false;   // neither members nor manifest are stored
  int64_t attempt = 0;
  int64_t step = 0;  // the highest of a member, once it has ended
  std::string last_event;
  absl::Time last_event_date = absl::InfinitePast();  // by the calendar
  std::string reason;
  Generation manifest;
  WorkerIdentity manifest_holder;
  PreviousMembers previous;
  std::vector<FinishedPlace> places;  // with `finished`
};

struct LoadedJob {
  KeptJob job;
  // Why its members or its manifest cannot be read, if they cannot.
  absl::Status damage;
  // Unless the job is finished or unreadable:
  Manifest manifest;
  std::vector<KeptMember> members;  // by rank
  std::map<int, Departure> departures;
};

void PutJob(const KeptJob& job, StateBatch* batch);
void DeleteJob(const KeptJob& job, StateBatch* batch);
void PutDeparture(Generation generation, int rank, const Departure& departure,
                  StateBatch* batch);
void DeleteMembers(Generation generation, StateBatch* batch);
void DeleteManifest(Generation generation, StateBatch* batch);

// In as many batches as they need. `members` are by rank.
std::vector<StateBatch> MemberBatches(Generation generation,
                                      const std::vector<KeptMember>& members);
std::vector<StateBatch> ManifestBatches(Generation generation,
                                        const Manifest& manifest);

struct LoadedJobs {
  std::vector<LoadedJob> jobs;
  // What could not be read, to be put into quarantine. A job whose own record
  // is among them is not in `jobs`; one whose other records are has `damage`.
  std::vector<UnreadableRecord> unreadable;
};

// Reads all jobs, of which no generation is as high as `next`. Fails only if
// the store does.
absl::StatusOr<LoadedJobs> LoadJobs(const StateStore& store, Generation next);
// Names the jobs whose records are in quarantine, and of which nothing else is
// known.
std::vector<std::string> JobsInQuarantine(
    const std::vector<QuarantinedRecord>& quarantined);

// Tables of generations that none of these jobs needs.
absl::StatusOr<std::vector<std::string>> StaleTables(
    const StateStore& store, const std::vector<LoadedJob>& jobs);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_MEMBERSHIP_RECORDS_H_
