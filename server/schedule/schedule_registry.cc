#include "server/schedule/schedule_registry.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "schedule/bounds.h"
#include "server/generation/job_name.h"
#include "server/schedule/position_record.h"
#include "server/state/quarantine.h"

namespace coxswain::server {
namespace {

// The last decision of each stream of a generation, by stream.
constexpr char kTablePrefix[] = "schedule/";

std::string TableOf(Generation generation) {
  return absl::StrCat(kTablePrefix, generation.value());
}

}  // namespace

ScheduleRegistry::RunPtr ScheduleRegistry::Find(absl::string_view job,
                                                Generation generation) const {
  MutexLock lock(&mutex_);
  const auto found = runs_.find(job);
  if (found == runs_.end() || found->second->generation != generation) {
    return nullptr;
  }
  return found->second;
}

std::vector<ScheduleRegistry::RunPtr> ScheduleRegistry::AllRuns() const {
  MutexLock lock(&mutex_);
  std::vector<RunPtr> all;
  all.reserve(runs_.size());
  for (const auto& entry : runs_) all.push_back(entry.second);
  return all;
}

absl::Status ScheduleRegistry::OnTicket(const AttachedRank& attached,
                                        absl::string_view stream,
                                        const schedule::Ticket& ticket) {
  return DoFor(attached,
               [&](JobSchedule* schedule, JobSchedule::Effects* effects) {
                 return schedule->OnTicket(attached.rank, stream, ticket,
                                           deps_.clock->Now(), effects);
               });
}

absl::Status ScheduleRegistry::OnVote(const AttachedRank& attached,
                                      absl::string_view stream,
                                      const schedule::Vote& vote) {
  return DoFor(attached,
               [&](JobSchedule* schedule, JobSchedule::Effects* effects) {
                 return schedule->OnVote(attached.rank, stream, vote,
                                         deps_.clock->Now(), effects);
               });
}

absl::Status ScheduleRegistry::OnPosition(const AttachedRank& attached,
                                          absl::string_view stream,
                                          const schedule::Decision& last) {
  return DoFor(attached,
               [&](JobSchedule* schedule, JobSchedule::Effects* effects) {
                 return schedule->OnPosition(attached.rank, stream, last,
                                             deps_.clock->Now(), effects);
               });
}

schedule::Epoch ScheduleRegistry::OnAttached(const AttachedRank& attached) {
  const RunPtr run = Find(attached.job, attached.generation);
  if (run == nullptr) return {};
  MutexLock lock(&run->mutex);
  Sender& sender = run->senders[static_cast<size_t>(attached.rank)];
  if (sender.attachment < attached.attachment) {
    sender = {attached.attachment, run->epoch};
  }
  return run->epoch;
}

absl::Status ScheduleRegistry::OnFallbackReport(const AttachedRank& attached,
                                                int64_t fallback_epoch) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const schedule::Epoch epoch,
      schedule::EpochFromWire(fallback_epoch, deps_.membership->term().value(),
                              /*lowest=*/1));
  const RunPtr run = Find(attached.job, attached.generation);
  if (run == nullptr) return absl::OkStatus();
  {
    MutexLock lock(&run->mutex);
    Sender& sender = run->senders[static_cast<size_t>(attached.rank)];
    if (sender.attachment != attached.attachment) return absl::OkStatus();
    sender.epoch = std::max(sender.epoch, epoch);
    if (!RaiseEpochLocked(epoch, run.get())) return absl::OkStatus();
  }
  CutOffOthers(*run, epoch, attached.rank);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ScheduleRegistry::RequestCheckpoint(
    absl::string_view job, absl::string_view reason) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<JobDescription> jobs,
                            deps_.membership->Describe(job));
  const RunPtr run = Find(job, jobs.front().generation);
  if (run == nullptr || jobs.front().state != JobState::kRunning) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", job, "' is ", ToString(jobs.front().state),
                     ", so no rank has a state to save"));
  }
  int64_t newest_step = 0;
  COXSWAIN_RETURN_IF_ERROR(
      Do(run, [&](JobSchedule* schedule, JobSchedule::Effects* /*effects*/) {
        newest_step = schedule->newest_step();
        return schedule->OnCheckpointWanted(reason);
      }));
  return newest_step;
}

void ScheduleRegistry::OnRegroupWanted(absl::string_view job,
                                       Generation generation,
                                       absl::string_view reason) {
  const RunPtr run = Find(job, generation);
  if (run == nullptr) return;
  Do(run, [&](JobSchedule* schedule, JobSchedule::Effects* /*effects*/) {
    schedule->OnRegroupWanted(reason);
    return absl::OkStatus();
  }).IgnoreError();
}

void ScheduleRegistry::OnCatchUpWanted(
    absl::string_view job, Generation generation,
    const std::vector<schedule::Newcomer>& newcomers) {
  const RunPtr run = Find(job, generation);
  if (run == nullptr) return;
  Do(run, [&](JobSchedule* schedule, JobSchedule::Effects* /*effects*/) {
    schedule->OnCatchUpWanted(newcomers);
    return absl::OkStatus();
  }).IgnoreError();
}

absl::Status ScheduleRegistry::OnLeaving(absl::string_view job,
                                         Generation generation,
                                         const FinalState& state) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const schedule::Epoch epoch,
      schedule::EpochFromWire(state.fallback_epoch,
                              deps_.membership->term().value()));
  const RunPtr run = Find(job, generation);
  if (run == nullptr) return absl::OkStatus();
  bool begins = false;
  // All of it is checked before any of it counts. A later epoch makes another
  // schedule in the place of this one.
  const auto act =
      [&](JobSchedule*, JobSchedule::Effects* effects)
          ABSL_NO_THREAD_SAFETY_ANALYSIS {
            std::optional<JobSchedule>& schedule = run->schedule;
            COXSWAIN_RETURN_IF_ERROR(schedule->CheckPositions(state.positions));
            begins = RaiseEpochLocked(epoch, run.get());
            for (const JobSchedule::Position& position : state.positions) {
              COXSWAIN_RETURN_IF_ERROR(schedule->OnPosition(
                  state.rank, position.stream, position.decision,
                  deps_.clock->Now(), effects));
              KeepLocked(position, run.get());
            }
            return absl::OkStatus();
          };
  COXSWAIN_RETURN_IF_ERROR(Do(run, act));
  if (begins) CutOffOthers(*run, epoch, state.rank);
  for (const JobSchedule::Position& position : state.positions) {
    Keep(run, position.stream);
  }
  return absl::OkStatus();
}

absl::Status ScheduleRegistry::DoFor(const AttachedRank& attached, Action act) {
  const RunPtr run = Find(attached.job, attached.generation);
  if (run == nullptr) return absl::OkStatus();
  const auto counts = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Sender& sender = run->senders[static_cast<size_t>(attached.rank)];
    return sender.attachment == attached.attachment &&
           !(sender.epoch < run->epoch);
  };
  return Do(run, [&](JobSchedule* schedule, JobSchedule::Effects* effects) {
    return counts() ? act(schedule, effects) : absl::OkStatus();
  });
}

void ScheduleRegistry::CutOffOthers(const Run& run,
                                    const schedule::Epoch& epoch, int rank) {
  LogInfo("resumed_from_fallback", {{"job", run.job},
                                    {"generation", run.generation.value()},
                                    {"rank", rank},
                                    {"fallback_epoch", epoch.fallback}});
  deps_.membership->CutOffOthers(
      run.job, run.generation, rank,
      // Not UNAVAILABLE: they are to come here again, and nowhere else.
      absl::CancelledError(absl::StrCat(
          "rank ", rank, " reports fallback epoch ", epoch.fallback,
          ": attach again, and send your positions")));
}

bool ScheduleRegistry::RaiseEpochLocked(const schedule::Epoch& epoch,
                                        Run* run) const {
  if (!(run->epoch < epoch) || run->schedule->ended()) return false;
  run->epoch = epoch;
  run->outbox.DropDecisions();
  JobSchedule::ResumedFrom from;
  from.epoch = epoch;
  from.checkpoint = run->schedule->checkpoint_wanted();
  from.newest_step = run->schedule->newest_step();
  from.left = run->schedule->Left();
  for (const auto& [stream, last] : run->kept) {
    from.positions.push_back({stream, last});
  }
  GenerationBegin begin = run->begin;
  const absl::StatusOr<PlanStore::Plans> plans = deps_.plans->Get(run->job);
  if (plans.ok()) {
    begin.plan = plans->current;
    from.plan_before = plans->before;
  }
  const std::string regroup = run->schedule->regroup_wanted();
  const absl::Time now = deps_.clock->Now();
  run->schedule.emplace(limits_, begin, now, run->asks);
  run->schedule->Resume(from, now);
  if (!regroup.empty()) run->schedule->OnRegroupWanted(regroup);
  return true;
}

absl::Status ScheduleRegistry::Do(const RunPtr& run, Action act) {
  JobSchedule::Effects effects;
  absl::Status status;
  {
    MutexLock lock(&run->mutex);
    status = act(&*run->schedule, &effects);
    run->outbox.Add(std::move(effects), run->epoch);
    if (run->outbox.empty()) return status;
    if (std::exchange(run->emptying, true)) return status;
  }
  Empty(run);
  return status;
}

void ScheduleRegistry::Empty(const RunPtr& run) {
  for (size_t done = 0;; ++done) {
    JobSchedule::Effects effects;
    {
      MutexLock lock(&run->mutex);
      // Others may go on and on; who comes next does the rest, at last Tick().
      if (run->outbox.empty() || done >= run->turn) {
        run->emptying = false;
        return;
      }
      effects = run->outbox.Take();
    }
    CarryOut(run, effects);
  }
}

void ScheduleRegistry::CarryOut(const RunPtr& run,
                                const JobSchedule::Effects& effects) {
  if (effects.plan.has_value()) {
    deps_.membership->NotePlan(run->job, run->generation, *effects.plan);
    LogInfo("plan_in_force",
            {{"job", run->job},
             {"generation", run->generation.value()},
             {"version", effects.plan->version},
             {"step", effects.plan->at_step},
             {"hook", effects.plan->hook},
             {"accumulation_steps", effects.plan->accumulation_steps},
             {"accumulation", effects.plan->accumulation_steps}});
  }
  for (const schedule::Message& message : effects.messages) {
    if (message.kind != schedule::Message::Kind::kWarning) continue;
    LogWarning("schedule_warning", {{"job", run->job},
                                    {"generation", run->generation.value()},
                                    {"warning", message.text}});
  }
  if (!effects.messages.empty()) {
    deps_.membership->SendMessages(run->job, run->generation, effects.messages);
  }
  NoteRegroups(run, effects);
  for (const JobSchedule::Position& position : effects.positions) {
    if (!position.decision.checkpoint.empty()) {
      LogInfo("checkpoint_decided", {{"job", run->job},
                                     {"generation", run->generation.value()},
                                     {"round", position.decision.round},
                                     {"reason", position.decision.checkpoint}});
    }
    if (position.decision.regroup.empty()) continue;
    LogInfo("regroup_decided", {{"job", run->job},
                                {"generation", run->generation.value()},
                                {"round", position.decision.round},
                                {"reason", position.decision.regroup}});
  }
  if (effects.failure.ok()) return;
  LogError("schedule_failed", {{"job", run->job},
                               {"generation", run->generation.value()},
                               {"reason", effects.failure.message()}});
  deps_.membership->AbortGeneration(run->job, run->generation, effects.failure);
}

// What of it no rank had received may have been decided otherwise since: by the
// fallback coordinator, or by ranks that have received its decisions.
void ScheduleRegistry::NoteRegroups(const RunPtr& run,
                                    const JobSchedule::Effects& effects) {
  std::optional<bool> decided;
  {
    MutexLock lock(&run->mutex);
    for (const auto& [stream, decision] : effects.positions) {
      if (stream != schedule::kTrainStream ||
          decision.round < run->regroup_round) {
        continue;
      }
      decided = !decision.regroup.empty();
      if (*decided) run->regroup_round = decision.round;
    }
  }
  if (!decided.has_value()) return;
  deps_.membership->NoteRegroup(run->job, run->generation, *decided);
}

void ScheduleRegistry::KeepLocked(const JobSchedule::Position& position,
                                  Run* run) {
  if (run->schedule->over()) return;
  const auto [known, is_new] =
      run->kept.emplace(position.stream, position.decision);
  if (is_new || known->second.round >= position.decision.round) return;
  known->second = position.decision;
}

void ScheduleRegistry::Keep(const RunPtr& run, const std::string& stream) {
  MutexLock handing(&run->handing);
  StateBatch batch;
  {
    MutexLock lock(&run->mutex);
    const auto known = run->kept.find(stream);
    if (run->schedule->ended() || known == run->kept.end()) return;
    int64_t& handed = run->handed.emplace(stream, -1).first->second;
    if (handed >= known->second.round) return;
    handed = known->second.round;
    batch.Put(TableOf(run->generation), stream, EncodePosition(known->second));
  }
  deps_.state->Write(std::move(batch), [run, stream](absl::Status status) {
    if (status.ok()) return;
    LogWarning("position_not_kept", {{"job", run->job},
                                     {"stream", stream},
                                     {"reason", status.ToString()},
                                     {"next", "other ranks may know it"}});
  });
}

std::optional<schedule::Plan> ScheduleRegistry::NextPlan(const std::string& job,
                                                         Generation generation,
                                                         int64_t step) {
  absl::StatusOr<std::optional<schedule::Plan>> plan =
      deps_.plans->TakeEffect(job, generation, step);
  if (plan.ok()) return *std::move(plan);
  LogError("plan_not_in_force", {{"job", job},
                                 {"step", step},
                                 {"reason", plan.status().ToString()},
                                 {"next", "tried again at the next step"}});
  return std::nullopt;
}

std::string ScheduleRegistry::NameOf(const std::string& job,
                                     Generation generation, int rank) const {
  const auto members = deps_.membership->MembersOf(job, generation);
  const auto index = static_cast<size_t>(rank);
  if (!members.ok() || index >= members->size()) return "";
  return (*members)[index].member.Place();
}

std::vector<MemberDescription> ScheduleRegistry::MembersOf(
    const Run& run) const {
  return deps_.membership->MembersOf(run.job, run.generation)
      .value_or(std::vector<MemberDescription>());
}

void ScheduleRegistry::Tick(absl::Time now) {
  absl::Duration pause;
  {
    MutexLock lock(&mutex_);
    pause = now - last_tick_.value_or(now);
    last_tick_ = now;
  }
  for (const RunPtr& run : AllRuns()) TickRun(run, pause, now);
}

void ScheduleRegistry::TickRun(const RunPtr& run, absl::Duration pause,
                               absl::Time now) {
  std::vector<absl::Time> signs;
  bool look = false;
  {
    MutexLock lock(&run->mutex);
    if (run->schedule->ended()) return;
    signs = run->schedule->TakeSigns();
    look = run->schedule->next_look() <= now || !run->outbox.empty();
  }
  if (!signs.empty()) {
    deps_.membership->NoteSigns(run->job, run->generation, signs);
  }
  if (!look) return;
  const std::vector<MemberDescription> members = MembersOf(*run);
  Do(run, [&](JobSchedule* schedule, JobSchedule::Effects* effects) {
    schedule->NotePause(pause, now);
    if (schedule->next_look() <= now) schedule->Tick(members, now, effects);
    return absl::OkStatus();
  }).IgnoreError();
}

absl::StatusOr<WhyReport> ScheduleRegistry::Why(absl::string_view job) const {
  // Membership takes no name for all jobs, of which there may be none.
  COXSWAIN_RETURN_IF_ERROR(ValidateJobName(job));
  const auto jobs = deps_.membership->Describe(job);
  if (!jobs.ok()) return jobs.status();
  const JobDescription& description = jobs->front();
  WhyReport report;
  report.state = std::string(ToString(description.state));
  report.generation = description.generation;
  report.last_event = description.last_event;
  report.last_event_at = description.last_event_at;
  report.last_event_age = description.last_event_age;
  report.forming = description.forming;
  const RunPtr run = Find(job, description.generation);
  if (run == nullptr) {
    report.schedule = ReportWithout(description);
    if (description.last_event_at > absl::InfinitePast()) {
      report.ended = description.last_event_age;
    }
    return report;
  }
  const std::vector<MemberDescription> members = MembersOf(*run);
  MutexLock lock(&run->mutex);
  const absl::Time now = deps_.clock->Now();
  report.schedule = run->schedule->Report(members, now);
  report.ended = now - report.schedule.at;
  return report;
}

ScheduleReport ScheduleRegistry::ReportWithout(
    const JobDescription& job) const {
  ScheduleReport report;
  report.at = job.last_event_at;
  if (!job.last_event.empty()) report.findings.push_back(job.last_event);
  if (job.generation == Generation(0)) {
    if (!job.forming.empty() && job.last_event.empty()) {
      report.findings.push_back(absl::StrCat(
          "no generation of the job has begun yet: ", job.forming));
    }
    return report;
  }
  const auto members = deps_.membership->MembersOf(job.job, job.generation);
  bool restored = !members.ok() || members->empty();
  if (members.ok()) {
    for (const MemberDescription& member : *members) {
      restored = restored || member.restored;
      RankReport rank;
      rank.member = member;
      rank.idle = member.idle;
      report.ranks.push_back(std::move(rank));
    }
  }
  report.findings.push_back(
      restored ? "the coordinator was restarted since then: where the ranks "
                 "were in their schedule is not known any more"
               : "where the ranks were in their schedule is not known any "
                 "more: that is kept of the newest jobs only");
  return report;
}

std::optional<RankWait> ScheduleRegistry::WaitOf(
    const JobDescription& job) const {
  if (job.state != JobState::kRunning) return std::nullopt;
  const RunPtr run = Find(job.job, job.generation);
  if (run == nullptr) return std::nullopt;
  MutexLock lock(&run->mutex);
  return run->schedule->WaitOf(job.members, deps_.clock->Now());
}

std::optional<PipelineReport> ScheduleRegistry::PipelineOf(
    const JobDescription& job) const {
  if (job.state != JobState::kRunning) return std::nullopt;
  const RunPtr run = Find(job.job, job.generation);
  if (run == nullptr) return std::nullopt;
  MutexLock lock(&run->mutex);
  return run->schedule->PipelineOf(job.members);
}

void ScheduleRegistry::EvictLocked() {
  if (runs_.size() < static_cast<size_t>(limits_.max_jobs)) return;
  auto oldest = runs_.end();
  for (auto it = runs_.begin(); it != runs_.end(); ++it) {
    MutexLock lock(&it->second->mutex);
    if (!it->second->schedule->ended()) continue;
    if (oldest == runs_.end() ||
        it->second->generation < oldest->second->generation) {
      oldest = it;
    }
  }
  if (oldest != runs_.end()) runs_.erase(oldest);
}

ScheduleRegistry::RunPtr ScheduleRegistry::MakeRun(
    const GenerationBegin& begin) {
  JobSchedule::Asks asks;
  asks.heartbeat_interval = deps_.membership->heartbeat_interval();
  asks.next_plan = [this, job = begin.job,
                    generation = begin.generation](int64_t step) {
    return NextPlan(job, generation, step);
  };
  asks.name_of = [this, job = begin.job, generation = begin.generation](
                     int rank) { return NameOf(job, generation, rank); };
  return std::make_shared<Run>(limits_, begin, deps_.membership->term(),
                               deps_.clock->Now(), std::move(asks));
}

void ScheduleRegistry::OnGenerationBegan(const GenerationBegin& begin) {
  const RunPtr run = MakeRun(begin);
  MutexLock lock(&mutex_);
  if (runs_.count(begin.job) == 0) EvictLocked();
  runs_[begin.job] = run;
}

absl::Status ScheduleRegistry::OnResume(
    const std::vector<GenerationResumed>& running) {
  std::set<std::string> tables;
  for (const GenerationResumed& resumed : running) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto read, ReadResumed(resumed));
    // The membership ends it.
    if (!read.has_value()) continue;
    const JobSchedule::ResumedFrom& from = *read;
    tables.insert(TableOf(resumed.begin.generation));
    GenerationBegin begin = resumed.begin;
    const absl::StatusOr<PlanStore::Plans> plans = deps_.plans->Get(begin.job);
    if (plans.ok()) begin.plan = plans->current;
    const RunPtr run = MakeRun(begin);
    {
      MutexLock lock(&run->mutex);
      run->schedule->Resume(from, deps_.clock->Now());
      for (const JobSchedule::Position& position : from.positions) {
        run->kept[position.stream] = position.decision;
      }
    }
    MutexLock lock(&mutex_);
    runs_[begin.job] = run;
  }
  return DropTables(tables);
}

absl::StatusOr<std::optional<JobSchedule::ResumedFrom>>
ScheduleRegistry::ReadResumed(const GenerationResumed& resumed) const {
  JobSchedule::ResumedFrom from;
  from.epoch.term = deps_.membership->term().value() - 1;
  from.left = resumed.left;
  const absl::StatusOr<PlanStore::Plans> plans =
      deps_.plans->Get(resumed.begin.job);
  if (plans.ok()) from.plan_before = plans->before;
  const std::string table = TableOf(resumed.begin.generation);
  COXSWAIN_ASSIGN_OR_RETURN(const auto records, deps_.state->List(table));
  std::vector<UnreadableRecord> unreadable;
  for (const auto& [stream, record] : records) {
    absl::StatusOr<schedule::Decision> decision = DecodePosition(record);
    if (decision.ok() &&
        !schedule::CheckStreamName(stream, limits_.max_stream_bytes).ok()) {
      decision = absl::InvalidArgumentError("its key names no stream");
    }
    if (decision.ok()) {
      from.positions.push_back({stream, *std::move(decision)});
      continue;
    }
    unreadable.push_back({table, stream, record, resumed.begin.job,
                          absl::StrCat("the position in the stream cannot be "
                                       "read: ",
                                       decision.status().message())});
  }
  COXSWAIN_RETURN_IF_ERROR(QuarantineRecords(unreadable, deps_.state));
  if (!unreadable.empty()) return std::optional<JobSchedule::ResumedFrom>();
  return std::optional<JobSchedule::ResumedFrom>(std::move(from));
}

absl::Status ScheduleRegistry::DropTables(const std::set<std::string>& kept) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto tables,
                            deps_.state->Tables(kTablePrefix));
  for (const std::string& table : tables) {
    if (kept.count(table) != 0) continue;
    StateBatch batch;
    batch.DeleteTable(table);
    // What is not dropped now is dropped after the next restart.
    deps_.state->Write(std::move(batch), [](const absl::Status&) {});
  }
  return absl::OkStatus();
}

void ScheduleRegistry::OnGenerationEnded(absl::string_view job,
                                         Generation generation,
                                         const absl::Status& reason) {
  const RunPtr run = Find(job, generation);
  if (run == nullptr) return;
  const std::vector<MemberDescription> members = MembersOf(*run);
  // Until the removal is queued: a position behind it would never be removed.
  MutexLock handing(&run->handing);
  {
    MutexLock lock(&run->mutex);
    run->schedule->End(members, reason, deps_.clock->Now());
    run->kept.clear();
    run->handed.clear();
  }
  // The coordinator ends, and the generation does not.
  if (absl::IsUnavailable(reason)) return;
  StateBatch batch;
  batch.DeleteTable(TableOf(generation));
  deps_.state->Write(std::move(batch), [](const absl::Status&) {});
}

void ScheduleRegistry::OnMemberLeft(absl::string_view job,
                                    Generation generation, int rank) {
  const RunPtr run = Find(job, generation);
  if (run == nullptr) return;
  Do(run, [&](JobSchedule* schedule, JobSchedule::Effects* effects) {
    schedule->OnMemberLeft(rank, deps_.clock->Now(), effects);
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace coxswain::server
