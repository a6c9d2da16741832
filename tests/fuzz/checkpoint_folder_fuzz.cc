// A checkpoint in a folder, as it lies on a disk or is imported.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/fake_clock.h"
#include "cli/checkpoint_folder.h"
#include "server/checkpoint/catalogue.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/checkpoint/manifest.h"
#include "server/storage/memory_file_system.h"
#include "tests/fuzz/decoders.h"

namespace coxswain {
namespace {

constexpr char kJob[] = "mnist";
constexpr char kId[] = "step-000000000099-0000000000000001";

class NoRandom : public RandomSource {
 public:
  uint64_t Next() override { return ++last_; }

 private:
  uint64_t last_ = 0;
};

std::string WithChecksum(absl::string_view input) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(input, absl::MaxSplits('\n', 1));
  return absl::StrFormat("coxswain-checkpoint 1 %08x\n%s", Crc32c(parts.second),
                         parts.second);
}

void PutFile(const std::string& path, absl::string_view bytes,
             server::MemoryFileSystem* files) {
  const auto file = files->Create(path);
  COXSWAIN_CHECK(file.ok() && (*file)->Append(bytes).ok());
  COXSWAIN_CHECK(SyncAndClose(file->get()).ok());
}

// A coordinator that finds it among its own.
void OpenStore(server::MemoryFileSystem* files) {
  FakeClock clock;
  NoRandom random;
  const auto store =
      server::CheckpointStore::Open(files, "/checkpoints", {}, &clock, &random);
  COXSWAIN_CHECK(store.ok());
  for (const auto& record : (*store)->List(kJob)) record.TotalBytes();
  (*store)->NewestGeneration();
  (*store)->CheckManifest(kJob, kId).IgnoreError();
  const auto download = (*store)->StartDownload(kJob, kId, 0);
  if (download.ok()) (*download)->Next().IgnoreError();
}

// A console that is to import it.
void ReadAsImport(const server::MemoryFileSystem& files) {
  const std::string folder = absl::StrCat("/checkpoints/", kJob, "/", kId);
  const auto record = ReadFolder(files, folder);
  if (!record.ok()) return;
  record->TotalBytes();
  for (const auto& [index, shard] : record->shards) {
    ReadShard(
        files, folder, shard, /*piece=*/16,
        [](int64_t, absl::string_view, uint32_t,
           const std::shared_ptr<const void>&) { return absl::OkStatus(); })
        .IgnoreError();
  }
}

}  // namespace

void FuzzManifest(absl::string_view input) {
  server::DecodeManifest(input).IgnoreError();
  const auto record = server::DecodeManifest(WithChecksum(input));
  if (!record.ok()) return;
  const auto bytes = server::EncodeManifest(*record);
  COXSWAIN_CHECK(bytes.ok());
  const auto same = server::DecodeManifest(*bytes);
  COXSWAIN_CHECK(same.ok() && *server::EncodeManifest(*same) == *bytes);
}

void FuzzCheckpointFolder(absl::string_view input) {
  server::MemoryFileSystem files;
  const std::string term = "/checkpoints/@term-3-0000000000000007";
  const std::string open = absl::StrCat(term, "/", kId, ".uploads");
  for (const std::string& folder :
       {std::string("/checkpoints"), absl::StrCat("/checkpoints/", kJob),
        absl::StrCat("/checkpoints/", kJob, "/", kId), term, open}) {
    COXSWAIN_CHECK(files.MakeFolder(folder).ok());
  }
  const std::string folder = absl::StrCat("/checkpoints/", kJob, "/", kId);
  PutFile(folder + "/MANIFEST", WithChecksum(input), &files);
  PutFile(folder + "/shard-00000.1", "the bytes of a shard", &files);
  PutFile(folder + "/shard-00001.2", "the bytes of a shard", &files);
  PutFile(folder + "/notes", "of an operator", &files);
  PutFile(open + "/shard-00000.8", "the bytes of a shard", &files);
  OpenStore(&files);
  // Nothing is left of the earlier term, and nothing is removed that may be
  // part of a checkpoint, or is not a coordinator's.
  COXSWAIN_CHECK(*files.List("/checkpoints") == std::vector<std::string>{kJob});
  COXSWAIN_CHECK(files.Open(folder + "/MANIFEST").ok());
  COXSWAIN_CHECK(files.Open(folder + "/notes").ok());
  const auto record = server::ReadManifest(files, folder);
  if (!record.ok() || !server::CheckManifestOf(*record, kJob, kId).ok()) {
    COXSWAIN_CHECK(files.Open(folder + "/shard-00000.1").ok());
    COXSWAIN_CHECK(files.Open(folder + "/shard-00001.2").ok());
  } else {
    for (const auto& [index, shard] : record->shards) {
      const bool was_there =
          shard.file == "shard-00000.1" || shard.file == "shard-00001.2";
      const std::string path = absl::StrCat(folder, "/", shard.file);
      COXSWAIN_CHECK(files.Open(path).ok() || !was_there);
    }
  }
  ReadAsImport(files);
}

}  // namespace coxswain
