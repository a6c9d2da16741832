#include "examples/progress/step_event.h"

#include <cmath>

namespace coxswain::examples {

using nlohmann::json;

json ToJson(const StepEvent& e) {
  return {{"event", "step"},
          {"step", e.step},
          {"steps", e.steps},
          {"loss", e.loss},
          {"unit", e.unit},
          {e.unit + "_per_second", e.per_second},
          {"bytes_sent_per_step", e.bytes_sent_per_step}};
}

StepEvent StepFrom(const json& j) {
  StepEvent e;
  e.step = j.at("step");
  e.steps = j.at("steps");
  // A loss that is not finite is null in JSON.
  e.loss = j.at("loss").is_null() ? std::nan("") : j.at("loss").get<double>();
  e.unit = j.at("unit");
  e.per_second = j.at(e.unit + "_per_second");
  e.bytes_sent_per_step = j.at("bytes_sent_per_step");
  return e;
}

std::string KindOfEvent(std::string* line) {
  const size_t start = line->find('{');
  if (start == std::string::npos) return "";
  const json j = json::parse(line->begin() + static_cast<long>(start),
                             line->end(), nullptr, /*allow_exceptions=*/false);
  if (!j.is_object() || !j.contains("event") || !j["event"].is_string()) {
    return "";
  }
  const std::string kind = j["event"];
  if (kind != "step" && kind != "result") return "";
  line->erase(0, start);
  return kind;
}

std::string LineOf(const json& j) {
  return j.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace coxswain::examples
