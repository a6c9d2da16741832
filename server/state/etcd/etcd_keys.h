#ifndef COXSWAIN_SERVER_STATE_ETCD_ETCD_KEYS_H_
#define COXSWAIN_SERVER_STATE_ETCD_ETCD_KEYS_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::server {

// How the keys in etcd are called. Below the prefix of a cluster:
//   leader            who leads; deleted with the leader's lease
//   commit            the mark of the last transaction; see EtcdStateStore
//   format            the version of this layout
//   state/TABLE 0 KEY a record. No table has a zero in its name, so that
//                     etcd's order of bytes is by table, then by key, and keys
//                     need no escapes.
class EtcdKeys {
 public:
  // Of all keys from `begin` up to, without, `end`.
  struct Range {
    std::string begin;
    std::string end;
  };

  explicit EtcdKeys(absl::string_view prefix) : prefix_(prefix) {}

  std::string Leader() const { return prefix_ + "leader"; }
  std::string Commit() const { return prefix_ + "commit"; }
  std::string Format() const { return prefix_ + "format"; }
  std::string Record(absl::string_view table, absl::string_view key) const;
  Range Table(absl::string_view table) const;
  // Returns the range of all tables whose names begin so.
  Range Tables(absl::string_view prefix) const;
  // Returns the table and the key of a record. Fails with DATA_LOSS if it is
  // none.
  absl::StatusOr<std::pair<std::string, std::string>> Parse(
      absl::string_view record) const;

 private:
  std::string State() const { return prefix_ + "state/"; }

  const std::string prefix_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_ETCD_ETCD_KEYS_H_
