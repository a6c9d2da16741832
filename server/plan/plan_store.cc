#include "server/plan/plan_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "schedule/bounds.h"
#include "schedule/terms.h"
#include "server/plan/plan_record.h"
#include "server/state/cluster_records.h"
#include "server/state/quarantine.h"

namespace coxswain::server {
namespace {

// One record per job in each, in the last for plans on trial only; all change
// in one batch.
constexpr char kPlanTables[] = "plan.";
constexpr char kCurrentTable[] = "plan.current";
constexpr char kBeforeTable[] = "plan.before";
constexpr char kNextTable[] = "plan.next";
constexpr char kManifestTable[] = "plan.manifest";
constexpr char kTrialTable[] = "plan.trial";
// Of a text that is refused, in the error.
constexpr size_t kMaxShownBytes = 128;

constexpr const char* kTables[] = {kCurrentTable, kBeforeTable, kNextTable,
                                   kManifestTable, kTrialTable};

void DeletePlan(absl::string_view job, StateBatch* batch) {
  for (const char* table : kTables) batch->Delete(table, job);
}

// Added to the mark of versions where it is not stored, and a plan that cannot
// be read may have had any: more than a job was ever given.
constexpr int64_t kUnreadMargin = int64_t{1} << 20;

bool IsPlanTable(absl::string_view table) {
  return absl::StartsWith(table, kPlanTables);
}

int64_t GlobalMicroBatches(int accumulation_steps, int data_ranks) {
  return static_cast<int64_t>(accumulation_steps) * data_ranks;
}

PlanRanks RanksOf(const Mesh& mesh, int world_size) {
  return {DataPlaceOf(mesh, 0, world_size).count, mesh.extent("pp")};
}

// Returns how many workers a record of kManifestTable was written for; 0: by a
// coordinator that did not note it.
int WorldOf(const schedule::Plan& settings) {
  if (settings.accumulation_steps < 1) return 0;
  return static_cast<int>(settings.global_micro_batches /
                          settings.accumulation_steps);
}

// Returns whether a plan leaves the global batch as it was with the one before.
bool KeepsGlobalBatch(const schedule::Plan& before,
                      const schedule::Plan& plan) {
  return before.terms.on_resize == schedule::OnResize::kKeepGlobalBatch &&
         plan.terms.on_resize == schedule::OnResize::kKeepGlobalBatch &&
         before.accumulation_steps == plan.accumulation_steps;
}

// By decisions, which there are with enforcement only.
bool CanBeProved(const schedule::Plan& plan) {
  return plan.terms.enforcement != schedule::Enforcement::kOff;
}

absl::Status NoSuchJob(absl::string_view job) {
  return absl::NotFoundError(absl::StrCat(
      "job '", job, "' has no plan: no generation of it has begun"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlanStore>> PlanStore::Load(
    const PlanOptions& options, StateStore* store) {
  std::unique_ptr<PlanStore> plans(new PlanStore(options, store));
  MutexLock lock(&plans->mutex_);
  COXSWAIN_RETURN_IF_ERROR(plans->LoadLocked());
  return plans;
}

schedule::Plan PlanStore::SettingsOf(const Record& record) {
  schedule::Plan settings;
  settings.Use(record.settings);
  settings.global_micro_batches = GlobalMicroBatches(
      settings.accumulation_steps, record.settings.data_ranks);
  return settings;
}

std::vector<std::string> PlanStore::TableNames() {
  return {std::begin(kTables), std::end(kTables)};
}

int64_t PlanStore::next_version() const {
  MutexLock lock(&mutex_);
  return next_version_;
}

absl::Status PlanStore::LoadLocked() {
  COXSWAIN_ASSIGN_OR_RETURN(const std::optional<int64_t> mark,
                            ReadNextPlanVersion(*store_));
  std::map<std::string, StoredPlan> stored;
  for (const std::string& table : TableNames()) {
    COXSWAIN_ASSIGN_OR_RETURN(auto records, store_->List(table));
    for (auto& [job, value] : records) stored[job][table] = std::move(value);
  }
  std::vector<UnreadableRecord> unreadable;
  int64_t unused = 1;
  for (const auto& [job, tables] : stored) {
    absl::StatusOr<Record> record = Decode(tables);
    if (record.ok() && mark.has_value() && VersionAfter(*record) > *mark) {
      record = absl::DataLossError(
          absl::StrCat("version ", VersionAfter(*record) - 1,
                       " was never given out; the next one is ", *mark));
    }
    if (record.ok()) {
      unused = std::max(unused, VersionAfter(*record));
      records_[job] = *std::move(record);
      continue;
    }
    for (const auto& [table, value] : tables) {
      unreadable.push_back({table, job, value, job,
                            absl::StrCat("the plan cannot be read: ",
                                         record.status().message())});
    }
  }
  next_version_ =
      mark.value_or(unused + (unreadable.empty() ? 0 : kUnreadMargin));
  COXSWAIN_RETURN_IF_ERROR(QuarantineRecords(unreadable, store_));
  COXSWAIN_ASSIGN_OR_RETURN(const auto quarantined, ListQuarantined(*store_));
  NoteQuarantinedLocked(quarantined);
  return absl::OkStatus();
}

void PlanStore::NoteQuarantined(
    const std::vector<QuarantinedRecord>& quarantined) {
  MutexLock lock(&mutex_);
  NoteQuarantinedLocked(quarantined);
}

void PlanStore::NoteQuarantinedLocked(
    const std::vector<QuarantinedRecord>& quarantined) {
  for (const QuarantinedRecord& record : quarantined) {
    names_lost_ = names_lost_ || !record.name_known;
    const std::string& job =
        IsPlanTable(record.table) ? record.key : record.job;
    if (!job.empty()) lost_.insert(job);
  }
  for (auto& [job, record] : records_) {
    if (names_lost_ || lost_.count(job) > 0) {
      record.least_version = next_version_;
    }
  }
}

absl::StatusOr<PlanStore::Record> PlanStore::Decode(const StoredPlan& stored) {
  const auto read =
      [&stored](
          const char* table) -> absl::StatusOr<std::optional<schedule::Plan>> {
    const auto found = stored.find(table);
    if (found == stored.end()) return std::optional<schedule::Plan>();
    absl::StatusOr<schedule::Plan> plan = DecodePlan(found->second);
    if (plan.ok()) return std::optional<schedule::Plan>(*std::move(plan));
    return absl::DataLossError(
        absl::StrCat(table, ": ", plan.status().message()));
  };
  Record record;
  COXSWAIN_ASSIGN_OR_RETURN(std::optional<schedule::Plan> current,
                            read(kCurrentTable));
  if (!current.has_value() || current->version < 1) {
    return absl::DataLossError(
        absl::StrCat(kCurrentTable, " has no plan with a version"));
  }
  record.plans.current = *std::move(current);
  COXSWAIN_ASSIGN_OR_RETURN(record.plans.before, read(kBeforeTable));
  COXSWAIN_ASSIGN_OR_RETURN(record.plans.next, read(kNextTable));
  COXSWAIN_ASSIGN_OR_RETURN(std::optional<schedule::Plan> own,
                            read(kManifestTable));
  if (own.has_value()) {
    static_cast<schedule::Settings&>(record.settings) = *own;
    record.settings.data_ranks = WorldOf(*own);
  }
  record.on_trial = stored.count(kTrialTable) > 0;
  return record;
}

int64_t PlanStore::VersionAfter(const Record& record) {
  const int64_t current = record.plans.current.version;
  return 1 + (record.plans.next.has_value()
                  ? std::max(current, record.plans.next->version)
                  : current);
}

int64_t PlanStore::AddMark(const Record& record, StateBatch* batch) const {
  MutexLock lock(&mutex_);
  const int64_t after = VersionAfter(record);
  if (after <= next_version_) return next_version_;
  PutNextPlanVersion(after, batch);
  return after;
}

absl::Status PlanStore::AddToBatch(const std::string& job, const Record& record,
                                   StateBatch* batch) {
  const schedule::Plan settings = SettingsOf(record);
  COXSWAIN_RETURN_IF_ERROR(schedule::CheckPlan(settings));
  COXSWAIN_RETURN_IF_ERROR(schedule::CheckPlan(record.plans.current));
  for (const auto* plan : {&record.plans.next, &record.plans.before}) {
    if (plan->has_value())
      COXSWAIN_RETURN_IF_ERROR(schedule::CheckPlan(**plan));
  }
  batch->Put(kCurrentTable, job, EncodePlan(record.plans.current));
  const auto add = [&](const char* table,
                       const std::optional<schedule::Plan>& plan) {
    if (plan.has_value()) {
      batch->Put(table, job, EncodePlan(*plan));
    } else {
      batch->Delete(table, job);
    }
  };
  add(kNextTable, record.plans.next);
  add(kBeforeTable, record.plans.before);
  batch->Put(kManifestTable, job, EncodePlan(settings));
  if (record.on_trial) {
    batch->Put(kTrialTable, job, "");
  } else {
    batch->Delete(kTrialTable, job);
  }
  return absl::OkStatus();
}

void PlanStore::Forget(absl::string_view job, StateBatch* batch) {
  MutexLock lock(&mutex_);
  const auto found = records_.find(job);
  if (found == records_.end()) return;
  DeletePlan(job, batch);
  records_.erase(found);
}

void PlanStore::KeepOnly(const std::set<std::string>& jobs) {
  MutexLock writing(&writing_);
  std::vector<StateBatch> batches;
  {
    MutexLock lock(&mutex_);
    if (names_lost_) return;
    for (auto it = records_.begin(); it != records_.end();) {
      if (jobs.count(it->first) != 0) {
        ++it;
        continue;
      }
      LogInfo("plan_dropped", {{"job", it->first},
                               {"reason", "there is no such job any more"}});
      if (batches.empty() ||
          batches.back().writes().size() >= StateStore::kMaxWrites / 2) {
        batches.emplace_back();
      }
      DeletePlan(it->first, &batches.back());
      it = records_.erase(it);
    }
  }
  for (const StateBatch& batch : batches) {
    const absl::Status dropped = store_->Apply(batch);
    if (dropped.ok()) continue;
    LogWarning("plans_not_dropped",
               {{"reason", dropped.ToString()},
                {"next", "tried again at the next start"}});
  }
}

bool PlanStore::Failed(const Record& record, PlanTrial last) {
  if (!record.on_trial) return false;
  // A program that asks for no decisions may follow the plan all the same.
  const bool has_decisions =
      record.first_decided.has_value() ||
      record.plans.current.at_step != schedule::Plan::kWithNextGeneration;
  if (record.unproved && has_decisions) return true;
  return last == PlanTrial::kFailed;
}

PlanStore::Record PlanStore::Next(const GenerationStart& start,
                                  const Settings& settings,
                                  const PlanRanks& ranks, Record record) {
  const bool failed = Failed(record, start.last);
  if (failed || start.last != PlanTrial::kUnknown) record.on_trial = false;
  schedule::Plan& current = record.plans.current;
  if (record.plans.next.has_value()) {
    current = *std::exchange(record.plans.next, std::nullopt);
    record.on_trial = true;
  } else if (current.version == 0 || failed ||
             !record.settings.SameSettings(settings)) {
    schedule::Plan own;
    own.version = std::max(current.version + 1, record.least_version);
    own.Use(settings);
    // Where only the trial is undone, the workers' global batch is, too.
    if (failed && record.settings.SameSettings(settings) &&
        KeepsGlobalBatch(current, own)) {
      own.global_micro_batches = current.global_micro_batches;
    }
    current = std::move(own);
    record.on_trial = false;
  }
  record.plans.before.reset();
  current.at_step = schedule::Plan::kWithNextGeneration;
  if (current.global_micro_batches == 0) {
    current.global_micro_batches =
        GlobalMicroBatches(current.accumulation_steps, settings.data_ranks);
  }
  record.settings = settings;
  record.generation = start.generation;
  record.ranks = ranks;
  record.running = true;
  record.unproved = record.on_trial && CanBeProved(current);
  record.first_decided.reset();
  return record;
}

absl::Status PlanStore::CheckWindow(const schedule::Plan& plan,
                                    int data_ranks) const {
  if (plan.terms.on_resize != schedule::OnResize::kKeepGlobalBatch ||
      data_ranks < 1) {
    return absl::OkStatus();
  }
  const int64_t largest = (plan.global_micro_batches - 1) / data_ranks + 1;
  if (largest <= options_.max_accumulation_steps) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("on_resize=keep_global_batch gives each of ", data_ranks,
                   " workers ", largest, " of the ", plan.global_micro_batches,
                   " micro-batches of a step; max_accumulation_steps is ",
                   options_.max_accumulation_steps,
                   "; start more workers, or with on_resize=keep_local_batch"));
}

absl::StatusOr<schedule::Plan> PlanStore::BeginGeneration(
    GenerationStart start) {
  Settings settings;
  static_cast<schedule::StepSettings&>(settings) = start.settings;
  COXSWAIN_ASSIGN_OR_RETURN(settings.terms, schedule::ReadTerms(start.terms));
  const PlanRanks ranks = RanksOf(start.mesh, start.world_size);
  settings.data_ranks = ranks.data;
  const absl::Status pending = ProvePending(start, settings, ranks);

  MutexLock writing(&writing_);
  Record before;
  {
    MutexLock lock(&mutex_);
    const auto found = records_.find(start.job);
    if (found != records_.end()) {
      before = found->second;
    } else if (start.follows || names_lost_ || lost_.count(start.job) > 0) {
      // It has had plans of which nothing is known, or may have.
      before.least_version = next_version_;
    }
  }
  if (!pending.ok() && before.plans.next.has_value()) {
    LogWarning("proposed_plan_dropped",
               {{"job", start.job},
                {"version", before.plans.next->version},
                {"hook", before.plans.next->hook},
                {"reason", pending.message()}});
    before.least_version =
        std::max(before.least_version, before.plans.next->version + 1);
    before.plans.next.reset();
  }
  Record record = Next(start, settings, ranks, before);
  COXSWAIN_RETURN_IF_ERROR(
      CheckWindow(record.plans.current, settings.data_ranks));

  StateBatch& batch = start.batch;
  COXSWAIN_RETURN_IF_ERROR(AddToBatch(start.job, record, &batch));
  const int64_t mark = AddMark(record, &batch);
  COXSWAIN_RETURN_IF_ERROR(store_->Apply(batch));
  if (Failed(before, start.last)) {
    LogWarning(
        "proposed_plan_dropped",
        {{"job", start.job},
         {"version", before.plans.current.version},
         {"hook", before.plans.current.hook},
         {"reason", before.unproved
                        ? "the generation ended before it made a step with it"
                        : "its generation ended before any worker reported a "
                          "step"},
         {"now", record.plans.current.hook}});
  }
  MutexLock lock(&mutex_);
  next_version_ = mark;
  return (records_[start.job] = std::move(record)).plans.current;
}

absl::StatusOr<PlanStore::Plans> PlanStore::Get(absl::string_view job) const {
  MutexLock lock(&mutex_);
  const auto found = records_.find(job);
  if (found == records_.end()) return NoSuchJob(job);
  return found->second.plans;
}

absl::Status PlanStore::Validate(const schedule::Plan& plan) const {
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
  if (HasControls(plan.hook)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the hook spec, '",
                     absl::CHexEscape(Shorten(plan.hook, kMaxShownBytes)),
                     "', has control characters"));
  }
  COXSWAIN_RETURN_IF_ERROR(schedule::CheckPlan(plan));
  return plan.terms.Validate();
}

absl::Status PlanStore::CheckTiming(absl::string_view job, const Record& record,
                                    const schedule::Plan& plan) {
  if (plan.at_step == schedule::Plan::kWithNextGeneration)
    return absl::OkStatus();
  constexpr char kAdvice[] = "; propose it for the next generation (at_step 0)";
  if (!record.running) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job '", job, "' does not run, so no step of it can have a new plan",
        kAdvice));
  }
  if (record.plans.current.terms.enforcement == schedule::Enforcement::kOff) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", job,
                     "' runs with enforcement=off: its workers agree on no "
                     "step at which its plan could change",
                     kAdvice));
  }
  return absl::OkStatus();
}

schedule::Plan PlanStore::Successor(const Record& record,
                                    const schedule::Plan& proposal) {
  const schedule::Plan& current = record.plans.current;
  const schedule::Plan& newest = record.plans.next.value_or(current);
  schedule::Plan plan = proposal;
  plan.version = std::max(newest.version + 1, record.least_version);
  plan.global_micro_batches =
      KeepsGlobalBatch(newest, plan)
          ? newest.global_micro_batches
          : GlobalMicroBatches(plan.accumulation_steps,
                               record.settings.data_ranks);
  return plan;
}

std::optional<PlanStore::Record> PlanStore::Find(absl::string_view job) const {
  MutexLock lock(&mutex_);
  const auto found = records_.find(job);
  if (found == records_.end()) return std::nullopt;
  return found->second;
}

absl::Status PlanStore::Store(absl::string_view job, Record record) {
  StateBatch batch;
  COXSWAIN_RETURN_IF_ERROR(AddToBatch(std::string(job), record, &batch));
  const int64_t mark = AddMark(record, &batch);
  COXSWAIN_RETURN_IF_ERROR(store_->Apply(batch));
  {
    MutexLock lock(&mutex_);
    next_version_ = mark;
    const auto found = records_.find(job);
    if (found != records_.end()) {
      record.running = found->second.running;  // it may have ended
      found->second = std::move(record);
      return absl::OkStatus();
    }
  }
  // Its removal may have been committed before.
  StateBatch removal;
  DeletePlan(job, &removal);
  COXSWAIN_RETURN_IF_ERROR(store_->Apply(removal));
  return NoSuchJob(job);
}

std::optional<absl::StatusOr<schedule::Plan>> PlanStore::AnswerTo(
    absl::string_view job, const Record& record, int64_t expected_version,
    const schedule::Plan& plan) {
  const std::optional<schedule::Plan>& next = record.plans.next;
  const schedule::Plan& current = record.plans.current;
  // A repetition; the first may be in force already.
  if (next.has_value() && next->SameSettings(plan) &&
      next->at_step == plan.at_step) {
    return *next;
  }
  if (!next.has_value() && current.version == expected_version + 1 &&
      current.SameSettings(plan)) {
    return current;
  }
  const int64_t newest = next.value_or(current).version;
  if (expected_version == newest) return std::nullopt;
  return absl::FailedPreconditionError(
      absl::StrCat("the newest plan of job '", job, "' has version ", newest,
                   ", not ", expected_version, "; read it and propose again"));
}

absl::Status PlanStore::ProvePipeline(const schedule::Terms& from,
                                      const schedule::Plan& to,
                                      const PlanRanks& ranks) {
  if (!ConcernsPipeline(from, to.terms)) return absl::OkStatus();
  if (ActionsToProve(to, ranks) <= kQuickProof) {
    return CheckPipelineChange(from, to, ranks);
  }
  const ProofTurn turn(&proving_);
  if (turn.ok()) return CheckPipelineChange(from, to, ranks);
  return absl::ResourceExhaustedError(
      "the coordinator proves the pipeline of another proposal, one large one "
      "at a time; propose again in some seconds");
}

absl::Status PlanStore::ProvePending(const GenerationStart& start,
                                     const Settings& settings,
                                     const PlanRanks& ranks) {
  const std::optional<Record> record = Find(start.job);
  if (!record.has_value() || !record->plans.next.has_value()) {
    return absl::OkStatus();
  }
  const schedule::Plan& next = *record->plans.next;
  // What was proved when it was accepted holds for the same windows.
  const bool same_windows =
      record->ranks.data == ranks.data ||
      next.terms.on_resize == schedule::OnResize::kKeepLocalBatch;
  if (record->ranks.pipeline == ranks.pipeline && same_windows &&
      record->settings.terms.pipeline == settings.terms.pipeline) {
    return absl::OkStatus();
  }
  if (!ConcernsPipeline(settings.terms, next.terms)) return absl::OkStatus();
  const int64_t actions = ActionsToProve(next, ranks);
  if (actions <= kQuickProof) {
    return CheckPipelineChange(settings.terms, next, ranks);
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "the job began with other ranks, for which its schedule has ", actions,
      " actions: more than ", kQuickProof,
      " are not proved while a job begins; propose it again"));
}

absl::StatusOr<schedule::Plan> PlanStore::Propose(absl::string_view job,
                                                  int64_t expected_version,
                                                  const schedule::Plan& plan) {
  COXSWAIN_RETURN_IF_ERROR(Validate(plan));
  const std::optional<Record> seen = Find(job);
  if (!seen.has_value()) return NoSuchJob(job);
  if (auto answer = AnswerTo(job, *seen, expected_version, plan)) {
    return *std::move(answer);
  }
  COXSWAIN_RETURN_IF_ERROR(ProvePipeline(seen->plans.current.terms,
                                         Successor(*seen, plan), seen->ranks));

  MutexLock writing(&writing_);
  std::optional<Record> found = Find(job);
  if (!found.has_value()) return NoSuchJob(job);
  Record& record = *found;
  if (auto answer = AnswerTo(job, record, expected_version, plan)) {
    return *std::move(answer);
  }
  if (record.generation != seen->generation &&
      ConcernsPipeline(record.plans.current.terms, plan.terms)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "another generation of job '", job,
        "' began while the plan's pipeline was proved; propose again"));
  }
  COXSWAIN_RETURN_IF_ERROR(CheckTiming(job, record, plan));
  const schedule::Plan successor = Successor(record, plan);
  record.plans.next = successor;
  COXSWAIN_RETURN_IF_ERROR(Store(job, std::move(record)));
  LogInfo("plan_proposed",
          {{"job", job},
           {"version", successor.version},
           {"hook", successor.hook},
           {"accumulation_steps", successor.accumulation_steps},
           {"accumulation", successor.accumulation_steps},
           {"at_step", successor.at_step}});
  return successor;
}

bool PlanStore::Concerns(const Record& record, int64_t step) {
  return IsDue(record, step) ||
         (record.unproved && step > record.plans.current.at_step);
}

bool PlanStore::IsDue(const Record& record, int64_t step) {
  const std::optional<schedule::Plan>& next = record.plans.next;
  return next.has_value() &&
         next->at_step != schedule::Plan::kWithNextGeneration &&
         next->at_step <= step;
}

absl::StatusOr<std::optional<schedule::Plan>> PlanStore::TakeEffect(
    absl::string_view job, Generation generation, int64_t step) {
  const auto find = [&]() -> std::optional<Record> {
    std::optional<Record> found = Find(job);
    if (!found.has_value() || found->generation != generation ||
        !Concerns(*found, step)) {
      return std::nullopt;
    }
    return found;
  };
  // Most steps do not wait for the commit of another job.
  if (!find().has_value()) return std::nullopt;
  MutexLock writing(&writing_);
  std::optional<Record> found = find();
  if (!found.has_value()) return std::nullopt;
  Record& record = *found;
  NoteDecided(job, step, &record);
  if (!IsDue(record, step)) return std::nullopt;
  schedule::Plan& current = record.plans.current;
  record.plans.before = current;
  current = *std::exchange(record.plans.next, std::nullopt);
  current.at_step = step;
  if (current.global_micro_batches == 0) {
    current.global_micro_batches = GlobalMicroBatches(
        current.accumulation_steps, record.settings.data_ranks);
  }
  record.on_trial = record.unproved = CanBeProved(current);
  record.first_decided.reset();
  schedule::Plan plan = current;
  COXSWAIN_RETURN_IF_ERROR(Store(job, std::move(record)));
  return plan;
}

void PlanStore::NoteDecided(absl::string_view job, int64_t step,
                            Record* record) {
  if (!record->unproved || step <= record->plans.current.at_step) return;
  if (!record->first_decided.has_value()) {
    record->first_decided = step;
    MutexLock lock(&mutex_);
    const auto found = records_.find(job);
    if (found != records_.end()) found->second.first_decided = step;
  }
  // Who decides on the step after its first one has made that one.
  if (step > *record->first_decided) Prove(job, record);
}

void PlanStore::Prove(absl::string_view job, Record* record) {
  record->on_trial = false;
  record->unproved = false;
  const absl::Status stored = Store(job, *record);
  if (stored.ok() || absl::IsNotFound(stored)) return;
  // It counts while this process lives.
  {
    MutexLock lock(&mutex_);
    const auto found = records_.find(job);
    if (found != records_.end()) {
      found->second.on_trial = found->second.unproved = false;
    }
  }
  LogWarning("plan_trial_not_stored",
             {{"job", job}, {"reason", stored.ToString()}});
}

absl::Status PlanStore::OnResume(
    const std::vector<GenerationResumed>& running) {
  MutexLock lock(&mutex_);
  for (const GenerationResumed& resumed : running) {
    const auto found = records_.find(resumed.begin.job);
    if (found == records_.end()) continue;
    Record& record = found->second;
    record.generation = resumed.begin.generation;
    record.ranks = RanksOf(resumed.begin.mesh, resumed.begin.world_size);
    record.running = true;
    record.unproved = record.on_trial && CanBeProved(record.plans.current);
  }
  return absl::OkStatus();
}

// Its plan let it finish.
void PlanStore::OnMemberLeft(absl::string_view job, Generation generation,
                             int /*rank*/) {
  const auto find = [&]() -> std::optional<Record> {
    std::optional<Record> found = Find(job);
    if (!found.has_value() || found->generation != generation ||
        !found->unproved) {
      return std::nullopt;
    }
    return found;
  };
  if (!find().has_value()) return;
  MutexLock writing(&writing_);
  std::optional<Record> found = find();
  if (found.has_value()) Prove(job, &*found);
}

void PlanStore::OnGenerationEnded(absl::string_view job, Generation generation,
                                  const absl::Status& /*reason*/) {
  MutexLock lock(&mutex_);
  const auto found = records_.find(job);
  // A newer generation may have begun before this news came.
  if (found != records_.end() && found->second.generation == generation) {
    found->second.running = false;
  }
}

}  // namespace coxswain::server
