#include "client/torch/pipeline/window_zero.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/status_macros.h"
#include "client/reduce/bucket.h"
#include "schedule/memory/zero_limits.h"

namespace coxswain::torch {
namespace {

// Returns the bytes of a parameter's gradient on rank 0 along tp.
int64_t BytesOf(const ParameterSpec& parameter,
                const PipelineDescription& described) {
  const auto divided = described.boxes.find(parameter.name);
  const int64_t elements = divided == described.boxes.end()
                               ? parameter.count()
                               : divided->second.box.count();
  return elements * static_cast<int64_t>(SizeOf(parameter.dtype));
}

// Returns the gradients of the rank along pp that has the most.
memory::WindowGradients Largest(const PipelineModel& model,
                                const PipelineDescription& described,
                                const pipeline::StageCut& cut,
                                const pipeline::Schedule& schedule) {
  std::map<std::string, int> rank_of;  // by layer
  for (size_t i = 0; i < model.layers.size(); ++i) {
    rank_of[model.layers[i].name] =
        schedule.rank_of_stage(cut.StageOf(static_cast<int>(i)));
  }
  std::vector<memory::WindowGradients> ranks(
      static_cast<size_t>(schedule.ranks()));
  for (const ParameterSpec& parameter : described.parameters) {
    // Names of layers have no dots.
    const std::string layer =
        parameter.name.substr(0, parameter.name.find('.'));
    memory::WindowGradients& rank =
        ranks[static_cast<size_t>(rank_of.at(layer))];
    const int64_t bytes = BytesOf(parameter, described);
    rank.bytes += bytes;
    rank.bucket = std::max(rank.bucket, bytes);
  }
  const auto largest = std::max_element(
      ranks.begin(), ranks.end(),
      [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  largest->rank = absl::StrCat("pp ", largest - ranks.begin());
  return *largest;
}

// Returns how many ranks share a state; 0: that is not known yet.
absl::StatusOr<int> SharersOf(const PipelineOptions& options) {
  if (options.mesh.empty()) return 1;
  COXSWAIN_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(options.mesh));
  const int shards = mesh.extent("shard");
  // docs/parallelism.md, "Hybrid sharding".
  if (shards > 1 && mesh.extent("dp") != 1) return shards;
  return mesh.extent("dp") * shards;
}

}  // namespace

absl::Status CheckWindowZero(const PipelineOptions& options,
                             const PipelineModel& model,
                             const PipelineDescription& described,
                             const pipeline::StageCut& cut,
                             const pipeline::Schedule& schedule) {
  if (options.ddp.zero < 2 || options.force_zero) return absl::OkStatus();
  memory::WindowGradients gradients = Largest(model, described, cut, schedule);
  const BucketPlanOptions& buckets = options.ddp.reducer.buckets;
  gradients.bucket = std::max(gradients.bucket, buckets.bucket_bytes);
  gradients.micro_batches = schedule.micro_batches();
  COXSWAIN_ASSIGN_OR_RETURN(gradients.sharers, SharersOf(options));
  return memory::RefuseZeroOfWindow(gradients, "PipelineOptions::force_zero");
}

}  // namespace coxswain::torch
