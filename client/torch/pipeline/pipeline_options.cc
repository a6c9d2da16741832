#include "client/torch/pipeline/pipeline_options.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mesh.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "client/torch/pipeline/window_zero.h"
#include "schedule/memory/zero_limits.h"
#include "schedule/pipeline/generate.h"
#include "schedule/pipeline/schedule.h"

namespace coxswain::torch {
namespace {

constexpr char kDefaultPipeline[] = "1f1b";
constexpr char kByParameters[] = "parameters";
// Of their words; a setting has a limit of its own.
constexpr size_t kMostOfTies = 1000;

absl::Status CheckLossScaling(const PipelineOptions& options) {
  if (!options.loss_scaling.has_value()) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(LossScale::Create(*options.loss_scaling).status());
  if (options.ddp.skip_non_finite) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "loss_scaling without skip_non_finite: gradients that overflow would be "
      "applied; set ddp.skip_non_finite, by which all ranks skip their step");
}

std::string TextOf(const LossScaling& scaling) {
  return absl::StrCat(scaling.initial, ",", scaling.growth, ",",
                      scaling.backoff, ",", scaling.growth_every, ",",
                      scaling.least, ",", scaling.most);
}

absl::Status CheckOptions(const PipelineOptions& options, int ranks, int tp) {
  const schedule::Terms& terms = options.ddp.terms;
  COXSWAIN_RETURN_IF_ERROR(memory::CheckZeroStage(options.ddp.zero));
  if (options.ddp.reducer.find_unused_parameters) {
    return absl::InvalidArgumentError(
        "find_unused_parameters with a pipeline: gradients of backward passes "
        "in halves, and of tied parameters, are added without autograd, which "
        "would count them as unused; leave it out: a parameter that no pass "
        "reaches counts with zeros");
  }
  const bool of_all =
      options.ddp.skip_non_finite || options.ddp.reducer.max_norm > 0;
  if (of_all && ranks * tp > 1 && !terms.commit_vote) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.ddp.skip_non_finite ? "skip_non_finite" : "max_norm",
        ranks > 1 ? absl::StrCat(" with pp=", ranks)
                  : absl::StrCat(" with tp=", tp),
        ": no rank has all gradients, so that the ranks vote on each step; set "
        "terms.commit_vote"));
  }
  return CheckLossScaling(options);
}

absl::StatusOr<int> SizeOf(const PipelineOptions& options,
                           absl::string_view axis, absl::string_view what) {
  if (options.mesh.empty()) return 1;
  COXSWAIN_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(options.mesh));
  const int ranks = mesh.extent(axis);
  if (ranks > 0) return ranks;
  return absl::InvalidArgumentError(
      absl::StrCat("the mesh ", options.mesh, " leaves the size of ", axis,
                   " open, and ", what, " depends on it: give ", axis,
                   " a size, and leave dp open, as in pp=2,dp=*,tp=2"));
}

// Returns what tp divides, and how: the same text on all ranks that divide the
// same.
std::string DividedOf(const PipelineDescription& described,
                      const PipelineOptions& options) {
  std::string text = options.sequence ? "sequence" : "";
  for (const auto& [name, box] : described.boxes) {
    for (size_t d = 0; d < box.shape.size(); ++d) {
      if (box.box.end[d] - box.box.begin[d] == box.shape[d]) continue;
      absl::StrAppend(&text, " ", name, ":", d);
    }
  }
  return absl::StrCat(described.boxes.size(), " parameters",
                      options.sequence ? " and the sequence, " : ", ",
                      absl::Hex(StableHash(text), absl::kZeroPad16));
}

// A rank without parameters would take part in no exchange.
absl::Status CheckParameters(const PipelineDescription& model,
                             const pipeline::StageCut& cut,
                             const pipeline::Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    int64_t elements = 0;
    for (const int stage : schedule.StagesOf(rank)) {
      for (int layer = cut.begin(stage); layer < cut.end(stage); ++layer) {
        elements += model.elements[static_cast<size_t>(layer)];
      }
    }
    if (elements > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " along pp has no trainable parameters with the stages ",
        cut.ToString(),
        ": set `stages` so that each has some, or to \"parameters\""));
  }
  return absl::OkStatus();
}

absl::StatusOr<pipeline::StageCut> CutOf(const std::vector<int64_t>& elements,
                                         const std::string& text, int stages) {
  const int layers = static_cast<int>(elements.size());
  if (text.empty()) return pipeline::StageCut::Even(layers, stages);
  if (text == kByParameters)
    return pipeline::StageCut::ByWeight(elements, stages);
  return pipeline::StageCut::Parse(text, layers, stages);
}

}  // namespace

std::string TiesOf(const PipelineModel& model) {
  const std::string all =
      absl::StrJoin(model.ties, ",", [](std::string* out, const Tie& tie) {
        absl::StrAppend(out, tie.first, "=", tie.second);
      });
  if (all.size() <= kMostOfTies) return all;
  return absl::StrCat(all.substr(0, kMostOfTies), "... of ", model.ties.size(),
                      ", ", absl::Hex(StableHash(all), absl::kZeroPad16));
}

absl::StatusOr<int> StageRanksOf(const PipelineOptions& options) {
  return SizeOf(options, "pp", "which layers each stage has");
}

absl::StatusOr<int> TensorRanksOf(const PipelineOptions& options) {
  return SizeOf(options, "tp", "which part of each layer a rank has");
}

absl::StatusOr<pipeline::StageCut> CutOf(const PipelineModel& model,
                                         const PipelineOptions& options,
                                         int stages) {
  std::vector<int64_t> elements(model.layers.size());
  if (options.stages == kByParameters) {
    COXSWAIN_ASSIGN_OR_RETURN(const int tp, TensorRanksOf(options));
    COXSWAIN_ASSIGN_OR_RETURN(PipelineDescription described,
                              Describe(model, tp, options.sequence));
    elements = std::move(described.elements);
  }
  return CutOf(elements, options.stages, stages);
}

absl::StatusOr<JobManifest> DescribeJob(const PipelineModel& model,
                                        const PipelineOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const int ranks, StageRanksOf(options));
  COXSWAIN_ASSIGN_OR_RETURN(const int tp, TensorRanksOf(options));
  COXSWAIN_RETURN_IF_ERROR(CheckOptions(options, ranks, tp));
  DistributedDataParallelOptions ddp = options.ddp;
  std::string& spec = ddp.terms.pipeline;
  if (spec.empty()) spec = kDefaultPipeline;
  COXSWAIN_ASSIGN_OR_RETURN(const pipeline::ScheduleSpec parsed,
                            pipeline::ScheduleSpec::Parse(spec));
  spec = parsed.ToString();
  COXSWAIN_ASSIGN_OR_RETURN(
      const pipeline::Schedule schedule,
      pipeline::MakeSchedule(spec, ranks, ddp.accumulation_steps));
  COXSWAIN_ASSIGN_OR_RETURN(PipelineDescription described,
                            Describe(model, tp, options.sequence));
  COXSWAIN_ASSIGN_OR_RETURN(
      const pipeline::StageCut cut,
      CutOf(described.elements, options.stages, schedule.stages()));
  COXSWAIN_RETURN_IF_ERROR(CheckParameters(described, cut, schedule));
  COXSWAIN_RETURN_IF_ERROR(
      CheckWindowZero(options, model, described, cut, schedule));
  const std::string divided = DividedOf(described, options);
  JobManifest manifest =
      DescribeJob(std::move(described.parameters), options.hook, ddp);
  manifest.mesh = options.mesh;
  manifest.settings["stages"] = cut.ToString();
  if (options.loss_scaling.has_value()) {
    manifest.settings["loss_scaling"] = TextOf(*options.loss_scaling);
  }
  if (tp > 1) manifest.settings["tensor"] = divided;
  if (!model.ties.empty()) manifest.settings["ties"] = TiesOf(model);
  manifest.settings["pipeline_hash"] =
      absl::StrCat(absl::Hex(schedule.Hash(), absl::kZeroPad16));
  return manifest;
}

}  // namespace coxswain::torch
