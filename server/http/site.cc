#include "server/http/site.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/version.h"
#include "server/components/components.h"
#include "server/http/api_json.h"
#include "server/http/page/static_files.h"
#include "server/metrics/metrics_text.h"

namespace coxswain::server {
namespace {

constexpr char kJson[] = "application/json; charset=utf-8";
constexpr char kText[] = "text/plain; charset=utf-8";
// Of Prometheus' text format.
constexpr char kMetrics[] = "text/plain; version=0.0.4; charset=utf-8";

HttpAnswer Text(int status, const std::string& type, std::string body) {
  HttpAnswer answer;
  answer.status = status;
  answer.content_type = type;
  answer.body = std::move(body);
  return answer;
}

HttpAnswer ErrorOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      return JsonError(404, "NOT_FOUND", std::string(status.message()));
    case absl::StatusCode::kInvalidArgument:
      return JsonError(400, "INVALID_ARGUMENT", std::string(status.message()));
    default:
      return JsonError(503, "UNAVAILABLE", std::string(status.message()));
  }
}

std::string TagOf(const std::string& body) {
  return absl::StrFormat("\"%08x-%x\"", Crc32c(body), body.size());
}

// Returns the object with its `now`, which does not count for the tag: a
// program that asks again learns whether anything has changed.
HttpAnswer JsonAnswer(const Json& json, double now,
                      const std::string& if_none_match) {
  std::string body = Dump(json);
  const std::string tag = TagOf(body);
  HttpAnswer answer;
  answer.headers.emplace_back("ETag", tag);
  if (absl::StrContains(if_none_match, tag)) {
    answer.status = 304;
    return answer;
  }
  answer.content_type = kJson;
  answer.body = absl::StrFormat("{\"now\":%.6f,", now);
  answer.body.append(body, 1, std::string::npos);
  return answer;
}

HttpAnswer StandsBy() {
  return JsonError(503, "UNAVAILABLE",
                   "this coordinator does not lead: it stands by, starts or "
                   "ends; ask again, or ask the one that leads");
}

HttpAnswer NoSuchPath(const std::string& path) {
  return JsonError(404, "NOT_FOUND", "there is nothing at " + path);
}

}  // namespace

Site::Site(bool insecure, const Clock* clock)
    : insecure_(insecure),
      clock_(clock),
      calendar_(clock->WallTime() - clock->Now()) {}

HttpAnswer Site::Health(const CoordinatorView* view) const {
  // One that stands by has nothing to look at.
  if (view == nullptr) return Text(200, kText, "ok: stands by\n");
  const absl::Duration age = view->clock->Now() - view->last_tick();
  if (age <= kTickLimit) return Text(200, kText, "ok\n");
  return Text(503, kText,
              absl::StrFormat("the coordinator has not looked at its deadlines "
                              "for %s\n",
                              absl::FormatDuration(age)));
}

HttpAnswer Site::Ready(const CoordinatorView* view) const {
  const bool leads = view != nullptr && view->leads();
  const Json json = {{"ready", leads}, {"leader", leads}};
  return Text(leads ? 200 : 503, kJson, Dump(json));
}

HttpAnswer Site::Version(const CoordinatorView& view) const {
  const Json json = {{"version", kVersion},
                     {"cluster_id", view.membership->cluster_id()},
                     {"term", view.membership->term().value()},
                     {"started_at", TimeJson(view.started + calendar_)},
                     {"leader", view.leads()},
                     {"insecure", insecure_}};
  return JsonAnswer(
      json,
      absl::ToDoubleSeconds(clock_->Now() + calendar_ - absl::UnixEpoch()), "");
}

HttpAnswer Site::Api(const HttpRequest& request,
                     const CoordinatorView& view) const {
  // A coordinator that another one may have replaced answers nothing else.
  if (!view.leads()) return StandsBy();
  absl::string_view path = request.path;
  absl::ConsumePrefix(&path, "/api/v1/");
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  absl::StatusOr<Json> json = absl::NotFoundError("");
  if (parts.size() == 1 && parts[0] == "version") return Version(view);
  if (parts.size() == 1 && parts[0] == "jobs") {
    json = JobsJson(view);
  } else if (parts.size() == 1 && parts[0] == "events") {
    json = EventsJson(view, "", request.query);
  } else if (parts.size() == 2 && parts[0] == "jobs" && !parts[1].empty()) {
    json = JobJson(view, parts[1], request.query, calendar_);
  } else if (parts.size() == 3 && parts[0] == "jobs" && !parts[1].empty() &&
             parts[2] == "steps") {
    json = StepsJson(view, parts[1], request.query);
  } else if (parts.size() == 3 && parts[0] == "jobs" && !parts[1].empty() &&
             parts[2] == "events") {
    json = EventsJson(view, parts[1], request.query);
  } else {
    return NoSuchPath(request.path);
  }
  if (!json.ok()) return ErrorOf(json.status());
  const double now =
      absl::ToDoubleSeconds(clock_->Now() + calendar_ - absl::UnixEpoch());
  return JsonAnswer(*json, now, request.if_none_match);
}

HttpAnswer Site::Answer(const HttpRequest& request) const {
  const ShownView::Reader reader(&shown_);
  const CoordinatorView* const view = reader.view();
  if (request.path == "/healthz") return Health(view);
  if (request.path == "/readyz") return Ready(view);
  if (request.path == "/metrics") {
    return Text(200, kMetrics, MetricsText(view));
  }
  if (absl::StartsWith(request.path, "/api/v1/")) {
    return view == nullptr ? StandsBy() : Api(request, *view);
  }
  const std::optional<StaticFile> file = FindStaticFile(request.path);
  if (!file.has_value()) return NoSuchPath(request.path);
  return Text(200, std::string(file->content_type), std::string(file->content));
}

}  // namespace coxswain::server
