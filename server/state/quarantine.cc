#include "server/state/quarantine.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "proto/state.pb.h"
#include "server/state/cluster_records.h"
#include "server/state/record.h"

namespace coxswain::server {
namespace {

constexpr char kValues[] = "quarantine";

std::string KeyOf(int64_t number, const UnreadableRecord& record) {
  std::string key = absl::StrFormat("%08d/%s", number, record.table);
  key += '\0';
  return key + record.key;
}

struct ParsedKey {
  int64_t number = 0;
  std::string table;
  std::string key;
};

ParsedKey Parse(absl::string_view key) {
  ParsedKey parsed;
  const size_t slash = key.find('/');
  const size_t end = key.find('\0');
  if (slash == absl::string_view::npos || end == absl::string_view::npos ||
      end < slash || !absl::SimpleAtoi(key.substr(0, slash), &parsed.number)) {
    parsed.key = std::string(key);
    return parsed;
  }
  parsed.table = std::string(key.substr(slash + 1, end - slash - 1));
  parsed.key = std::string(key.substr(end + 1));
  return parsed;
}

absl::StatusOr<int64_t> NextNumber(const StateStore& store) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto records, store.List(kValues));
  int64_t highest = 0;
  for (const auto& record : records) {
    const int64_t number = Parse(record.first).number;
    if (number <= kMaxNumber) highest = std::max(highest, number);
  }
  return highest + 1;
}

bool Contains(const std::vector<std::string>& tables,
              const std::string& table) {
  return std::find(tables.begin(), tables.end(), table) != tables.end();
}

void Report(const UnreadableRecord& record) {
  LogError("record_quarantined", {{"job", record.job},
                                  {"table", record.table},
                                  {"key", absl::CHexEscape(record.key)},
                                  {"bytes", record.value.size()},
                                  {"reason", record.reason}});
}

}  // namespace

bool IsQuarantineTable(absl::string_view table) {
  return table == kValues || table == kQuarantineNotes;
}

absl::Status QuarantineRecords(const std::vector<UnreadableRecord>& records,
                               StateStore* store, const StateBatch& after) {
  if (records.empty() && after.empty()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(int64_t number, NextNumber(*store));
  StateBatch batch;
  for (const UnreadableRecord& record : records) {
    const std::string key = KeyOf(number++, record);
    state::v1::QuarantineNote note;
    note.set_job(record.job);
    note.set_reason(record.reason);
    StateBatch one;
    one.Put(kValues, key, record.value);
    one.Put(kQuarantineNotes, key, SerializeRecord(note));
    one.Delete(record.table, record.key);
    COXSWAIN_RETURN_IF_ERROR(store->AddOrApply(one, &batch));
  }
  COXSWAIN_RETURN_IF_ERROR(store->AddOrApply(after, &batch));
  COXSWAIN_RETURN_IF_ERROR(store->Apply(batch));
  for (const UnreadableRecord& record : records) Report(record);
  return absl::OkStatus();
}

absl::Status QuarantineDamaged(const std::vector<std::string>& together,
                               StateStore* store) {
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<StateStore::Damaged> damaged,
                            store->FindDamaged());
  std::vector<UnreadableRecord> records;
  std::set<std::string> jobs;  // with a damaged record of `together`
  for (StateStore::Damaged& one : damaged) {
    if (one.table == kClusterTable) continue;
    if (IsQuarantineTable(one.table)) {
      // It stays where it is, and gets a checksum again.
      COXSWAIN_RETURN_IF_ERROR(store->Put(one.table, one.key, one.value));
      continue;
    }
    const bool of_group = Contains(together, one.table);
    if (of_group) jobs.insert(one.key);
    const std::string job = of_group || one.table == kJobTable ? one.key : "";
    records.push_back({std::move(one.table), std::move(one.key),
                       std::move(one.value), job, kWrongChecksum});
  }
  for (const std::string& job : jobs) {
    for (const std::string& table : together) {
      const absl::StatusOr<std::string> value = store->Get(table, job);
      // Missing, or damaged itself and in the list already.
      if (absl::IsNotFound(value.status()) ||
          absl::IsDataLoss(value.status())) {
        continue;
      }
      COXSWAIN_RETURN_IF_ERROR(value.status());
      records.push_back({table, job, *value, job,
                         "it is read together with one that is damaged"});
    }
  }
  return QuarantineRecords(records, store);
}

absl::StatusOr<std::vector<QuarantinedRecord>> ListQuarantined(
    const StateStore& store) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto values, store.List(kValues));
  COXSWAIN_ASSIGN_OR_RETURN(const auto notes, store.List(kQuarantineNotes));
  const std::map<std::string, std::string> note_of(notes.begin(), notes.end());
  std::vector<QuarantinedRecord> records;
  for (const auto& [key, value] : values) {
    ParsedKey parsed = Parse(key);
    QuarantinedRecord& record = records.emplace_back();
    record.table = std::move(parsed.table);
    record.key = std::move(parsed.key);
    record.bytes = value.size();
    const auto note = note_of.find(key);
    if (note == note_of.end()) continue;
    state::v1::QuarantineNote proto;
    if (!ParseRecord(note->second, &proto)) continue;
    record.job = proto.job();
    record.reason = proto.reason();
    record.name_known =
        !record.reason.empty() && record.reason != kWrongChecksum;
  }
  return records;
}

absl::StatusOr<std::vector<StateStore::Record>> ReadQuarantined(
    const StateStore& store, absl::string_view table) {
  COXSWAIN_ASSIGN_OR_RETURN(auto values, store.List(kValues));
  std::vector<StateStore::Record> records;
  for (auto& [key, value] : values) {
    ParsedKey parsed = Parse(key);
    if (parsed.table != table) continue;
    records.emplace_back(std::move(parsed.key), std::move(value));
  }
  return records;
}

}  // namespace coxswain::server
