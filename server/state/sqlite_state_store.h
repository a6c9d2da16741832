#ifndef COXSWAIN_SERVER_STATE_SQLITE_STATE_STORE_H_
#define COXSWAIN_SERVER_STATE_SQLITE_STATE_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/state/state_store.h"

struct sqlite3;

namespace coxswain::server {

// A StateStore in one SQLite file: write-ahead log, every commit synced, a
// checksum with each record. The file is locked while it is open, so that two
// coordinators never share it. Thread-safe.
class SqliteStateStore : public StateStore {
 public:
  // Opens or creates the file, and checks all of its pages once. A file that is
  // not ours, is damaged, or was written by a newer Coxswain is left as it is,
  // and so is its write-ahead log. One whose pages are intact is opened,
  // whatever its records are: FindDamaged() returns those that are damaged.
  //   DATA_LOSS            not a SQLite file, or damaged
  //   FAILED_PRECONDITION  of a newer format, or of another program
  //   UNAVAILABLE          in use by another process, or cannot be opened
  static absl::StatusOr<std::unique_ptr<SqliteStateStore>> Open(
      const std::string& path);

  ~SqliteStateStore() override;
  SqliteStateStore(const SqliteStateStore&) = delete;
  SqliteStateStore& operator=(const SqliteStateStore&) = delete;

  absl::StatusOr<std::string> Get(absl::string_view table,
                                  absl::string_view key) const override;
  absl::StatusOr<std::vector<Record>> List(
      absl::string_view table) const override;
  absl::StatusOr<std::vector<std::string>> Tables(
      absl::string_view prefix) const override;
  absl::StatusOr<std::vector<Damaged>> FindDamaged() const override;
  absl::Status Apply(const StateBatch& batch) override;
  // A thousand small changes cost one sync of the disk.
  Limits limits() const override { return {4096, 8 << 20}; }

 private:
  SqliteStateStore(std::string path, sqlite3* db)
      : path_(std::move(path)), db_(db) {}

  absl::Status ApplyLocked(const StateBatch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  mutable Mutex mutex_;
  sqlite3* const db_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_SQLITE_STATE_STORE_H_
