#include "server/state/etcd/etcd_batch.h"

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace coxswain::server {
namespace {

using etcdserverpb::RequestOp;

// etcd's default limit (--max-txn-ops) is 128 for one level, and as many less
// for the levels below it as this one has; the mark of the commit is one.
constexpr size_t kMaxFlat = 120;
constexpr size_t kMaxNested = 64;  // of at most 63 on the outermost level

// The last change of each key, and the tables that are emptied before.
struct Changes {
  std::map<std::string, std::optional<std::string>> keys;
  std::map<std::string, std::string> emptied;  // from, to
};

Changes ChangesOf(const StateBatch& batch, const EtcdKeys& keys) {
  Changes changes;
  for (const StateBatch::Write& write : batch.writes()) {
    if (!write.whole_table) {
      changes.keys[keys.Record(write.table, write.key)] = write.value;
      continue;
    }
    const EtcdKeys::Range range = keys.Table(write.table);
    changes.keys.erase(changes.keys.lower_bound(range.begin),
                       changes.keys.lower_bound(range.end));
    changes.emptied[range.begin] = range.end;
  }
  return changes;
}

RequestOp Put(const std::string& key, const std::string& value) {
  RequestOp operation;
  operation.mutable_request_put()->set_key(key);
  operation.mutable_request_put()->set_value(value);
  return operation;
}

RequestOp Delete(const std::string& from, const std::string& to) {
  RequestOp operation;
  operation.mutable_request_delete_range()->set_key(from);
  operation.mutable_request_delete_range()->set_range_end(to);
  return operation;
}

void EmptyAround(const Changes& changes, std::string from,
                 const std::string& to, std::vector<RequestOp>* operations) {
  for (auto key = changes.keys.lower_bound(from);
       key != changes.keys.end() && key->first < to; ++key) {
    if (!key->second.has_value()) continue;
    if (from < key->first) operations->push_back(Delete(from, key->first));
    from = key->first + '\0';
  }
  if (from < to) operations->push_back(Delete(from, to));
}

std::vector<RequestOp> Nested(std::vector<RequestOp> operations) {
  if (operations.size() <= kMaxFlat) return operations;
  std::vector<RequestOp> levels;
  for (size_t i = 0; i < operations.size(); ++i) {
    if (i % kMaxNested == 0) levels.emplace_back();
    *levels.back().mutable_request_txn()->add_success() =
        std::move(operations[i]);
  }
  return levels;
}

}  // namespace

std::vector<RequestOp> OperationsOf(const StateBatch& batch,
                                    const EtcdKeys& keys) {
  const Changes changes = ChangesOf(batch, keys);
  std::vector<RequestOp> operations;
  for (const auto& [from, to] : changes.emptied) {
    EmptyAround(changes, from, to, &operations);
  }
  for (const auto& [key, value] : changes.keys) {
    operations.push_back(value.has_value() ? Put(key, *value)
                                           : Delete(key, /*to=*/""));
  }
  return Nested(std::move(operations));
}

}  // namespace coxswain::server
