#include "server/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/generation/job_name.h"

namespace coxswain::server {
namespace {

// Enough to recognise what is missing, few enough for an error message.
constexpr size_t kMaxNamedShards = 16;

// In the folder of the term.
constexpr absl::string_view kUploadsSuffix = ".uploads";

absl::Status NoSuchOpen(absl::string_view id) {
  return absl::NotFoundError(absl::StrCat(
      "no open checkpoint \"", id,
      "\" in this generation (committed, deleted, discarded when its "
      "generation ended, or lost in a restart of the coordinator); begin it "
      "again"));
}

std::string NameMissing(const CheckpointRecord& record) {
  std::vector<int> named;
  for (int i = 0; i < record.shard_count && named.size() < kMaxNamedShards;
       ++i) {
    if (record.shards.count(i) == 0) named.push_back(i);
  }
  const size_t rest = record.shard_count - record.shards.size() - named.size();
  return absl::StrCat(absl::StrJoin(named, ", "),
                      rest > 0 ? absl::StrCat(" and ", rest, " more") : "");
}

}  // namespace

CheckpointStore::CheckpointStore(FileSystem* file_system,
                                 const std::string& folder,
                                 const CheckpointLimits& limits,
                                 const Clock* clock, RandomSource* random)
    : file_system_(file_system),
      folder_(folder),
      limits_(limits),
      clock_(clock),
      random_(random),
      refused_uploads_("upload_refused", clock),
      lead_folder_(file_system, folder, random) {}

CheckpointStore::~CheckpointStore() = default;

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(
    FileSystem* file_system, const std::string& folder,
    const CheckpointLimits& limits, const Clock* clock, RandomSource* random) {
  COXSWAIN_RETURN_IF_ERROR(file_system->MakeFolder(folder));
  const size_t slash = folder.rfind('/');
  const std::string parent = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                          : folder.substr(0, slash);
  COXSWAIN_RETURN_IF_ERROR(file_system->SyncFolder(parent));
  std::unique_ptr<CheckpointStore> store(
      new CheckpointStore(file_system, folder, limits, clock, random));
  COXSWAIN_RETURN_IF_ERROR(LeadFolder::EndEarlier(file_system, folder));
  MutexLock lock(&store->mutex_);
  COXSWAIN_RETURN_IF_ERROR(store->catalogue_.Load(file_system, folder));
  return store;
}

std::string CheckpointStore::JobFolder(absl::string_view job) const {
  return absl::StrCat(folder_, "/", job);
}

std::string CheckpointStore::FinalFolder(const CheckpointRecord& record) const {
  return absl::StrCat(JobFolder(record.job), "/", record.id);
}

std::string CheckpointStore::UploadsFolder(
    const CheckpointRecord& record) const {
  return lead_folder_.PathOf(absl::StrCat(record.id, kUploadsSuffix));
}

std::string CheckpointStore::StagingFolder(
    const CheckpointRecord& record) const {
  return lead_folder_.PathOf(record.id);
}

std::string CheckpointStore::DeletedFolder(
    const CheckpointRecord& record) const {
  return lead_folder_.PathOf(absl::StrCat(record.id, kDeletedSuffix));
}

absl::Status CheckpointStore::ValidateBegin(
    const Fence& fence, int64_t step, int shards,
    const std::map<std::string, std::string>& metadata) const {
  COXSWAIN_RETURN_IF_ERROR(ValidateJobName(fence.job));
  if (step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step, " is negative"));
  }
  if (shards < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a checkpoint of ", shards, " shards; at least 1"));
  }
  if (shards > limits_.max_shards) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a checkpoint of ", shards, " shards passes the limit max_shards of ",
        limits_.max_shards));
  }
  size_t bytes = 0;
  for (const auto& [key, value] : metadata) bytes += key.size() + value.size();
  if (bytes > limits_.max_metadata_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "metadata of ", bytes, " bytes passes the limit max_metadata_bytes of ",
        limits_.max_metadata_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointStore::FindToJoinLocked(
    const Fence& fence, int64_t step, int shards,
    const std::map<std::string, std::string>& metadata) const {
  COXSWAIN_RETURN_IF_ERROR(ended_.Check(fence));
  for (const CheckpointRecord& complete : catalogue_.OfStep(fence.job, step)) {
    if (complete.generation != fence.generation) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("generation ", fence.generation.value(), " of job \"",
                     fence.job, "\" has a complete checkpoint of step ", step,
                     " already: ", complete.id));
  }
  for (const auto& [id, open] : open_) {
    const CheckpointRecord& record = open.record;
    if (record.job != fence.job || record.step != step ||
        record.generation != fence.generation) {
      continue;
    }
    if (record.shard_count != shards) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the open checkpoint of step ", step, " has ", record.shard_count,
          " shards, not ", shards, "; all ranks must give the same"));
    }
    if (record.metadata != metadata) {
      return absl::FailedPreconditionError(
          absl::StrCat("the open checkpoint of step ", step,
                       " has other metadata; all ranks must give the same"));
    }
    return id;
  }
  return std::string();
}

bool CheckpointStore::PlacesAreFullLocked(absl::string_view job) const {
  const size_t open_of_job = std::count_if(
      open_.begin(), open_.end(),
      [&](const auto& entry) { return entry.second.record.job == job; });
  return open_of_job >= limits_.max_open_checkpoints_per_job;
}

bool CheckpointStore::CatalogueIsFullLocked(absl::string_view job,
                                            int64_t step) const {
  // One that takes another's place does not count.
  for (const CheckpointRecord& record : catalogue_.OfStep(job, step)) {
    if (record.generation != Generation(0)) return false;
  }
  return catalogue_.CountOf(job) >= limits_.max_checkpoints_per_job;
}

absl::Status CheckpointStore::CheckLimitsLocked(absl::string_view job,
                                                int64_t step) const {
  if (open_.size() >= limits_.max_open_checkpoints) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the limit max_open_checkpoints of ", limits_.max_open_checkpoints,
        " is reached; commit or delete one"));
  }
  if (PlacesAreFullLocked(job)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit max_open_checkpoints_per_job of ",
                     limits_.max_open_checkpoints_per_job,
                     " is reached by job \"", job, "\"; commit or delete one"));
  }
  if (CatalogueIsFullLocked(job, step)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit max_checkpoints_per_job of ",
                     limits_.max_checkpoints_per_job, " is reached by job \"",
                     job, "\"; delete old checkpoints"));
  }
  return absl::OkStatus();
}

CheckpointRecord CheckpointStore::NewRecord(
    const Fence& fence, int64_t step, int shards,
    const std::map<std::string, std::string>& metadata) const {
  CheckpointRecord record;
  record.generation = fence.generation;
  record.id = absl::StrFormat("step-%012d-%016x", step, random_->NextId());
  record.job = fence.job;
  record.step = step;
  record.shard_count = shards;
  record.metadata = metadata;
  return record;
}

absl::Status CheckpointStore::MakeStaging(const CheckpointRecord& record) {
  COXSWAIN_RETURN_IF_ERROR(file_system_->MakeFolder(JobFolder(record.job)));
  COXSWAIN_RETURN_IF_ERROR(file_system_->SyncFolder(folder_));
  COXSWAIN_RETURN_IF_ERROR(lead_folder_.Make());
  return file_system_->MakeFolder(UploadsFolder(record));
}

absl::StatusOr<std::string> CheckpointStore::Begin(
    const Fence& fence, int64_t step, int shards,
    const std::map<std::string, std::string>& metadata) {
  COXSWAIN_RETURN_IF_ERROR(ValidateBegin(fence, step, shards, metadata));
  OpenCheckpoint open;
  open.record = NewRecord(fence, step, shards, metadata);
  open.opened = clock_->Now();
  // What cannot be written must not be accepted.
  COXSWAIN_RETURN_IF_ERROR(EncodeManifest(open.record).status());

  // Ranks come at once: only the first makes the folder, the others join.
  MutexLock begin_lock(&begin_mutex_);
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(std::string id,
                              FindToJoinLocked(fence, step, shards, metadata));
    if (!id.empty()) return id;
  }
  DiscardLowest(fence, step);
  DeleteForNew(fence.job, step);
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(CheckLimitsLocked(fence.job, step));
  }
  COXSWAIN_RETURN_IF_ERROR(MakeStaging(open.record));
  {
    MutexLock lock(&mutex_);
    // The generation may have ended while the folder was made.
    const absl::StatusOr<std::string> still =
        FindToJoinLocked(fence, step, shards, metadata);
    if (still.ok()) {
      open_[open.record.id] = open;
      return open.record.id;
    }
  }
  RemoveFolders(open.record);
  return absl::AbortedError("the generation has ended; join again");
}

absl::StatusOr<CheckpointStore::OpenCheckpoint*>
CheckpointStore::FindOpenLocked(const Fence& fence, absl::string_view id) {
  const auto it = open_.find(id);
  if (it == open_.end() || it->second.record.job != fence.job ||
      it->second.record.generation != fence.generation) {
    return NoSuchOpen(id);
  }
  return &it->second;
}

absl::StatusOr<std::unique_ptr<ShardUpload>> CheckpointStore::StartUpload(
    const Fence& fence, absl::string_view id, int shard, int64_t bytes,
    uint32_t crc32c) {
  std::unique_ptr<ShardUpload> upload;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(OpenCheckpoint * open, FindOpenLocked(fence, id));
    if (open->phase != Phase::kOpen) return NoSuchOpen(id);
    if (shard < 0 || shard >= open->record.shard_count) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint ", id, " has shards 0 to ",
                       open->record.shard_count - 1, ", not ", shard));
    }
    if (bytes < 0 || bytes > limits_.max_shard_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "a shard of ", bytes, " bytes is outside 0 to the limit ",
          "max_shard_bytes of ", limits_.max_shard_bytes));
    }
    if (open_uploads_ >= limits_.max_open_uploads) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the limit max_open_uploads of ",
                       limits_.max_open_uploads, " is reached; try later"));
    }
    ++open_uploads_;
    ShardRecord expected;
    expected.shard = shard;
    // Each upload has a file of its own, so that an earlier complete one stays
    // until this one is complete.
    expected.file = absl::StrFormat("shard-%05d.%d", shard, next_file_++);
    expected.bytes = bytes;
    expected.crc32c = crc32c;
    upload = std::make_unique<ShardUpload>(
        file_system_, static_cast<ShardOwner*>(this), fence.job,
        std::string(id), UploadsFolder(open->record), std::move(expected),
        limits_.max_chunk_bytes);
  }
  COXSWAIN_RETURN_IF_ERROR(upload->Open());
  return upload;
}

absl::StatusOr<std::string> CheckpointStore::CompleteShard(
    const std::string& id, const ShardRecord& shard) {
  MutexLock lock(&mutex_);
  const auto it = open_.find(id);
  if (it == open_.end() || it->second.phase != Phase::kOpen) {
    return NoSuchOpen(id);
  }
  ShardRecord& complete = it->second.record.shards[shard.shard];
  std::string replaced = complete.file;
  complete = shard;
  return replaced;
}

void CheckpointStore::UploadRefused(const std::string& job,
                                    const std::string& id, int shard,
                                    const absl::Status& status) {
  refused_uploads_.Line(job, {{"job", job},
                              {"checkpoint", id},
                              {"shard", shard},
                              {"error", status.ToString()}});
}

void CheckpointStore::UploadEnded() {
  MutexLock lock(&mutex_);
  --open_uploads_;
}

absl::StatusOr<CheckpointStore::OpenCheckpoint> CheckpointStore::PrepareCommit(
    const Fence& fence, absl::string_view id) {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(OpenCheckpoint * open, FindOpenLocked(fence, id));
  if (open->phase == Phase::kCommitting) {
    return absl::UnavailableError(absl::StrCat(
        "checkpoint ", id, " is being committed by another call; try again"));
  }
  if (static_cast<int>(open->record.shards.size()) < open->record.shard_count) {
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint ", id, " cannot be committed: of ",
                     open->record.shard_count,
                     " shards these are missing: ", NameMissing(open->record)));
  }
  if (open->phase == Phase::kOpen && open->import == 0) {
    open->record.created = clock_->WallTime();
  }
  const OpenCheckpoint prepared = *open;
  open->phase = Phase::kCommitting;
  return prepared;
}

// One thread at a time commits a checkpoint, and only that one changes the
// folder: an upload that ends meanwhile finds its own file in the other one.
absl::Status CheckpointStore::MoveShards(const CheckpointRecord& record) {
  const std::string staging = StagingFolder(record);
  COXSWAIN_RETURN_IF_ERROR(file_system_->MakeFolder(staging));
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            file_system_->List(staging));
  std::set<std::string> missing;
  for (const auto& [index, shard] : record.shards) missing.insert(shard.file);
  for (const std::string& name : names) {
    if (missing.erase(name) > 0) continue;
    COXSWAIN_RETURN_IF_ERROR(
        file_system_->RemoveTree(absl::StrCat(staging, "/", name)));
  }
  const std::string uploads = UploadsFolder(record);
  for (const std::string& name : missing) {
    COXSWAIN_RETURN_IF_ERROR(file_system_->Rename(
        absl::StrCat(uploads, "/", name), absl::StrCat(staging, "/", name)));
  }
  return absl::OkStatus();
}

// The order matters: the shards' data is synced already; then the manifest, the
// names in the folder, the new name of the folder.
absl::Status CheckpointStore::WriteManifestAndRename(
    const CheckpointRecord& record) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string manifest, EncodeManifest(record));
  COXSWAIN_RETURN_IF_ERROR(MoveShards(record));
  const std::string staging = StagingFolder(record);
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::unique_ptr<WritableFile> file,
      file_system_->Create(absl::StrCat(staging, "/", kManifestFile)));
  COXSWAIN_RETURN_IF_ERROR(file->Append(manifest));
  COXSWAIN_RETURN_IF_ERROR(file->Sync());
  COXSWAIN_RETURN_IF_ERROR(file->Close());
  COXSWAIN_RETURN_IF_ERROR(file_system_->SyncFolder(staging));
  return file_system_->Rename(staging, FinalFolder(record));
}

void CheckpointStore::FinishCommit(const CheckpointRecord& record, bool renamed,
                                   const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    const auto it = open_.find(record.id);
    if (status.ok()) {
      if (record.generation != Generation(0)) {
        durations_.Observe(
            absl::ToDoubleSeconds(clock_->Now() - it->second.opened));
      }
      catalogue_.Add(record);
      open_.erase(it);
      return;
    }
    it->second.phase = renamed ? Phase::kRenamed : Phase::kOpen;
    if (!it->second.abandoned) return;
    open_.erase(it);
  }
  RemoveFolders(record);
}

absl::StatusOr<CheckpointRecord> CheckpointStore::Commit(
    const Fence& fence, absl::string_view id, const RetentionRules& rules) {
  COXSWAIN_RETURN_IF_ERROR(rules.Validate());
  {
    MutexLock lock(&mutex_);
    const CheckpointRecord* complete = catalogue_.Find(fence.job, id);
    if (complete != nullptr) return *complete;
  }
  COXSWAIN_ASSIGN_OR_RETURN(const OpenCheckpoint open,
                            PrepareCommit(fence, id));
  bool renamed = open.phase == Phase::kRenamed;
  absl::Status status;
  if (!renamed) {
    status = WriteManifestAndRename(open.record);
    renamed = status.ok();
  }
  if (status.ok()) {
    status = file_system_->SyncFolder(JobFolder(open.record.job));
  }
  FinishCommit(open.record, renamed, status);
  if (!status.ok()) {
    LogError("checkpoint_commit_failed",
             {{"job", open.record.job},
              {"generation", open.record.generation.value()},
              {"step", open.record.step},
              {"checkpoint", id},
              {"error", status.ToString()}});
    return status;
  }
  LogInfo("checkpoint_complete",
          {{"job", open.record.job},
           {"generation", open.record.generation.value()},
           {"step", open.record.step},
           {"checkpoint", id},
           {"shards", open.record.shard_count},
           {"bytes", open.record.TotalBytes()}});
  RemoveUploads(open.record);
  DeleteSuperseded(open.record);
  if (open.record.generation != Generation(0)) {
    DeleteUnretained(open.record.job, open.record.id,
                     rules.empty() ? retention_ : rules);
  }
  return open.record;
}

Generation CheckpointStore::NewestGeneration() const {
  MutexLock lock(&mutex_);
  return catalogue_.NewestGeneration();
}

std::vector<CheckpointRecord> CheckpointStore::List(
    absl::string_view job) const {
  MutexLock lock(&mutex_);
  return catalogue_.List(job);
}

CheckpointOverview CheckpointStore::Overview(absl::string_view job,
                                             size_t most) const {
  const auto summary = [](const CheckpointRecord& record, bool complete) {
    CheckpointSummary result;
    result.id = record.id;
    result.step = record.step;
    result.generation = record.generation;
    result.created = record.created;
    result.bytes = record.TotalBytes();
    result.shards = record.shard_count;
    result.complete = complete;
    return result;
  };
  CheckpointOverview overview;
  MutexLock lock(&mutex_);
  overview.complete = catalogue_.CountOf(job);
  for (const auto& [id, open] : open_) {
    if (open.record.job != job || overview.newest.size() >= most) continue;
    overview.newest.push_back(summary(open.record, false));
  }
  const size_t left = most - overview.newest.size();
  for (const CheckpointRecord* record : catalogue_.Newest(job, left)) {
    overview.newest.push_back(summary(*record, true));
  }
  return overview;
}

Histogram CheckpointStore::Durations() const {
  MutexLock lock(&mutex_);
  return durations_;
}

absl::StatusOr<CheckpointRecord> CheckpointStore::Find(
    absl::string_view job, absl::string_view id) const {
  MutexLock lock(&mutex_);
  const CheckpointRecord* record = catalogue_.Find(job, id);
  if (record != nullptr) return *record;
  return absl::NotFoundError(absl::StrCat(
      "job \"", job, "\" has no complete checkpoint \"", id, "\""));
}

absl::Status CheckpointStore::CheckManifest(absl::string_view job,
                                            absl::string_view id) const {
  COXSWAIN_ASSIGN_OR_RETURN(const CheckpointRecord known, Find(job, id));
  auto record = ReadManifest(*file_system_, FinalFolder(known));
  absl::Status status = record.status();
  if (status.ok()) status = CheckManifestOf(*record, job, id);
  if (status.ok()) return status;
  // Deleted in between?
  COXSWAIN_RETURN_IF_ERROR(Find(job, id).status());
  return absl::DataLossError(absl::StrCat(
      "checkpoint ", id, ": ", status.message(), "; use an older checkpoint"));
}

absl::StatusOr<std::pair<std::string, ShardRecord>>
CheckpointStore::AdmitDownload(absl::string_view job, absl::string_view id,
                               int shard,
                               const std::vector<ByteRange>& ranges) {
  if (ranges.size() > limits_.max_ranges) {
    return absl::ResourceExhaustedError(absl::StrCat(
        ranges.size(), " ranges in one download pass the limit max_ranges of ",
        limits_.max_ranges));
  }
  MutexLock lock(&mutex_);
  const CheckpointRecord* record = catalogue_.Find(job, id);
  if (record == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "job \"", job, "\" has no complete checkpoint \"", id, "\""));
  }
  const auto it = record->shards.find(shard);
  if (it == record->shards.end()) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint ", id, " has shards 0 to ",
                     record->shard_count - 1, ", not ", shard));
  }
  COXSWAIN_RETURN_IF_ERROR(CheckRanges(ranges, it->second.bytes));
  if (open_downloads_ >= limits_.max_open_downloads) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit max_open_downloads of ",
                     limits_.max_open_downloads, " is reached; try later"));
  }
  ++open_downloads_;
  readers_.Begin(record->id);
  return std::make_pair(
      absl::StrCat(FinalFolder(*record), "/", it->second.file), it->second);
}

void CheckpointStore::DownloadEnded(const std::string& id) {
  MutexLock lock(&mutex_);
  --open_downloads_;
  readers_.End(id, clock_->Now());
}

absl::StatusOr<std::unique_ptr<ShardDownload>> CheckpointStore::StartDownload(
    absl::string_view job, absl::string_view id, int shard,
    std::vector<ByteRange> ranges) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto admitted,
                            AdmitDownload(job, id, shard, ranges));
  const auto& [path, wanted] = admitted;
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = file_system_->Open(path);
  absl::StatusOr<int64_t> size = int64_t{0};
  if (file.ok()) {
    size = (*file)->Size();
  } else {
    size = file.status();
  }
  if (size.ok() && *size == wanted.bytes) {
    return std::make_unique<ShardDownload>(
        *std::move(file), wanted, std::move(ranges), limits_.max_chunk_bytes,
        [this, id = std::string(id)] { DownloadEnded(id); });
  }
  DownloadEnded(std::string(id));
  if (absl::IsNotFound(size.status())) {
    // Deleted, or superseded by a newer one, since it was admitted?
    MutexLock lock(&mutex_);
    if (catalogue_.Find(job, id) == nullptr) {
      return absl::NotFoundError(absl::StrCat(
          "checkpoint \"", id, "\" of job \"", job, "\" has been deleted"));
    }
    return absl::DataLossError(absl::StrCat(
        "shard ", shard, " of checkpoint ", id,
        " is missing on the coordinator's disk; use an older checkpoint"));
  }
  COXSWAIN_RETURN_IF_ERROR(size.status());
  return absl::DataLossError(absl::StrCat(
      "shard ", shard, " of checkpoint ", id, " has ", *size, " bytes where ",
      wanted.bytes, " were committed; use an older checkpoint"));
}

void CheckpointStore::OnGenerationEnded(absl::string_view job,
                                        Generation generation,
                                        const absl::Status& reason) {
  std::vector<CheckpointRecord> discarded;
  {
    MutexLock lock(&mutex_);
    ended_.End(generation, reason);
    for (auto it = open_.begin(); it != open_.end();) {
      OpenCheckpoint& open = it->second;
      if (open.record.job != job || open.record.generation != generation) {
        ++it;
      } else if (open.phase == Phase::kCommitting) {
        open.abandoned = true;
        ++it;
      } else {
        discarded.push_back(std::move(open.record));
        it = open_.erase(it);
      }
    }
  }
  for (const CheckpointRecord& record : discarded) {
    LogInfo("open_checkpoint_discarded", {{"job", job},
                                          {"checkpoint", record.id},
                                          {"reason", reason.message()}});
    RemoveFolders(record);
  }
}

}  // namespace coxswain::server
