#include "server/state/memory_state_store.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::server {

absl::StatusOr<std::string> MemoryStateStore::Get(absl::string_view table,
                                                  absl::string_view key) const {
  MutexLock lock(&mutex_);
  const auto rows = tables_.find(std::string(table));
  if (rows != tables_.end()) {
    const auto row = rows->second.find(std::string(key));
    if (row != rows->second.end()) return row->second;
  }
  return absl::NotFoundError(
      absl::StrCat("no state record '", key, "' in table '", table, "'"));
}

absl::StatusOr<std::vector<StateStore::Record>> MemoryStateStore::List(
    absl::string_view table) const {
  MutexLock lock(&mutex_);
  const auto rows = tables_.find(std::string(table));
  if (rows == tables_.end()) return std::vector<Record>();
  return std::vector<Record>(rows->second.begin(), rows->second.end());
}

absl::StatusOr<std::vector<std::string>> MemoryStateStore::Tables(
    absl::string_view prefix) const {
  MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (auto it = tables_.lower_bound(std::string(prefix));
       it != tables_.end() && absl::StartsWith(it->first, prefix); ++it) {
    names.push_back(it->first);
  }
  return names;
}

absl::Status MemoryStateStore::Apply(const StateBatch& batch) {
  COXSWAIN_RETURN_IF_ERROR(CheckBatch(batch));
  MutexLock lock(&mutex_);
  if (!write_status_.ok()) return write_status_;
  for (const StateBatch::Write& write : batch.writes()) {
    auto& rows = tables_[write.table];
    if (write.whole_table) {
      rows.clear();
    } else if (write.value.has_value()) {
      rows[write.key] = *write.value;
    } else {
      rows.erase(write.key);
    }
    if (rows.empty()) tables_.erase(write.table);
  }
  return absl::OkStatus();
}

void MemoryStateStore::FailWrites(const absl::Status& status) {
  MutexLock lock(&mutex_);
  write_status_ = status;
}

}  // namespace coxswain::server
