#ifndef COXSWAIN_SERVER_HTTP_API_JSON_H_
#define COXSWAIN_SERVER_HTTP_API_JSON_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/components/components.h"
#include "server/describe/json.h"

namespace coxswain::server {

// The answers of /api/v1, without their `now`: what server/describe/json.h
// makes of an object, and what is known here besides. docs/observability.md has
// the fields. `calendar` is what takes the clock of the view to the calendar.

using Query = std::map<std::string, std::string>;

// Returns a number of a query, or its default. INVALID_ARGUMENT names the
// range.
absl::StatusOr<int64_t> NumberOf(const Query& query, const std::string& name,
                                 int64_t otherwise, int64_t least,
                                 int64_t most);

Json JobsJson(const CoordinatorView& view);
// All of these: NOT_FOUND: no such job; INVALID_ARGUMENT: the query.
absl::StatusOr<Json> JobJson(const CoordinatorView& view,
                             const std::string& job, const Query& query,
                             absl::Duration calendar);
absl::StatusOr<Json> StepsJson(const CoordinatorView& view,
                               const std::string& job, const Query& query);
// An empty job: those of all.
absl::StatusOr<Json> EventsJson(const CoordinatorView& view,
                                const std::string& job, const Query& query);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_API_JSON_H_
