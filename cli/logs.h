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

// Where the command reads and writes; tests have their own.
struct LogsWorld {
  JournalStub* stub = nullptr;
  // Raised to end the command.
  CancelSignal* stop = nullptr;
  // Writes lines to stdout; returns false once it is closed.
  std::function<bool(const std::string& lines)> write;
  // Writes a remark, which is not part of the journal, to stderr.
  std::function<void(const std::string& remark)> remark;
  // Of the attempts to reach a coordinator that was lost.
  RetryPolicy retry = {};
};

// Runs `coxswain logs`: prints the events of the coordinator's journal, and
// with
// --follow later ones, until `stop`. Waits for a coordinator that was lost, but
// not for one that cannot be reached at first. Fails with the error of the
// first answer, or of a coordinator that refuses.
absl::Status ShowLogs(const LogsOptions& options, const LogsWorld& world);

// The same with the real coordinator, stdout, stderr and signals.
absl::Status ShowLogs(const LogsOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LOGS_H_
