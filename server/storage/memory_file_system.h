#ifndef COXSWAIN_SERVER_STORAGE_MEMORY_FILE_SYSTEM_H_
#define COXSWAIN_SERVER_STORAGE_MEMORY_FILE_SYSTEM_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// What a crash does to what was written and not synced. Real disks do anything
// in between, so code is tested against all three.
enum class UnsyncedData {
  kLost,  // data and names that were not synced are lost
  kKept,  // everything had reached the disk already
  kTorn,  // names are there, but only half of each file's unsynced data
};

// A FileSystem in memory that remembers what was synced. Thread-safe. Files
// must not be used after a Crash.
class MemoryFileSystem : public FileSystem {
 public:
  MemoryFileSystem();

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(
      const std::string& path) const override;
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) const override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveTree(const std::string& path) override;

  // Does what a loss of power does.
  void Crash(UnsyncedData unsynced);

  // Flips one bit of a file, as a failing disk does.
  absl::Status FlipBit(const std::string& path, int64_t byte);

 private:
  friend class MemoryWritableFile;
  friend class MemoryReadableFile;
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Entries = std::map<std::string, NodePtr>;

  // Returns the node at `path`. Fails with NOT_FOUND or FAILED_PRECONDITION if
  // there is none.
  absl::StatusOr<NodePtr> FindLocked(const std::string& path) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the folder that `path` is in, and its name there.
  absl::StatusOr<NodePtr> FindParentLocked(const std::string& path,
                                           std::string* name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void CrashNode(Node* node, UnsyncedData unsynced);

  mutable Mutex mutex_;  // guards all nodes
  const NodePtr root_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORAGE_MEMORY_FILE_SYSTEM_H_
