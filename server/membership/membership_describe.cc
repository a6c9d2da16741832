// The part of Membership that says what it knows.

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
  description.idle =
      now - record.progressed.value_or(record.liveness.last_sign);
  return description;
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
