#include "server/http/api_json.h"

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/components/components.h"
#include "server/describe/messages.h"
#include "server/telemetry/stragglers.h"

namespace coxswain::server {
namespace {

// Of the newest steps, for the overview.
constexpr size_t kMaxJobStragglers = 16;
// Of the newest records in quarantine.
constexpr size_t kMaxQuarantined = 64;

Json RowJson(const JobSummary& job, const CoordinatorView& view) {
  const auto steps =
      SummariseSteps(view.telemetry->Matrix(job.job, kStragglerSteps));
  std::vector<int> stragglers = PersistentStragglers(steps);
  if (stragglers.size() > kMaxJobStragglers)
    stragglers.resize(kMaxJobStragglers);
  const double pace = StepsPerSecond(steps);
  const JobTelemetry totals =
      view.telemetry->Totals(job.job).value_or(JobTelemetry());
  Json json = {
      {"job", job.job},
      {"state", std::string(ToString(job.state))},
      {"generation", job.generation.value()},
      {"attempt", job.attempt},
      {"world_size", job.world_size},
      {"min_world_size", job.min_world_size},
      {"live", job.live()},
      {"attached", job.attached},
      {"waiting", job.waiting},
      {"step", job.step},
      {"hook", job.hook},
      {"plan_version", job.plan_version},
      {"stragglers", stragglers},
      {"payload_bytes", totals.traffic.payload_bytes},
      {"wire_bytes", totals.traffic.wire_bytes},
      {"last_event", job.last_event},
  };
  json["steps_per_second"] = pace > 0 ? Json(pace) : Json();
  AddAlias("name", "job", &json);
  AddAlias("members", "live", &json);
  AddAlias("spares", "waiting", &json);
  return json;
}

// Keys are any bytes, and are shown with escapes.
Json QuarantineJson(const std::vector<QuarantinedRecord>& records) {
  Json json = Json::array();
  const size_t first =
      records.size() > kMaxQuarantined ? records.size() - kMaxQuarantined : 0;
  for (size_t i = first; i < records.size(); ++i) {
    json.push_back({{"table", records[i].table},
                    {"key", absl::CHexEscape(records[i].key)},
                    {"job", records[i].job},
                    {"bytes", records[i].bytes},
                    {"reason", records[i].reason}});
  }
  return json;
}

Json EventJson(const JournalEvent& event) {
  Json json = Json::parse(EventLine(ToProto(event), LogFormat::kJson));
  // Names of an earlier version.
  json["at"] = TimeJson(event.time);
  json["fields"] = Json::object();
  for (const auto& [name, value] : event.fields) json["fields"][name] = value;
  for (const char* const name : {"generation", "rank", "step"}) json[name];
  return json;
}

}  // namespace

absl::StatusOr<int64_t> NumberOf(const Query& query, const std::string& name,
                                 int64_t otherwise, int64_t least,
                                 int64_t most) {
  const auto found = query.find(name);
  if (found == query.end()) return otherwise;
  int64_t value = 0;
  if (absl::SimpleAtoi(found->second, &value) && value >= least &&
      value <= most) {
    return value;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' must be a number from ", least, " to ", most,
                   ", not '", found->second, "'"));
}

Json JobsJson(const CoordinatorView& view) {
  Json jobs = Json::array();
  for (const JobSummary& job : view.membership->Summaries()) {
    jobs.push_back(RowJson(job, view));
  }
  return {{"cluster_id", view.membership->cluster_id()},
          {"term", view.membership->term().value()},
          {"quarantined", QuarantineJson(view.quarantined)},
          {"quarantined_count", view.quarantined.size()},
          {"jobs", std::move(jobs)}};
}

absl::StatusOr<Json> EventsJson(const CoordinatorView& view,
                                const std::string& job, const Query& query) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const int64_t after,
      NumberOf(query, "after", 0, 0, std::numeric_limits<int64_t>::max()));
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t limit,
                            NumberOf(query, "limit", 100, 1, 1000));
  Json events = Json::array();
  int64_t last = after;
  if (view.journal != nullptr) {
    for (const JournalEvent& event :
         view.journal->Read(job, after, static_cast<int>(limit))) {
      events.push_back(EventJson(event));
      last = event.sequence;
    }
  }
  return Json{{"events", std::move(events)}, {"last", last}};
}

}  // namespace coxswain::server
