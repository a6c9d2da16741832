#include "server/store/store_scope.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/state/state_writer.h"

namespace coxswain::server {
namespace {

// Changes of one key, and records of forgotten answers, in one commit. With
// the key's own record they stay under StateStore::kMaxWrites.
constexpr size_t kMaxTogether = 80;
constexpr size_t kMaxForgotten = 32;
static_assert(kMaxTogether + kMaxForgotten < StateStore::kMaxWrites, "");

// Of a record that is not a value: its table, its key and its numbers.
constexpr size_t kRecordBytes = 128;

bool IsDelete(const StoreChange& change) {
  return change.kind == StoreChange::Kind::kDelete;
}

}  // namespace

absl::Status StoreScope::Load(const std::vector<StateStore::Record>& records,
                              const std::vector<int>& /*left*/) {
  for (const auto& [record, value] : records) {
    if (!record.empty() && record[0] == kStoreKey) {
      values_[record.substr(1)] = value;
      bytes_ += record.size() - 1 + value.size();
      continue;
    }
    if (record.empty() || record[0] != kStoreAnswer) {
      return absl::DataLossError("a record of the store is of no known kind");
    }
    COXSWAIN_ASSIGN_OR_RETURN(RememberedAnswer answer,
                              DecodeAnswer(record, value));
    answers_.Remember(std::move(answer));
  }
  keys_ = values_.size();
  *total_bytes_ += bytes_;
  return absl::OkStatus();
}

void StoreScope::Change(const StoreRequestKey& request, StoreChange change,
                        StoreChangeDone done, ScopeWork* work) {
  const size_t bytes = change.ByteSize();
  absl::Status status;
  if (change_count_ >= limits_.max_changes) {
    status = StoreLimitError("max_changes", limits_.max_changes,
                             "make fewer changes at once");
  } else if (change_bytes_ + bytes > limits_.max_change_bytes) {
    status = StoreLimitError("max_change_bytes", limits_.max_change_bytes,
                             "make fewer changes at once");
  }
  if (!status.ok()) {
    work->calls.push_back([done = std::move(done), status] { done(status); });
    return;
  }
  ++change_count_;
  change_bytes_ += bytes;
  const std::string key = change.key;
  const auto [waiting, idle] = waiting_.try_emplace(key);
  waiting->second.push_back({request, std::move(change), std::move(done)});
  if (idle) StartCommit(key, work);
}

void StoreScope::StartCommit(const std::string& key, ScopeWork* work) {
  std::deque<Request>& requests = waiting_.at(key);
  while (!requests.empty()) {
    Commit commit = MakeCommit(key, &requests);
    if (commit.batch.empty()) {  // Nothing but repeats and errors.
      AnswerAll(&commit, absl::OkStatus(), work);
      continue;
    }
    StateBatch batch = std::move(commit.batch);
    work->commits.push_back(
        {std::move(batch),
         [this, commit = std::make_shared<Commit>(std::move(commit))](
             const absl::Status& status, ScopeWork* more) {
           Committed(commit.get(), status, more);
         }});
    return;
  }
  waiting_.erase(key);
}

StoreScope::Commit StoreScope::MakeCommit(const std::string& key,
                                          std::deque<Request>* requests) {
  Commit commit;
  commit.key = key;
  const auto now = values_.find(key);
  if (now != values_.end()) commit.value = now->second;
  commit.deletes = IsDelete(requests->front().change);
  while (!requests->empty() && Fits(requests->front(), commit)) {
    Request request = std::move(requests->front());
    requests->pop_front();
    commit.outcomes.push_back(Execute(&request, &commit));
  }
  if (commit.changes && commit.value.has_value()) {
    commit.batch.Put(table_, StoreKeyRecord(key), *commit.value);
  } else if (commit.changes) {
    commit.batch.Delete(table_, StoreKeyRecord(key));
  }
  if (commit.batch.empty()) return commit;
  commit.forgotten = answers_.TakeForgotten(kMaxForgotten);
  for (const uint64_t sequence : commit.forgotten) {
    commit.batch.Delete(table_, StoreAnswerRecord(sequence));
  }
  return commit;
}

// A deletion is not committed together with what sets the key: who waits for
// the key is to see each time that it exists.
bool StoreScope::Fits(const Request& request, const Commit& commit) const {
  if (commit.outcomes.empty()) return true;
  if (IsDelete(request.change) != commit.deletes) return false;
  if (commit.outcomes.size() >= kMaxTogether) return false;
  const size_t value = commit.value.has_value() ? commit.value->size() : 0;
  const size_t answer =
      request.change.kind == StoreChange::Kind::kCompareSet ? value : 0;
  return commit.answer_bytes + answer +
             std::max(value, request.change.value.size()) +
             (kMaxForgotten + 2) * kRecordBytes + commit.key.size() <=
         StateStore::kMaxBytes;
}

StoreScope::Outcome StoreScope::Execute(Request* request, Commit* commit) {
  Outcome outcome;
  outcome.bytes = request->change.ByteSize();
  outcome.done = std::move(request->done);
  if (const StoreAnswer* first = FindAnswer(request->key, *commit)) {
    outcome.answer = *first;
    return outcome;
  }
  absl::StatusOr<StoreEffect> effect = Evaluate(request->change, commit->value);
  absl::Status status = effect.status();
  if (status.ok() && effect->changes) {
    status = Reserve(commit->key, *effect, commit);
  }
  if (!status.ok()) {
    outcome.answer = status;
    return outcome;
  }
  if (effect->changes) {
    commit->changes = true;
    commit->value = std::move(effect->value);
  }
  outcome.answer = effect->answer;
  outcome.remembered = {answers_.NextSequence(), request->key, effect->answer};
  std::string bytes = EncodeAnswer(request->key, effect->answer);
  commit->answer_bytes += kRecordBytes + bytes.size();
  commit->batch.Put(table_, StoreAnswerRecord(outcome.remembered->sequence),
                    std::move(bytes));
  return outcome;
}

const StoreAnswer* StoreScope::FindAnswer(const StoreRequestKey& request,
                                          const Commit& commit) const {
  if (const StoreAnswer* first = answers_.Find(request)) return first;
  for (const Outcome& outcome : commit.outcomes) {
    if (!outcome.remembered.has_value()) continue;
    if (outcome.remembered->request == request) {
      return &outcome.remembered->answer;
    }
  }
  return nullptr;
}

absl::Status StoreScope::Reserve(const std::string& key,
                                 const StoreEffect& effect, Commit* commit) {
  const bool existed = commit->value.has_value();
  const bool exists = effect.value.has_value();
  const size_t before = existed ? key.size() + commit->value->size() : 0;
  const size_t after = exists ? key.size() + effect.value->size() : 0;
  if (exists && !existed && keys_ >= limits_.max_keys) {
    return StoreLimitError("max_keys", limits_.max_keys, "delete keys");
  }
  if (after > before && bytes_ - before + after > limits_.max_bytes) {
    return StoreLimitError("max_bytes", limits_.max_bytes,
                           "delete keys or store smaller values");
  }
  if (after > before &&
      *total_bytes_ - before + after > limits_.max_total_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the store's limit max_total_bytes of ", limits_.max_total_bytes,
        " for all jobs together is reached; delete keys, or wait for other "
        "jobs to end"));
  }
  const int64_t added =
      static_cast<int64_t>(after) - static_cast<int64_t>(before);
  const int added_keys = (exists ? 1 : 0) - (existed ? 1 : 0);
  commit->added_bytes += added;
  commit->added_keys += added_keys;
  Add(added, added_keys);
  return absl::OkStatus();
}

void StoreScope::Add(int64_t bytes, int64_t keys) {
  bytes_ += bytes;
  *total_bytes_ += bytes;
  keys_ += keys;
}

void StoreScope::Committed(Commit* commit, const absl::Status& status,
                           ScopeWork* work) {
  if (ended_.has_value()) return AnswerAll(commit, *ended_, work);
  if (status.ok()) {
    Install(commit, work);
    AnswerAll(commit, status, work);
  } else {
    Add(-commit->added_bytes, -commit->added_keys);
    answers_.GiveBack(commit->forgotten);
    AnswerAll(
        commit,
        NotWritten(absl::StrCat("key \"", commit->key, "\" was not changed"),
                   status),
        work);
  }
  StartCommit(commit->key, work);
}

void StoreScope::Install(Commit* commit, ScopeWork* work) {
  for (Outcome& outcome : commit->outcomes) {
    if (!outcome.remembered.has_value()) continue;
    answers_.Remember(*std::move(outcome.remembered));
  }
  if (!commit->changes) return;
  const bool existed = values_.count(commit->key) != 0;
  if (commit->value.has_value()) {
    values_[commit->key] = *std::move(commit->value);
  } else {
    values_.erase(commit->key);
  }
  listeners_.Changed(commit->key, existed, work);
}

void StoreScope::Answer(Outcome outcome, const absl::Status& status,
                        ScopeWork* work) {
  --change_count_;
  change_bytes_ -= outcome.bytes;
  if (!status.ok()) outcome.answer = status;
  work->calls.push_back([done = std::move(outcome.done),
                         answer = std::move(outcome.answer)] { done(answer); });
}

void StoreScope::AnswerAll(Commit* commit, const absl::Status& status,
                           ScopeWork* work) {
  for (Outcome& outcome : commit->outcomes) {
    Answer(std::move(outcome), status, work);
  }
}

int64_t StoreScope::CountKeys(absl::string_view prefix) const {
  int64_t count = 0;
  for (auto key = values_.lower_bound(prefix);
       key != values_.end() && absl::StartsWith(key->first, prefix); ++key) {
    ++count;
  }
  return count;
}

void StoreScope::End(const absl::Status& status, ScopeWork* work) {
  ended_ = status;
  for (auto& [key, requests] : waiting_) {
    for (Request& request : requests) {
      Outcome outcome;
      outcome.bytes = request.change.ByteSize();
      outcome.done = std::move(request.done);
      Answer(std::move(outcome), status, work);
    }
  }
  waiting_.clear();
  listeners_.End(status, work);
  Add(-static_cast<int64_t>(bytes_), 0);
}

}  // namespace coxswain::server
