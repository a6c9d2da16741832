#include "server/checkpoint/checkpoint_store.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace coxswain::server {

// The new one is durable: whatever fails here leaves one checkpoint too many.
void CheckpointStore::DeleteSuperseded(const CheckpointRecord& by) {
  std::vector<CheckpointRecord> superseded;
  {
    MutexLock lock(&mutex_);
    for (CheckpointRecord& record : catalogue_.OfStep(by.job, by.step)) {
      if (!(record.generation < by.generation)) continue;
      if (record.generation == Generation(0)) continue;  // an operator's
      if (readers_.IsRead(record.id, clock_->Now())) continue;
      catalogue_.Remove(record.job, record.id);
      superseded.push_back(std::move(record));
    }
  }
  DeleteAll(std::move(superseded), "checkpoint_superseded", by.id);
}

// Saves that fail may leave theirs open: the ranks that began it were lost, or
// could not delete it. Not one that is being committed.
void CheckpointStore::DiscardLowest(const Fence& fence, int64_t step) {
  CheckpointRecord discarded;
  {
    MutexLock lock(&mutex_);
    if (!PlacesAreFullLocked(fence.job)) return;
    auto lowest = open_.end();
    for (auto it = open_.begin(); it != open_.end(); ++it) {
      const OpenCheckpoint& open = it->second;
      if (open.record.job != fence.job ||
          open.record.generation != fence.generation ||
          open.phase != Phase::kOpen || open.record.step >= step) {
        continue;
      }
      if (lowest == open_.end() ||
          open.record.step < lowest->second.record.step) {
        lowest = it;
      }
    }
    if (lowest == open_.end()) return;
    discarded = std::move(lowest->second.record);
    open_.erase(lowest);
  }
  LogWarning(
      "open_checkpoint_discarded",
      {{"job", discarded.job},
       {"checkpoint", discarded.id},
       {"reason", absl::StrCat("it was replaced by that of step ", step)}});
  RemoveFolders(discarded);
}

// Otherwise a job at its limit would never reach a commit, which applies its
// rules.
void CheckpointStore::DeleteForNew(absl::string_view job, int64_t step) {
  {
    MutexLock lock(&mutex_);
    if (!CatalogueIsFullLocked(job, step)) return;
  }
  DeleteUnretained(job, /*committed=*/"", retention_);
}

void CheckpointStore::DeleteUnretained(absl::string_view job,
                                       absl::string_view committed,
                                       const RetentionRules& rules) {
  if (rules.empty()) return;
  std::vector<CheckpointRecord> unretained;
  {
    MutexLock lock(&mutex_);
    std::vector<CheckpointRecord> records = catalogue_.List(job);
    const std::set<std::string> kept = Retained(records, rules);
    for (CheckpointRecord& record : records) {
      if (kept.count(record.id) != 0 || record.id == committed ||
          readers_.IsRead(record.id, clock_->Now())) {
        continue;
      }
      catalogue_.Remove(record.job, record.id);
      unretained.push_back(std::move(record));
    }
  }
  DeleteAll(std::move(unretained), "checkpoint_not_retained", committed);
}

void CheckpointStore::DeleteAll(std::vector<CheckpointRecord> records,
                                absl::string_view reason,
                                absl::string_view by) {
  for (CheckpointRecord& record : records) {
    const std::string job = record.job;
    const std::string id = record.id;
    const int64_t step = record.step;
    const absl::Status deleted = DeleteComplete(std::move(record));
    LogInfo(reason, {{"job", job},
                     {"step", step},
                     {"checkpoint", id},
                     {"by", by},
                     {"deleted", deleted.ToString()}});
  }
}

absl::Status CheckpointStore::RemoveFinal(const CheckpointRecord& record,
                                          bool* renamed) {
  COXSWAIN_RETURN_IF_ERROR(lead_folder_.Make());
  const std::string deleted = DeletedFolder(record);
  COXSWAIN_RETURN_IF_ERROR(file_system_->Rename(FinalFolder(record), deleted));
  *renamed = true;
  COXSWAIN_RETURN_IF_ERROR(file_system_->SyncFolder(JobFolder(record.job)));
  return file_system_->RemoveTree(deleted);
}

absl::Status CheckpointStore::DeleteComplete(CheckpointRecord record) {
  bool renamed = false;
  const absl::Status status = RemoveFinal(record, &renamed);
  if (!renamed) {
    MutexLock lock(&mutex_);
    catalogue_.Add(std::move(record));
  }
  return status;
}

absl::Status CheckpointStore::Delete(absl::string_view job,
                                     absl::string_view id) {
  CheckpointRecord record;
  bool complete = false;
  {
    MutexLock lock(&mutex_);
    const CheckpointRecord* found = catalogue_.Find(job, id);
    complete = found != nullptr;
    if (complete) {
      record = *found;
      catalogue_.Remove(job, id);
    } else {
      const auto it = open_.find(id);
      if (it == open_.end() || it->second.record.job != job) {
        return absl::NotFoundError(
            absl::StrCat("job \"", job, "\" has no checkpoint \"", id, "\""));
      }
      if (it->second.phase == Phase::kCommitting) {
        return absl::UnavailableError(
            absl::StrCat("checkpoint ", id, " is being committed; try again"));
      }
      record = it->second.record;
      open_.erase(it);
    }
  }
  absl::Status deleted;
  if (complete) {
    deleted = DeleteComplete(record);
  } else {
    RemoveFolders(record);
  }
  LogInfo("checkpoint_deleted", {{"job", job},
                                 {"step", record.step},
                                 {"checkpoint", id},
                                 {"deleted", deleted.ToString()}});
  return deleted;
}

void CheckpointStore::RemoveUploads(const CheckpointRecord& record) {
  const absl::Status status = file_system_->RemoveTree(UploadsFolder(record));
  if (!status.ok()) {
    LogWarning("checkpoint_left_behind",
               {{"checkpoint", record.id}, {"error", status.ToString()}});
  }
}

void CheckpointStore::RemoveFolders(const CheckpointRecord& record) {
  RemoveUploads(record);
  absl::Status status = file_system_->RemoveTree(StagingFolder(record));
  // There only if a commit failed after its rename.
  bool renamed = false;
  const absl::Status removed = RemoveFinal(record, &renamed);
  if (!absl::IsNotFound(removed)) status.Update(removed);
  if (!status.ok()) {
    LogWarning("checkpoint_left_behind",
               {{"checkpoint", record.id}, {"error", status.ToString()}});
  }
}

}  // namespace coxswain::server
