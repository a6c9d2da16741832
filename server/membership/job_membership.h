#ifndef COXSWAIN_SERVER_MEMBERSHIP_JOB_MEMBERSHIP_H_
#define COXSWAIN_SERVER_MEMBERSHIP_JOB_MEMBERSHIP_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "schedule/plan.h"
#include "server/generation/fence.h"
#include "server/membership/job_effects.h"
#include "server/membership/job_record.h"
#include "server/membership/membership_records.h"
#include "server/membership/membership_types.h"
#include "server/membership/run_commit.h"
#include "server/options/options.h"
#include "server/state/quarantine.h"

namespace coxswain::server {

// The membership of one job. Its life:
//
//            round closes          a member is lost or fails, or all left
//   forming --------------> running ------------------------------> ended
//      ^                       |                                      |
//      |                       | (workers wait for the next round)    |
//      +-----------------------+----- a worker joins -----------------+
//
// A state machine: it is brought what happens and the time at which it does,
// and appends to a list what is to be done. No clock, no locks, no store, and
// no call of anybody: callbacks and sinks are kept and handed out again.
//
// While a generation is being committed, inputs wait for the outcome, in their
// order: the job looks as if the commit took no time.
class JobMembership {
 public:
  // What the jobs of a coordinator have in common.
  struct Coordinator {
    MembershipOptions options;
    std::string cluster_id;
    Term term;
    // Returns a number that no generation has had.
    std::function<Generation()> next_generation;
  };

  // A job that nothing is known of. The coordinator must outlive it.
  JobMembership(const Coordinator* coordinator, absl::string_view name,
                absl::Time now);
  // Takes up what an earlier term has left; right after the constructor. The
  // plan is that of the job, if there is one.
  void Restore(LoadedJob loaded, std::optional<schedule::Plan> plan,
               absl::Time now);
  // The same for a job whose own record is in quarantine.
  void RestoreUnknown();
  // Returns the generation that goes on, if one does. Its members are given the
  // reattach grace from now on.
  std::optional<GenerationResumed> Resume(absl::Time now);
  // Once the observers have resumed: ends a generation that lacks a plan or a
  // record, or whose last member had left, and saves what Restore() has found.
  void FinishResume(const std::vector<QuarantinedRecord>& quarantined,
                    absl::Time now, JobEffects* effects);

  // Takes the input now or, while a generation is being committed, after that.
  // Answers UNAVAILABLE where too many wait for that.
  void Take(JobInput input, absl::Time now, JobEffects* effects);
  // The generation of job_effect::Commit begins with this plan, or its round
  // fails.
  void FinishCommit(absl::StatusOr<schedule::Plan> plan, absl::Time now,
                    JobEffects* effects);
  // The answers of job_effect::Announce were given.
  void Announced(Generation generation, JobEffects* effects);

  // What job_effect::Save has written is not durable: it is tried again.
  void NoteUnsaved(absl::Time now);
  // UNAVAILABLE: something of it is not written.
  absl::Status CheckSaved() const;

  // Attaches a member of the generation that runs, with the number that the
  // attachment is to have, and returns its rank. Errors as Admit().
  absl::StatusOr<int> Attach(Generation generation, Incarnation incarnation,
                             uint64_t attachment, EventSink sink,
                             absl::Time now, JobEffects* effects);
  // What the member of this rank, which is attached, brings.
  void NoteProgress(int rank, const Progress& progress, absl::Time now);
  void Detach(int rank, absl::Time now);
  void NotePeersBroken(int rank, const std::vector<int>& ranks, absl::Time now);
  void NoteFallbackCoordinator(int rank, absl::string_view address,
                               JobEffects* effects);

  // Whether this generation runs. What follows is for the one that runs.
  bool Runs(Generation generation) const;
  void Tell(const std::vector<schedule::Message>& messages,
            JobEffects* effects);
  void CutOffOthers(int rank, const absl::Status& reason, absl::Time now,
                    JobEffects* effects);
  void NoteRegroup(bool decided, JobEffects* effects);
  void Abort(const absl::Status& reason, absl::Time now, JobEffects* effects);
  void NotePlan(const schedule::Plan& plan);
  void NoteSigns(const std::vector<absl::Time>& heard);

  // Looks at all deadlines. `stood_still`: nobody's time has passed.
  void Tick(bool stood_still, absl::Time now, JobEffects* effects);
  // Answers everyone who waits and closes all streams with this status, and
  // every later input. The generation goes on with the next coordinator.
  void Shutdown(const absl::Status& status, JobEffects* effects);

  // The member of the generation that runs. FAILED_PRECONDITION: the generation
  // or the incarnation is stale.
  absl::StatusOr<const MemberRecord*> Admit(Generation generation,
                                            Incarnation incarnation) const;
  JobDescription Describe(absl::Time now) const;
  JobSummary Summarise(absl::Time now) const;
  // Of the last generation, by rank.
  std::vector<MemberDescription> Members(absl::Time now) const;
  // Removes what is stored of it.
  void Forget(StateBatch* batch) const;

  const std::string& name() const { return job_.name; }
  JobState state() const { return job_.state; }
  absl::Time ended_at() const { return job_.ended_at; }
  // The last one; 0: none.
  Generation generation() const { return job_.run.generation; }
  const MemberTable& members() const { return job_.run.members; }
  // Null: no generation is being committed.
  const RunCommit* commit() const { return commit_.get(); }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_JOB_MEMBERSHIP_H_
