#include "server/state/cluster_records.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "proto/state.pb.h"
#include "proto/types.pb.h"
#include "server/state/quarantine.h"
#include "server/state/record.h"

namespace coxswain::server {
namespace {

constexpr char kSchemaKey[] = "schema";
constexpr char kIdKey[] = "id";
constexpr char kTermKey[] = "next_term";
constexpr char kGenerationKey[] = "next_generation";
constexpr char kPlanVersionKey[] = "next_plan_version";

// The tables of plans whose records have such numbers, as those of jobs have.
constexpr char kPlanTables[] = "plan.";
constexpr const char* kVersionTables[] = {"plan.current", "plan.next"};
// A number without a checksum of its own is not trusted beyond it.
constexpr int64_t kMaxBelieved = kMaxNumber / 2;
// More than were given out since anything that is still readable was written.
constexpr int64_t kRepairMargin = int64_t{1} << 32;

std::string Checksum(absl::string_view key, absl::string_view text) {
  return absl::StrFormat("%08x", Crc32c(text, Crc32c(key)));
}

std::string Seal(absl::string_view key, absl::string_view text) {
  return absl::StrCat(text, " ", Checksum(key, text));
}

absl::Status Unreadable(absl::string_view key, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(
      "the record '", key, "' of table '", kClusterTable, "' ", why,
      ", and without it numbers could be given out twice; nothing was changed. "
      "Restore the state from a backup, or start the coordinator with "
      "--repair-state: it goes on as a new cluster, with which running jobs "
      "end, and keeps plans and the other records (docs/durability.md)"));
}

// Returns a record as it is stored; a missing one is no error.
struct Raw {
  bool present = false;
  bool sealed = false;
  std::string text;
};

// Returns the text before a checksum, if a value ends with the right one.
std::optional<std::string> Unseal(absl::string_view key,
                                  absl::string_view value) {
  const size_t space = value.rfind(' ');
  if (space == absl::string_view::npos) return std::nullopt;
  const absl::string_view text = value.substr(0, space);
  if (value.substr(space + 1) != Checksum(key, text)) return std::nullopt;
  return std::string(text);
}

absl::StatusOr<Raw> ReadRaw(const StateStore& store, const char* key) {
  Raw raw;
  absl::StatusOr<std::string> value = store.Get(kClusterTable, key);
  if (absl::IsNotFound(value.status())) return raw;
  if (absl::IsDataLoss(value.status())) {
    return Unreadable(
        key, absl::StrCat("cannot be read (", value.status().message(), ")"));
  }
  COXSWAIN_RETURN_IF_ERROR(value.status());
  raw.present = true;
  raw.text = *std::move(value);
  if (!absl::StrContains(raw.text, ' ')) return raw;
  std::optional<std::string> text = Unseal(key, raw.text);
  if (!text.has_value()) {
    return Unreadable(
        key, absl::StrCat("does not match its checksum (it is '",
                          absl::CHexEscape(raw.text.substr(0, 64)), "')"));
  }
  raw.sealed = true;
  raw.text = *std::move(text);
  return raw;
}

absl::StatusOr<int64_t> Number(const char* key, const Raw& raw) {
  int64_t number = 0;
  if (absl::SimpleAtoi(raw.text, &number) && number >= 1 &&
      number <= kMaxNumber) {
    return number;
  }
  return Unreadable(
      key, absl::StrCat("is '", absl::CHexEscape(raw.text.substr(0, 64)),
                        "', which is no number from 1 to ", kMaxNumber));
}

absl::StatusOr<Raw> ReadSealed(const StateStore& store, const char* key) {
  COXSWAIN_ASSIGN_OR_RETURN(Raw raw, ReadRaw(store, key));
  if (!raw.present) return Unreadable(key, "is missing");
  if (!raw.sealed) return Unreadable(key, "has no checksum");
  return raw;
}

absl::StatusOr<int64_t> ReadSealedNumber(const StateStore& store,
                                         const char* key) {
  COXSWAIN_ASSIGN_OR_RETURN(const Raw raw, ReadSealed(store, key));
  return Number(key, raw);
}

// Returns 0 if there is none; fails if this coordinator does not know it.
absl::StatusOr<int64_t> ReadSchema(const StateStore& store) {
  COXSWAIN_ASSIGN_OR_RETURN(const Raw raw, ReadRaw(store, kSchemaKey));
  if (!raw.present) return 0;
  if (!raw.sealed) return Unreadable(kSchemaKey, "has no checksum");
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t schema, Number(kSchemaKey, raw));
  if (schema <= kStateSchema) return schema;
  return absl::FailedPreconditionError(
      absl::StrCat("the state has schema ", schema,
                   ", and this coordinator knows up to ", kStateSchema,
                   ": it was written by a newer one, and was left as it is; "
                   "run the newer coordinator"));
}

absl::StatusOr<bool> HasJobs(const StateStore& store) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto tables, store.Tables(""));
  return std::any_of(tables.begin(), tables.end(), [](const std::string& name) {
    return name != kClusterTable && !IsQuarantineTable(name);
  });
}

// Written by a coordinator without schemas.
absl::StatusOr<ClusterRecords> ReadWithoutSchema(const StateStore& store) {
  std::map<std::string, Raw> raws;
  for (const char* key : {kIdKey, kTermKey, kGenerationKey}) {
    COXSWAIN_ASSIGN_OR_RETURN(raws[key], ReadRaw(store, key));
    // The schema is written together with the first checksum of these.
    if (raws[key].sealed) return Unreadable(kSchemaKey, "is missing");
  }
  COXSWAIN_ASSIGN_OR_RETURN(const bool has_jobs, HasJobs(store));
  ClusterRecords records;
  COXSWAIN_ASSIGN_OR_RETURN(records.next_plan_version,
                            ReadNextPlanVersion(store));
  const bool begun = raws[kIdKey].present || raws[kTermKey].present ||
                     raws[kGenerationKey].present;
  if (!begun && !has_jobs) return records;
  records.schema = 0;
  for (const char* key : {kIdKey, kTermKey}) {
    if (!raws[key].present) return Unreadable(key, "is missing");
  }
  if (raws[kIdKey].text.empty()) return Unreadable(kIdKey, "is empty");
  records.id = raws[kIdKey].text;
  COXSWAIN_ASSIGN_OR_RETURN(records.next_term,
                            Number(kTermKey, raws[kTermKey]));
  if (raws[kGenerationKey].present) {
    COXSWAIN_ASSIGN_OR_RETURN(records.next_generation,
                              Number(kGenerationKey, raws[kGenerationKey]));
  } else if (has_jobs) {
    return Unreadable(kGenerationKey, "is missing");
  }
  return records;
}

// Returns the highest generation in the name of a table, or of a job.
absl::StatusOr<int64_t> HighestGeneration(const StateStore& store) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto tables, store.Tables(""));
  int64_t highest = 0;
  for (const std::string& table : tables) {
    const size_t slash = table.rfind('/');
    int64_t number = 0;
    if (slash != std::string::npos &&
        absl::SimpleAtoi(table.substr(slash + 1), &number) &&
        number <= kMaxBelieved) {
      highest = std::max(highest, number);
    }
  }
  COXSWAIN_ASSIGN_OR_RETURN(const auto jobs, store.List(kJobTable));
  for (const auto& [name, value] : jobs) {
    state::v1::Job job;
    if (ParseRecord(value, &job) && job.generation() <= kMaxBelieved) {
      highest = std::max<int64_t>(highest, job.generation());
    }
  }
  return highest;
}

struct KnownVersions {
  int64_t highest = 0;
  bool all_read = true;
};

absl::StatusOr<KnownVersions> VersionsOfPlans(const StateStore& store) {
  KnownVersions known;
  for (const char* table : kVersionTables) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto plans, store.List(table));
    for (const auto& [job, value] : plans) {
      v1::Plan plan;
      if (ParseRecord(value, &plan) && plan.version() <= kMaxBelieved) {
        known.highest = std::max<int64_t>(known.highest, plan.version());
      } else {
        known.all_read = false;
      }
    }
  }
  return known;
}

std::optional<int64_t> SealedNumber(const char* key, absl::string_view value) {
  Raw raw;
  std::optional<std::string> text = Unseal(key, value);
  if (!text.has_value()) return std::nullopt;
  raw.text = *std::move(text);
  const absl::StatusOr<int64_t> number = Number(key, raw);
  if (!number.ok()) return std::nullopt;
  return *number;
}

// Returns a number above `used` and above what every record of the key in
// `quarantined` can have led to: that of `value` if it can be read, or else one
// that no earlier repair can have come to.
int64_t NumberAbove(const char* key, absl::string_view value, int64_t used,
                    const std::vector<StateStore::Record>& quarantined) {
  int64_t margin = kRepairMargin;
  for (const auto& [known, earlier] : quarantined) {
    if (known != key) continue;
    margin += kRepairMargin;
    used = std::max(used, SealedNumber(key, earlier).value_or(1) - 1);
  }
  const std::optional<int64_t> number = SealedNumber(key, value);
  return number.has_value() ? std::max(*number, used + 1) : used + margin;
}

// Returns the records of the cluster as they are, damaged ones too, by key, and
// an empty one for each that is missing: in quarantine, the next repair counts
// it.
absl::StatusOr<std::map<std::string, std::string>> ReadValues(
    const StateStore& store) {
  std::map<std::string, std::string> values;
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<StateStore::Damaged> damaged,
                            store.FindDamaged());
  for (const StateStore::Damaged& one : damaged) {
    if (one.table == kClusterTable) values[one.key] = one.value;
  }
  // A table with a damaged record cannot be listed.
  for (const char* key :
       {kSchemaKey, kIdKey, kTermKey, kGenerationKey, kPlanVersionKey}) {
    if (values.count(key) > 0) continue;
    absl::StatusOr<std::string> value = store.Get(kClusterTable, key);
    if (absl::IsNotFound(value.status())) value = "";
    COXSWAIN_RETURN_IF_ERROR(value.status());
    values[key] = *std::move(value);
  }
  return values;
}

}  // namespace

absl::StatusOr<ClusterRecords> ReadClusterRecords(const StateStore& store) {
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t schema, ReadSchema(store));
  if (schema == 0) return ReadWithoutSchema(store);
  ClusterRecords records;
  records.schema = schema;
  COXSWAIN_ASSIGN_OR_RETURN(const Raw id, ReadSealed(store, kIdKey));
  if (id.text.empty()) return Unreadable(kIdKey, "is empty");
  records.id = id.text;
  COXSWAIN_ASSIGN_OR_RETURN(records.next_term,
                            ReadSealedNumber(store, kTermKey));
  COXSWAIN_ASSIGN_OR_RETURN(records.next_generation,
                            ReadSealedNumber(store, kGenerationKey));
  COXSWAIN_ASSIGN_OR_RETURN(records.next_plan_version,
                            ReadSealedNumber(store, kPlanVersionKey));
  return records;
}

absl::StatusOr<std::optional<int64_t>> ReadNextPlanVersion(
    const StateStore& store) {
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t schema, ReadSchema(store));
  COXSWAIN_ASSIGN_OR_RETURN(const Raw raw, ReadRaw(store, kPlanVersionKey));
  if (!raw.present && schema == 0) return std::nullopt;
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t number,
                            ReadSealedNumber(store, kPlanVersionKey));
  return number;
}

absl::StatusOr<int64_t> PlanVersionAboveAll(const StateStore& store) {
  COXSWAIN_ASSIGN_OR_RETURN(const KnownVersions known, VersionsOfPlans(store));
  return known.highest + (known.all_read ? 1 : kRepairMargin);
}

void PutClusterRecords(const ClusterRecords& records, StateBatch* batch) {
  PutSchema(std::max(records.schema, kMixedSchema), batch);
  batch->Put(kClusterTable, kIdKey, Seal(kIdKey, records.id));
  batch->Put(kClusterTable, kTermKey,
             Seal(kTermKey, absl::StrCat(records.next_term)));
  PutNextGeneration(records.next_generation, batch);
  PutNextPlanVersion(*records.next_plan_version, batch);
}

void PutSchema(int64_t schema, StateBatch* batch) {
  batch->Put(kClusterTable, kSchemaKey, Seal(kSchemaKey, absl::StrCat(schema)));
}

void PutNextGeneration(int64_t next, StateBatch* batch) {
  batch->Put(kClusterTable, kGenerationKey,
             Seal(kGenerationKey, absl::StrCat(next)));
}

void PutNextPlanVersion(int64_t next, StateBatch* batch) {
  batch->Put(kClusterTable, kPlanVersionKey,
             Seal(kPlanVersionKey, absl::StrCat(next)));
}

absl::Status RepairClusterRecords(RandomSource* random, StateStore* store) {
  const absl::Status refused = ReadClusterRecords(*store).status();
  if (!absl::IsDataLoss(refused)) return refused;
  // Tables with damaged records, those of the quarantine too, cannot be read.
  COXSWAIN_ASSIGN_OR_RETURN(const auto plan_tables, store->Tables(kPlanTables));
  COXSWAIN_RETURN_IF_ERROR(QuarantineDamaged(plan_tables, store));
  COXSWAIN_ASSIGN_OR_RETURN(const auto quarantined,
                            ReadQuarantined(*store, kClusterTable));
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t generation,
                            HighestGeneration(*store));
  COXSWAIN_ASSIGN_OR_RETURN(const KnownVersions plans, VersionsOfPlans(*store));
  COXSWAIN_ASSIGN_OR_RETURN(auto values, ReadValues(*store));
  const auto above = [&](const char* key, int64_t used) {
    return NumberAbove(key, values[key], used, quarantined);
  };
  ClusterRecords records;
  records.schema = ReadSchema(*store).value_or(0);
  records.id = absl::StrFormat("%016x%016x", random->Next(), random->Next());
  records.next_term = above(kTermKey, 0);
  records.next_generation = above(kGenerationKey, generation);
  records.next_plan_version = above(kPlanVersionKey, plans.highest);
  std::vector<UnreadableRecord> all;
  for (const auto& [key, value] : values) {
    all.push_back(
        {kClusterTable, key, value, "", std::string(refused.message())});
  }
  StateBatch batch;
  PutClusterRecords(records, &batch);
  COXSWAIN_RETURN_IF_ERROR(QuarantineRecords(all, store, batch));
  LogError("state_repaired",
           {{"reason", refused.message()},
            {"cluster_id", records.id},
            {"next_term", records.next_term},
            {"next_generation", records.next_generation},
            {"next_plan_version", *records.next_plan_version}});
  return absl::OkStatus();
}

}  // namespace coxswain::server
