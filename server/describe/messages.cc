#include "server/describe/messages.h"

#include <algorithm>
#include <string>

#include "schedule/schedule_wire.h"
#include "server/membership/member_proto.h"

namespace coxswain::server {

v1::MemberDescription ToProto(const MemberDescription& member) {
  v1::MemberDescription proto;
  *proto.mutable_member() = ToProto(member.member);
  proto.set_state(std::string(ToString(member.state)));
  proto.set_step(member.progress.step);
  proto.set_collective_sequence(member.progress.collective_sequence);
  proto.set_payload_bytes(member.progress.payload_bytes);
  proto.set_wire_bytes(member.progress.wire_bytes);
  proto.set_silent_ms(absl::ToInt64Milliseconds(member.silence));
  proto.set_micro_batches(member.progress.micro_batches);
  proto.set_rounds(member.progress.rounds);
  proto.set_bucket(member.progress.bucket);
  proto.set_activity(member.progress.activity);
  proto.set_restored(member.restored);
  proto.set_departure(member.departure);
  return proto;
}

v1::JobDescription ToProto(const JobDescription& job) {
  v1::JobDescription proto;
  proto.set_job(job.job);
  proto.set_state(std::string(ToString(job.state)));
  proto.set_generation(job.generation.value());
  proto.set_world_size(job.world_size);
  if (job.plan.version != 0) {
    *proto.mutable_plan() = schedule::ToWire(job.plan);
  }
  for (const MemberDescription& member : job.members) {
    *proto.add_members() = ToProto(member);
  }
  proto.set_min_world_size(job.min_world_size);
  for (const MemberDescription& spare : job.spares) {
    *proto.add_spares() = ToProto(spare);
  }
  proto.set_attempt(job.attempt);
  proto.set_last_event(job.last_event);
  proto.set_last_event_ms(AgeMs(job.last_event_at, job.last_event_age));
  proto.set_step(job.step);
  proto.set_forming(job.forming);
  proto.set_mesh(job.mesh);
  proto.set_placement(job.placement);
  return proto;
}

v1::RankWait ToProto(const RankWait& wait) {
  v1::RankWait proto;
  for (const int rank : wait.ranks) proto.add_ranks(rank);
  proto.set_waited_ms(absl::ToInt64Milliseconds(wait.waited));
  proto.set_finding(wait.finding);
  return proto;
}

v1::PipelineDescription ToProto(const PipelineReport& report) {
  v1::PipelineDescription proto;
  proto.set_schedule(report.schedule);
  proto.set_micro_batches(report.micro_batches);
  proto.set_measured(report.measured);
  for (const std::string& finding : report.findings) {
    proto.add_findings(finding);
  }
  for (size_t i = 0; i < report.ranks.size(); ++i) {
    const PipelineReport::Rank& rank = report.ranks[i];
    v1::PipelineRank* const one = proto.add_ranks();
    one->set_rank(static_cast<int>(i));
    one->set_lane(rank.lane);
    one->set_step(rank.step);
    one->set_action(rank.in);
    one->set_seconds(absl::ToDoubleSeconds(rank.in_it));
    one->set_in_lane(rank.at.has_value());
    one->set_at(rank.at.value_or(0));
    for (const int other : rank.waits_for) {
      if (one->waits_for_size() == kMaxWaitsFor) break;
      one->add_waits_for(other);
    }
    one->set_waiters(rank.waiters);
  }
  for (const auto& lane : report.lanes) {
    v1::PipelineLane* const passes = proto.add_lanes();
    for (const PipelineReport::Pass& pass : lane) {
      v1::PipelinePass* const one = passes->add_passes();
      one->set_action(pass.action);
      one->set_begin(pass.begin);
      one->set_end(pass.end);
    }
  }
  return proto;
}

void AddRing(const std::optional<JobRing>& ring, v1::JobDescription* job) {
  if (!ring.has_value()) return;
  v1::RingOrder* const order = job->mutable_ring();
  order->set_order(ring->order);
  order->set_reason(ring->reason);
  order->set_since_generation(ring->since.value());
}

int64_t AgeMs(absl::Time at, absl::Duration age) {
  if (at == absl::InfinitePast()) return 0;
  return std::max<int64_t>(absl::ToInt64Milliseconds(age), 1);
}

v1::RoundRecord ToProto(const RoundReport& round, absl::Time at) {
  v1::RoundRecord proto;
  proto.set_stream(round.stream);
  proto.set_round(round.round);
  proto.set_step(round.step);
  proto.set_commit(round.commit);
  proto.set_reason(round.reason);
  proto.set_age_ms(absl::ToInt64Milliseconds(at - round.decided));
  proto.set_tickets_ms(absl::ToInt64Milliseconds(round.tickets_took));
  proto.set_last_rank(round.last_rank);
  proto.set_plan_version(round.plan_version);
  return proto;
}

v1::JournalEvent ToProto(const JournalEvent& event) {
  v1::JournalEvent proto;
  proto.set_sequence(event.sequence);
  proto.set_unix_us(absl::ToUnixMicros(event.time));
  proto.set_level(event.level);
  proto.set_event(event.event);
  proto.set_job(event.job);
  proto.set_generation(event.generation);
  proto.set_rank(event.rank);
  proto.set_step(event.step);
  for (const auto& [key, value] : event.fields) {
    v1::JournalField* const field = proto.add_fields();
    field->set_key(key);
    field->set_value(value);
  }
  return proto;
}

}  // namespace coxswain::server
