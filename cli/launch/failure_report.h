#ifndef COXSWAIN_CLI_LAUNCH_FAILURE_REPORT_H_
#define COXSWAIN_CLI_LAUNCH_FAILURE_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/launch/process_table.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// A worker that failed and was not started again.
struct WorkerFailure {
  WorkerExit exit;
  uint64_t incarnation = 0;
  // The coordinator's answer to the report of this exit; empty: there is none.
  v1::ReportExitResponse answer;
};

// Returns which of the failures on this node caused the others, line by line,
// for display at the end of a launch: "cause: ...", and "consequence: ..." for
// each of the others. The cause is the member that the coordinator has lost,
// which may be on another node. Without an answer it is a worker that a signal
// has killed which a fault or the system sends, and that this launcher did not
// stop; otherwise the first that failed. Empty if there is no more to be said
// than that one worker failed, or was stopped.
//
// `failures` are in the order of their ends.
std::vector<std::string> DescribeFailures(
    const std::string& node, const std::vector<WorkerFailure>& failures);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_FAILURE_REPORT_H_
