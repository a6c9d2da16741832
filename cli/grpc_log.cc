#include "cli/grpc_log.h"

#include "base/logging.h"
#include "grpc/support/log.h"

namespace coxswain {
namespace {

void Log(gpr_log_func_args* said) {
  const auto log = said->severity == GPR_LOG_SEVERITY_ERROR  ? LogWarning
                   : said->severity == GPR_LOG_SEVERITY_INFO ? LogInfo
                                                             : LogDebug;
  log("grpc",
      {{"text", said->message}, {"file", said->file}, {"line", said->line}});
}

}  // namespace

void TakeGrpcLog() { gpr_set_log_function(Log); }

}  // namespace coxswain
