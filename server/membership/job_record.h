#ifndef COXSWAIN_SERVER_MEMBERSHIP_JOB_RECORD_H_
#define COXSWAIN_SERVER_MEMBERSHIP_JOB_RECORD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "schedule/plan.h"
#include "server/membership/member.h"
#include "server/membership/member_table.h"
#include "server/membership/membership_records.h"
#include "server/membership/membership_types.h"
#include "server/membership/wait_list.h"

namespace coxswain::server {

// The data of a JobMembership; what follows from them is in job_rules.h.

// The refusal of a round whose manifests differ, for workers that come late or
// ask again.
struct RoundRefusal {
  absl::Status status;
  absl::Time until;
  std::set<uint64_t> launchers;
  std::set<Incarnation> incarnations;
};

// A generation, also when it has ended; its number is 0 if there was none.
struct RunRecord {
  Generation generation;
  MemberTable members;
  // Null once it is finished, or if it or the members could not be read.
  std::shared_ptr<const Manifest> manifest;
  Generation manifest_at;  // where that is stored
  WorkerIdentity manifest_holder;
  schedule::Plan plan;
  std::string reason;  // why its round closed
  Generation previous;
  int previous_world_size = 0;
  std::shared_ptr<const std::vector<LostMember>> lost;
  int lost_count = 0;
  absl::Time began;
  bool resumed = false;              // from an earlier term
  std::optional<GenerationEnd> end;  // in this term, and not well
  bool ended_well = false;           // all members left cleanly
  bool finished = false;             // and their work was done
  int64_t last_step = 0;  // the highest of a member, once it has ended
  std::vector<FinishedPlace> places;  // with `finished`
  bool regroups = false;              // its members were asked to regroup
  bool wants_growth = false;          // spares are to be taken in, now
  bool wanted_growth = false;         // or were, at some time
  // When the first member left for the next generation.
  std::optional<absl::Time> making_way;
  std::string fallback_address;  // of rank 0's; empty: it has none
  // Secret: see JoinResponse. In memory alone, and null once it has ended.
  std::shared_ptr<const std::string> data_key;
};

struct JobRecord {
  std::string name;
  JobState state = JobState::kEnded;
  std::string last_event;
  // When that was; the infinite past: not known. Also by the calendar, which is
  // kept.
  absl::Time last_event_at = absl::InfinitePast();
  absl::Time last_event_date = absl::InfinitePast();
  absl::Time ended_at;
  int64_t attempt = 0;  // the highest that is known
  RunRecord run;        // the last generation

  // The next generation.
  WaitList waiting;
  int world_size = 0;  // that is asked for, at most and at least
  int min_world_size = 0;
  // The waiting workers continue the last generation: only a worker with its
  // manifest may join them.
  bool bound = false;
  bool starts_anew = false;  // no worker continues the last generation
  absl::Time survivors_until = absl::InfinitePast();
  int fruitless_regroups = 0;           // in a row, that added no member
  std::optional<RoundRefusal> refusal;  // of the last round, if it ended so
  // Their Join timed out in this round; their end may be reported yet.
  std::map<Incarnation, WorkerIdentity> withdrawn;

  // Something of it could not be written.
  bool unsaved = false;
  absl::Time save_again;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_JOB_RECORD_H_
