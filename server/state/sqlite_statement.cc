#include "server/state/sqlite_statement.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "sqlite3.h"

namespace coxswain::server {

absl::Status SqliteDamaged(absl::string_view what, absl::string_view path) {
  return absl::DataLossError(absl::StrCat(
      "state file '", path, "': ", what,
      "; the file was left as it is: restore it from a backup, or start with "
      "an empty --state-dir"));
}

absl::Status SqliteError(sqlite3* db, int code, absl::string_view what,
                         absl::string_view path) {
  const std::string message = absl::StrCat(
      what, ": ", db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code));
  const std::string located =
      absl::StrCat("state file '", path, "': ", message);
  switch (code & 0xff) {  // The rest is SQLite's extended code.
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR:  // Our SQL is right: what it refers to is not.
      return SqliteDamaged(message, path);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(absl::StrCat(
          located, "; is another coordinator running on this --state-dir?"));
    case SQLITE_FULL:
      return absl::UnavailableError(absl::StrCat(
          located, "; nothing was changed: make room on this disk"));
    default:
      return absl::UnavailableError(located);
  }
}

SqliteStatement::SqliteStatement(sqlite3* db, absl::string_view path,
                                 absl::string_view sql)
    : db_(db), path_(path), sql_(sql) {
  code_ = sqlite3_prepare_v2(db, sql.data(), static_cast<int>(sql.size()),
                             &statement_, nullptr);
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

SqliteStatement& SqliteStatement::Bind(int index, absl::string_view bytes) {
  if (code_ != SQLITE_OK) return *this;
  // A null pointer would bind NULL instead of an empty string.
  const char* data = bytes.empty() ? "" : bytes.data();
  code_ =
      sqlite3_bind_blob64(statement_, index, data, bytes.size(), SQLITE_STATIC);
  return *this;
}

SqliteStatement& SqliteStatement::BindInt(int index, int64_t number) {
  if (code_ != SQLITE_OK) return *this;
  code_ = sqlite3_bind_int64(statement_, index, number);
  return *this;
}

absl::StatusOr<bool> SqliteStatement::Step() {
  if (code_ == SQLITE_OK) code_ = sqlite3_step(statement_);
  const int code = std::exchange(code_, SQLITE_OK);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  code_ = code;
  return SqliteError(db_, code, sql_, path_);
}

absl::Status SqliteStatement::Run() {
  bool more = true;
  while (more) {
    COXSWAIN_ASSIGN_OR_RETURN(more, Step());
  }
  code_ = sqlite3_reset(statement_);
  return absl::OkStatus();
}

int64_t SqliteStatement::Int(int column) const {
  return sqlite3_column_int64(statement_, column);
}

std::string SqliteStatement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return size == 0 ? std::string()
                   : std::string(static_cast<const char*>(data), size);
}

absl::Status ExecuteSql(sqlite3* db, absl::string_view path,
                        absl::string_view sql) {
  return SqliteStatement(db, path, sql).Run();
}

}  // namespace coxswain::server
