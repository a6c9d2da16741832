#include "server/state/sqlite_state_store.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "sqlite3.h"

namespace coxswain::server {
namespace {

// "COXS": tells our files from those of other programs.
constexpr int kApplicationId = 0x434f5853;

absl::Status SqliteError(sqlite3* db, int code, absl::string_view what,
                         absl::string_view path) {
  const std::string message =
      absl::StrCat("state file '", path, "': ", what, ": ",
                   db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code));
  switch (code & 0xff) {  // The rest is SQLite's extended code.
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(absl::StrCat(
          message,
          "; the file was left as it is: restore it from a backup, or start "
          "with an empty --state-dir"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(absl::StrCat(
          message, "; is another coordinator running on this --state-dir?"));
    default:
      return absl::UnavailableError(message);
  }
}

// One prepared statement.
class Statement {
 public:
  Statement(sqlite3* db, absl::string_view path, absl::string_view sql)
      : db_(db), path_(path), sql_(sql) {
    code_ = sqlite3_prepare_v2(db, sql.data(), static_cast<int>(sql.size()),
                               &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // The bytes must outlive the statement's last step.
  Statement& Bind(int index, absl::string_view bytes) {
    if (code_ != SQLITE_OK) return *this;
    // A null pointer would bind NULL instead of an empty string.
    const char* data = bytes.empty() ? "" : bytes.data();
    code_ = sqlite3_bind_blob64(statement_, index, data, bytes.size(),
                                SQLITE_STATIC);
    return *this;
  }

  // True when there is a row.
  absl::StatusOr<bool> Step() {
    if (code_ == SQLITE_OK) code_ = sqlite3_step(statement_);
    const int code = std::exchange(code_, SQLITE_OK);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    code_ = code;
    return SqliteError(db_, code, sql_, path_);
  }

  int Int(int column) { return sqlite3_column_int(statement_, column); }
  std::string Bytes(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return size == 0 ? std::string()
                     : std::string(static_cast<const char*>(data), size);
  }

 private:
  sqlite3* db_;
  absl::string_view path_;
  absl::string_view sql_;
  sqlite3_stmt* statement_ = nullptr;
  int code_;
};

absl::Status Execute(sqlite3* db, absl::string_view path,
                     absl::string_view sql) {
  Statement statement(db, path, sql);
  bool more = true;
  while (more) {
    COXSWAIN_ASSIGN_OR_RETURN(more, statement.Step());
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ReadInt(sqlite3* db, absl::string_view path,
                            absl::string_view sql) {
  Statement statement(db, path, sql);
  COXSWAIN_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

// Refuses a file that must not be written, before anything is written.
absl::Status Inspect(sqlite3* db, const std::string& path, bool* is_new) {
  COXSWAIN_ASSIGN_OR_RETURN(const int version,
                            ReadInt(db, path, "PRAGMA user_version"));
  COXSWAIN_ASSIGN_OR_RETURN(const int application,
                            ReadInt(db, path, "PRAGMA application_id"));
  COXSWAIN_ASSIGN_OR_RETURN(
      const int tables,
      ReadInt(db, path, "SELECT COUNT(*) FROM sqlite_schema"));
  *is_new = version == 0 && application == 0 && tables == 0;
  if (*is_new) return absl::OkStatus();
  if (application != kApplicationId) {
    return absl::FailedPreconditionError(
        absl::StrCat("state file '", path,
                     "' belongs to another program and was left as "
                     "it is; choose another --state-dir"));
  }
  if (version > SqliteStateStore::kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state file '", path, "' has format ", version,
        ", this coordinator knows up to ", SqliteStateStore::kFormatVersion,
        "; the file was left as it is: run the newer coordinator"));
  }
  Statement check(db, path, "PRAGMA quick_check(1)");
  COXSWAIN_ASSIGN_OR_RETURN(const bool row, check.Step());
  const std::string verdict = row ? check.Bytes(0) : "no answer";
  if (verdict == "ok") return absl::OkStatus();
  return SqliteError(nullptr, SQLITE_CORRUPT, verdict, path);
}

absl::Status Prepare(sqlite3* db, const std::string& path) {
  // Held until the file is closed, also against readers of other processes.
  COXSWAIN_RETURN_IF_ERROR(
      Execute(db, path, "PRAGMA locking_mode = EXCLUSIVE"));
  bool is_new = false;
  COXSWAIN_RETURN_IF_ERROR(Inspect(db, path, &is_new));
  COXSWAIN_RETURN_IF_ERROR(Execute(db, path, "PRAGMA journal_mode = WAL"));
  COXSWAIN_RETURN_IF_ERROR(Execute(db, path, "PRAGMA synchronous = FULL"));
  // Takes the lock now rather than with the first change.
  COXSWAIN_RETURN_IF_ERROR(Execute(db, path, "BEGIN IMMEDIATE"));
  if (is_new) {
    COXSWAIN_RETURN_IF_ERROR(
        Execute(db, path,
                "CREATE TABLE state (room BLOB NOT NULL, key BLOB NOT NULL, "
                "value BLOB NOT NULL, PRIMARY KEY (room, key)) "
                "WITHOUT ROWID"));
    COXSWAIN_RETURN_IF_ERROR(Execute(
        db, path, absl::StrCat("PRAGMA application_id = ", kApplicationId)));
    COXSWAIN_RETURN_IF_ERROR(
        Execute(db, path,
                absl::StrCat("PRAGMA user_version = ",
                             SqliteStateStore::kFormatVersion)));
  }
  return Execute(db, path, "COMMIT");
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStateStore>> SqliteStateStore::Open(
    const std::string& path) {
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(
      path.c_str(), &db,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX,
      nullptr);
  absl::Status status = code == SQLITE_OK
                            ? Prepare(db, path)
                            : SqliteError(db, code, "cannot open it", path);
  if (!status.ok()) {
    sqlite3_close(db);
    return status;
  }
  return std::unique_ptr<SqliteStateStore>(new SqliteStateStore(path, db));
}

SqliteStateStore::~SqliteStateStore() { sqlite3_close(db_); }

absl::StatusOr<std::string> SqliteStateStore::Get(absl::string_view table,
                                                  absl::string_view key) const {
  MutexLock lock(&mutex_);
  Statement select(db_, path_,
                   "SELECT value FROM state WHERE room = ?1 AND key = ?2");
  select.Bind(1, table).Bind(2, key);
  COXSWAIN_ASSIGN_OR_RETURN(const bool row, select.Step());
  if (row) return select.Bytes(0);
  return absl::NotFoundError(
      absl::StrCat("no state record '", key, "' in table '", table, "'"));
}

absl::StatusOr<std::vector<StateStore::Record>> SqliteStateStore::List(
    absl::string_view table) const {
  MutexLock lock(&mutex_);
  Statement select(db_, path_,
                   "SELECT key, value FROM state WHERE room = ?1 ORDER BY key");
  select.Bind(1, table);
  std::vector<Record> records;
  while (true) {
    COXSWAIN_ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return records;
    records.emplace_back(select.Bytes(0), select.Bytes(1));
  }
}

absl::Status SqliteStateStore::Apply(const StateBatch& batch) {
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(Execute(db_, path_, "BEGIN IMMEDIATE"));
  absl::Status status = ApplyLocked(batch);
  if (status.ok()) status = Execute(db_, path_, "COMMIT");
  // SQLite itself may have rolled back already; then this is an error that
  // says nothing new.
  if (!status.ok()) Execute(db_, path_, "ROLLBACK").IgnoreError();
  return status;
}

absl::Status SqliteStateStore::ApplyLocked(const StateBatch& batch) {
  for (const StateBatch::Write& write : batch.writes()) {
    Statement statement(db_, path_,
                        write.value.has_value()
                            ? "INSERT OR REPLACE INTO state (room, key, value) "
                              "VALUES (?1, ?2, ?3)"
                            : "DELETE FROM state WHERE room = ?1 AND key = ?2");
    statement.Bind(1, write.table).Bind(2, write.key);
    if (write.value.has_value()) statement.Bind(3, *write.value);
    COXSWAIN_RETURN_IF_ERROR(statement.Step().status());
  }
  return absl::OkStatus();
}

}  // namespace coxswain::server
