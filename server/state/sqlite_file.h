#ifndef COXSWAIN_SERVER_STATE_SQLITE_FILE_H_
#define COXSWAIN_SERVER_STATE_SQLITE_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;

namespace coxswain::server {

// The file of a SqliteStateStore: how it is opened, and whether it may be.

// Format 1 had no checksums; it is brought to 2 when it is opened.
constexpr int kSqliteFormat = 2;

// CRC-32C of a record. SQLite has no checksums of its own, and would hand out
// a value whose bytes have changed.
uint32_t SqliteRecordChecksum(absl::string_view table, absl::string_view key,
                              absl::string_view value);

// Opens or creates the file. One that is not ours, is damaged, or was written
// by a newer Coxswain is left as it is, and so is its write-ahead log.
//   DATA_LOSS            not a SQLite file, or damaged
//   FAILED_PRECONDITION  of a newer format, or of another program
//   UNAVAILABLE          in use by another process, or cannot be opened
absl::StatusOr<sqlite3*> OpenSqliteFile(const std::string& path);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_SQLITE_FILE_H_
