#ifndef COXSWAIN_SERVER_DESCRIBE_MESSAGES_H_
#define COXSWAIN_SERVER_DESCRIBE_MESSAGES_H_

#include "absl/time/time.h"
#include "proto/journal.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/schedule.pb.h"
#include "server/journal/journal.h"
#include "server/membership/membership_types.h"
#include "server/schedule/schedule_report.h"

namespace coxswain::server {

// What the components know of jobs, as messages: for the services, and for JSON
// (json.h).

v1::MemberDescription ToProto(const MemberDescription& member);
v1::JobDescription ToProto(const JobDescription& job);
// `at`: when the report was made, by the clock of the decision.
v1::RoundRecord ToProto(const RoundReport& round, absl::Time at);
v1::JournalEvent ToProto(const JournalEvent& event);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_DESCRIBE_MESSAGES_H_
