#include "server/checkpoint/checkpoint_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace coxswain::server {

absl::StatusOr<std::string> CheckpointStore::FindImportLocked(
    const Fence& fence, int64_t step, std::vector<CheckpointRecord>* discard) {
  COXSWAIN_RETURN_IF_ERROR(ended_.Check(fence));
  size_t others = 0;
  for (auto it = open_.begin(); it != open_.end();) {
    OpenCheckpoint& open = it->second;
    const bool import = open.record.generation == fence.generation;
    if (!import || open.record.job != fence.job) {
      others += import ? 1 : 0;
      ++it;
      continue;
    }
    if (open.import == fence.request_id) return it->first;
    if (open.phase == Phase::kCommitting) {
      return absl::UnavailableError(absl::StrCat(
          "an import into job \"", fence.job, "\" is being committed"));
    }
    discard->push_back(std::move(open.record));
    it = open_.erase(it);
  }
  for (const CheckpointRecord& complete : catalogue_.OfStep(fence.job, step)) {
    if (complete.generation != fence.generation) continue;
    return absl::AlreadyExistsError(absl::StrCat(
        "job \"", fence.job, "\" has an imported checkpoint of step ", step,
        " already: ", complete.id, "; delete it first"));
  }
  if (others >= limits_.max_open_imports) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit max_open_imports of ", limits_.max_open_imports,
                     " is reached; end one"));
  }
  return std::string();
}

absl::StatusOr<std::string> CheckpointStore::BeginImport(
    const Fence& fence, int64_t step, int shards,
    const std::map<std::string, std::string>& metadata, absl::Time created) {
  COXSWAIN_RETURN_IF_ERROR(ValidateBegin(fence, step, shards, metadata));
  if (fence.request_id == 0) {
    return absl::InvalidArgumentError("an import needs a request id");
  }
  OpenCheckpoint open;
  open.record = NewRecord(fence, step, shards, metadata);
  open.record.created = created;
  open.import = fence.request_id;
  COXSWAIN_RETURN_IF_ERROR(EncodeManifest(open.record).status());

  MutexLock begin_lock(&begin_mutex_);
  std::vector<CheckpointRecord> discard;
  absl::StatusOr<std::string> id;
  {
    MutexLock lock(&mutex_);
    id = FindImportLocked(fence, step, &discard);
    if (id.ok() && id->empty()) {
      const absl::Status allowed = CheckLimitsLocked(fence.job, step);
      if (!allowed.ok()) id = allowed;
    }
  }
  for (const CheckpointRecord& record : discard) {
    LogInfo("import_discarded", {{"job", record.job},
                                 {"checkpoint", record.id},
                                 {"reason", "another one was begun"}});
    RemoveFolders(record);
  }
  if (!id.ok() || !id->empty()) return id;
  COXSWAIN_RETURN_IF_ERROR(MakeStaging(open.record));
  MutexLock lock(&mutex_);
  open_[open.record.id] = open;
  return open.record.id;
}

}  // namespace coxswain::server
