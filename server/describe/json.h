#ifndef COXSWAIN_SERVER_DESCRIBE_JSON_H_
#define COXSWAIN_SERVER_DESCRIBE_JSON_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "nlohmann/json.hpp"
#include "proto/checkpoint.pb.h"
#include "proto/journal.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/schedule.pb.h"
#include "proto/types.pb.h"
#include "schedule/plan.h"

namespace coxswain::server {

// A coordinator's description of its jobs as JSON, for HTTP and for
// `coxswain ... --json`: one name for each field and one form for each value.
// docs/observability.md has them. Callers add what they know beyond it.

using Json = nlohmann::json;

// Seconds since 1970, to the microsecond; null for the infinite past and
// future: never.
Json TimeJson(absl::Time calendar);

// Times are by the calendar: messages have ages instead, in milliseconds, which
// are of the moment that they were sent in.

// Without members and spares, but for how many members there are.
Json JobJson(const v1::JobDescription& job, absl::Time last_event,
             absl::Time waits_since);
Json MemberJson(const v1::MemberDescription& member, absl::Time received);
Json RoundJson(const v1::RoundRecord& round, absl::Time decided,
               absl::Duration tickets_took);
Json PlanJson(const v1::Plan& plan);
// A complete one.
Json CheckpointJson(const v1::CheckpointInfo& checkpoint);
// As a line of the log without its end; in JSON with its sequence.
std::string EventLine(const v1::JournalEvent& event, LogFormat format);

// Writes a field once more, under the name that it had in an earlier version.
// CHANGELOG.md lists these names.
void AddAlias(absl::string_view old_name, absl::string_view name, Json* json);

// As one line, and as lines for display, which end with a newline. What peers
// send need not be UTF-8: other bytes become U+FFFD.
std::string Dump(const Json& json);
std::string DumpLines(const Json& json);

// ---- plans for display: a newer coordinator may send terms that are not known
// here

// Returns the settings of a plan that have fields of their own.
std::vector<schedule::NamedValue> ValuesOf(const v1::Plan& plan);
// Returns the terms of a plan: those that it leaves out with their defaults.
std::map<std::string, std::string> AllTerms(const v1::Plan& plan);
// Those that are not the defaults, as "name=value", sorted by name.
std::vector<std::string> ChangedTerms(const v1::Plan& plan);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_DESCRIBE_JSON_H_
