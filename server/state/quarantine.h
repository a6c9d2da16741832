#ifndef COXSWAIN_SERVER_STATE_QUARANTINE_H_
#define COXSWAIN_SERVER_STATE_QUARANTINE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// Keeps records of jobs that cannot be read, byte for byte for inspection,
// where they do not harm the next start. A job loses what the record stood for,
// and nothing else is lost.
//
// In the store, the table "quarantine" has the values as they were, under
// NUMBER/TABLE, a zero byte, KEY; that of the notes (proto/state.proto) has the
// job and the reason of each under the same key.
constexpr char kQuarantineNotes[] = "quarantine.notes";

struct UnreadableRecord {
  std::string table;
  std::string key;
  std::string value;
  std::string job;  // empty: not known
  std::string reason;
};

// A record in quarantine, since this start or an earlier one.
struct QuarantinedRecord {
  std::string table;
  std::string key;
  std::string job;
  std::string reason;
  size_t bytes = 0;
  // Whether it was the record of this table and key. One whose checksum was
  // wrong may have been any other, and so may one without a note.
  bool name_known = false;
};

// The reason of a record that is damaged in its value, its key or its table.
constexpr char kWrongChecksum[] = "it does not match its checksum";

bool IsQuarantineTable(absl::string_view table);

// Moves the records from their tables into quarantine, and reports each in the
// log. A record and its note move together; of many, some may have been moved
// when it fails. The changes of `after` are committed together with the last
// ones, as one batch with all of them where they fit into one.
absl::Status QuarantineRecords(const std::vector<UnreadableRecord>& records,
                               StateStore* store,
                               const StateBatch& after = StateBatch());

// Moves the records whose checksums do not match, except those of the cluster.
// The records of one key in the tables of `together`, which is the name of a
// job, are read as one: all of them move if one is damaged.
absl::Status QuarantineDamaged(const std::vector<std::string>& together,
                               StateStore* store);

// Returns all that are in quarantine, oldest first.
absl::StatusOr<std::vector<QuarantinedRecord>> ListQuarantined(
    const StateStore& store);

// Returns the records of one table that are in quarantine, oldest first, as
// they were.
absl::StatusOr<std::vector<StateStore::Record>> ReadQuarantined(
    const StateStore& store, absl::string_view table);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_QUARANTINE_H_
