#include "server/membership/membership_records.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "proto/state.pb.h"
#include "server/generation/job_name.h"
#include "server/membership/manifest_check.h"
#include "server/membership/member_proto.h"
#include "server/options/options.h"
#include "server/state/cluster_records.h"
#include "server/state/record.h"

namespace coxswain::server {
namespace {

constexpr char kMembersPrefix[] = "members/";
constexpr char kManifestPrefix[] = "manifest/";
constexpr char kBlockPrefix[] = "block/";
constexpr char kGonePrefix[] = "gone/";
// Raised, together with kStateSchema, by whatever an older coordinator would
// misread: it refuses a schema that it does not know, but a format alone would
// cost the job its record.
constexpr int kFormat = 1;

constexpr int kMembersPerBlock = 256;
// Of a block or a piece: several fit into a batch.
constexpr size_t kMaxRecordBytes = 256 << 10;

std::string MembersTable(Generation generation) {
  return absl::StrCat(kMembersPrefix, generation.value());
}

std::string ManifestTable(Generation generation) {
  return absl::StrCat(kManifestPrefix, generation.value());
}

// Keys of one table in the order of their numbers.
std::string NumberedKey(absl::string_view prefix, size_t number) {
  return absl::StrCat(prefix, absl::StrFormat("%08d", number));
}

absl::Status Unreadable(absl::string_view job, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the stored ", what, " of job '", job, "' cannot be read"));
}

// Puts records into batches that the store takes.
class Batches {
 public:
  void Put(absl::string_view table, absl::string_view key, std::string value) {
    if (batches_.empty() || bytes_ + value.size() > StateStore::kMaxBytes / 2 ||
        batches_.back().writes().size() >= StateStore::kMaxWrites / 2) {
      batches_.emplace_back();
      bytes_ = 0;
    }
    bytes_ += value.size();
    batches_.back().Put(table, key, std::move(value));
  }
  std::vector<StateBatch> Take() && { return std::move(batches_); }

 private:
  std::vector<StateBatch> batches_;
  size_t bytes_ = 0;
};

state::v1::LostMember Encode(const LostMember& lost) {
  state::v1::LostMember proto;
  *proto.mutable_member() = ToProto(lost.member);
  proto.set_reason(lost.reason);
  proto.set_left(lost.left);
  proto.set_error_norm(lost.error_norm);
  proto.set_error_step(lost.error_step);
  return proto;
}

LostMember Decode(const state::v1::LostMember& proto) {
  LostMember lost;
  lost.member = FromProto(proto.member());
  lost.reason = proto.reason();
  lost.left = proto.left();
  lost.error_norm = proto.error_norm();
  lost.error_step = proto.error_step();
  return lost;
}

KeptJob Decode(const std::string& name, const state::v1::Job& proto) {
  KeptJob job;
  job.name = name;
  job.generation = Generation(proto.generation());
  job.world_size = proto.world_size();
  job.running = proto.running();
  job.finished = proto.finished();
  job.starts_anew = proto.starts_anew();
  job.regroups = proto.regroups();
  job.unreadable = proto.unreadable();
  job.attempt = proto.attempt();
  job.step = proto.step();
  job.last_event = proto.last_event();
  if (proto.last_event_unix_ms() > 0) {
    job.last_event_date = absl::FromUnixMillis(proto.last_event_unix_ms());
  }
  job.reason = proto.reason();
  job.manifest = Generation(proto.manifest());
  job.manifest_holder = FromProto(proto.manifest_holder());
  job.previous.generation = Generation(proto.previous_generation());
  job.previous.world_size = proto.previous_world_size();
  job.previous.lost_count = proto.lost_count();
  for (const auto& lost : proto.lost()) {
    job.previous.lost.push_back(Decode(lost));
  }
  for (const auto& place : proto.places()) {
    job.places.push_back({FromProto(place.identity()),
                          Incarnation(place.incarnation()), place.launcher_id(),
                          place.left()});
  }
  return job;
}

absl::StatusOr<KeptJob> DecodeJob(const StateStore::Record& record) {
  state::v1::Job proto;
  if (!ParseRecord(record.second, &proto)) {
    return Unreadable(record.first, "record");
  }
  if (proto.format() > kFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat("the record of job '", record.first, "' has format ",
                     proto.format(), ", and this coordinator knows up to ",
                     kFormat, ": it was written by a newer one; use that"));
  }
  if (proto.format() < 1 || proto.generation() < 1 || proto.world_size() < 1 ||
      proto.world_size() > kMaxWorldSize ||
      (proto.running() && proto.finished())) {
    return Unreadable(record.first, "record");
  }
  return Decode(record.first, proto);
}

bool AddBlock(const std::string& value, LoadedJob* loaded) {
  state::v1::MemberBlock block;
  if (!ParseRecord(value, &block)) return false;
  for (const auto& entry : block.members()) {
    KeptMember kept;
    kept.member = FromProto(entry.member());
    kept.launcher_id = entry.launcher_id();
    if (kept.member.rank != static_cast<int>(loaded->members.size())) {
      return false;
    }
    loaded->members.push_back(std::move(kept));
  }
  return true;
}

bool AddDeparture(absl::string_view key, const std::string& value,
                  LoadedJob* loaded) {
  state::v1::Departure proto;
  int rank = 0;
  if (!absl::SimpleAtoi(key.substr(sizeof(kGonePrefix) - 1), &rank) ||
      !ParseRecord(value, &proto)) {
    return false;
  }
  Departure& departure = loaded->departures[rank];
  departure.left = proto.left();
  departure.rejoins = proto.rejoins();
  departure.reason = proto.reason();
  departure.error_norm = proto.error_norm();
  departure.error_step = proto.error_step();
  departure.step = proto.step();
  return rank >= 0 && rank < loaded->job.world_size;
}

// Adds the records of a job's table that are to go into quarantine.
void Add(const LoadedJob& loaded, const std::string& table,
         const std::vector<StateStore::Record>& records,
         std::vector<UnreadableRecord>* unreadable) {
  for (const auto& [key, value] : records) {
    unreadable->push_back({table, key, value, loaded.job.name,
                           std::string(loaded.damage.message())});
  }
}

absl::Status LoadMembers(const StateStore& store, LoadedJob* loaded,
                         std::vector<UnreadableRecord>* unreadable) {
  const std::string table = MembersTable(loaded->job.generation);
  COXSWAIN_ASSIGN_OR_RETURN(const auto records, store.List(table));
  for (const StateStore::Record& record : records) {
    const auto& [key, value] = record;
    const bool read = absl::StartsWith(key, kGonePrefix)
                          ? AddDeparture(key, value, loaded)
                          : AddBlock(value, loaded);
    if (read) continue;
    loaded->damage = Unreadable(loaded->job.name, "list of members");
    Add(*loaded, table, {record}, unreadable);
    return absl::OkStatus();
  }
  if (static_cast<int>(loaded->members.size()) != loaded->job.world_size) {
    loaded->damage = Unreadable(
        loaded->job.name, absl::StrCat("list of members (", records.size(),
                                       " records with ", loaded->members.size(),
                                       " of ", loaded->job.world_size, ")"));
    Add(*loaded, table, records, unreadable);
  }
  return absl::OkStatus();
}

// Without a piece, or with the last one cut off, what is left may be read as
// another manifest: all of them must be there, and none in `quarantined`, the
// names of tables.
absl::Status LoadManifest(const StateStore& store,
                          const std::set<std::string>& quarantined,
                          LoadedJob* loaded,
                          std::vector<UnreadableRecord>* unreadable) {
  const std::string table = ManifestTable(loaded->job.manifest);
  COXSWAIN_ASSIGN_OR_RETURN(const auto records, store.List(table));
  std::string bytes;
  bool complete = !records.empty() && quarantined.count(table) == 0;
  for (size_t i = 0; i < records.size(); ++i) {
    complete = complete && records[i].first == NumberedKey("", i);
    bytes.append(records[i].second);
  }
  coxswain::v1::Manifest proto;
  if (!complete || !ParseRecord(bytes, &proto)) {
    loaded->damage = Unreadable(loaded->job.name, "manifest");
    Add(*loaded, table, records, unreadable);
    return absl::OkStatus();
  }
  loaded->manifest = FromProto(proto);
  if (!CheckManifestBounds(loaded->manifest).ok()) {
    loaded->manifest = Manifest();
    loaded->damage = Unreadable(loaded->job.name, "manifest");
    Add(*loaded, table, records, unreadable);
    return absl::OkStatus();
  }
  // A coordinator of before there were series has kept all of it.
  NormaliseLibraryVersion(&loaded->manifest);
  return absl::OkStatus();
}

// Marks the jobs that claim the tables of one generation together: which of
// them is right is not known.
void CheckNumbers(std::vector<LoadedJob>* jobs) {
  std::map<std::string, LoadedJob*> owners;
  const auto claim = [&owners](const std::string& table, LoadedJob* loaded) {
    const auto [owner, added] = owners.emplace(table, loaded);
    if (added) return;
    for (LoadedJob* const one : {owner->second, loaded}) {
      one->damage = absl::DataLossError(
          absl::StrCat("jobs '", owner->second->job.name, "' and '",
                       loaded->job.name, "' both have table '", table, "'"));
    }
  };
  for (LoadedJob& loaded : *jobs) {
    if (loaded.job.finished || loaded.job.unreadable) continue;
    claim(MembersTable(loaded.job.generation), &loaded);
    claim(ManifestTable(loaded.job.manifest), &loaded);
  }
}

}  // namespace

void PutJob(const KeptJob& job, StateBatch* batch) {
  state::v1::Job proto;
  proto.set_format(kFormat);
  proto.set_generation(job.generation.value());
  proto.set_world_size(job.world_size);
  proto.set_running(job.running);
  proto.set_finished(job.finished);
  proto.set_starts_anew(job.starts_anew);
  proto.set_regroups(job.regroups);
  proto.set_unreadable(job.unreadable);
  proto.set_attempt(job.attempt);
  proto.set_step(job.step);
  proto.set_last_event(job.last_event);
  if (job.last_event_date > absl::UnixEpoch()) {
    proto.set_last_event_unix_ms(absl::ToUnixMillis(job.last_event_date));
  }
  proto.set_reason(job.reason);
  proto.set_manifest(job.manifest.value());
  *proto.mutable_manifest_holder() = ToProto(job.manifest_holder);
  proto.set_previous_generation(job.previous.generation.value());
  proto.set_previous_world_size(job.previous.world_size);
  proto.set_lost_count(job.previous.lost_count);
  for (const LostMember& lost : job.previous.lost) {
    *proto.add_lost() = Encode(lost);
  }
  for (const FinishedPlace& place : job.places) {
    state::v1::Place* const kept = proto.add_places();
    *kept->mutable_identity() = ToProto(place.identity);
    kept->set_incarnation(place.incarnation.value());
    kept->set_launcher_id(place.launcher_id);
    kept->set_left(place.left);
  }
  batch->Put(kJobTable, job.name, SerializeRecord(proto));
}

void DeleteJob(const KeptJob& job, StateBatch* batch) {
  batch->Delete(kJobTable, job.name);
  DeleteMembers(job.generation, batch);
  DeleteManifest(job.manifest, batch);
}

void PutDeparture(Generation generation, int rank, const Departure& departure,
                  StateBatch* batch) {
  state::v1::Departure proto;
  proto.set_left(departure.left);
  proto.set_rejoins(departure.rejoins);
  proto.set_reason(departure.reason);
  proto.set_error_norm(departure.error_norm);
  proto.set_error_step(departure.error_step);
  proto.set_step(departure.step);
  batch->Put(MembersTable(generation), NumberedKey(kGonePrefix, rank),
             SerializeRecord(proto));
}

void DeleteMembers(Generation generation, StateBatch* batch) {
  batch->DeleteTable(MembersTable(generation));
}

void DeleteManifest(Generation generation, StateBatch* batch) {
  batch->DeleteTable(ManifestTable(generation));
}

std::vector<StateBatch> MemberBatches(Generation generation,
                                      const std::vector<KeptMember>& members) {
  Batches batches;
  state::v1::MemberBlock block;
  size_t blocks = 0;
  size_t bytes = 0;
  for (const KeptMember& kept : members) {
    auto* const entry = block.add_members();
    *entry->mutable_member() = ToProto(kept.member);
    entry->set_launcher_id(kept.launcher_id);
    bytes += entry->ByteSizeLong();
    const bool last = kept.member.rank + 1 == static_cast<int>(members.size());
    if (!last && block.members_size() < kMembersPerBlock &&
        bytes < kMaxRecordBytes) {
      continue;
    }
    batches.Put(MembersTable(generation), NumberedKey(kBlockPrefix, blocks++),
                SerializeRecord(block));
    block.Clear();
    bytes = 0;
  }
  return std::move(batches).Take();
}

std::vector<StateBatch> ManifestBatches(Generation generation,
                                        const Manifest& manifest) {
  const std::string bytes = SerializeRecord(ToProto(manifest));
  Batches batches;
  // A manifest that is empty has a piece, too.
  for (size_t at = 0; at == 0 || at < bytes.size(); at += kMaxRecordBytes) {
    batches.Put(ManifestTable(generation),
                NumberedKey("", at / kMaxRecordBytes),
                bytes.substr(at, kMaxRecordBytes));
  }
  return std::move(batches).Take();
}

absl::StatusOr<LoadedJobs> LoadJobs(const StateStore& store, Generation next) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto records, store.List(kJobTable));
  LoadedJobs loaded;
  std::map<std::string, std::string> values(records.begin(), records.end());
  const auto refuse = [&](const std::string& job, const absl::Status& why) {
    loaded.unreadable.push_back(
        {kJobTable, job, values[job], job, std::string(why.message())});
  };
  for (const auto& record : records) {
    absl::StatusOr<KeptJob> job = DecodeJob(record);
    const absl::Status name = ValidateJobName(record.first);
    if (!name.ok()) job = name;
    if (job.ok() && !(job->generation < next)) {
      job = absl::DataLossError(absl::StrCat(
          "generation ", job->generation.value(), " of job '", record.first,
          "' was never given out; the next one is ", next.value()));
    }
    if (job.ok()) {
      loaded.jobs.emplace_back().job = *std::move(job);
    } else {
      refuse(record.first, job.status());
    }
  }
  CheckNumbers(&loaded.jobs);
  for (const LoadedJob& one : loaded.jobs) {
    if (!one.damage.ok()) refuse(one.job.name, one.damage);
  }
  loaded.jobs.erase(
      std::remove_if(loaded.jobs.begin(), loaded.jobs.end(),
                     [](const LoadedJob& one) { return !one.damage.ok(); }),
      loaded.jobs.end());
  COXSWAIN_ASSIGN_OR_RETURN(const auto quarantined, ListQuarantined(store));
  std::set<std::string> tables;
  for (const QuarantinedRecord& record : quarantined) {
    tables.insert(record.table);
  }
  for (LoadedJob& one : loaded.jobs) {
    if (one.job.finished || one.job.unreadable) continue;
    COXSWAIN_RETURN_IF_ERROR(
        LoadManifest(store, tables, &one, &loaded.unreadable));
    if (one.damage.ok()) {
      COXSWAIN_RETURN_IF_ERROR(LoadMembers(store, &one, &loaded.unreadable));
    }
    if (one.damage.ok()) continue;
    one.members.clear();
    one.departures.clear();
    one.manifest = Manifest();
  }
  return loaded;
}

std::vector<std::string> JobsInQuarantine(
    const std::vector<QuarantinedRecord>& quarantined) {
  std::set<std::string> jobs;
  for (const QuarantinedRecord& record : quarantined) {
    if (record.table == kJobTable) jobs.insert(record.key);
  }
  return std::vector<std::string>(jobs.begin(), jobs.end());
}

absl::StatusOr<std::vector<std::string>> StaleTables(
    const StateStore& store, const std::vector<LoadedJob>& jobs) {
  std::set<std::string> needed;
  for (const LoadedJob& loaded : jobs) {
    if (loaded.job.finished || loaded.job.unreadable || !loaded.damage.ok()) {
      continue;
    }
    needed.insert(ManifestTable(loaded.job.manifest));
    needed.insert(MembersTable(loaded.job.generation));
  }
  std::vector<std::string> stale;
  for (const char* prefix : {kMembersPrefix, kManifestPrefix}) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto tables, store.Tables(prefix));
    for (const std::string& table : tables) {
      if (needed.count(table) == 0) stale.push_back(table);
    }
  }
  return stale;
}

}  // namespace coxswain::server
