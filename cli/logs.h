#ifndef COXSWAIN_CLI_LOGS_H_
#define COXSWAIN_CLI_LOGS_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "base/cancel_signal.h"
#include "cli/options.h"
#include "client/rpc/journal_stub.h"
#include "client/rpc/retry.h"

namespace coxswain {

// What the command needs of the world.
struct LogsWorld {
  JournalStub* stub = nullptr;
  // Raised when the person has seen enough.
  CancelSignal* stop = nullptr;
  // Lines for stdout; false: nobody reads them any more.
  std::function<bool(const std::string& lines)> write;
  // Remarks for stderr: not part of the journal.
  std::function<void(const std::string& remark)> remark;
  // Of the attempts to reach a coordinator that was lost.
  RetryPolicy retry = {};
};

// `coxswain logs`: prints what the coordinator's journal has, and with --follow
// what comes, until `stop`. A coordinator that is gone is waited for, unless it
// was not there at first. Errors are those of the first answer, or of a
// coordinator that refuses.
absl::Status ShowLogs(const LogsOptions& options, const LogsWorld& world);

// The same with the real coordinator, stdout, stderr and signals.
absl::Status ShowLogs(const LogsOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LOGS_H_
