#include "server/describe/json.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "schedule/schedule_wire.h"
#include "schedule/terms.h"

namespace coxswain::server {

Json TimeJson(absl::Time calendar) {
  if (calendar == absl::InfinitePast() || calendar == absl::InfiniteFuture()) {
    return Json();
  }
  // Division rounds once, so there are no digits beyond microseconds.
  return static_cast<double>(absl::ToUnixMicros(calendar)) / 1e6;
}

namespace {

Json RingJson(const v1::RingOrder& ring) {
  return {{"order", ring.order()},
          {"reason", ring.reason()},
          {"since_generation", ring.since_generation()}};
}

Json PipelineJson(const v1::PipelineDescription& pipeline) {
  Json ranks = Json::array(), lanes = Json::array(), findings = Json::array();
  for (const std::string& finding : pipeline.findings()) {
    findings.push_back(finding);
  }
  for (const v1::PipelineRank& rank : pipeline.ranks()) {
    Json waits_for = Json::array();
    for (const int other : rank.waits_for()) waits_for.push_back(other);
    const bool known = !rank.action().empty();
    ranks.push_back({{"rank", rank.rank()},
                     {"lane", rank.lane()},
                     {"step", known ? Json(rank.step()) : Json()},
                     {"action", rank.action()},
                     {"seconds", known ? Json(rank.seconds()) : Json()},
                     {"at", rank.in_lane() ? Json(rank.at()) : Json()},
                     {"waits_for", std::move(waits_for)},
                     {"waiters", rank.waiters()}});
  }
  for (const v1::PipelineLane& lane : pipeline.lanes()) {
    Json passes = Json::array();
    for (const v1::PipelinePass& pass : lane.passes()) {
      passes.push_back({{"action", pass.action()},
                        {"begin", pass.begin()},
                        {"end", pass.end()}});
    }
    lanes.push_back(std::move(passes));
  }
  return {{"schedule", pipeline.schedule()},
          {"micro_batches", pipeline.micro_batches()},
          {"findings", std::move(findings)},
          {"ranks", std::move(ranks)},
          {"lanes", std::move(lanes)},
          {"measured", pipeline.measured()}};
}

Json WaitJson(const v1::RankWait& wait, absl::Time since) {
  Json ranks = Json::array();
  for (const int rank : wait.ranks()) ranks.push_back(rank);
  return {{"ranks", std::move(ranks)},
          {"since_at", TimeJson(since)},
          {"finding", wait.finding()}};
}

}  // namespace

Json JobJson(const v1::JobDescription& job, absl::Time last_event,
             absl::Time waits_since) {
  int64_t step = job.step();
  for (const v1::MemberDescription& member : job.members()) {
    step = std::max(step, member.step());
  }
  Json json = {
      {"job", job.job()},
      {"state", job.state()},
      {"generation", job.generation()},
      {"attempt", job.attempt()},
      {"world_size", job.world_size()},
      {"min_world_size", job.min_world_size()},
      {"member_count", job.members_size()},
      {"step", step},
      {"last_event", job.last_event()},
      {"last_event_at", TimeJson(last_event)},
      {"wait", job.has_wait() ? WaitJson(job.wait(), waits_since) : Json()},
      {"forming", job.forming()},
      {"ring", job.has_ring() ? RingJson(job.ring()) : Json()},
      {"plan", job.has_plan() ? PlanJson(job.plan()) : Json()}};
  if (!job.mesh().empty()) {
    json["mesh"] = job.mesh();
    json["placement"] = job.placement();
  }
  if (job.has_pipeline()) json["pipeline"] = PipelineJson(job.pipeline());
  return json;
}

Json MemberJson(const v1::MemberDescription& described, absl::Time received) {
  const v1::Member& member = described.member();
  Json json = {{"rank", member.rank()},
               {"local_rank", member.local_rank()},
               {"node", member.identity().node()},
               {"slot", member.identity().slot()},
               {"host", member.host()},
               {"address", member.address()},
               {"incarnation", absl::StrFormat("%016x", member.incarnation())},
               {"state", described.state()},
               {"departure", described.departure()},
               {"restored", described.restored()},
               {"heard_at", TimeJson(received)},
               {"step", described.step()},
               {"micro_batches", described.micro_batches()},
               {"collective_sequence", described.collective_sequence()},
               {"rounds", described.rounds()},
               {"bucket", described.bucket()},
               {"activity", described.activity()},
               {"payload_bytes", described.payload_bytes()},
               {"wire_bytes", described.wire_bytes()}};
  if (!member.coordinates().empty()) {
    json["coordinates"] = member.coordinates();
  }
  return json;
}

Json RoundJson(const v1::RoundRecord& round, absl::Time decided,
               absl::Duration tickets_took) {
  return {{"stream", round.stream()},
          {"round", round.round()},
          {"step", round.step()},
          {"commit", round.commit()},
          {"reason", round.reason()},
          {"decided_at", TimeJson(decided)},
          {"tickets_seconds", absl::ToDoubleSeconds(tickets_took)},
          {"last_rank", round.last_rank()},
          {"plan_version", round.plan_version()}};
}

Json PlanJson(const v1::Plan& plan) {
  Json changed = Json::array();
  for (const std::string& term : ChangedTerms(plan)) {
    changed.push_back(term.substr(0, term.find('=')));
  }
  Json json = {{"version", plan.version()},
               {"at_step", plan.at_step()},
               {"global_micro_batches", plan.global_micro_batches()},
               {"terms", AllTerms(plan)},
               {"changed", std::move(changed)}};
  for (const schedule::NamedValue& value : ValuesOf(plan)) {
    json[value.name] =
        value.number.has_value() ? Json(*value.number) : Json(value.text);
  }
  return json;
}

Json CheckpointJson(const v1::CheckpointInfo& checkpoint) {
  const absl::Time created = absl::FromUnixMillis(checkpoint.created_unix_ms());
  return {{"id", checkpoint.checkpoint_id()},
          {"job", checkpoint.job()},
          {"step", checkpoint.step()},
          {"generation", checkpoint.generation()},
          {"imported", checkpoint.generation() == 0},
          {"state", "complete"},
          {"shards", checkpoint.shards()},
          {"bytes", checkpoint.bytes()},
          {"created_at", TimeJson(created)}};
}

std::string EventLine(const v1::JournalEvent& event, LogFormat format) {
  const bool json = format == LogFormat::kJson;
  std::vector<LogField> fields;
  if (json) fields.emplace_back("sequence", event.sequence());
  fields.emplace_back("job", event.job());
  if (event.generation() >= 0) {
    fields.emplace_back("generation", event.generation());
  }
  if (event.rank() >= 0) fields.emplace_back("rank", event.rank());
  if (event.step() >= 0) fields.emplace_back("step", event.step());
  for (const v1::JournalField& field : event.fields()) {
    fields.emplace_back(field.key(), field.value());
  }
  return FormatLogLine(format, {absl::FromUnixMicros(event.unix_us()),
                                event.level(), event.event(), fields});
}

void AddAlias(absl::string_view old_name, absl::string_view name, Json* json) {
  (*json)[std::string(old_name)] = (*json)[std::string(name)];
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string DumpLines(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<schedule::NamedValue> ValuesOf(const v1::Plan& plan) {
  std::map<std::string, std::string> unknown;
  return schedule::KnownPartOf(plan, &unknown).Values();
}

std::map<std::string, std::string> AllTerms(const v1::Plan& plan) {
  std::map<std::string, std::string> unknown;
  std::map<std::string, std::string> terms =
      schedule::KnownPartOf(plan, &unknown).terms.ToMap();
  for (auto& [name, value] : unknown) terms[name] = std::move(value);
  return terms;
}

std::vector<std::string> ChangedTerms(const v1::Plan& plan) {
  const std::map<std::string, std::string> defaults = schedule::Terms().ToMap();
  std::vector<std::string> changed;
  for (const auto& [name, value] : AllTerms(plan)) {
    const auto found = defaults.find(name);
    if (found != defaults.end() && found->second == value) continue;
    changed.push_back(absl::StrCat(name, "=", value));
  }
  return changed;
}

}  // namespace coxswain::server
