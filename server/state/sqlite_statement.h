#ifndef COXSWAIN_SERVER_STATE_SQLITE_STATEMENT_H_
#define COXSWAIN_SERVER_STATE_SQLITE_STATEMENT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace coxswain::server {

// Returns SQLite's error as ours: the only place where these are translated.
//   DATA_LOSS    the file is damaged, or not a SQLite file
//   UNAVAILABLE  everything else: locked, full, cannot be opened
absl::Status SqliteError(sqlite3* db, int code, absl::string_view what,
                         absl::string_view path);
absl::Status SqliteDamaged(absl::string_view what, absl::string_view path);

// One prepared statement. A part of SqliteStateStore, under its lock: one
// thread at a time. Its arguments outlive it.
class SqliteStatement {
 public:
  SqliteStatement(sqlite3* db, absl::string_view path, absl::string_view sql);
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  // Parameters count from 1. The bytes must outlive the last step.
  SqliteStatement& Bind(int index, absl::string_view bytes);
  SqliteStatement& BindInt(int index, int64_t number);

  // Returns true if there is a row.
  absl::StatusOr<bool> Step();
  // Steps through all rows, and is ready for another run.
  absl::Status Run();

  // Return a column of the row; columns count from 0.
  int64_t Int(int column) const;
  std::string Bytes(int column) const;

 private:
  sqlite3* const db_;
  const absl::string_view path_;
  const absl::string_view sql_;
  sqlite3_stmt* statement_ = nullptr;
  int code_;
};

absl::Status ExecuteSql(sqlite3* db, absl::string_view path,
                        absl::string_view sql);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_SQLITE_STATEMENT_H_
