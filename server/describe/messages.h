#ifndef COXSWAIN_SERVER_DESCRIBE_MESSAGES_H_
#define COXSWAIN_SERVER_DESCRIBE_MESSAGES_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "proto/journal.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/schedule.pb.h"
#include "server/journal/journal.h"
#include "server/membership/membership_types.h"
#include "server/schedule/schedule_report.h"
#include "server/telemetry/telemetry.h"

namespace coxswain::server {

// What the components know of jobs, as messages: for the services, and for JSON
// (json.h).

// Of the ranks that one of a pipeline waits for.
inline constexpr int kMaxWaitsFor = 8;

v1::MemberDescription ToProto(const MemberDescription& member);
v1::JobDescription ToProto(const JobDescription& job);
v1::RankWait ToProto(const RankWait& wait);
// Sets the ring, if there is one.
void AddRing(const std::optional<JobRing>& ring, v1::JobDescription* job);
v1::PipelineDescription ToProto(const PipelineReport& report);
// Returns the age of a moment: above 0, or 0 for the infinite past.
int64_t AgeMs(absl::Time at, absl::Duration age);
// `at`: when the report was made, by the clock of the decision.
v1::RoundRecord ToProto(const RoundReport& round, absl::Time at);
v1::JournalEvent ToProto(const JournalEvent& event);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_DESCRIBE_MESSAGES_H_
