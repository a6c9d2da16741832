#include "client/torch/manifest.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/ddp_options.h"

namespace coxswain::torch {
namespace {

std::map<std::string, std::string> ReducerSettings(
    const ReducerOptions& options) {
  const auto on_off = [](bool value) { return value ? "true" : "false"; };
  std::map<std::string, std::string> settings = options.settings;
  settings["first_bucket_bytes"] =
      absl::StrCat(options.buckets.first_bucket_bytes);
  settings["bucket_bytes"] = absl::StrCat(options.buckets.bucket_bytes);
  settings["rebuild"] = on_off(options.rebuild);
  settings["find_unused_parameters"] = on_off(options.find_unused_parameters);
  settings["uneven_inputs"] = on_off(options.uneven_inputs);
  settings["max_norm"] = absl::StrCat(options.max_norm);
  return settings;
}

}  // namespace

absl::StatusOr<JobManifest> DescribeJob(
    const ::torch::nn::Module& module, const std::string& hook_spec,
    const DistributedDataParallelOptions& options) {
  JobManifest manifest;
  manifest.hook = hook_spec;
  const JobPlan plan = PlanOf(options);
  manifest.accumulation_steps = plan.accumulation_steps;
  manifest.terms = plan.terms;
  COXSWAIN_ASSIGN_OR_RETURN(manifest.parameters, DescribeParameters(module));
  manifest.settings = ReducerSettings(options.reducer);
  for (const auto& [name, value] : AgreedSettings(options)) {
    // Of these the manifest has fields.
    if (name == "accumulation_steps" || name == "schedule") continue;
    manifest.settings[name] = value;
  }
  return manifest;
}

}  // namespace coxswain::torch
