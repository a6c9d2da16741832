#include "server/schedule/schedule_room.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"

namespace coxswain::server {
namespace {

// What is said to one rank is said again: it had been said to all.
void DropRepeats(JobSchedule::Effects* effects) {
  std::vector<DirectedEvent>& events = effects->events;
  events.erase(std::remove_if(events.begin(), events.end(),
                              [](const DirectedEvent& directed) {
                                return directed.rank !=
                                       DirectedEvent::kAllRanks;
                              }),
               events.end());
}

}  // namespace

ScheduleRoom::RunPtr ScheduleRoom::Find(absl::string_view job,
                                        Generation generation) const {
  MutexLock lock(&mutex_);
  const auto found = runs_.find(job);
  if (found == runs_.end() || found->second->generation != generation) {
    return nullptr;
  }
  return found->second;
}

std::vector<ScheduleRoom::RunPtr> ScheduleRoom::AllRuns() const {
  MutexLock lock(&mutex_);
  std::vector<RunPtr> all;
  all.reserve(runs_.size());
  for (const auto& entry : runs_) all.push_back(entry.second);
  return all;
}

absl::Status ScheduleRoom::OnTicket(const Seat& seat, absl::string_view stream,
                                    const Ticket& ticket) {
  const RunPtr run = Find(seat.job, seat.generation);
  if (run == nullptr) return absl::OkStatus();
  return Do(run, [&](JobSchedule* schedule, JobSchedule::Effects* effects) {
    return schedule->OnTicket(seat.rank, stream, ticket, rooms_.clock->Now(),
                              effects);
  });
}

absl::Status ScheduleRoom::OnVote(const Seat& seat, absl::string_view stream,
                                  const Vote& vote) {
  const RunPtr run = Find(seat.job, seat.generation);
  if (run == nullptr) return absl::OkStatus();
  return Do(run, [&](JobSchedule* schedule, JobSchedule::Effects* effects) {
    return schedule->OnVote(seat.rank, stream, vote, rooms_.clock->Now(),
                            effects);
  });
}

absl::Status ScheduleRoom::Do(const RunPtr& run, Action act) {
  JobSchedule::Effects effects;
  absl::Status status;
  {
    MutexLock lock(&run->mutex);
    status = act(&run->schedule, &effects);
    if (run->queue.size() >= run->max_queue) DropRepeats(&effects);
    if (!effects.empty()) run->queue.push_back(std::move(effects));
    if (run->queue.empty()) return status;
    if (std::exchange(run->emptying, true)) return status;
  }
  Empty(run);
  return status;
}

void ScheduleRoom::Empty(const RunPtr& run) {
  for (size_t done = 0;; ++done) {
    JobSchedule::Effects effects;
    {
      MutexLock lock(&run->mutex);
      // Others may go on and on; who comes next does the rest, at last Tick().
      if (run->queue.empty() || done >= run->max_queue) {
        run->emptying = false;
        return;
      }
      effects = std::move(run->queue.front());
      run->queue.pop_front();
    }
    CarryOut(*run, effects);
  }
}

void ScheduleRoom::CarryOut(const Run& run,
                            const JobSchedule::Effects& effects) {
  if (effects.plan.has_value()) {
    rooms_.membership->NotePlan(run.job, run.generation, *effects.plan);
    LogInfo("plan_in_force",
            {{"job", run.job},
             {"version", effects.plan->version},
             {"step", effects.plan->at_step},
             {"hook", effects.plan->hook},
             {"accumulation", effects.plan->accumulation_steps}});
  }
  for (const DirectedEvent& directed : effects.events) {
    if (directed.event.kind != AttachEvent::Kind::kWarning) continue;
    LogWarning("schedule_warning", {{"job", run.job},
                                    {"generation", run.generation.value()},
                                    {"warning", directed.event.reason}});
  }
  if (!effects.events.empty()) {
    rooms_.membership->Tell(run.job, run.generation, effects.events);
  }
  if (effects.failure.ok()) return;
  LogError("schedule_failed", {{"job", run.job},
                               {"generation", run.generation.value()},
                               {"reason", effects.failure.message()}});
  rooms_.membership->AbortGeneration(run.job, run.generation, effects.failure);
}

std::optional<Plan> ScheduleRoom::NextPlan(const std::string& job,
                                           Generation generation,
                                           int64_t step) {
  absl::StatusOr<std::optional<Plan>> plan =
      rooms_.plans->TakeEffect(job, generation, step);
  if (plan.ok()) return *std::move(plan);
  LogError("plan_not_in_force", {{"job", job},
                                 {"step", step},
                                 {"reason", plan.status().ToString()},
                                 {"next", "tried again at the next step"}});
  return std::nullopt;
}

std::vector<MemberDescription> ScheduleRoom::MembersOf(const Run& run) const {
  return rooms_.membership->MembersOf(run.job, run.generation)
      .value_or(std::vector<MemberDescription>());
}

void ScheduleRoom::Tick(absl::Time now) {
  for (const RunPtr& run : AllRuns()) TickRun(run, now);
}

void ScheduleRoom::TickRun(const RunPtr& run, absl::Time now) {
  std::vector<absl::Time> signs;
  bool look = false;
  {
    MutexLock lock(&run->mutex);
    if (run->schedule.ended()) return;
    signs = run->schedule.TakeSigns();
    look = run->schedule.next_look() <= now || !run->queue.empty();
  }
  if (!signs.empty()) {
    rooms_.membership->NoteSigns(run->job, run->generation, signs);
  }
  if (!look) return;
  const std::vector<MemberDescription> members = MembersOf(*run);
  Do(run, [&](JobSchedule* schedule, JobSchedule::Effects* effects) {
    if (schedule->next_look() <= now) schedule->Tick(members, now, effects);
    return absl::OkStatus();
  }).IgnoreError();
}

absl::StatusOr<WhyReport> ScheduleRoom::Why(absl::string_view job) const {
  const auto jobs = rooms_.membership->Describe(job);
  if (!jobs.ok()) return jobs.status();
  const JobDescription& description = jobs->front();
  WhyReport report;
  report.state = std::string(ToString(description.state));
  report.generation = description.generation;
  report.last_event = description.last_event;
  const RunPtr run = Find(job, description.generation);
  if (run == nullptr) return report;
  const std::vector<MemberDescription> members = MembersOf(*run);
  MutexLock lock(&run->mutex);
  report.schedule = run->schedule.Report(members, rooms_.clock->Now());
  return report;
}

void ScheduleRoom::EvictLocked() {
  if (runs_.size() < static_cast<size_t>(limits_.max_jobs)) return;
  auto oldest = runs_.end();
  for (auto it = runs_.begin(); it != runs_.end(); ++it) {
    MutexLock lock(&it->second->mutex);
    if (!it->second->schedule.ended()) continue;
    if (oldest == runs_.end() ||
        it->second->generation < oldest->second->generation) {
      oldest = it;
    }
  }
  if (oldest != runs_.end()) runs_.erase(oldest);
}

void ScheduleRoom::OnGenerationBegan(const GenerationBegin& begin) {
  const auto run = std::make_shared<Run>(
      limits_, begin, rooms_.clock->Now(),
      [this, job = begin.job, generation = begin.generation](int64_t step) {
        return NextPlan(job, generation, step);
      });
  MutexLock lock(&mutex_);
  if (runs_.count(begin.job) == 0) EvictLocked();
  runs_[begin.job] = run;
}

void ScheduleRoom::OnGenerationEnded(absl::string_view job,
                                     Generation generation,
                                     const absl::Status& reason) {
  const RunPtr run = Find(job, generation);
  if (run == nullptr) return;
  const std::vector<MemberDescription> members = MembersOf(*run);
  MutexLock lock(&run->mutex);
  run->schedule.End(members, reason, rooms_.clock->Now());
}

void ScheduleRoom::OnMemberLeft(absl::string_view job, Generation generation,
                                int rank) {
  const RunPtr run = Find(job, generation);
  if (run == nullptr) return;
  Do(run, [&](JobSchedule* schedule, JobSchedule::Effects* effects) {
    schedule->OnMemberLeft(rank, rooms_.clock->Now(), effects);
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace coxswain::server
