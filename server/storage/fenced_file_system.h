#ifndef COXSWAIN_SERVER_STORAGE_FENCED_FILE_SYSTEM_H_
#define COXSWAIN_SERVER_STORAGE_FENCED_FILE_SYSTEM_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// A FileSystem that checks before each change whether this process may still
// make it, for a folder that other processes change as well. Reads are not
// checked. Thread-safe.
//
// A process can be frozen between the answer and the change. So each thread
// makes at most one change, or one RemoveTree, after the right was lost: the
// user must ensure that this one does no harm.
class FencedFileSystem : public FileSystem {
 public:
  // Returns OK, or why the process may change nothing any more, which is the
  // result of the operation then. Called again after a failure, which the loss
  // may explain.
  using MayChange = std::function<absl::Status()>;

  // `base` outlives this object and all files.
  FencedFileSystem(FileSystem* base, MayChange may_change)
      : base_(base), may_change_(std::move(may_change)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(
      const std::string& path) const override {
    return base_->Open(path);
  }
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) const override {
    return base_->List(path);
  }
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveTree(const std::string& path) override;

 private:
  friend class FencedWritableFile;

  template <typename Change>
  absl::Status Make(Change change) const;

  FileSystem* const base_;
  const MayChange may_change_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORAGE_FENCED_FILE_SYSTEM_H_
