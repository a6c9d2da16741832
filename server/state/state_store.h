#ifndef COXSWAIN_SERVER_STATE_STATE_STORE_H_
#define COXSWAIN_SERVER_STATE_STATE_STORE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::server {

// Changes that happen together or not at all, in the order they were added.
class StateBatch {
 public:
  struct Write {
    std::string table;
    std::string key;
    std::optional<std::string> value;  // Unset: delete the key.
    bool whole_table = false;          // Delete all keys of the table.
  };

  StateBatch& Put(absl::string_view table, absl::string_view key,
                  std::string value) {
    Add(table, key).value = std::move(value);
    return *this;
  }
  StateBatch& Delete(absl::string_view table, absl::string_view key) {
    Add(table, key);
    return *this;
  }
  StateBatch& DeleteTable(absl::string_view table) {
    Add(table, "").whole_table = true;
    return *this;
  }
  void Append(const StateBatch& other) {
    writes_.insert(writes_.end(), other.writes_.begin(), other.writes_.end());
  }
  const std::vector<Write>& writes() const { return writes_; }
  bool empty() const { return writes_.empty(); }
  // Returns the bytes of all tables, keys and values.
  size_t ByteSize() const;

 private:
  Write& Add(absl::string_view table, absl::string_view key) {
    writes_.emplace_back();
    writes_.back().table = std::string(table);
    writes_.back().key = std::string(key);
    return writes_.back();
  }

  std::vector<Write> writes_;
};

// What the coordinator must still know after a crash: small records, each a
// string of bytes under (table, key). A component commits here before it acts
// or acknowledges. One coordinator owns a store. Keys and values may hold any
// bytes, the name of a table any but zeros. Thread-safe.
//
// Errors: NOT_FOUND for a missing key; UNAVAILABLE when the medium refuses for
// now (a full disk) and nothing was changed; DATA_LOSS when what is stored
// cannot be read.
class StateStore {
 public:
  using Record = std::pair<std::string, std::string>;  // key, value

  // Of one batch: what every implementation can commit as one, and what
  // components keep to.
  static constexpr size_t kMaxWrites = 120;
  static constexpr size_t kMaxBytes = (1 << 20) + (1 << 18);

  // What this one can commit as one, which is no less: several batches of
  // components together. Beyond it Apply fails with RESOURCE_EXHAUSTED.
  struct Limits {
    size_t writes = kMaxWrites;
    size_t bytes = kMaxBytes;
  };
  virtual Limits limits() const { return Limits(); }

  // Fails as every implementation does: with RESOURCE_EXHAUSTED beyond the
  // limits, with INVALID_ARGUMENT for the name of a table with a zero in it.
  static absl::Status CheckBatch(const StateBatch& batch, const Limits& limits);
  absl::Status CheckBatch(const StateBatch& batch) const {
    return CheckBatch(batch, limits());
  }

  virtual ~StateStore() = default;

  virtual absl::StatusOr<std::string> Get(absl::string_view table,
                                          absl::string_view key) const = 0;

  // Returns all records of a table, by key in byte order.
  virtual absl::StatusOr<std::vector<Record>> List(
      absl::string_view table) const = 0;

  // Returns the names of the tables with records that begin so, in byte order.
  virtual absl::StatusOr<std::vector<std::string>> Tables(
      absl::string_view prefix) const = 0;

  // A record whose stored checksum does not match it, as it was found.
  struct Damaged {
    std::string table;
    std::string key;
    std::string value;
  };
  // Returns all of them; none where the medium has no checksums. Until they
  // are overwritten or deleted, Get and List of their tables fail.
  virtual absl::StatusOr<std::vector<Damaged>> FindDamaged() const {
    return std::vector<Damaged>();
  }

  // Returns once the changes would survive a power cut. Fails with ABORTED, and
  // changes nothing, once another coordinator owns the store.
  virtual absl::Status Apply(const StateBatch& batch) = 0;

  // Adds `more`, which stays together, to `batch`; if one batch cannot hold
  // both, what is in it is applied first.
  absl::Status AddOrApply(const StateBatch& more, StateBatch* batch);

  absl::Status Put(absl::string_view table, absl::string_view key,
                   absl::string_view value) {
    return Apply(StateBatch().Put(table, key, std::string(value)));
  }
  absl::Status Delete(absl::string_view table, absl::string_view key) {
    return Apply(StateBatch().Delete(table, key));
  }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_STATE_STORE_H_
