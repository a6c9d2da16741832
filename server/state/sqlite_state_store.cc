#include "server/state/sqlite_state_store.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/state/sqlite_file.h"
#include "server/state/sqlite_statement.h"
#include "sqlite3.h"

namespace coxswain::server {
namespace {

// Of a row whose columns end with a value and its checksum.
absl::StatusOr<std::string> ReadValue(const SqliteStatement& row, int column,
                                      absl::string_view path,
                                      absl::string_view table,
                                      absl::string_view key) {
  std::string value = row.Bytes(column);
  if (row.Int(column + 1) == SqliteRecordChecksum(table, key, value)) {
    return value;
  }
  return SqliteDamaged(absl::StrCat("a record of table '", table,
                                    "' does not match its checksum"),
                       path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStateStore>> SqliteStateStore::Open(
    const std::string& path) {
  COXSWAIN_ASSIGN_OR_RETURN(sqlite3* const db, OpenSqliteFile(path));
  return std::unique_ptr<SqliteStateStore>(new SqliteStateStore(path, db));
}

SqliteStateStore::~SqliteStateStore() { sqlite3_close(db_); }

absl::StatusOr<std::string> SqliteStateStore::Get(absl::string_view table,
                                                  absl::string_view key) const {
  MutexLock lock(&mutex_);
  SqliteStatement select(
      db_, path_, "SELECT value, crc FROM state WHERE room = ?1 AND key = ?2");
  select.Bind(1, table).Bind(2, key);
  COXSWAIN_ASSIGN_OR_RETURN(const bool row, select.Step());
  if (row) return ReadValue(select, 0, path_, table, key);
  return absl::NotFoundError(
      absl::StrCat("no state record '", key, "' in table '", table, "'"));
}

absl::StatusOr<std::vector<StateStore::Record>> SqliteStateStore::List(
    absl::string_view table) const {
  MutexLock lock(&mutex_);
  SqliteStatement select(
      db_, path_,
      "SELECT key, value, crc FROM state WHERE room = ?1 ORDER BY key");
  select.Bind(1, table);
  std::vector<Record> records;
  while (true) {
    COXSWAIN_ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return records;
    std::string key = select.Bytes(0);
    COXSWAIN_ASSIGN_OR_RETURN(std::string value,
                              ReadValue(select, 1, path_, table, key));
    records.emplace_back(std::move(key), std::move(value));
  }
}

absl::StatusOr<std::vector<std::string>> SqliteStateStore::Tables(
    absl::string_view prefix) const {
  MutexLock lock(&mutex_);
  // One look-up for each table rather than a scan of all records.
  std::string from(prefix);
  std::vector<std::string> names;
  while (true) {
    SqliteStatement select(db_, path_,
                           names.empty()
                               ? "SELECT room FROM state WHERE room >= ?1 "
                                 "ORDER BY room LIMIT 1"
                               : "SELECT room FROM state WHERE room > ?1 "
                                 "ORDER BY room LIMIT 1");
    select.Bind(1, from);
    COXSWAIN_ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return names;
    from = select.Bytes(0);
    if (!absl::StartsWith(from, prefix)) return names;
    names.push_back(from);
  }
}

absl::StatusOr<std::vector<StateStore::Damaged>> SqliteStateStore::FindDamaged()
    const {
  MutexLock lock(&mutex_);
  SqliteStatement select(db_, path_,
                         "SELECT room, key, value FROM state WHERE crc <> "
                         "coxswain_crc(room, key, value)");
  std::vector<Damaged> damaged;
  while (true) {
    COXSWAIN_ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return damaged;
    damaged.push_back({select.Bytes(0), select.Bytes(1), select.Bytes(2)});
  }
}

absl::Status SqliteStateStore::Apply(const StateBatch& batch) {
  COXSWAIN_RETURN_IF_ERROR(CheckBatch(batch));
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(ExecuteSql(db_, path_, "BEGIN IMMEDIATE"));
  absl::Status status = ApplyLocked(batch);
  if (status.ok()) status = ExecuteSql(db_, path_, "COMMIT");
  // SQLite itself may have rolled back already; then this is an error that
  // says nothing new.
  if (!status.ok()) ExecuteSql(db_, path_, "ROLLBACK").IgnoreError();
  return status;
}

absl::Status SqliteStateStore::ApplyLocked(const StateBatch& batch) {
  SqliteStatement put(db_, path_,
                      "INSERT OR REPLACE INTO state (room, key, value, crc) "
                      "VALUES (?1, ?2, ?3, ?4)");
  SqliteStatement one(db_, path_,
                      "DELETE FROM state WHERE room = ?1 AND key = ?2");
  SqliteStatement all(db_, path_, "DELETE FROM state WHERE room = ?1");
  for (const StateBatch::Write& write : batch.writes()) {
    if (write.whole_table) {
      COXSWAIN_RETURN_IF_ERROR(all.Bind(1, write.table).Run());
    } else if (!write.value.has_value()) {
      COXSWAIN_RETURN_IF_ERROR(
          one.Bind(1, write.table).Bind(2, write.key).Run());
    } else {
      put.Bind(1, write.table).Bind(2, write.key).Bind(3, *write.value);
      put.BindInt(4,
                  SqliteRecordChecksum(write.table, write.key, *write.value));
      COXSWAIN_RETURN_IF_ERROR(put.Run());
    }
  }
  return absl::OkStatus();
}

}  // namespace coxswain::server
