// One job: its members, plan, report, checkpoints and bytes.

#include <algorithm>
#include <set>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "schedule/plan.h"
#include "server/components/components.h"
#include "server/http/api_json.h"
#include "server/telemetry/stragglers.h"

namespace coxswain::server {
namespace {

constexpr size_t kMaxOdd = 64;
constexpr size_t kMaxRounds = 32;
constexpr size_t kMaxCheckpoints = 64;
constexpr size_t kMaxSpares = 1024;
constexpr int kDefaultMembers = 1024;
constexpr int kMaxMembers = 4096;

// Which ranks are marked, and how.
struct Marks {
  std::set<int> stragglers;
  std::set<int> odd;
};

Json MemberJson(const MemberDescription& description, const Marks& marks,
                absl::Duration calendar) {
  const Member& member = description.member;
  const Progress& progress = description.progress;
  return {
      {"rank", member.rank},
      {"local_rank", member.local_rank},
      {"node", member.identity.node},
      {"slot", member.identity.slot},
      {"host", member.host},
      {"address", member.address},
      {"incarnation", absl::StrFormat("%016x", member.incarnation.value())},
      {"state", std::string(ToString(description.state))},
      {"heard_at", TimeJson(description.heard, calendar)},
      {"progressed_at", TimeJson(description.progressed, calendar)},
      {"step", progress.step},
      {"micro_batches", progress.micro_batches},
      {"collectives", progress.collective_sequence},
      {"rounds", progress.rounds},
      {"bucket", progress.bucket},
      {"activity", progress.activity},
      {"payload_bytes", progress.payload_bytes},
      {"wire_bytes", progress.wire_bytes},
      {"straggler", marks.stragglers.count(member.rank) > 0},
      {"odd", marks.odd.count(member.rank) > 0},
  };
}

Json PlanJson(const schedule::Plan& plan) {
  Json json = {{"version", plan.version},
               {"global_micro_batches", plan.global_micro_batches},
               {"terms", plan.terms.ToMap()},
               {"at_step", plan.at_step}};
  for (const schedule::NamedValue& value : plan.Values()) {
    json[value.name] =
        value.number.has_value() ? Json(*value.number) : Json(value.text);
  }
  return json;
}

void AddPlans(const CoordinatorView& view, const JobDescription& job,
              absl::Duration calendar, Json* json) {
  const auto plans = view.plans->Get(job.job);
  (*json)["plan"] = plans.ok() ? PlanJson(plans->current) : Json();
  (*json)["plan_next"] =
      plans.ok() && plans->next.has_value() ? PlanJson(*plans->next) : Json();
  Json history = Json::array();
  for (const SeenPlan& seen : view.telemetry->Plans(job.job)) {
    Json entry = PlanJson(seen.plan);
    entry["seen_at"] = TimeJson(seen.seen, calendar);
    entry["seen_step"] = seen.step;
    history.push_back(std::move(entry));
  }
  (*json)["plan_history"] = std::move(history);
}

Json RoundJson(const RoundReport& round, absl::Duration calendar) {
  return {{"stream", round.stream},
          {"round", round.round},
          {"step", round.step},
          {"commit", round.commit},
          {"reason", round.reason},
          {"decided_at", TimeJson(round.decided, calendar)},
          {"tickets_seconds", absl::ToDoubleSeconds(round.tickets_took)},
          {"last_rank", round.last_rank},
          {"plan_version", round.plan_version}};
}

Json ReportJson(const WhyReport& why, bool ended, absl::Duration calendar,
                Marks* marks) {
  const ScheduleReport& schedule = why.schedule;
  if (schedule.ranks.empty()) return Json();
  Json odd = Json::array();
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    if (!schedule.ranks[rank].odd) continue;
    marks->odd.insert(static_cast<int>(rank));
    if (odd.size() < kMaxOdd) odd.push_back(rank);
  }
  Json rounds = Json::array();
  for (const RoundReport& round : schedule.history) {
    if (rounds.size() >= kMaxRounds) break;
    rounds.push_back(RoundJson(round, calendar));
  }
  return {{"at", ended ? TimeJson(schedule.at, calendar) : Json()},
          {"findings", schedule.findings},
          {"odd_ranks", std::move(odd)},
          {"rounds", std::move(rounds)}};
}

void AddCheckpoints(const CoordinatorView& view, const std::string& job,
                    Json* json) {
  const CheckpointOverview overview =
      view.checkpoints->Overview(job, kMaxCheckpoints);
  Json checkpoints = Json::array();
  for (const CheckpointSummary& checkpoint : overview.newest) {
    const bool dated = checkpoint.created > absl::UnixEpoch();
    checkpoints.push_back(
        {{"id", checkpoint.id},
         {"step", checkpoint.step},
         {"generation", checkpoint.generation.value()},
         {"created_at", dated ? TimeJson(checkpoint.created, {}) : Json()},
         {"bytes", checkpoint.bytes},
         {"shards", checkpoint.shards},
         {"state", checkpoint.complete ? "complete" : "open"},
         {"imported", checkpoint.generation == Generation(0)}});
  }
  (*json)["checkpoints"] = std::move(checkpoints);
  (*json)["checkpoint_count"] = overview.complete;
}

Json TrafficJson(const Traffic& traffic) {
  Json json = {{"gradient_bytes", traffic.gradient_bytes},
               {"payload_bytes", traffic.payload_bytes},
               {"wire_bytes", traffic.wire_bytes}};
  const bool known = traffic.gradient_bytes > 0;
  json["saved_bytes"] =
      known ? Json(traffic.gradient_bytes - traffic.payload_bytes) : Json();
  json["compression_ratio"] =
      known && traffic.payload_bytes > 0
          ? Json(static_cast<double>(traffic.gradient_bytes) /
                 static_cast<double>(traffic.payload_bytes))
          : Json();
  return json;
}

Json TrafficJson(const JobTelemetry& totals) {
  Json json = TrafficJson(totals.traffic);
  Json hooks = Json::array();
  for (const auto& [hook, traffic] : totals.hooks) {
    Json entry = TrafficJson(traffic);
    entry["hook"] = hook;
    hooks.push_back(std::move(entry));
  }
  json["hooks"] = std::move(hooks);
  return json;
}

Json MembersJson(const std::vector<MemberDescription>& members, size_t first,
                 size_t most, const Marks& marks, absl::Duration calendar) {
  Json json = Json::array();
  for (size_t i = first; i < members.size() && i - first < most; ++i) {
    json.push_back(MemberJson(members[i], marks, calendar));
  }
  return json;
}

}  // namespace

absl::StatusOr<Json> JobJson(const CoordinatorView& view,
                             const std::string& name, const Query& query,
                             absl::Duration calendar) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const int64_t first,
      NumberOf(query, "first_rank", 0, 0, std::numeric_limits<int>::max()));
  COXSWAIN_ASSIGN_OR_RETURN(
      const int64_t ranks,
      NumberOf(query, "ranks", kDefaultMembers, 1, kMaxMembers));
  COXSWAIN_ASSIGN_OR_RETURN(const auto found, view.membership->Describe(name));
  const JobDescription& job = found.front();
  const auto steps =
      SummariseSteps(view.telemetry->Matrix(name, kStragglerSteps));
  const std::vector<int> stragglers = PersistentStragglers(steps);
  Marks marks;
  marks.stragglers.insert(stragglers.begin(), stragglers.end());
  int64_t step = 0;
  for (const MemberDescription& member : job.members) {
    step = std::max(step, member.progress.step);
  }
  Json json = {{"name", job.job},
               {"state", std::string(ToString(job.state))},
               {"generation", job.generation.value()},
               {"attempt", job.attempt},
               {"world_size", job.world_size},
               {"min_world_size", job.min_world_size},
               {"step", step},
               {"last_event", job.last_event},
               {"member_count", job.members.size()}};
  const double pace = StepsPerSecond(steps);
  json["steps_per_second"] = pace > 0 ? Json(pace) : Json();
  const auto why = view.schedule->Why(name);
  json["report"] = why.ok() ? ReportJson(*why, job.state == JobState::kEnded,
                                         calendar, &marks)
                            : Json();
  json["members"] = MembersJson(job.members, static_cast<size_t>(first),
                                static_cast<size_t>(ranks), marks, calendar);
  json["spares"] = MembersJson(job.spares, 0, kMaxSpares, marks, calendar);
  AddPlans(view, job, calendar, &json);
  AddCheckpoints(view, name, &json);
  json["traffic"] =
      TrafficJson(view.telemetry->Totals(name).value_or(JobTelemetry()));
  return json;
}

}  // namespace coxswain::server
