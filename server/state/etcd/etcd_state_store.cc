#include "server/state/etcd/etcd_state_store.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/state/etcd/etcd.pb.h"

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

// Builds the transaction that makes all changes of the batch in their order.
// etcd changes no key twice in one transaction, not even by deleting a range in
// which it also puts a key: what counts is the last change of each key, and
// ranges are deleted around the keys that are put. More than a level of a
// transaction may hold goes into transactions within it.
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

// Records of one answer: together well below what a message may be.
constexpr int64_t kPage = 128;
constexpr int64_t kPageOfKeys = 4096;
constexpr absl::Duration kPause = absl::Milliseconds(50);

bool HasZero(absl::string_view table) {
  return table.find('\0') != absl::string_view::npos;
}

etcdserverpb::RangeRequest Request(const EtcdKeys::Range& range,
                                   int64_t limit) {
  etcdserverpb::RangeRequest request;
  request.set_key(range.begin);
  request.set_range_end(range.end);
  request.set_limit(limit);
  return request;
}

// Returns the key that a transaction has read as its `index`-th answer.
const etcdserverpb::KeyValue& ReadOf(const etcdserverpb::TxnResponse& response,
                                     int index) {
  static const auto* const missing = new etcdserverpb::KeyValue;
  if (index >= response.responses_size()) return *missing;
  const auto& range = response.responses(index).response_range();
  return range.kvs_size() == 0 ? *missing : range.kvs(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdStateStore>> EtcdStateStore::Open(
    const EtcdOptions& options, CancelSignal* cancel,
    const EtcdLeadership::OnWait& on_wait) {
  auto client = std::make_unique<EtcdClient>(options.endpoints);
  COXSWAIN_ASSIGN_OR_RETURN(
      auto leadership,
      EtcdLeadership::Campaign(options, client.get(), cancel, on_wait));
  return std::unique_ptr<EtcdStateStore>(
      new EtcdStateStore(options, std::move(client), std::move(leadership)));
}

EtcdStateStore::EtcdStateStore(const EtcdOptions& options,
                               std::unique_ptr<EtcdClient> client,
                               std::unique_ptr<EtcdLeadership> leadership)
    : options_(options),
      keys_(options.prefix),
      client_(std::move(client)),
      leadership_(std::move(leadership)),
      commit_revision_(leadership_->commit_revision()) {}

absl::StatusOr<etcdserverpb::RangeResponse> EtcdStateStore::Read(
    const etcdserverpb::RangeRequest& request) const {
  while (true) {
    auto response = client_->Range(request, options_.call_timeout);
    // The revision of this page was compacted meanwhile; a new List may
    // succeed.
    if (absl::IsOutOfRange(response.status())) {
      return absl::UnavailableError(response.status().message());
    }
    if (!absl::IsUnavailable(response.status())) return response;
    if (!leadership_->Held()) return leadership_->lost().status();
    leadership_->lost().WaitFor(kPause);
  }
}

absl::StatusOr<std::string> EtcdStateStore::Get(absl::string_view table,
                                                absl::string_view key) const {
  const auto not_found = absl::NotFoundError(
      absl::StrCat("no state record '", key, "' in table '", table, "'"));
  if (HasZero(table)) return not_found;
  etcdserverpb::RangeRequest request;
  request.set_key(keys_.Record(table, key));
  COXSWAIN_ASSIGN_OR_RETURN(const auto response, Read(request));
  if (response.kvs_size() == 0) return not_found;
  return response.kvs(0).value();
}

absl::StatusOr<std::vector<StateStore::Record>> EtcdStateStore::List(
    absl::string_view table) const {
  std::vector<Record> records;
  if (HasZero(table)) return records;
  etcdserverpb::RangeRequest request = Request(keys_.Table(table), kPage);
  while (true) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto response, Read(request));
    for (const auto& record : response.kvs()) {
      COXSWAIN_ASSIGN_OR_RETURN(auto name, keys_.Parse(record.key()));
      records.emplace_back(std::move(name.second), record.value());
    }
    if (!response.more() || response.kvs_size() == 0) return records;
    // The rest at the same revision, so that all pages are of one moment.
    request.set_key(response.kvs(response.kvs_size() - 1).key() + '\0');
    if (request.revision() == 0) {
      request.set_revision(response.header().revision());
    }
  }
}

absl::StatusOr<std::vector<std::string>> EtcdStateStore::Tables(
    absl::string_view prefix) const {
  std::vector<std::string> tables;
  if (HasZero(prefix)) return tables;
  etcdserverpb::RangeRequest request =
      Request(keys_.Tables(prefix), kPageOfKeys);
  request.set_keys_only(true);
  while (true) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto response, Read(request));
    for (const auto& record : response.kvs()) {
      COXSWAIN_ASSIGN_OR_RETURN(auto name, keys_.Parse(record.key()));
      if (!tables.empty() && tables.back() == name.first) continue;
      tables.push_back(std::move(name.first));
    }
    if (!response.more() || tables.empty()) return tables;
    // What else the last table holds is of no interest.
    request.set_key(keys_.Table(tables.back()).end);
    if (request.revision() == 0) {
      request.set_revision(response.header().revision());
    }
  }
}

absl::Status EtcdStateStore::Apply(const StateBatch& batch) {
  COXSWAIN_RETURN_IF_ERROR(CheckBatch(batch, limits()));
  if (batch.empty()) return absl::OkStatus();
  MutexLock lock(&mutex_);
  const std::string mark = NewMark();
  return Commit(RequestFor(batch, mark), mark);
}

std::string EtcdStateStore::NewMark() {
  return absl::StrCat(leadership_->create_revision(), "-", ++marks_);
}

etcdserverpb::TxnRequest EtcdStateStore::RequestFor(
    const StateBatch& batch, const std::string& mark) const {
  etcdserverpb::TxnRequest request;
  auto* leads = request.add_compare();
  leads->set_target(etcdserverpb::Compare::CREATE);
  leads->set_key(keys_.Leader());
  leads->set_create_revision(leadership_->create_revision());
  auto* follows = request.add_compare();
  follows->set_target(etcdserverpb::Compare::MOD);
  follows->set_key(keys_.Commit());
  follows->set_mod_revision(commit_revision_);
  auto* put = request.add_success()->mutable_request_put();
  put->set_key(keys_.Commit());
  put->set_value(mark);
  for (auto& operation : OperationsOf(batch, keys_)) {
    *request.add_success() = std::move(operation);
  }
  request.add_failure()->mutable_request_range()->set_key(keys_.Leader());
  request.add_failure()->mutable_request_range()->set_key(keys_.Commit());
  return request;
}

absl::Status EtcdStateStore::Commit(const etcdserverpb::TxnRequest& request,
                                    const std::string& mark) {
  bool maybe_under_way = false;
  while (true) {
    const absl::Duration left = leadership_->Left();
    if (left <= absl::ZeroDuration()) return leadership_->lost().status();
    const auto response =
        client_->Txn(request, std::min(options_.call_timeout, left));
    if (response.ok()) return Outcome(*response, mark);
    if (!absl::IsUnavailable(response.status())) {
      return OutcomeOfRefused(response.status(), mark, maybe_under_way);
    }
    maybe_under_way = true;
    leadership_->lost().WaitFor(kPause);
  }
}

absl::Status EtcdStateStore::Outcome(const etcdserverpb::TxnResponse& response,
                                     const std::string& mark) {
  if (response.succeeded()) {
    commit_revision_ = response.header().revision();
    return absl::OkStatus();
  }
  const etcdserverpb::KeyValue& leader = ReadOf(response, 0);
  const etcdserverpb::KeyValue& commit = ReadOf(response, 1);
  if (commit.value() == mark) {  // by an earlier try
    commit_revision_ = commit.mod_revision();
    return absl::OkStatus();
  }
  if (leader.create_revision() == leadership_->create_revision()) {
    leadership_->Lose("another client of etcd has changed its state");
  } else {
    leadership_->Lose(leader.key().empty()
                          ? "its lease in etcd has ended"
                          : absl::StrCat(leader.value(), " leads"));
  }
  return leadership_->lost().status();
}

absl::Status EtcdStateStore::OutcomeOfRefused(const absl::Status& refusal,
                                              const std::string& mark,
                                              bool maybe_under_way) {
  const absl::Status refused = absl::UnavailableError(refusal.message());
  // etcd also reports that it is full for a change that has just filled it.
  etcdserverpb::TxnRequest request;
  request.add_success()->mutable_request_range()->set_key(keys_.Commit());
  while (leadership_->Held()) {
    const auto response = client_->Txn(request, options_.call_timeout);
    if (!response.ok()) {
      leadership_->lost().WaitFor(kPause);
      continue;
    }
    const etcdserverpb::KeyValue& commit = ReadOf(*response, 0);
    if (commit.value() == mark) {
      commit_revision_ = commit.mod_revision();
      return absl::OkStatus();
    }
    if (!maybe_under_way) return refused;
    const auto outcome = Fence(mark);
    if (outcome.ok()) return *outcome ? absl::OkStatus() : refused;
    if (!leadership_->lost().WaitFor(kPause)) continue;
  }
  return leadership_->lost().status();
}

absl::StatusOr<bool> EtcdStateStore::Fence(const std::string& mark) {
  if (fence_.empty()) fence_ = NewMark();
  const auto response =
      client_->Txn(RequestFor(StateBatch(), fence_), options_.call_timeout);
  if (!response.ok()) return response.status();
  const bool fenced =
      response->succeeded() || ReadOf(*response, 1).value() == fence_;
  COXSWAIN_RETURN_IF_ERROR(Outcome(*response, fenced ? fence_ : mark));
  fence_.clear();
  return !fenced;
}

}  // namespace coxswain::server
