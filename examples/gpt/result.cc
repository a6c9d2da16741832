#include "examples/gpt/result.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/progress/display.h"
#include "examples/progress/step_event.h"

namespace coxswain::examples::gpt {
namespace {

using nlohmann::json;

// As many as make a difference of half a unit of the last one unlikely to be
// rounding.
constexpr int kLossDigits = 6;
constexpr char kExactHook[] = "allreduce";

Result ResultFrom(const json& j) {
  Result r;
  r.mesh = j.at("mesh");
  r.world_size = j.at("world_size");
  r.zero = j.at("zero");
  r.hook = j.at("hook");
  r.schedule = j.at("schedule");
  r.sequence = j.at("sequence");
  r.steps = j.at("steps");
  r.train_loss = j.at("train_loss");
  r.held_out_loss = j.at("held_out_loss");
  r.tokens_per_second = j.at("tokens_per_second");
  r.pp_bytes = j.at("pp_bytes_per_step");
  r.dp_bytes = j.at("dp_bytes_per_step");
  r.tp_bytes = j.at("tp_bytes_per_step");
  r.bubble = j.at("bubble");
  r.planned_bubble = j.at("planned_bubble");
  r.wall_seconds = j.at("wall_seconds");
  return r;
}

std::string BytesOrNone(double bytes) {
  return bytes == 0 ? "-" : HumanBytes(bytes);
}

// "pp=2,dp=2,tp=2 seq".
std::string MeshOf(const Result& r) {
  return absl::StrCat(r.mesh, r.sequence ? " seq" : "");
}

std::string RowOf(const Result& r) {
  const std::string bubble =
      r.planned_bubble == 0 ? "-"
                            : absl::StrFormat("%.0f%% (%.0f%%)", 100 * r.bubble,
                                              100 * r.planned_bubble);
  return absl::StrFormat("%-19s %4d  %-18s %9.*f %9.*f %8.0f %9s %9s %9s  %s\n",
                         MeshOf(r), r.zero, r.hook, kLossDigits, r.train_loss,
                         kLossDigits, r.held_out_loss, r.tokens_per_second,
                         BytesOrNone(r.pp_bytes), BytesOrNone(r.dp_bytes),
                         BytesOrNone(r.tp_bytes), bubble);
}

// Infinite where one of them is not finite.
double Difference(double a, double b) {
  const double difference = std::abs(a - b);
  return std::isfinite(difference) ? difference
                                   : std::numeric_limits<double>::infinity();
}

// The largest one of two runs, which report after the same steps.
double Difference(const TrainedRun& a, const TrainedRun& b) {
  if (a.curve.points.size() != b.curve.points.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double largest =
      std::max(Difference(a.result.train_loss, b.result.train_loss),
               Difference(a.result.held_out_loss, b.result.held_out_loss));
  for (size_t i = 0; i < a.curve.points.size(); ++i) {
    largest = std::max(largest, Difference(a.curve.points[i].second,
                                           b.curve.points[i].second));
  }
  return largest;
}

}  // namespace

json ToJson(const Result& r) {
  return {{"event", "result"},
          {"mesh", r.mesh},
          {"world_size", r.world_size},
          {"zero", r.zero},
          {"hook", r.hook},
          {"schedule", r.schedule},
          {"sequence", r.sequence},
          {"steps", r.steps},
          {"train_loss", r.train_loss},
          {"held_out_loss", r.held_out_loss},
          {"tokens_per_second", r.tokens_per_second},
          {"pp_bytes_per_step", r.pp_bytes},
          {"dp_bytes_per_step", r.dp_bytes},
          {"tp_bytes_per_step", r.tp_bytes},
          {"bubble", r.bubble},
          {"planned_bubble", r.planned_bubble},
          {"wall_seconds", r.wall_seconds}};
}

absl::StatusOr<std::vector<TrainedRun>> ReadRuns(const std::string& path) {
  std::vector<TrainedRun> runs;
  std::ifstream file(path);
  std::string line;
  LossCurve curve;
  try {
    while (std::getline(file, line)) {
      const json event = json::parse(line);
      if (event.at("event") == "step") {
        const StepEvent step = StepFrom(event);
        curve.points.emplace_back(step.step, step.loss);
        continue;
      }
      TrainedRun run;
      run.result = ResultFrom(event);
      run.curve = std::exchange(curve, LossCurve());
      run.curve.name = absl::StrFormat("%s, zero=%d, %s", MeshOf(run.result),
                                       run.result.zero, run.result.hook);
      runs.push_back(std::move(run));
    }
  } catch (const std::exception& error) {
    return absl::DataLossError(absl::StrCat(path, ": ", error.what()));
  }
  if (runs.empty()) return absl::NotFoundError(path + " has no results");
  return runs;
}

std::string TableOf(const std::vector<TrainedRun>& runs) {
  std::string table =
      absl::StrFormat("\n%-19s %4s  %-18s %9s %9s %8s %9s %9s %9s  %s\n",
                      "mesh", "zero", "hook", "loss", "held out", "tokens/s",
                      "pp/step", "dp/step", "tp/step", "bubble");
  for (const TrainedRun& run : runs) table += RowOf(run.result);
  table +=
      "loss: nats a byte, mean of the last tenth of the steps; held out: of "
      "text not trained on;\n/step: bytes that a rank hands to collectives and "
      "channels along an axis, mean of the ranks;\nbubble: of a pipeline's "
      "time, without a pass, measured (in brackets: as its schedule has it);\n"
      "seq: divided along the sequence between the layers that tp divides\n";
  return table;
}

absl::StatusOr<double> CompareLosses(const std::vector<TrainedRun>& runs) {
  const auto one =
      std::find_if(runs.begin(), runs.end(), [](const TrainedRun& run) {
        return run.result.world_size == 1 && run.result.hook == kExactHook;
      });
  if (one == runs.end()) {
    return absl::NotFoundError("there is no run of one rank to compare with");
  }
  const double tolerance = 0.5 * std::pow(10, -kLossDigits);
  double largest = 0;
  std::string differ;
  for (const TrainedRun& run : runs) {
    if (run.result.hook != kExactHook) continue;
    const double difference = Difference(run, *one);
    largest = std::max(largest, difference);
    if (difference < tolerance) continue;
    absl::StrAppend(&differ, "\n  ", run.curve.name, ": ", difference);
  }
  if (differ.empty()) return largest;
  return absl::FailedPreconditionError(absl::StrCat(
      "the losses of one rank and of these runs differ by more than ",
      tolerance, ":", differ));
}

}  // namespace coxswain::examples::gpt
