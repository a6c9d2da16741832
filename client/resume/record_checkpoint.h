#ifndef COXSWAIN_CLIENT_RESUME_RECORD_CHECKPOINT_H_
#define COXSWAIN_CLIENT_RESUME_RECORD_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/accumulate/accumulator.h"
#include "client/elastic/elastic_record.h"
#include "client/resume/program_checkpoint.h"
#include "client/session/session.h"
#include "schedule/ticket.h"

namespace coxswain {

// The checkpoints of a training that keeps a record of how far it is, and of
// what its program counts: each holds the record, and one that is gone on from
// sets it. So trainings of all kinds go on from each other's.
//
// Life-cycle and threading: as ProgramCheckpoint; the record outlives it.
class RecordCheckpoint {
 public:
  // Returns the training state between two steps.
  using State = std::function<ProgramCheckpoint::Training()>;

  RecordCheckpoint(Session& session, ProgramCheckpoint::Program program,
                   const ProgramCheckpoint::Options& options, State state,
                   ElasticRecord* record);

  // Goes on from this checkpoint, and returns true; not if `id` is empty, or if
  // it is "newest" and there is none. All ranks call it before the first step.
  // Fails as ProgramCheckpoint::Resume, and with DATA_LOSS for a record that
  // cannot be read.
  absl::StatusOr<bool> Resume(const std::string& id);

  // Notes in the record how many windows have ended. Returns false in the
  // middle of one. `decided` is that of ProgramCheckpoint::Training.
  bool NoteWindow(const Accumulator& accumulator, int64_t decided);
  // Returns the progress that a record of so many decisions has.
  int64_t ProgressAt(int64_t decided) const {
    return decided_before_ + decided;
  }
  // Returns whether the record is of so many decisions.
  bool IsNoted(int64_t decided) const {
    return record_.progress == ProgressAt(decided);
  }

  // Saves the step that NoteStep has noted last, if its decision asks for that:
  // at the beginning of the next one, because what the program counts after a
  // step belongs to it.
  void NoteStep() { save_due_ = true; }
  absl::Status SaveIfDue(const schedule::Decision& last);
  // As ProgramCheckpoint::Save.
  absl::Status Save(absl::string_view reason);

  // As ProgramCheckpoint::Finish. An error was logged.
  void Finish(absl::Duration timeout) {
    checkpoint_.Finish(timeout).IgnoreError();
  }

 private:
  ProgramCheckpoint checkpoint_;
  const State state_;
  ElasticRecord& record_;
  int64_t decided_before_ = 0;  // progress when the decisions began
  bool save_due_ = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RESUME_RECORD_CHECKPOINT_H_
