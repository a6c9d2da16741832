#ifndef COXSWAIN_SERVER_STORAGE_FAULT_FILE_SYSTEM_H_
#define COXSWAIN_SERVER_STORAGE_FAULT_FILE_SYSTEM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "server/storage/file_system.h"
#include "server/storage/memory_file_system.h"

namespace coxswain::server {

// A FileSystem in memory that fails on request. For tests of what a crash or a
// bad disk leaves behind. Thread-safe.
//
// Mutations are counted: Create, Append, Sync, MakeFolder, SyncFolder and
// Rename, each as one, and each name that RemoveTree removes. A test runs once
// to count them, then once per count with a crash at that point.
class FaultFileSystem : public FileSystem {
 public:
  // `base` must outlive this and all files.
  explicit FaultFileSystem(MemoryFileSystem* base) : base_(base) {}

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

  // From now on, `count` mutations succeed; then the machine is down and
  // everything returns UNAVAILABLE until Restart.
  void CrashAfter(int64_t count);
  // The next mutation on a path that contains `part` returns `status`.
  void FailNext(const std::string& part, absl::Status status);
  // The next SyncFolder of exactly this path does.
  void FailNextSync(const std::string& path, absl::Status status);
  // From now on, `count` mutations happen; then `hook` is called, once, before
  // the next one, which another process may thus precede.
  void Before(int64_t count, std::function<void()> hook);
  // The machine is up again, with what `unsynced` leaves of unsynced data. No
  // fault is set.
  void Restart(UnsyncedData unsynced);

  int64_t mutations() const;

 private:
  friend class FaultWritableFile;
  absl::Status BeforeRead() const;
  absl::Status BeforeMutation(const std::string& path);

  MemoryFileSystem* const base_;
  mutable Mutex mutex_;
  int64_t mutations_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t crash_at_ ABSL_GUARDED_BY(mutex_) = -1;  // -1: never
  std::string fail_part_ ABSL_GUARDED_BY(mutex_);
  absl::Status fail_status_ ABSL_GUARDED_BY(mutex_);  // OK: none is set
  std::string fail_sync_path_ ABSL_GUARDED_BY(mutex_);
  absl::Status fail_sync_status_ ABSL_GUARDED_BY(mutex_);
  int64_t hook_at_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void()> hook_ ABSL_GUARDED_BY(mutex_);  // null: none is set
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORAGE_FAULT_FILE_SYSTEM_H_
