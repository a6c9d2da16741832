#include "client/torch/ddp_options.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::torch {
namespace {

absl::Status CheckAverager(const Hook& hook, const Averager* averager) {
  if (!hook.needs_averager()) return absl::OkStatus();
  if (averager == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the hook ", hook.spec(),
        " leaves the ranks' parameters apart and needs its averager: pass what "
        "MakePlannedAverager or MakeAverager gives for the same spec, and call "
        "AfterOptimizerStep after each optimizer step"));
  }
  if (!absl::StrContains(hook.spec(), averager->spec())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the averager ", averager->spec(), " is not that of the hook ",
        hook.spec(), "; make both from one spec"));
  }
  return absl::OkStatus();
}

absl::Status CheckUnevenInputs(const DistributedDataParallelOptions& options,
                               const Hook& hook, const Averager* averager) {
  if (!options.reducer.uneven_inputs) return absl::OkStatus();
  if (!hook.needs_averager() && averager == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "uneven_inputs does not go with the hook ", hook.spec(),
      " and its averager: while ranks step on their own, one that is out of "
      "data would be averaged in with parameters that no longer learn; give "
      "all ranks equally much data, or take a hook that averages gradients"));
}

absl::Status CheckOverlap(const DistributedDataParallelOptions& options,
                          const Hook& hook, const Averager* averager) {
  if (!options.overlapped_optimizer) return absl::OkStatus();
  const auto refuse = [](absl::string_view what, absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("overlapped_optimizer does not go with ", what,
                     ": it steps before ", why, "; leave one of them out"));
  };
  if (options.reducer.max_norm > 0) {
    return refuse("max_norm", "the norm of all gradients is known");
  }
  if (options.reducer.find_unused_parameters) {
    return refuse("find_unused_parameters",
                  "it is known which parameters no rank used");
  }
  if (averager != nullptr || hook.needs_averager()) {
    return refuse("an averager", "AfterOptimizerStep is told of the step");
  }
  return absl::OkStatus();
}

absl::string_view OnOff(bool value) { return value ? "true" : "false"; }

}  // namespace

absl::Status CheckOptions(const DistributedDataParallelOptions& options,
                          const Hook& hook, const Averager* averager) {
  if (options.reducer.on_average) {
    return absl::InvalidArgumentError(
        "ReducerOptions::on_average is for the wrapper itself; to step while "
        "buckets still travel, set overlapped_optimizer");
  }
  COXSWAIN_RETURN_IF_ERROR(CheckAverager(hook, averager));
  COXSWAIN_RETURN_IF_ERROR(CheckUnevenInputs(options, hook, averager));
  return CheckOverlap(options, hook, averager);
}

std::map<std::string, std::string> AgreedSettings(
    const DistributedDataParallelOptions& options) {
  std::map<std::string, std::string> settings;
  const auto set = [&](absl::string_view name, bool value) {
    settings[std::string(name)] = std::string(OnOff(value));
  };
  settings["accumulation_steps"] = absl::StrCat(options.accumulation_steps);
  set("static_graph", options.static_graph);
  set("broadcast_buffers", options.broadcast_buffers);
  set("overlapped_optimizer", options.overlapped_optimizer != nullptr);
  return settings;
}

}  // namespace coxswain::torch
