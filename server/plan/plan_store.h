#ifndef COXSWAIN_SERVER_PLAN_PLAN_STORE_H_
#define COXSWAIN_SERVER_PLAN_PLAN_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/mesh.h"
#include "base/mutex.h"
#include "schedule/plan.h"
#include "schedule/terms.h"
#include "server/generation/fence.h"
#include "server/options/options.h"
#include "server/plan/pipeline_change.h"
#include "server/state/quarantine.h"
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
  schedule::StepSettings settings;
  std::map<std::string, std::string> terms;
  int world_size = 0;
  Mesh mesh;  // without a free axis; empty: the job has none
  PlanTrial last = PlanTrial::kUnknown;
  bool follows = false;  // the job has had a generation before
  StateBatch batch;      // to be committed together with the plan
};

// Holds the plans of all jobs. The membership asks for the plan of a new
// generation when its round closes; the schedule registry asks, with each
// decision, whether a proposal is due in the running one. Durable: a plan is
// committed before it is returned. Thread-safe.
//
// Which plan a generation begins with:
//   a pending proposal, if there is one, whatever its at_step; else
//   the plan of the generation before, if the workers' own settings (whatever
//   the number of workers) are what they were then, so that an accepted
//   proposal stays in force; else
//   a new plan with the workers' settings.
//
// A plan that was proposed is on trial: no worker may be able to carry it out.
// If the generation that begins with it or changes to it ends before the
// decision after its first step, and before any member has left cleanly, the
// workers' settings are restored. Where there were no decisions, as with
// enforcement=off, a worker must have reported a step.
//
// A proposal for a job with a pipeline is proved before it is accepted: its
// schedules come to their end, and each rank keeps its stages. A proposal that
// is pending as a generation with other windows or stages begins is proved
// again, and dropped if that fails or would take long: a commit is under way
// then, for which others wait.
//
// global_micro_batches is accumulation_steps times the number of workers that
// have data of their own when the plan is made. With
// on_resize=keep_global_batch it stays: as long as the plan is kept, and in
// proposals that do not change accumulation_steps.
class PlanStore : public GenerationObserver {
 public:
  struct Plans {
    schedule::Plan current;
    std::optional<schedule::Plan> next;
    // Whose place `current` has taken in the generation that runs: the workers
    // may not have received `current` when the coordinator was restarted.
    std::optional<schedule::Plan> before;
  };

  // Reads the plans that are in `store`, which must outlive the store. The plan
  // of a job that cannot be read goes into quarantine with all of its records,
  // and the job gets a new one with its next generation. DATA_LOSS,
  // FAILED_PRECONDITION: the mark of versions cannot be read, see
  // ReadClusterRecords.
  static absl::StatusOr<std::unique_ptr<PlanStore>> Load(
      const PlanOptions& options, StateStore* store);

  // Notes what else is in quarantine: the versions of a job with a record there
  // are not known; nor are those of any job, while a record is there whose name
  // is not known. Before the first request only.
  void NoteQuarantined(const std::vector<QuarantinedRecord>& quarantined);

  // Returns the tables whose records of one job are one plan.
  static std::vector<std::string> TableNames();

  // Returns the lowest version that no job has had: while a job is known, none
  // of its versions is used twice, also when its plan is lost.
  int64_t next_version() const;

  // Returns the plan of a new generation.
  //   INVALID_ARGUMENT    the terms are not those of a plan
  //   RESOURCE_EXHAUSTED  keep_global_batch would need more than
  //                       max_accumulation_steps on one rank
  absl::StatusOr<schedule::Plan> BeginGeneration(GenerationStart start);

  // NOT_FOUND: no generation of this job has begun.
  absl::StatusOr<Plans> Get(absl::string_view job) const;

  // Sets the plan that comes next, in force from plan.at_step, and returns it
  // with its version. Takes the place of a proposal that is still pending.
  //   NOT_FOUND            no such job
  //   FAILED_PRECONDITION  `expected_version` is not the newest version, or no
  //                        generation runs, or one without enforcement, in
  //                        which the plan could change
  //   INVALID_ARGUMENT     a field is out of range, or the job's pipeline
  //                        cannot follow it
  //   RESOURCE_EXHAUSTED   a large pipeline of another proposal is being proved
  absl::StatusOr<schedule::Plan> Propose(absl::string_view job,
                                         int64_t expected_version,
                                         const schedule::Plan& plan);

  // Returns the proposal that comes into force with this step of the
  // generation; nothing if none is due. To be called for each decision of the
  // stream "train", with the step after the decided one. An error leaves it
  // pending; INVALID_ARGUMENT: no plan can come into force at this step.
  absl::StatusOr<std::optional<schedule::Plan>> TakeEffect(
      absl::string_view job, Generation generation, int64_t step);

  // The membership forgets a job: adds the removal of its plan to the batch
  // that removes the job. Like Get, does not wait for a commit.
  void Forget(absl::string_view job, StateBatch* batch);

  // Drops the plans of all other jobs, which no request can name any more. To
  // be called once, before any request, with the jobs that the membership
  // knows. From then on there is no plan without a job, so that the number of
  // jobs bounds that of plans. Drops none while a record is in quarantine whose
  // name is not known: it may be that of any job.
  void KeepOnly(const std::set<std::string>& jobs);

  absl::Status OnResume(const std::vector<GenerationResumed>& running) override;
  void OnMemberLeft(absl::string_view job, Generation generation,
                    int rank) override;
  void OnGenerationEnded(absl::string_view job, Generation generation,
                         const absl::Status& reason) override;

 private:
  // The workers' manifest when `current` was made, and how many of them had
  // data of their own.
  struct Settings : schedule::Settings {
    // No program's, until a manifest is known.
    Settings() { accumulation_steps = 0; }
    int data_ranks = 0;  // 0: not known
  };
  struct Record {
    Plans plans;
    Settings settings;
    bool on_trial = false;  // `current` was proposed, and made no step yet
    // Not durable.
    int64_t least_version = 1;  // that the next plan may have
    Generation generation;      // the last one that began or was resumed
    PlanRanks ranks;            // of that one
    bool running = false;
    // `current` came into force with the last generation or in it, its
    // decisions can prove it, and no rank is known to have made a step with it.
    bool unproved = false;
    // While it is unproved: the step after the first that was decided with it.
    std::optional<int64_t> first_decided;
  };
  using Records = std::map<std::string, Record, std::less<>>;

  PlanStore(const PlanOptions& options, StateStore* store)
      : options_(options), store_(store) {}

  // Returns the workers' settings as they are stored.
  static schedule::Plan SettingsOf(const Record& record);
  // Adds what the state store keeps of a job; INVALID_ARGUMENT, and the batch
  // is as it was, if one of its plans could not be read again.
  static absl::Status AddToBatch(const std::string& job, const Record& record,
                                 StateBatch* batch);

  // What is stored of one job, by table.
  using StoredPlan = std::map<std::string, std::string>;
  static absl::StatusOr<Record> Decode(const StoredPlan& stored);
  absl::Status LoadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteQuarantinedLocked(const std::vector<QuarantinedRecord>& quarantined)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The lowest version that none of its plans has.
  static int64_t VersionAfter(const Record& record);
  // Adds the mark of versions, if this record raises it; returns the mark.
  int64_t AddMark(const Record& record, StateBatch* batch) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the record of a job once this generation has begun.
  static Record Next(const GenerationStart& start, const Settings& settings,
                     const PlanRanks& ranks, Record record);
  // Returns whether the plan on trial has failed. `last` counts only where
  // there was no decision that could have proved it.
  static bool Failed(const Record& record, PlanTrial last);
  // Returns the plan that a proposal becomes after the newest one.
  static schedule::Plan Successor(const Record& record,
                                  const schedule::Plan& proposal);

  absl::Status Validate(const schedule::Plan& plan) const;
  // Checks that a plan can come into force at its step.
  static absl::Status CheckTiming(absl::string_view job, const Record& record,
                                  const schedule::Plan& plan);
  absl::Status CheckWindow(const schedule::Plan& plan, int data_ranks) const;
  // Returns what a proposal is answered with without a look at it: it is
  // repeated, or of an old version.
  static std::optional<absl::StatusOr<schedule::Plan>> AnswerTo(
      absl::string_view job, const Record& record, int64_t expected_version,
      const schedule::Plan& plan);
  // Checks what a job's pipeline would become by a plan; OK without one. Waits
  // for nothing.
  absl::Status ProvePipeline(const schedule::Terms& from,
                             const schedule::Plan& to, const PlanRanks& ranks)
      ABSL_LOCKS_EXCLUDED(writing_, mutex_);
  // Returns why a job's pending proposal cannot come with this generation.
  absl::Status ProvePending(const GenerationStart& start,
                            const Settings& settings, const PlanRanks& ranks)
      ABSL_LOCKS_EXCLUDED(writing_, mutex_);
  std::optional<Record> Find(absl::string_view job) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Commits what a job's record becomes. NOT_FOUND: it was forgotten meanwhile.
  absl::Status Store(absl::string_view job, Record record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether a decision before this step changes anything.
  static bool Concerns(const Record& record, int64_t step);
  // Returns whether the pending proposal comes into force with this step.
  static bool IsDue(const Record& record, int64_t step);
  // The step before this one was decided.
  void NoteDecided(absl::string_view job, int64_t step, Record* record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_) ABSL_LOCKS_EXCLUDED(mutex_);
  // The plan on trial has made a step.
  void Prove(absl::string_view job, Record* record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_) ABSL_LOCKS_EXCLUDED(mutex_);

  const PlanOptions options_;
  StateStore* const store_;
  std::atomic<bool> proving_ = false;  // of a ProofTurn
  // Held by whatever changes a plan, until that is committed. Taken before
  // `mutex_`, which is never held meanwhile: a job may be forgotten, and its
  // generation may end, during a commit.
  Mutex writing_;
  mutable Mutex mutex_;
  Records records_ ABSL_GUARDED_BY(mutex_);
  int64_t next_version_ ABSL_GUARDED_BY(mutex_) = 1;
  // Jobs with records in quarantine.
  std::set<std::string, std::less<>> lost_ ABSL_GUARDED_BY(mutex_);
  // A record is in quarantine that may be of any job.
  bool names_lost_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PLAN_PLAN_STORE_H_
