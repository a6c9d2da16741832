// One job: its members, plan, report, checkpoints and bytes.

#include <optional>
#include <set>

#include "base/status_macros.h"
#include "schedule/schedule_wire.h"
#include "server/components/components.h"
#include "server/describe/messages.h"
#include "server/http/api_json.h"
#include "server/telemetry/stragglers.h"

namespace coxswain::server {
namespace {

constexpr size_t kMaxOutliers = 64;
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

Json ShownMember(const MemberDescription& description, const Marks& marks,
                 absl::Duration calendar) {
  const int rank = description.member.rank;
  Json json =
      MemberJson(ToProto(description), description.last_contact + calendar);
  json["progressed_at"] = TimeJson(description.progressed + calendar);
  json["straggler"] = marks.stragglers.count(rank) > 0;
  json["odd"] = marks.odd.count(rank) > 0;
  AddAlias("collectives", "collective_sequence", &json);
  return json;
}

Json ShownPlan(const schedule::Plan& plan) {
  return PlanJson(schedule::ToWire(plan));
}

void AddPlans(const CoordinatorView& view, const JobDescription& job,
              absl::Duration calendar, Json* json) {
  const auto plans = view.plans->Get(job.job);
  (*json)["plan"] = plans.ok() ? ShownPlan(plans->current) : Json();
  (*json)["plan_next"] =
      plans.ok() && plans->next.has_value() ? ShownPlan(*plans->next) : Json();
  Json history = Json::array();
  for (const SeenPlan& seen : view.telemetry->Plans(job.job)) {
    Json entry = ShownPlan(seen.plan);
    entry["seen_at"] = TimeJson(seen.seen + calendar);
    entry["seen_step"] = seen.step;
    history.push_back(std::move(entry));
  }
  (*json)["plan_history"] = std::move(history);
}

Json ReportJson(const WhyReport& why, bool ended, absl::Duration calendar,
                Marks* marks) {
  const ScheduleReport& schedule = why.schedule;
  if (schedule.ranks.empty() && schedule.findings.empty()) return Json();
  Json odd = Json::array();
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    if (!schedule.ranks[rank].outlier) continue;
    marks->odd.insert(static_cast<int>(rank));
    if (odd.size() < kMaxOutliers) odd.push_back(rank);
  }
  Json history = Json::array();
  for (const RoundReport& round : schedule.history) {
    if (history.size() >= kMaxRounds) break;
    history.push_back(RoundJson(ToProto(round, schedule.at),
                                round.decided + calendar, round.tickets_took));
  }
  Json json = {{"ended_at", ended ? TimeJson(schedule.at + calendar) : Json()},
               {"findings", schedule.findings},
               {"odd_ranks", std::move(odd)},
               {"history", std::move(history)}};
  AddAlias("at", "ended_at", &json);
  AddAlias("rounds", "history", &json);
  return json;
}

void AddCheckpoints(const CoordinatorView& view, const std::string& job,
                    Json* json) {
  const CheckpointOverview overview =
      view.checkpoints->Overview(job, kMaxCheckpoints);
  Json checkpoints = Json::array();
  for (const CheckpointSummary& checkpoint : overview.newest) {
    v1::CheckpointInfo info;
    info.set_checkpoint_id(checkpoint.id);
    info.set_job(job);
    info.set_step(checkpoint.step);
    info.set_generation(checkpoint.generation.value());
    info.set_shards(checkpoint.shards);
    info.set_bytes(checkpoint.bytes);
    info.set_created_unix_ms(absl::ToUnixMillis(checkpoint.created));
    Json entry = CheckpointJson(info);
    if (!checkpoint.complete) entry["state"] = "open";
    if (checkpoint.created <= absl::UnixEpoch()) entry["created_at"] = nullptr;
    checkpoints.push_back(std::move(entry));
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

Json ShownMembers(const std::vector<MemberDescription>& members, size_t first,
                  size_t most, const Marks& marks, absl::Duration calendar) {
  Json json = Json::array();
  for (size_t i = first; i < members.size() && i - first < most; ++i) {
    json.push_back(ShownMember(members[i], marks, calendar));
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
  v1::JobDescription described = ToProto(job);
  const std::optional<RankWait> wait = view.schedule->WaitOf(job);
  if (wait.has_value()) *described.mutable_wait() = ToProto(*wait);
  if (const auto pipeline = view.schedule->PipelineOf(job)) {
    *described.mutable_pipeline() = ToProto(*pipeline);
  }
  AddRing(view.telemetry->RingOf(name), &described);
  Json json =
      JobJson(described, job.last_event_at + calendar,
              wait.has_value() ? wait->since + calendar : absl::InfinitePast());
  const double pace = StepsPerSecond(steps);
  json["steps_per_second"] = pace > 0 ? Json(pace) : Json();
  const auto why = view.schedule->Why(name);
  json["report"] = why.ok() ? ReportJson(*why, job.state == JobState::kEnded,
                                         calendar, &marks)
                            : Json();
  json["members"] = ShownMembers(job.members, static_cast<size_t>(first),
                                 static_cast<size_t>(ranks), marks, calendar);
  json["spares"] = ShownMembers(job.spares, 0, kMaxSpares, marks, calendar);
  AddPlans(view, job, calendar, &json);
  AddCheckpoints(view, name, &json);
  json["traffic"] =
      TrafficJson(view.telemetry->Totals(name).value_or(JobTelemetry()));
  AddAlias("name", "job", &json);
  return json;
}

}  // namespace coxswain::server
