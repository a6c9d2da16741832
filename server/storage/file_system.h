#ifndef COXSWAIN_SERVER_STORAGE_FILE_SYSTEM_H_
#define COXSWAIN_SERVER_STORAGE_FILE_SYSTEM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace coxswain::server {

// A file being written from its start. One thread at a time. Destroying it
// closes it; what was not synced may be lost in a crash.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual absl::Status Append(absl::string_view data) = 0;
  // Appends the pieces, one after the other.
  virtual absl::Status AppendAll(absl::Span<const absl::string_view> pieces) {
    for (const absl::string_view piece : pieces) {
      absl::Status status = Append(piece);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  // Makes what was appended survive a crash, once the folders that lead to the
  // file do (FileSystem::SyncFolder).
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// A file being read. It stays readable after the file was removed or renamed.
// Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // Returns `count` bytes from `offset`, fewer only at the end of the file.
  virtual absl::StatusOr<std::string> Read(int64_t offset,
                                           size_t count) const = 0;
  // The same into `buffer` of `count` bytes; returns how many there were.
  virtual absl::StatusOr<size_t> ReadInto(int64_t offset, size_t count,
                                          char* buffer) const {
    absl::StatusOr<std::string> data = Read(offset, count);
    if (!data.ok()) return data.status();
    std::copy(data->begin(), data->end(), buffer);
    return data->size();
  }
  virtual absl::StatusOr<int64_t> Size() const = 0;
};

// The seam between checkpoints and the disk, so that tests can lose unsynced
// data and fail any operation. Used by server/checkpoint, and for the folder of
// the state.
//
// Durability is that of POSIX and no better: data needs WritableFile::Sync,
// and a created, renamed or removed name needs SyncFolder of its folder.
//
// Errors: NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED
// (disk full, quota, too many open files), FAILED_PRECONDITION (not a folder,
// is a folder, not empty), DATA_LOSS (the device failed) and INTERNAL.
// Messages name the operation and the path. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates the file, or empties it.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(
      const std::string& path) const = 0;
  // Returns the names in a folder, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) const = 0;
  // Makes a folder, whose parent must exist. Returns OK if it exists already.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  virtual absl::Status SyncFolder(const std::string& path) = 0;
  // Atomically gives a file or folder another name. The new name must not
  // be that of a folder that is not empty.
  virtual absl::Status Rename(const std::string& from,
                              const std::string& to) = 0;
  // Removes a file, or a folder with everything in it. OK if there is none.
  virtual absl::Status RemoveTree(const std::string& path) = 0;
};

// Makes the folder and those above it that are missing, so that all of them
// survive a crash. Each name on the path is synced before anything is made
// under it, also where it exists already: an earlier call may have been cut
// short. OK if the folder exists. The errors are those of FileSystem.
absl::Status MakeFolders(FileSystem* files, const std::string& path);

// Returns the machine's own file system. Never destroyed. Only its source file
// translates errno to absl::Status.
FileSystem* PosixFileSystem();

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORAGE_FILE_SYSTEM_H_
