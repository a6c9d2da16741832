// The part of Membership that says what it knows.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"
#include "server/membership/round.h"

namespace coxswain::server {

MemberDescription Membership::DescribeLocked(const MemberRecord& record) const {
  const absl::Time now = rooms_.clock->Now();
  MemberDescription description;
  description.member = record.member;
  description.state = record.liveness.state;
  description.progress = record.progress;
  description.silence = now - record.liveness.last_sign;
  description.heard = record.liveness.last_sign;
  description.progressed =
      record.progressed.value_or(record.liveness.last_sign);
  description.idle = now - description.progressed;
  return description;
}

namespace {

void Count(const MemberRecord& record, absl::Time now, JobSummary* summary) {
  switch (record.liveness.state) {
    case MemberState::kJoined:
      ++summary->joined;
      break;
    case MemberState::kAttached:
      ++summary->attached;
      break;
    case MemberState::kDetached:
      ++summary->detached;
      break;
    case MemberState::kLeft:
      ++summary->left;
      break;
    case MemberState::kLost:
      ++summary->lost;
      break;
  }
  summary->step = std::max(summary->step, record.progress.step);
  if (record.liveness.state != MemberState::kAttached) return;
  const absl::Duration idle =
      now - record.progressed.value_or(record.liveness.last_sign);
  summary->idle = std::min(summary->idle.value_or(idle), idle);
}

JobSummary Summarise(const JobRecord& job, absl::Time now) {
  JobSummary summary;
  summary.job = job.name;
  summary.state = job.state;
  summary.generation = job.run.generation;
  summary.world_size = job.world_size;
  summary.min_world_size = job.min_world_size;
  summary.attempt = job.attempt;
  summary.plan_version = job.run.plan.version;
  summary.hook = job.run.plan.hook;
  summary.last_event = job.last_event;
  summary.waiting = job.room.size();
  for (const MemberRecord& record : job.run.members) {
    Count(record, now, &summary);
  }
  return summary;
}

}  // namespace

std::vector<JobSummary> Membership::Summaries() const {
  MutexLock lock(&mutex_);
  const absl::Time now = rooms_.clock->Now();
  std::vector<JobSummary> summaries;
  for (const auto& [name, job] : jobs_) {
    summaries.push_back(Summarise(job, now));
  }
  return summaries;
}

std::string Membership::DescribeRoundLocked(const Job& job) const {
  RoundOptions options;
  options.min = job.room.min();
  options.max = job.room.max();
  options.last_call = options_.last_call;
  options.mismatch_settle = options_.mismatch_settle;
  return DescribeRound(rooms_.clock->Now(), job.room.State(), options,
                       job.room.Awaited());
}

JobDescription Membership::DescribeLocked(const Job& job) const {
  JobDescription description;
  description.job = job.name;
  description.state = job.state;
  description.generation = job.run.generation;
  description.world_size = job.world_size;
  description.min_world_size = job.min_world_size;
  description.plan = job.run.plan;
  description.last_event = job.last_event;
  description.attempt = job.attempt;
  std::vector<MemberDescription> waiting;
  for (const auto& entry : job.room.waiters()) {
    MemberDescription member;
    member.member = entry.second.member;
    member.member.rank = -1;
    member.heard = member.progressed = absl::InfinitePast();
    waiting.push_back(std::move(member));
  }
  if (job.state == JobState::kForming) {
    description.members = std::move(waiting);
    // Who looks wants to know both why it stopped and why it does not go on.
    if (!job.last_event.empty()) {
      absl::StrAppend(&description.last_event, "; ", DescribeRoundLocked(job));
    }
    return description;
  }
  description.spares = std::move(waiting);
  for (const MemberRecord& record : job.run.members) {
    description.members.push_back(DescribeLocked(record));
  }
  return description;
}

absl::StatusOr<std::vector<JobDescription>> Membership::Describe(
    absl::string_view job) const {
  MutexLock lock(&mutex_);
  std::vector<JobDescription> descriptions;
  if (!job.empty()) {
    const auto found = jobs_.find(std::string(job));
    if (found == jobs_.end()) return NoSuchJobError(job);
    descriptions.push_back(DescribeLocked(found->second));
    return descriptions;
  }
  for (const auto& entry : jobs_) {
    descriptions.push_back(DescribeLocked(entry.second));
  }
  return descriptions;
}

absl::StatusOr<std::vector<MemberDescription>> Membership::MembersOf(
    absl::string_view job, Generation generation) const {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(std::string(job));
  if (found == jobs_.end() || found->second.run.generation != generation) {
    return absl::NotFoundError(absl::StrCat("generation ", generation.value(),
                                            " is not the last one of job '",
                                            job, "'"));
  }
  std::vector<MemberDescription> members;
  for (const MemberRecord& record : found->second.run.members) {
    members.push_back(DescribeLocked(record));
  }
  return members;
}

}  // namespace coxswain::server
