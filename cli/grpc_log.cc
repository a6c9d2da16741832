#include "cli/grpc_log.h"

#include "absl/strings/str_cat.h"
#include "base/log_rate.h"
#include "base/logging.h"
#include "grpc/support/log.h"

namespace coxswain {
namespace {

// Lives as long as gRPC's own threads.
LogRate& Errors() {
  static LogRate& errors = *new LogRate("grpc");
  return errors;
}

void Log(gpr_log_func_args* said) {
  const LogFields fields = {
      {"text", said->message}, {"file", said->file}, {"line", said->line}};
  if (said->severity == GPR_LOG_SEVERITY_ERROR) {
    Errors().Line(absl::StrCat(said->file, ":", said->line), fields);
  } else if (said->severity == GPR_LOG_SEVERITY_INFO) {
    LogInfo("grpc", fields);
  } else {
    LogDebug("grpc", fields);
  }
}

}  // namespace

void TakeGrpcLog() { gpr_set_log_function(Log); }

}  // namespace coxswain
