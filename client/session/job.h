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
#include "client/reduce/bucket.h"
#include "schedule/plan.h"
#include "schedule/plan_words.h"

namespace coxswain {

// What all workers of a job must have in common. The coordinator compares it
// when they join, so that a difference is an error then, and not a hang or a
// wrong sum later.
//
// Its settings are those of the plan that the program asks for: the canonical
// spec of its hook, "allreduce" by default, how many micro-batches a step sums
// up, and the terms.
struct JobManifest : schedule::Settings {
  JobManifest() { hook = "allreduce"; }

  int world_size = 0;  // 0: that of SessionOptions
  // The smallest number of workers that the job may run with; 0: that of
  // SessionOptions, or else world_size.
  int min_world_size = 0;
  // How the ranks are divided, as in "dp=*,shard=2" (base/mesh.h); empty: as
  // SessionOptions has it, or else they are not.
  std::string mesh;
  std::vector<ParameterSpec> parameters;  // in registration order
  // Further settings that change results or the order of collectives: bucket
  // caps, seed. Session::Join adds "library_version", "device",
  // with a GPU "nccl_version", and "data_encryption" where workers encrypt what
  // they exchange.
  std::map<std::string, std::string> settings;
};

// A worker that holds a rank.
struct JobMember {
  WorkerIdentity identity;
  Incarnation incarnation;
  int rank = 0;
  int local_rank = 0;
  std::string host;     // for display
  std::string address;  // where its data connections listen
  std::vector<std::string> topology;
  // In the mesh of its job, for display: "dp 1, shard 0"; empty: it has none.
  std::string coordinates;
};

// A member of the generation before that is not in this one.
struct LostPeer {
  JobMember member;
  std::string reason;
  bool left = false;  // cleanly
  // The norm of its hook's errors, as it reported last; step 0: not known.
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

// The settings with which an operator starts a program on another schedule than
// its own: names are "accumulation", "hook", "compression_start" and those of
// the terms.
using PlanOverrides = schedule::PlanWords;

// Returns the NAME=VALUE words of a text, with spaces between them; spaces
// within parentheses belong to a hook's options. Fails with INVALID_ARGUMENT,
// naming the word that is wrong.
absl::StatusOr<PlanOverrides> ParsePlanOverrides(absl::string_view text);

// Returns the names of the plan's settings that the program has not asked for:
// those that were overridden, and those that differ from the manifest with the
// overrides applied.
std::set<std::string> NotAskedFor(const PlanOverrides& overrides,
                                  const JobManifest& manifest,
                                  const schedule::Plan& plan);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_JOB_H_
