#include "server/checkpoint/catalogue.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/generation/job_name.h"

namespace coxswain::server {
namespace {

// Far above what the limits on shards and metadata allow to be written.
constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;

// The names of incomplete checkpoints in versions before the folders of terms.
constexpr absl::string_view kStagingSuffix = ".staging";

void RemoveLeftover(FileSystem* file_system, const std::string& path) {
  const absl::Status removed = file_system->RemoveTree(path);
  LogInfo("checkpoint_leftover_removed",
          {{"path", path}, {"result", removed.ToString()}});
}

// shard-00000.17
bool IsShardFile(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "shard-")) return false;
  const std::vector<absl::string_view> numbers = absl::StrSplit(name, '.');
  return numbers.size() == 2 &&
         std::all_of(numbers.begin(), numbers.end(), [](absl::string_view n) {
           return !n.empty() &&
                  std::all_of(n.begin(), n.end(), absl::ascii_isdigit);
         });
}

// Uploads that lost a race with the commit. Anything else that lies there was
// not put there by a coordinator.
void RemoveUnnamedShards(FileSystem* file_system, const std::string& path,
                         const CheckpointRecord& record) {
  const auto names = file_system->List(path);
  if (!names.ok()) return;
  std::set<std::string> unnamed;
  std::copy_if(names->begin(), names->end(),
               std::inserter(unnamed, unnamed.end()), IsShardFile);
  for (const auto& [index, shard] : record.shards) unnamed.erase(shard.file);
  for (const std::string& name : unnamed) {
    RemoveLeftover(file_system, absl::StrCat(path, "/", name));
  }
}

}  // namespace

absl::StatusOr<CheckpointRecord> ReadManifest(const FileSystem& file_system,
                                              const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestFile);
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file,
                            file_system.Open(path));
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size > kMaxManifestBytes) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", size, " bytes, too many for a manifest"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::string bytes,
                            file->Read(0, static_cast<size_t>(size)));
  return DecodeManifest(bytes);
}

// A folder copied or renamed by hand is not served under a wrong name, and no
// file name of a manifest leads out of its folder.
absl::Status CheckManifestOf(const CheckpointRecord& record,
                             absl::string_view job, absl::string_view id) {
  if (record.job != job || record.id != id) {
    return absl::DataLossError(
        absl::StrCat("its manifest is that of ", record.job, "/", record.id));
  }
  if (static_cast<int>(record.shards.size()) != record.shard_count) {
    return absl::DataLossError(absl::StrCat("its manifest lists ",
                                            record.shards.size(), " of ",
                                            record.shard_count, " shards"));
  }
  for (const auto& [index, shard] : record.shards) {
    if (absl::StrContains(shard.file, "/")) {
      return absl::DataLossError("its manifest names a file elsewhere");
    }
  }
  return absl::OkStatus();
}

absl::Status Catalogue::Load(FileSystem* file_system,
                             const std::string& folder) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<std::string> jobs,
                            file_system->List(folder));
  for (const std::string& job : jobs) {
    if (ValidateJobName(job).ok()) LoadJob(file_system, folder, job);
  }
  return absl::OkStatus();
}

void Catalogue::LoadJob(FileSystem* file_system, const std::string& folder,
                        const std::string& job) {
  const std::string job_folder = absl::StrCat(folder, "/", job);
  // A coordinator may have ended between a commit's rename and its sync.
  const absl::Status synced = file_system->SyncFolder(job_folder);
  if (!synced.ok()) {
    LogWarning("checkpoints_not_synced",
               {{"job", job}, {"error", synced.ToString()}});
  }
  const absl::StatusOr<std::vector<std::string>> names =
      file_system->List(job_folder);
  if (!names.ok()) {
    LogWarning("checkpoints_unreadable",
               {{"job", job}, {"error", names.status().ToString()}});
    return;
  }
  for (const std::string& id : *names) {
    const std::string path = absl::StrCat(job_folder, "/", id);
    if (absl::EndsWith(id, kStagingSuffix) ||
        absl::EndsWith(id, kDeletedSuffix)) {
      RemoveLeftover(file_system, path);
      continue;
    }
    absl::StatusOr<CheckpointRecord> record = ReadManifest(*file_system, path);
    absl::Status status = record.status();
    if (status.ok()) status = CheckManifestOf(*record, job, id);
    if (!status.ok()) {
      LogWarning("checkpoint_unreadable",
                 {{"path", path}, {"error", status.ToString()}});
      continue;
    }
    RemoveUnnamedShards(file_system, path, *record);
    Add(*std::move(record));
  }
}

void Catalogue::Add(CheckpointRecord record) {
  JobMap& job = jobs_[record.job];
  std::string id = record.id;
  job.insert_or_assign(std::move(id), std::move(record));
}

bool Catalogue::Remove(absl::string_view job, absl::string_view id) {
  const auto of_job = jobs_.find(job);
  if (of_job == jobs_.end()) return false;
  const auto it = of_job->second.find(id);
  if (it == of_job->second.end()) return false;
  of_job->second.erase(it);
  if (of_job->second.empty()) jobs_.erase(of_job);
  return true;
}

const CheckpointRecord* Catalogue::Find(absl::string_view job,
                                        absl::string_view id) const {
  const auto of_job = jobs_.find(job);
  if (of_job == jobs_.end()) return nullptr;
  const auto it = of_job->second.find(id);
  return it == of_job->second.end() ? nullptr : &it->second;
}

std::vector<CheckpointRecord> Catalogue::OfStep(absl::string_view job,
                                                int64_t step) const {
  std::vector<CheckpointRecord> records;
  const auto of_job = jobs_.find(job);
  if (of_job == jobs_.end()) return records;
  for (const auto& [id, record] : of_job->second) {
    if (record.step == step) records.push_back(record);
  }
  return records;
}

std::vector<const CheckpointRecord*> Catalogue::Newest(absl::string_view job,
                                                       size_t most) const {
  std::vector<const CheckpointRecord*> records;
  const auto of_job = jobs_.find(job);
  if (of_job == jobs_.end()) return records;
  for (const auto& [id, record] : of_job->second) records.push_back(&record);
  const size_t count = std::min(most, records.size());
  std::partial_sort(
      records.begin(), records.begin() + static_cast<std::ptrdiff_t>(count),
      records.end(), [](const CheckpointRecord* a, const CheckpointRecord* b) {
        // The generation first: it never goes back, as a clock may.
        return std::tie(a->generation, a->created, a->step) >
               std::tie(b->generation, b->created, b->step);
      });
  records.resize(count);
  return records;
}

std::vector<CheckpointRecord> Catalogue::List(absl::string_view job) const {
  std::vector<CheckpointRecord> records;
  for (const CheckpointRecord* record : Newest(job, CountOf(job))) {
    records.push_back(*record);
  }
  return records;
}

Generation Catalogue::NewestGeneration() const {
  Generation newest(0);
  for (const auto& [job, records] : jobs_) {
    for (const auto& [id, record] : records) {
      newest = std::max(newest, record.generation);
    }
  }
  return newest;
}

size_t Catalogue::CountOf(absl::string_view job) const {
  const auto of_job = jobs_.find(job);
  return of_job == jobs_.end() ? 0 : of_job->second.size();
}

}  // namespace coxswain::server
