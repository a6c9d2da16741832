#include "examples/fashion_mnist/events.h"

#include <exception>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace coxswain::examples {
namespace {

using nlohmann::json;

json ResultToJson(const ResultEvent& e) {
  return {{"event", "result"},
          {"hook", e.hook},
          {"world_size", e.world_size},
          {"steps", e.steps},
          {"compressed_steps", e.compressed_steps},
          {"test_accuracy", e.test_accuracy},
          {"bytes_sent_per_step", e.bytes_sent_per_step},
          {"compression_ratio", e.compression_ratio},
          {"wire_bytes_per_step", e.wire_bytes_per_step},
          {"images_per_second", e.images_per_second},
          {"wall_seconds", e.wall_seconds}};
}

ResultEvent ResultFrom(const json& j) {
  ResultEvent e;
  e.hook = j.at("hook");
  e.world_size = j.at("world_size");
  e.steps = j.at("steps");
  e.compressed_steps = j.at("compressed_steps");
  e.test_accuracy = j.at("test_accuracy");
  e.bytes_sent_per_step = j.at("bytes_sent_per_step");
  e.compression_ratio = j.at("compression_ratio");
  e.wire_bytes_per_step = j.at("wire_bytes_per_step");
  e.images_per_second = j.at("images_per_second");
  e.wall_seconds = j.at("wall_seconds");
  return e;
}

}  // namespace

std::string ToJsonLine(const Event& event) {
  if (const auto* step = std::get_if<StepEvent>(&event)) {
    return LineOf(ToJson(*step));
  }
  return LineOf(ResultToJson(std::get<ResultEvent>(event)));
}

absl::StatusOr<Event> ParseEvent(absl::string_view line) {
  try {
    const json j = json::parse(line.begin(), line.end());
    const std::string kind = j.at("event");
    if (kind == "step") return Event(StepFrom(j));
    if (kind == "result") return Event(ResultFrom(j));
    return absl::InvalidArgumentError(
        absl::StrCat("'", kind, "' is no kind of event"));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("not an event of the trainer: ", error.what()));
  }
}

}  // namespace coxswain::examples
