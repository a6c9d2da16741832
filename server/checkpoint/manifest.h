#ifndef COXSWAIN_SERVER_CHECKPOINT_MANIFEST_H_
#define COXSWAIN_SERVER_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"

namespace coxswain::server {

// The name of the file that describes a checkpoint, in its folder.
inline constexpr absl::string_view kManifestFile = "MANIFEST";

// One shard: an opaque file.
struct ShardRecord {
  int shard = 0;
  std::string file;  // its name in the checkpoint's folder
  int64_t bytes = 0;
  uint32_t crc32c = 0;  // of the whole file
};

// What is known about a checkpoint.
struct CheckpointRecord {
  std::string id;
  std::string job;
  int64_t step = 0;
  Generation generation;  // that wrote it; 0 if it was not recorded
  int shard_count = 0;
  std::map<std::string, std::string> metadata;
  absl::Time created;
  std::map<int, ShardRecord> shards;

  int64_t TotalBytes() const;
};

// Returns the bytes of a manifest; see docs/storage-format.md. Fails with
// INVALID_ARGUMENT if the metadata is not UTF-8.
absl::StatusOr<std::string> EncodeManifest(const CheckpointRecord& record);

// Fails with DATA_LOSS if the bytes are not those of a whole manifest, and with
// UNIMPLEMENTED if they are of a later version.
absl::StatusOr<CheckpointRecord> DecodeManifest(absl::string_view bytes);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_CHECKPOINT_MANIFEST_H_
