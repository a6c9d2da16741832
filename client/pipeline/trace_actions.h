#ifndef COXSWAIN_CLIENT_PIPELINE_TRACE_ACTIONS_H_
#define COXSWAIN_CLIENT_PIPELINE_TRACE_ACTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/pipeline/place_book.h"
#include "client/reduce/trace_file.h"

namespace coxswain {

// Returns a function for PipelineExecutorOptions::on_step that writes each
// action of a step as a span, "2F0", to a trace. It must be open for this rank.
// A file that cannot be written later ends with a warning.
std::function<void(int64_t step, const std::vector<TimedAction>& actions)>
TraceActions(std::shared_ptr<TraceFile> trace);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_PIPELINE_TRACE_ACTIONS_H_
