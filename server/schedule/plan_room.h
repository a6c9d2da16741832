#ifndef COXSWAIN_SERVER_SCHEDULE_PLAN_ROOM_H_
#define COXSWAIN_SERVER_SCHEDULE_PLAN_ROOM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "server/membership/fence.h"
#include "server/options.h"
#include "server/schedule/plan.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// What the generation before has shown of its plan.
enum class PlanTrial {
  kUnknown,  // the coordinator was restarted, or there was no generation
  kFailed,   // it ended before any worker reported a step
  kProved,
};

// What a generation begins with.
struct GenerationStart {
  std::string job;
  Generation generation;
  // The workers' own settings, from their manifest.
  std::string hook;
  int accumulation_steps = 0;
  PlanTrial last = PlanTrial::kUnknown;
  StateBatch batch;  // to be committed together with the plan
};

// The plan of every job. A plan changes only between generations: membership
// asks for the plan of a new generation when its round closes; a proposal
// waits until then. Durable: committed before it is handed out. Thread-safe.
//
// Which plan a generation gets:
//   a pending proposal, if there is one; else
//   the plan of the generation before, if the workers' own settings are what
//   they were then, so that an accepted proposal stays in force; else
//   a new plan with the workers' settings.
// A plan that was proposed is on trial until a generation has made a step with
// it. If that generation ends without one, it may be a plan that no worker can
// carry out: the workers' settings come back.
class PlanRoom : public GenerationObserver {
 public:
  struct Plans {
    Plan current;
    std::optional<Plan> next;
  };

  // Reads the plans that are in `store`, which must outlive the room.
  static absl::StatusOr<std::unique_ptr<PlanRoom>> Load(
      const PlanOptions& options, StateStore* store);

  // The plan of a new generation.
  absl::StatusOr<Plan> BeginGeneration(GenerationStart start);

  // NOT_FOUND: no generation of this job has begun.
  absl::StatusOr<Plans> Get(absl::string_view job) const;

  // Sets the plan of the next generation and returns it with its version.
  //   NOT_FOUND            no such job
  //   FAILED_PRECONDITION  `expected_version` is not the newest version
  //   INVALID_ARGUMENT     a field is out of range
  absl::StatusOr<Plan> Propose(absl::string_view job, int64_t expected_version,
                               const Plan& plan);

  void OnGenerationEnded(absl::string_view job, Generation generation,
                         const absl::Status& reason) override;

 private:
  struct Record {
    Plans plans;
    // The workers' settings when `current` was made.
    std::string manifest_hook;
    int manifest_accumulation_steps = 0;
    bool on_trial = false;  // `current` was proposed, and made no step yet
    Generation generation;  // the last one that began
    bool running = false;   // not durable
  };

  PlanRoom(const PlanOptions& options, StateStore* store)
      : options_(options), store_(store) {}

  static void AddToBatch(const std::string& job, const Record& record,
                         StateBatch* batch);

  // The record of a job once this generation has begun.
  static Record Next(const GenerationStart& start, Record record);

  absl::Status Validate(const Plan& plan) const;
  // Names the job whose plan makes room for a new job's, if one must.
  std::optional<std::string> VictimLocked() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PlanOptions options_;
  StateStore* const store_;
  mutable Mutex mutex_;
  std::map<std::string, Record> records_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_SCHEDULE_PLAN_ROOM_H_
