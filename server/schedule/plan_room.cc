#include "server/schedule/plan_room.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "proto/types.pb.h"

namespace coxswain::server {
namespace {

// One record per job in each, in the last for plans on trial only; all change
// in one batch.
constexpr char kCurrentTable[] = "plan.current";
constexpr char kNextTable[] = "plan.next";
constexpr char kManifestTable[] = "plan.manifest";
constexpr char kTrialTable[] = "plan.trial";

std::string Encode(const Plan& plan) {
  v1::Plan proto;
  proto.set_version(plan.version);
  proto.set_accumulation_steps(plan.accumulation_steps);
  proto.set_hook(plan.hook);
  proto.set_compression_start_step(plan.compression_start_step);
  return proto.SerializeAsString();
}

absl::StatusOr<Plan> DecodePlan(const StateStore::Record& record) {
  v1::Plan proto;
  if (!proto.ParseFromString(record.second)) {
    return absl::DataLossError(absl::StrCat("the stored plan of job '",
                                            record.first, "' is unreadable"));
  }
  Plan plan;
  plan.version = proto.version();
  plan.accumulation_steps = proto.accumulation_steps();
  plan.hook = proto.hook();
  plan.compression_start_step = proto.compression_start_step();
  return plan;
}

absl::Status NoSuchJob(absl::string_view job) {
  return absl::NotFoundError(absl::StrCat(
      "job '", job, "' has no plan: no generation of it has begun"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlanRoom>> PlanRoom::Load(
    const PlanOptions& options, StateStore* store) {
  std::unique_ptr<PlanRoom> room(new PlanRoom(options, store));
  MutexLock lock(&room->mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const auto current, store->List(kCurrentTable));
  for (const auto& record : current) {
    COXSWAIN_ASSIGN_OR_RETURN(room->records_[record.first].plans.current,
                              DecodePlan(record));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const auto next, store->List(kNextTable));
  for (const auto& record : next) {
    COXSWAIN_ASSIGN_OR_RETURN(room->records_[record.first].plans.next,
                              DecodePlan(record));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const auto manifests, store->List(kManifestTable));
  for (const auto& record : manifests) {
    COXSWAIN_ASSIGN_OR_RETURN(Plan settings, DecodePlan(record));
    Record& target = room->records_[record.first];
    target.manifest_hook = std::move(settings.hook);
    target.manifest_accumulation_steps = settings.accumulation_steps;
  }
  COXSWAIN_ASSIGN_OR_RETURN(const auto trials, store->List(kTrialTable));
  for (const auto& record : trials) {
    room->records_[record.first].on_trial = true;
  }
  return room;
}

void PlanRoom::AddToBatch(const std::string& job, const Record& record,
                          StateBatch* batch) {
  batch->Put(kCurrentTable, job, Encode(record.plans.current));
  if (record.plans.next.has_value()) {
    batch->Put(kNextTable, job, Encode(*record.plans.next));
  } else {
    batch->Delete(kNextTable, job);
  }
  Plan settings;
  settings.hook = record.manifest_hook;
  settings.accumulation_steps = record.manifest_accumulation_steps;
  batch->Put(kManifestTable, job, Encode(settings));
  if (record.on_trial) {
    batch->Put(kTrialTable, job, "");
  } else {
    batch->Delete(kTrialTable, job);
  }
}

std::optional<std::string> PlanRoom::VictimLocked() const {
  if (static_cast<int>(records_.size()) < options_.max_plans) {
    return std::nullopt;
  }
  const std::pair<const std::string, Record>* oldest = nullptr;
  for (const auto& entry : records_) {
    if (entry.second.running) continue;
    if (oldest == nullptr ||
        entry.second.generation < oldest->second.generation) {
      oldest = &entry;
    }
  }
  // CoordinatorOptions::Validate allows fewer running jobs than plans.
  COXSWAIN_CHECK(oldest != nullptr);
  return oldest->first;
}

PlanRoom::Record PlanRoom::Next(const GenerationStart& start, Record record) {
  const bool same_settings =
      record.manifest_hook == start.hook &&
      record.manifest_accumulation_steps == start.accumulation_steps;
  const bool failed = record.on_trial && start.last == PlanTrial::kFailed;
  if (start.last != PlanTrial::kUnknown) record.on_trial = false;
  Plan& current = record.plans.current;
  if (record.plans.next.has_value()) {
    current = *std::exchange(record.plans.next, std::nullopt);
    record.on_trial = true;
  } else if (current.version == 0 || !same_settings || failed) {
    current =
        Plan{current.version + 1, start.accumulation_steps, start.hook, -1};
    record.on_trial = false;
  }
  record.manifest_hook = start.hook;
  record.manifest_accumulation_steps = start.accumulation_steps;
  record.generation = start.generation;
  record.running = true;
  return record;
}

absl::StatusOr<Plan> PlanRoom::BeginGeneration(GenerationStart start) {
  MutexLock lock(&mutex_);
  const auto found = records_.find(start.job);
  const Record before = found == records_.end() ? Record() : found->second;
  Record record = Next(start, before);

  StateBatch& batch = start.batch;
  std::optional<std::string> victim;
  if (found == records_.end()) victim = VictimLocked();
  if (victim.has_value()) {
    for (const char* table :
         {kCurrentTable, kNextTable, kManifestTable, kTrialTable}) {
      batch.Delete(table, *victim);
    }
  }
  AddToBatch(start.job, record, &batch);
  COXSWAIN_RETURN_IF_ERROR(store_->Apply(batch));
  if (before.on_trial && start.last == PlanTrial::kFailed) {
    LogWarning("proposed_plan_dropped",
               {{"job", start.job},
                {"version", before.plans.current.version},
                {"hook", before.plans.current.hook},
                {"reason",
                 "its generation ended before any worker reported "
                 "a step"},
                {"now", record.plans.current.hook}});
  }
  if (victim.has_value()) records_.erase(*victim);
  return (records_[start.job] = std::move(record)).plans.current;
}

absl::StatusOr<PlanRoom::Plans> PlanRoom::Get(absl::string_view job) const {
  MutexLock lock(&mutex_);
  const auto found = records_.find(std::string(job));
  if (found == records_.end()) return NoSuchJob(job);
  return found->second.plans;
}

absl::Status PlanRoom::Validate(const Plan& plan) const {
  if (plan.accumulation_steps < 1 ||
      plan.accumulation_steps > options_.max_accumulation_steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "accumulation_steps must be 1 to ", options_.max_accumulation_steps,
        ", not ", plan.accumulation_steps));
  }
  if (plan.hook.empty() ||
      plan.hook.size() > static_cast<size_t>(options_.max_hook_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the hook spec must have 1 to ", options_.max_hook_bytes,
                     " bytes, not ", plan.hook.size()));
  }
  if (plan.compression_start_step < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("compression_start_step must be at least 0, or -1 for "
                     "the hook's own, not ",
                     plan.compression_start_step));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> PlanRoom::Propose(absl::string_view job,
                                       int64_t expected_version,
                                       const Plan& plan) {
  COXSWAIN_RETURN_IF_ERROR(Validate(plan));
  const std::string name(job);
  MutexLock lock(&mutex_);
  const auto found = records_.find(name);
  if (found == records_.end()) return NoSuchJob(job);
  const Plans& plans = found->second.plans;
  if (plans.next.has_value() && plans.next->SameContent(plan)) {
    return *plans.next;
  }
  const int64_t newest = std::max(
      plans.current.version, plans.next.has_value() ? plans.next->version : 0);
  if (expected_version != newest) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the newest plan of job '", job, "' has version ", newest, ", not ",
        expected_version, "; read it and propose again"));
  }
  Record record = found->second;
  record.plans.next = plan;
  record.plans.next->version = newest + 1;
  StateBatch batch;
  AddToBatch(name, record, &batch);
  COXSWAIN_RETURN_IF_ERROR(store_->Apply(batch));
  found->second = std::move(record);
  LogInfo("plan_proposed", {{"job", job},
                            {"version", newest + 1},
                            {"hook", plan.hook},
                            {"accumulation", plan.accumulation_steps}});
  return *found->second.plans.next;
}

void PlanRoom::OnGenerationEnded(absl::string_view job, Generation generation,
                                 const absl::Status& /*reason*/) {
  MutexLock lock(&mutex_);
  const auto found = records_.find(std::string(job));
  // A newer generation may have begun before this news came.
  if (found != records_.end() && found->second.generation == generation) {
    found->second.running = false;
  }
}

}  // namespace coxswain::server
