#ifndef COXSWAIN_EXAMPLES_PROGRESS_STEP_EVENT_H_
#define COXSWAIN_EXAMPLES_PROGRESS_STEP_EVENT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::examples {

// What a trainer prints for the program that started it: one JSON object a
// line, whose "event" is "step", or "result" once the run has ended well.

// A step has been taken.
struct StepEvent {
  int64_t step = 0;   // optimizer steps taken, from 1
  int64_t steps = 0;  // in the whole run
  double loss = 0;
  std::string unit = "images";     // of the data
  double per_second = 0;           // of them, over all ranks
  double bytes_sent_per_step = 0;  // payload of one rank
};

nlohmann::json ToJson(const StepEvent& event);
// Throws what nlohmann::json throws if it is not such an event.
StepEvent StepFrom(const nlohmann::json& json);

// Returns which of these a line is, "step" or "result"; empty: neither. The
// launcher may have prefixed it with the worker's name, which is cut off.
std::string KindOfEvent(std::string* line);

// A JSON object as a line.
std::string LineOf(const nlohmann::json& json);

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_PROGRESS_STEP_EVENT_H_
