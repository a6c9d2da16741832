#include "cli/checkpoint_folder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "server/checkpoint/catalogue.h"

namespace coxswain {
namespace {

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string PathOf(const std::string& folder,
                   const server::ShardRecord& shard) {
  return absl::StrCat(folder, "/", shard.file);
}

absl::Status Damaged(const std::string& folder,
                     const server::ShardRecord& shard, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("shard ", shard.shard, " (",
                                          PathOf(folder, shard), ") ", what));
}

}  // namespace

FolderWriter::FolderWriter(server::FileSystem* files, std::string folder,
                           server::CheckpointRecord record,
                           RandomSource* random)
    : files_(files),
      folder_(std::move(folder)),
      temporary_(
          absl::StrFormat("%s.partial-%016x", folder_, random->NextId())),
      record_(std::move(record)) {}

absl::StatusOr<std::unique_ptr<FolderWriter>> FolderWriter::Create(
    server::FileSystem* files, const std::string& folder,
    const server::CheckpointRecord& record, RandomSource* random) {
  const std::string path = WithoutSlashes(folder);
  if (!absl::IsNotFound(files->List(path).status())) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " already exists; name a folder that does not"));
  }
  std::unique_ptr<FolderWriter> writer(
      new FolderWriter(files, path, record, random));
  COXSWAIN_RETURN_IF_ERROR(files->MakeFolder(writer->temporary_));
  return writer;
}

FolderWriter::~FolderWriter() {
  if (!finished_) static_cast<void>(files_->RemoveTree(temporary_));
}

absl::StatusOr<std::unique_ptr<server::WritableFile>> FolderWriter::CreateShard(
    const server::ShardRecord& shard) {
  return files_->Create(PathOf(temporary_, shard));
}

absl::Status FolderWriter::Finish() {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string manifest,
                            server::EncodeManifest(record_));
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto file,
      files_->Create(absl::StrCat(temporary_, "/", server::kManifestFile)));
  COXSWAIN_RETURN_IF_ERROR(file->Append(manifest));
  COXSWAIN_RETURN_IF_ERROR(SyncAndClose(file.get()));
  COXSWAIN_RETURN_IF_ERROR(files_->SyncFolder(temporary_));
  COXSWAIN_RETURN_IF_ERROR(files_->Rename(temporary_, folder_));
  finished_ = true;
  return files_->SyncFolder(ParentOf(folder_));
}

absl::Status CheckShardFiles(const server::CheckpointRecord& record) {
  COXSWAIN_RETURN_IF_ERROR(
      server::CheckManifestOf(record, record.job, record.id));
  std::set<std::string> names = {"", ".", "..",
                                 std::string(server::kManifestFile)};
  for (const auto& [index, shard] : record.shards) {
    if (index >= 0 && index < record.shard_count &&
        names.insert(shard.file).second) {
      continue;
    }
    return absl::DataLossError(
        absl::StrCat("shard ", index, " of ", record.shard_count,
                     " cannot be the file '", shard.file, "'"));
  }
  return absl::OkStatus();
}

absl::Status SyncAndClose(server::WritableFile* file) {
  COXSWAIN_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

absl::StatusOr<server::CheckpointRecord> ReadFolder(
    const server::FileSystem& files, const std::string& folder) {
  auto record = server::ReadManifest(files, folder);
  absl::Status status = record.status();
  // The name of the folder may be any.
  if (status.ok()) status = CheckShardFiles(*record);
  if (status.ok()) return record;
  return absl::Status(
      status.code(), absl::StrCat("no readable checkpoint is in ", folder, ": ",
                                  status.message()));
}

absl::Status ReadShard(const server::FileSystem& files,
                       const std::string& folder,
                       const server::ShardRecord& shard, int64_t piece,
                       const TakePiece& take) {
  const auto file = files.Open(PathOf(folder, shard));
  if (absl::IsNotFound(file.status())) {
    return Damaged(folder, shard, "is missing");
  }
  COXSWAIN_RETURN_IF_ERROR(file.status());
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t size, (*file)->Size());
  if (size != shard.bytes) {
    return Damaged(folder, shard,
                   absl::StrCat("has ", size, " bytes, but the manifest has ",
                                shard.bytes));
  }
  uint32_t whole = 0;
  for (int64_t at = 0; at < size;) {
    const size_t count = std::min(piece, size - at);
    const std::shared_ptr<char[]> memory(new char[count]);
    COXSWAIN_ASSIGN_OR_RETURN(const size_t got,
                              (*file)->ReadInto(at, count, memory.get()));
    if (got != count) return Damaged(folder, shard, "became shorter");
    const absl::string_view data(memory.get(), count);
    const uint32_t crc = Crc32c(data);
    whole = Crc32cConcat(whole, crc, count);
    COXSWAIN_RETURN_IF_ERROR(take(at, data, crc, memory));
    at += static_cast<int64_t>(count);
  }
  if (whole == shard.crc32c) return absl::OkStatus();
  return Damaged(folder, shard,
                 absl::StrFormat("is damaged: its CRC-32C is %08x, but the "
                                 "manifest has %08x",
                                 whole, shard.crc32c));
}

}  // namespace coxswain
