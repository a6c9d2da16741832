#ifndef COXSWAIN_SERVER_CHECKPOINT_CATALOGUE_H_
#define COXSWAIN_SERVER_CHECKPOINT_CATALOGUE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/checkpoint/manifest.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// Ends the name of a checkpoint's folder that is being deleted.
inline constexpr absl::string_view kDeletedSuffix = ".deleted";

// Returns the manifest in the folder. Fails with NOT_FOUND, or as
// DecodeManifest.
absl::StatusOr<CheckpointRecord> ReadManifest(const FileSystem& file_system,
                                              const std::string& folder);

// Fails with DATA_LOSS unless the manifest fits the folder that it is in.
absl::Status CheckManifestOf(const CheckpointRecord& record,
                             absl::string_view job, absl::string_view id);

// The complete checkpoints in a folder: an index in memory of what the file
// system has. A part of CheckpointStore: thread-compatible.
class Catalogue {
 public:
  // Reads <folder>/<job>/<id>/MANIFEST of all jobs, once their names are
  // durable, and removes what older versions have left: incomplete and deleted
  // checkpoints, and files of shards that no manifest names. A checkpoint that
  // cannot be read is logged and left alone: it may be the only one.
  absl::Status Load(FileSystem* file_system, const std::string& folder);

  void Add(CheckpointRecord record);
  bool Remove(absl::string_view job, absl::string_view id);
  // Returns null if there is none. Valid until the next Add or Remove.
  const CheckpointRecord* Find(absl::string_view job,
                               absl::string_view id) const;
  // Returns those of one step: of each generation that has made one.
  std::vector<CheckpointRecord> OfStep(absl::string_view job,
                                       int64_t step) const;
  // Returns all of a job, the last one made first: by generation, which never
  // goes back as a clock may, then by date and step. A run from scratch begins
  // at step 0 again, so the step is no measure of the age.
  std::vector<CheckpointRecord> List(absl::string_view job) const;
  // Returns the first ones of List, at most `most`. Valid until the next Add or
  // Remove.
  std::vector<const CheckpointRecord*> Newest(absl::string_view job,
                                              size_t most) const;
  size_t CountOf(absl::string_view job) const;
  // Returns the highest one, of all jobs; 0 if there is none.
  Generation NewestGeneration() const;

 private:
  using JobMap = std::map<std::string, CheckpointRecord, std::less<>>;  // by id

  void LoadJob(FileSystem* file_system, const std::string& folder,
               const std::string& job);

  std::map<std::string, JobMap, std::less<>> jobs_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_CHECKPOINT_CATALOGUE_H_
