#include "client/pipeline/trace_actions.h"

#include <utility>

#include "base/logging.h"

namespace coxswain {

std::function<void(int64_t step, const std::vector<TimedAction>& actions)>
TraceActions(std::shared_ptr<TraceFile> trace) {
  return [trace = std::move(trace)](int64_t step,
                                    const std::vector<TimedAction>& actions) {
    std::vector<TraceSpan> spans;
    spans.reserve(actions.size());
    for (const TimedAction& one : actions) {
      spans.push_back({ToString(one.action), one.begin, one.end});
    }
    const absl::Status status = trace->AddPipeline(step, spans);
    if (!status.ok()) {
      LogWarningOnce("pipeline", "trace_ended", {{"reason", status.message()}});
    }
  };
}

}  // namespace coxswain
