#ifndef COXSWAIN_CLIENT_ELASTIC_RECOVERY_REPORT_H_
#define COXSWAIN_CLIENT_ELASTIC_RECOVERY_REPORT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "client/elastic/elastic_run.h"
#include "client/elastic/recovery.h"
#include "client/session/job.h"
#include "client/session/session.h"

namespace coxswain {

// The sentence of RecoveryReport::lost.
std::string DescribeLoss(const LostPeer& peer);

// All but how long it took.
RecoveryReport ReportOf(const Session& session, const Recovered& recovered);

void LogRecovery(absl::string_view job, const RecoveryReport& report);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_RECOVERY_REPORT_H_
