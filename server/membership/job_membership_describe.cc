// The part of JobMembership that describes it.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/peer_text.h"
#include "server/membership/job_membership.h"
#include "server/membership/job_rules.h"
#include "server/membership/round.h"

namespace coxswain::server {

namespace {

// Of how each member has ended: descriptions have that of all members.
constexpr size_t kMaxDepartureBytes = 128;

MemberDescription DescribeMember(const MemberRecord& record, absl::Time now) {
  MemberDescription description;
  description.member = record.member;
  description.state = record.liveness.state;
  description.progress = record.progress;
  if (description.progress.pipeline.has_value()) {
    description.progress.pipeline->in_it =
        std::max(now - record.in_action_since, absl::ZeroDuration());
  }
  description.silence = now - record.liveness.last_sign;
  description.last_contact = record.liveness.last_sign;
  description.progressed =
      record.progressed.value_or(record.liveness.last_sign);
  description.idle = now - description.progressed;
  description.departure = Shorten(record.departure, kMaxDepartureBytes);
  description.restored = record.restored;
  if (record.restored) {
    description.last_contact = description.progressed = absl::InfinitePast();
  }
  return description;
}

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

}  // namespace

JobSummary JobMembership::Summarise(absl::Time now) const {
  JobSummary summary;
  summary.job = job_.name;
  summary.state = job_.state;
  summary.generation = job_.run.generation;
  summary.world_size = job_.world_size;
  summary.min_world_size = job_.min_world_size;
  summary.attempt = job_.attempt;
  summary.plan_version = job_.run.plan.version;
  summary.hook = job_.run.plan.hook;
  summary.last_event = job_.last_event;
  summary.waiting = job_.waiting.size();
  summary.step = job_.run.last_step;
  for (const MemberRecord& record : job_.run.members) {
    Count(record, now, &summary);
  }
  return summary;
}

JobDescription JobMembership::Describe(absl::Time now) const {
  JobDescription description;
  description.job = job_.name;
  description.state = job_.state;
  description.generation = job_.run.generation;
  description.world_size = job_.world_size;
  description.min_world_size = job_.min_world_size;
  description.plan = job_.run.plan;
  description.last_event = job_.last_event;
  description.attempt = job_.attempt;
  description.step = job_.run.last_step;
  description.last_event_at = job_.last_event_at;
  description.last_event_age = now - job_.last_event_at;
  std::vector<MemberDescription> waiting;
  for (const auto& entry : job_.waiting.waiters()) {
    MemberDescription member;
    member.member = entry.second.member;
    member.member.rank = -1;
    member.last_contact = member.progressed = absl::InfinitePast();
    waiting.push_back(std::move(member));
  }
  if (job_.state == JobState::kForming) {
    description.members = std::move(waiting);
    description.mesh = job_.waiting.manifests().mesh();
    description.forming =
        DescribeRound(now, job_.waiting.State(), CurrentRoundOptions(),
                      job_.waiting.Awaited());
    // Both reasons: why the job stopped, and why it does not go on.
    if (!job_.last_event.empty()) {
      absl::StrAppend(&description.last_event, "; ", description.forming);
    }
    return description;
  }
  description.mesh = MeshOf(job_.run).ToString();
  description.placement = PlacementOf(job_.run);
  description.spares = std::move(waiting);
  description.members = Members(now);
  for (const MemberDescription& member : description.members) {
    description.step = std::max(description.step, member.progress.step);
  }
  return description;
}

std::vector<MemberDescription> JobMembership::Members(absl::Time now) const {
  std::vector<MemberDescription> members;
  members.reserve(job_.run.members.size());
  for (const MemberRecord& record : job_.run.members) {
    members.push_back(DescribeMember(record, now));
  }
  return members;
}

}  // namespace coxswain::server
