#include "server/state/sqlite_state_store.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "server/state/sqlite_statement.h"
#include "sqlite3.h"

namespace coxswain::server {
namespace {

// Format 1 had no checksums; it is brought to 2 when it is opened.
constexpr int kSqliteFormat = 2;

// "COXS": distinguishes our files from those of other programs.
constexpr int kApplicationId = 0x434f5853;

// Of SQLite's file format.
constexpr size_t kHeaderBytes = 100;
constexpr char kMagic[] = "SQLite format 3";  // and a zero
constexpr size_t kPageSizeAt = 16;            // 2 bytes; 1: 65536
constexpr size_t kWriteVersionAt = 18;        // 2: with a write-ahead log
constexpr size_t kUserVersionAt = 60;
constexpr size_t kApplicationIdAt = 68;

// CRC-32C of a record. SQLite has no checksums of its own, and would hand out
// a value whose bytes have changed.
uint32_t SqliteRecordChecksum(absl::string_view table, absl::string_view key,
                              absl::string_view value) {
  // The lengths, so that no byte can move from one to the next unnoticed.
  const std::string lengths = absl::StrCat(table.size(), "/", key.size(), "/");
  return Crc32c(value, Crc32c(key, Crc32c(table, Crc32c(lengths))));
}

absl::Status OfAnotherProgram(absl::string_view path) {
  return absl::FailedPreconditionError(
      absl::StrCat("state file '", path,
                   "' belongs to another program and was left as it is; choose "
                   "another --state-dir"));
}

absl::Status CheckVersion(int version, absl::string_view path) {
  if (version > kSqliteFormat) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state file '", path, "' has format ", version,
        ", this coordinator knows up to ", kSqliteFormat,
        "; the file was left as it is: run the newer coordinator"));
  }
  if (version >= 1) return absl::OkStatus();
  return SqliteDamaged(absl::StrCat("it has format ", version), path);
}

int NumberAt(absl::string_view header, size_t at, size_t bytes) {
  uint32_t number = 0;
  for (size_t i = at; i < at + bytes; ++i) {
    number = number << 8 | static_cast<unsigned char>(header[i]);
  }
  return static_cast<int>(number);
}

uintmax_t SizeOf(const std::string& path) {
  std::error_code missing;
  const uintmax_t size = std::filesystem::file_size(path, missing);
  return missing ? 0 : size;
}

uintmax_t LogSize(const std::string& path) {
  return SizeOf(absl::StrCat(path, "-wal"));
}

// The log may complete a page that a crash has cut; without one, nothing does.
absl::Status CheckSize(const std::string& path, absl::string_view header) {
  const int stored = NumberAt(header, kPageSizeAt, 2);
  const uintmax_t page = stored == 1 ? 65536 : stored;
  if (page != 0 && (SizeOf(path) % page == 0 || LogSize(path) > 0)) {
    return absl::OkStatus();
  }
  return SqliteDamaged("it does not end with a whole page", path);
}

// Checks the first bytes: SQLite itself would repair a file of another program,
// or delete a log, before it could be asked whose they are.
absl::Status CheckHeader(const std::string& path) {
  std::string header(kHeaderBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(header.data(), kHeaderBytes);
  if (file.gcount() == 0) {
    if (LogSize(path) == 0) return absl::OkStatus();
    return SqliteDamaged("it is empty, but there is a log of changes to it",
                         path);
  }
  if (static_cast<size_t>(file.gcount()) < kHeaderBytes ||
      !absl::StartsWith(header, absl::string_view(kMagic, sizeof(kMagic)))) {
    return SqliteDamaged("file is not a database", path);
  }
  const int application = NumberAt(header, kApplicationIdAt, 4);
  if (application == kApplicationId) {
    COXSWAIN_RETURN_IF_ERROR(CheckSize(path, header));
    return CheckVersion(NumberAt(header, kUserVersionAt, 4), path);
  }
  // As long as the first changes are in the log only, it is 0 in ours.
  const bool has_log = header[kWriteVersionAt] == 2;
  return has_log && application == 0 ? absl::OkStatus()
                                     : OfAnotherProgram(path);
}

absl::StatusOr<int> ReadInt(sqlite3* db, absl::string_view path,
                            absl::string_view sql) {
  SqliteStatement statement(db, path, sql);
  COXSWAIN_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? static_cast<int>(statement.Int(0)) : 0;
}

absl::string_view Blob(sqlite3_value* value) {
  const void* bytes = sqlite3_value_blob(value);
  return absl::string_view(static_cast<const char*>(bytes),
                           sqlite3_value_bytes(value));
}

void Checksum(sqlite3_context* context, int count, sqlite3_value** values) {
  static_cast<void>(count);
  sqlite3_result_int64(
      context,
      SqliteRecordChecksum(Blob(values[0]), Blob(values[1]), Blob(values[2])));
}

// Not of the records, each of which has a checksum of its own.
absl::Status CheckPages(sqlite3* db, const std::string& path) {
  SqliteStatement check(db, path, "PRAGMA quick_check(1)");
  COXSWAIN_ASSIGN_OR_RETURN(const bool row, check.Step());
  const std::string verdict = row ? check.Bytes(0) : "no answer";
  return verdict == "ok" ? absl::OkStatus() : SqliteDamaged(verdict, path);
}

// The tree is searched by table and key: where one of them is damaged so that
// it stands in the wrong place, other records are not found any more. A damaged
// value, or a key that fits where it is, costs one record only.
absl::Status CheckOrder(sqlite3* db, const std::string& path) {
  SqliteStatement select(
      db, path, "SELECT room, key, typeof(room) || typeof(key) FROM state");
  std::pair<std::string, std::string> last;
  for (bool first = true;; first = false) {
    COXSWAIN_ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return absl::OkStatus();
    std::pair<std::string, std::string> next(select.Bytes(0), select.Bytes(1));
    if (select.Bytes(2) != "blobblob" || (!first && next <= last)) {
      return SqliteDamaged("its records are out of order", path);
    }
    last = std::move(next);
  }
}

// Returns the format of the file; 0: it is new. Refuses a file that must not be
// written, before anything is written.
absl::StatusOr<int> Inspect(sqlite3* db, const std::string& path) {
  COXSWAIN_ASSIGN_OR_RETURN(const int version,
                            ReadInt(db, path, "PRAGMA user_version"));
  COXSWAIN_ASSIGN_OR_RETURN(const int application,
                            ReadInt(db, path, "PRAGMA application_id"));
  COXSWAIN_ASSIGN_OR_RETURN(
      const int tables,
      ReadInt(db, path, "SELECT COUNT(*) FROM sqlite_schema"));
  if (version == 0 && application == 0 && tables == 0) return 0;
  if (application != kApplicationId) return OfAnotherProgram(path);
  COXSWAIN_RETURN_IF_ERROR(CheckVersion(version, path));
  COXSWAIN_RETURN_IF_ERROR(CheckPages(db, path));
  COXSWAIN_RETURN_IF_ERROR(CheckOrder(db, path));
  return version;
}

absl::Status Upgrade(sqlite3* db, const std::string& path, int version) {
  if (version == 0) {
    COXSWAIN_RETURN_IF_ERROR(ExecuteSql(
        db, path,
        "CREATE TABLE state (room BLOB NOT NULL, key BLOB NOT NULL, "
        "value BLOB NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (room, key)) "
        "WITHOUT ROWID"));
    COXSWAIN_RETURN_IF_ERROR(ExecuteSql(
        db, path, absl::StrCat("PRAGMA application_id = ", kApplicationId)));
  } else {
    COXSWAIN_RETURN_IF_ERROR(ExecuteSql(
        db, path,
        "ALTER TABLE state ADD COLUMN crc INTEGER NOT NULL DEFAULT 0"));
    COXSWAIN_RETURN_IF_ERROR(ExecuteSql(
        db, path, "UPDATE state SET crc = coxswain_crc(room, key, value)"));
  }
  return ExecuteSql(db, path,
                    absl::StrCat("PRAGMA user_version = ", kSqliteFormat));
}

absl::Status Prepare(sqlite3* db, const std::string& path, bool has_log) {
  // Closing a file that is refused must not move its log into it.
  sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, has_log ? 1 : 0,
                    nullptr);
  sqlite3_create_function(db, "coxswain_crc", 3,
                          SQLITE_UTF8 | SQLITE_DETERMINISTIC, nullptr,
                          &Checksum, nullptr, nullptr);
  // Held until the file is closed, also against readers of other processes.
  COXSWAIN_RETURN_IF_ERROR(
      ExecuteSql(db, path, "PRAGMA locking_mode = EXCLUSIVE"));
  COXSWAIN_ASSIGN_OR_RETURN(const int version, Inspect(db, path));
  COXSWAIN_RETURN_IF_ERROR(ExecuteSql(db, path, "PRAGMA journal_mode = WAL"));
  COXSWAIN_RETURN_IF_ERROR(ExecuteSql(db, path, "PRAGMA synchronous = FULL"));
  // Takes the lock now rather than with the first change.
  COXSWAIN_RETURN_IF_ERROR(ExecuteSql(db, path, "BEGIN IMMEDIATE"));
  if (version != kSqliteFormat) {
    COXSWAIN_RETURN_IF_ERROR(Upgrade(db, path, version));
  }
  COXSWAIN_RETURN_IF_ERROR(ExecuteSql(db, path, "COMMIT"));
  sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, nullptr);
  return absl::OkStatus();
}

// Opens or creates the file. One that is not ours, is damaged, or was written
// by a newer Coxswain is left as it is, and so is its write-ahead log.
//   DATA_LOSS            not a SQLite file, or damaged
//   FAILED_PRECONDITION  of a newer format, or of another program
//   UNAVAILABLE          in use by another process, or cannot be opened
absl::StatusOr<sqlite3*> OpenSqliteFile(const std::string& path) {
  COXSWAIN_RETURN_IF_ERROR(CheckHeader(path));
  const bool has_log = LogSize(path) > 0;
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(
      path.c_str(), &db,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX,
      nullptr);
  const absl::Status status =
      code == SQLITE_OK ? Prepare(db, path, has_log)
                        : SqliteError(db, code, "cannot open it", path);
  if (status.ok()) return db;
  sqlite3_close(db);
  return status;
}

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
  // SQLite itself may have rolled back already; then this error means nothing.
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
