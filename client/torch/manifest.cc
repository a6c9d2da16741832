#include "client/torch/manifest.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::torch {

absl::StatusOr<JobManifest> DescribeJob(
    const ::torch::nn::Module& module, const std::string& hook_spec,
    const DistributedDataParallelOptions& options) {
  JobManifest manifest;
  manifest.hook = hook_spec;
  manifest.accumulation_steps = options.accumulation_steps;
  COXSWAIN_ASSIGN_OR_RETURN(manifest.parameters, DescribeParameters(module));
  const BucketPlanOptions& buckets = options.reducer.buckets;
  manifest.settings["first_bucket_bytes"] =
      absl::StrCat(buckets.first_bucket_bytes);
  manifest.settings["bucket_bytes"] = absl::StrCat(buckets.bucket_bytes);
  return manifest;
}

}  // namespace coxswain::torch
