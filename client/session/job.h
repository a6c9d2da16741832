#ifndef COXSWAIN_CLIENT_SESSION_JOB_H_
#define COXSWAIN_CLIENT_SESSION_JOB_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/schedule_terms.h"
#include "client/reduce/bucket.h"
#include "client/schedule/job_plan.h"

namespace coxswain {

// What all workers of a job must have in common. The coordinator compares it
// when they join, so that a difference is an error there and not a hang or a
// wrong sum later.
struct JobManifest {
  int world_size = 0;  // 0: as SessionOptions says
  // The job may run with as few workers as this; 0: as SessionOptions says, or
  // else world_size.
  int min_world_size = 0;
  std::string hook = "allreduce";  // canonical spec
  int accumulation_steps = 1;
  int64_t compression_start_step = -1;  // -1: the hook's own start_step
  // Further terms of the plan that the program asks for.
  ScheduleTerms terms;
  std::vector<ParameterSpec> parameters;  // in registration order
  // Further settings that change results or the order of collectives: bucket
  // caps, seed. Session::Join adds "library_version", "device"
  // and, with a GPU, "nccl_version".
  std::map<std::string, std::string> settings;
};

// A worker that holds a rank.
struct JobMember {
  WorkerIdentity identity;
  Incarnation incarnation;
  int rank = 0;
  int local_rank = 0;
  std::string host;     // for people
  std::string address;  // where its data connections listen
  std::vector<std::string> topology;
};

// A member of the generation before that is not in this one.
struct LostPeer {
  JobMember member;
  std::string reason;
  bool left = false;  // in good order
  // Of its hook's errors, as it reported last; the step 0: not known.
  double error_norm = 0;
  int64_t error_step = 0;
};

struct PreviousGeneration {
  int64_t generation = 0;  // 0: none
  int world_size = 0;
  std::vector<LostPeer> lost;  // the first 64 by rank
  int lost_count = 0;          // all of them
  std::string reason;          // why the round of this generation closed
};

// What whoever starts a program has of its schedule otherwise than the program
// itself: names are "accumulation", "hook", "compression_start" and those of
// the terms.
using PlanOverrides = std::map<std::string, std::string>;

// Reads NAME=VALUE words with spaces between them; those within parentheses
// belong to a hook's options. INVALID_ARGUMENT names the word that is wrong.
absl::StatusOr<PlanOverrides> ParsePlanOverrides(absl::string_view text);

// Puts them in the place of what the manifest says. INVALID_ARGUMENT names the
// word that is wrong.
absl::Status ApplyPlanOverrides(const PlanOverrides& overrides,
                                JobManifest* manifest);

// Names what of a plan the program has not asked for: what was overridden, and
// what differs from the manifest to which the overrides have been applied.
std::set<std::string> NotAskedFor(const PlanOverrides& overrides,
                                  const JobManifest& manifest,
                                  const JobPlan& plan);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_JOB_H_
