#include "client/resume/record_checkpoint.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace coxswain {

RecordCheckpoint::RecordCheckpoint(Session& session,
                                   ProgramCheckpoint::Program program,
                                   const ProgramCheckpoint::Options& options,
                                   State state, ElasticRecord* record)
    : checkpoint_(session, std::move(program), options),
      state_(std::move(state)),
      record_(*record),
      decided_before_(record->progress) {}

absl::StatusOr<bool> RecordCheckpoint::Resume(const std::string& id) {
  if (id.empty()) return false;
  const ProgramCheckpoint::Training state = state_();
  COXSWAIN_ASSIGN_OR_RETURN(const auto resumed,
                            checkpoint_.ResumeIfAny(id, state));
  if (!resumed.has_value()) return false;
  const auto record = resumed->blobs.find(ElasticRecord::kBlob);
  if (record != resumed->blobs.end()) {
    COXSWAIN_ASSIGN_OR_RETURN(record_, ElasticRecord::Parse(record->second));
  }
  record_.NotePosition(*state.accumulator);
  // Trainings that were not elastic have left it out.
  record_.progress = std::max(record_.progress, record_.step());
  decided_before_ = record_.progress;
  return true;
}

bool RecordCheckpoint::NoteWindow(const Accumulator& accumulator,
                                  int64_t decided) {
  if (!record_.NotePosition(accumulator)) return false;
  record_.progress = ProgressAt(decided);
  return true;
}

absl::Status RecordCheckpoint::SaveIfDue(const schedule::Decision& last) {
  if (!std::exchange(save_due_, false)) return absl::OkStatus();
  // A step that was skipped asks for nothing, and may be the last.
  const bool last_of_all = last.checkpoint.empty() && !last.commit;
  const std::string& reason = last_of_all ? last.stop : last.checkpoint;
  return reason.empty() ? absl::OkStatus() : Save(reason);
}

absl::Status RecordCheckpoint::Save(absl::string_view reason) {
  return checkpoint_
      .Save(state_(), reason, {{ElasticRecord::kBlob, record_.Serialize()}})
      .status();
}

}  // namespace coxswain
