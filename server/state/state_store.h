#ifndef COXSWAIN_SERVER_STATE_STATE_STORE_H_
#define COXSWAIN_SERVER_STATE_STATE_STORE_H_

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
  };

  StateBatch& Put(absl::string_view table, absl::string_view key,
                  absl::string_view value) {
    writes_.push_back(
        {std::string(table), std::string(key), std::string(value)});
    return *this;
  }
  StateBatch& Delete(absl::string_view table, absl::string_view key) {
    writes_.push_back({std::string(table), std::string(key), std::nullopt});
    return *this;
  }
  const std::vector<Write>& writes() const { return writes_; }

 private:
  std::vector<Write> writes_;
};

// What the coordinator must still know after a crash: small records, each a
// string of bytes under (table, key). A room commits here before it acts or
// acknowledges. One coordinator owns a store. Keys and values may hold any
// bytes. Thread-safe.
//
// Errors: NOT_FOUND for a missing key; UNAVAILABLE when the medium refuses
// for now (a full disk) and nothing was changed; DATA_LOSS when what is stored
// cannot be read.
class StateStore {
 public:
  using Record = std::pair<std::string, std::string>;  // key, value

  virtual ~StateStore() = default;

  virtual absl::StatusOr<std::string> Get(absl::string_view table,
                                          absl::string_view key) const = 0;

  // All records of a table, by key in byte order.
  virtual absl::StatusOr<std::vector<Record>> List(
      absl::string_view table) const = 0;

  // Returns once the changes would survive a power cut.
  virtual absl::Status Apply(const StateBatch& batch) = 0;

  absl::Status Put(absl::string_view table, absl::string_view key,
                   absl::string_view value) {
    return Apply(StateBatch().Put(table, key, value));
  }
  absl::Status Delete(absl::string_view table, absl::string_view key) {
    return Apply(StateBatch().Delete(table, key));
  }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_STATE_STORE_H_
