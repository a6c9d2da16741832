#include "schedule/memory/rank_memory.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "schedule/memory/passes.h"
#include "schedule/memory/rank_model.h"
#include "schedule/memory/rank_states.h"
#include "schedule/memory/zero_limits.h"
#include "schedule/pipeline/generate.h"
#include "schedule/pipeline/proof.h"
#include "schedule/pipeline/schedule.h"
#include "schedule/pipeline/stage_cut.h"

namespace coxswain::memory {
namespace {

using pipeline::Action;
using pipeline::ActionKind;

// Of PipelineExecutorOptions: messages that wait at an end, and each end's
// ring.
constexpr int kCapacity = 2;
constexpr int64_t kSlots = int64_t{4} << 20;

// Of the ranks that have one index along tp.
class Estimator {
 public:
  Estimator(const RankModel& model, const Configuration& configuration,
            OptimizerCosts optimizer, const pipeline::StageCut& cut,
            const std::optional<pipeline::Schedule>& schedule, int capacity)
      : model_(model),
        configuration_(configuration),
        optimizer_(optimizer),
        sharing_(Sharing::Of(configuration)),
        cut_(cut),
        schedule_(schedule),
        capacity_(capacity) {}

  RankMemory Of(int pp) const {
    RankMemory rank;
    rank.pp = pp;
    std::vector<int> stages = {0};
    if (schedule_.has_value()) stages = schedule_->StagesOf(pp);
    rank.stages = absl::StrJoin(stages, ",");
    rank.layers = absl::StrJoin(stages, ",", [&](std::string* out, int stage) {
      absl::StrAppend(out, cut_.begin(stage));
      if (cut_.end(stage) - cut_.begin(stage) > 1) {
        absl::StrAppend(out, "-", cut_.end(stage) - 1);
      }
    });
    int64_t largest = 0;  // tensor, in elements
    for (const int stage : stages) {
      for (int i = cut_.begin(stage); i < cut_.end(stage); ++i) {
        const RankLayer& layer = model_.layers[static_cast<size_t>(i)];
        rank.elements += layer.elements();
        for (const int64_t one : layer.tensors)
          largest = std::max(largest, one);
      }
    }
    SetStates(configuration_, optimizer_, sharing_, model_.element_bytes,
              largest, &rank);
    AddPasses(pp, largest, &rank);
    return rank;
  }

 private:
  void AddPasses(int pp, int64_t largest, RankMemory* rank) const {
    // With zero=2 a gradient goes into its bucket, of those that are counted.
    const bool copies =
        configuration_.zero < 2 ||
        (configuration_.accumulation > 1 && !configuration_.sync_each_batch);
    Passes passes(model_, cut_, copies);
    Moment begin;
    if (schedule_.has_value()) {
      const int64_t fixed = MessagesOf(pp);
      if (schedule_->rank_of_stage(0) == pp) {
        begin.activations = configuration_.accumulation * model_.input;
      }
      passes.Begin(begin);
      Run(pp, &passes);
      rank->messages = fixed;
    } else {
      begin.activations = model_.input;
      passes.Begin(begin);
      passes.Forward(0, /*received=*/false);
      passes.Backward(0, /*received=*/false, /*is_half=*/false);
    }
    Moment most = passes.peak();
    Moment step;
    step.activations = begin.activations;
    if (!configuration_.offload) {
      const int64_t tensor = largest * model_.element_bytes;
      step.working = optimizer_.working *
                     (configuration_.zero > 0
                          ? std::min(tensor, sharing_.Slice(rank->parameters))
                          : tensor);
    }
    rank->in_step = step.sum() > most.sum();
    if (rank->in_step) most = step;
    rank->activations += most.activations;
    rank->messages += most.received;
    rank->working = most.working;
  }

  bool IsReceived(int stage) const {
    return stage > 0 && schedule_->rank_of_stage(stage - 1) !=
                            schedule_->rank_of_stage(stage);
  }

  void Run(int pp, Passes* passes) const {
    for (const Action& action : schedule_->of_rank()[static_cast<size_t>(pp)]) {
      const bool received = IsReceived(action.stage);
      if (action.kind == ActionKind::kForward) {
        passes->Forward(action.stage, received);
      } else if (action.kind == ActionKind::kBackwardInput) {
        passes->BackwardInput(action.stage);
      } else if (action.kind == ActionKind::kBackward ||
                 action.kind == ActionKind::kBackwardWeight) {
        passes->Backward(action.stage, received,
                         action.kind == ActionKind::kBackwardWeight);
      }
    }
  }

  // Returns what lies between stages at most, beside inputs that passes keep:
  // the ring of each channel's end, and what waits to be computed with or to be
  // written. Outputs that wait are counted with the activations.
  int64_t MessagesOf(int pp) const {
    const int64_t waiting = std::min(capacity_, schedule_->micro_batches());
    int64_t bytes = 0;
    for (const int stage : schedule_->StagesOf(pp)) {
      const int last = cut_.end(stage) - 1;
      if (IsReceived(stage)) {
        const RankLayer& before =
            model_.layers[static_cast<size_t>(cut_.begin(stage) - 1)];
        bytes += 2 * kSlots + 2 * waiting * before.output;
      }
      if (stage + 1 < schedule_->stages() && IsReceived(stage + 1)) {
        bytes += 2 * kSlots +
                 waiting * model_.layers[static_cast<size_t>(last)].output;
      }
    }
    return bytes;
  }

  const RankModel& model_;
  const Configuration& configuration_;
  const OptimizerCosts optimizer_;
  const Sharing sharing_;
  const pipeline::StageCut& cut_;
  const std::optional<pipeline::Schedule>& schedule_;
  const int capacity_;
};

absl::StatusOr<pipeline::StageCut> CutOf(const Model& model,
                                         const std::string& text, int stages) {
  const int layers = static_cast<int>(model.layers.size());
  if (text.empty()) return pipeline::StageCut::Even(layers, stages);
  if (text != "parameters") {
    return pipeline::StageCut::Parse(text, layers, stages);
  }
  std::vector<int64_t> elements;
  for (const Layer& layer : model.layers) elements.push_back(layer.elements());
  return pipeline::StageCut::ByWeight(elements, stages);
}

// Of zero=2 with a pipeline.
absl::Status Refusal(const Configuration& configuration, const Sharing& sharing,
                     const Estimate& estimate) {
  const RankMemory& rank =
      estimate.by_pp[static_cast<size_t>(estimate.largest)];
  WindowGradients gradients;
  gradients.rank = absl::StrCat("pp ", rank.pp);
  gradients.bytes = rank.parameters;
  gradients.bucket = configuration.bucket_bytes;
  gradients.sharers = sharing.sharers;
  gradients.micro_batches = configuration.accumulation;
  return RefuseZeroOfWindow(gradients, "--force-zero");
}

}  // namespace

absl::StatusOr<Estimate> EstimateMemory(const Model& model,
                                        const Configuration& configuration) {
  COXSWAIN_RETURN_IF_ERROR(CheckTrainable(configuration));
  COXSWAIN_ASSIGN_OR_RETURN(const OptimizerCosts optimizer,
                            CostsOf(configuration.optimizer));
  const Mesh& mesh = configuration.mesh;
  const int pp = mesh.extent("pp");
  const int tp = mesh.extent("tp");
  COXSWAIN_RETURN_IF_ERROR(CheckDivisible(model, tp));
  Estimate estimate;
  estimate.ranks = mesh.size();
  estimate.ranks_of_each = mesh.size() / pp / tp;
  std::optional<pipeline::Schedule> schedule;
  int stages = 1;
  int capacity = kCapacity;
  if (HasPipeline(configuration)) {
    COXSWAIN_ASSIGN_OR_RETURN(
        const pipeline::ScheduleSpec spec,
        pipeline::ScheduleSpec::Parse(
            configuration.pipeline.empty() ? "1f1b" : configuration.pipeline));
    estimate.pipeline = spec.ToString();
    COXSWAIN_ASSIGN_OR_RETURN(
        schedule, pipeline::MakeSchedule(estimate.pipeline, pp,
                                         configuration.accumulation));
    COXSWAIN_ASSIGN_OR_RETURN(const int least,
                              pipeline::LeastCapacity(*schedule));
    capacity = std::max(capacity, least);
    stages = schedule->stages();
  }
  COXSWAIN_ASSIGN_OR_RETURN(const pipeline::StageCut cut,
                            CutOf(model, configuration.stages, stages));
  const Sharing sharing = Sharing::Of(configuration);
  estimate.sharers = configuration.zero > 0 ? sharing.sharers : 1;
  const std::vector<int> firsts = FirstsOf(model, tp);
  std::vector<RankModel> models;
  for (const int first : firsts) {
    models.push_back(RankModelOf(model, tp, first, configuration.sequence));
  }
  for (int i = 0; i < pp; ++i) {
    for (size_t j = 0; j < firsts.size(); ++j) {
      RankMemory rank = Estimator(models[j], configuration, optimizer, cut,
                                  schedule, capacity)
                            .Of(i);
      rank.tp = firsts[j];
      rank.tp_ranks = (j + 1 < firsts.size() ? firsts[j + 1] : tp) - rank.tp;
      estimate.by_pp.push_back(std::move(rank));
    }
  }
  const auto largest = std::max_element(
      estimate.by_pp.begin(), estimate.by_pp.end(),
      [](const auto& a, const auto& b) { return a.total() < b.total(); });
  estimate.largest = static_cast<int>(largest - estimate.by_pp.begin());
  if (configuration.zero == 2 && schedule.has_value() &&
      !configuration.force_zero) {
    return Refusal(configuration, sharing, estimate);
  }
  return estimate;
}

const RankMemory& Estimate::Of(int pp, int tp) const {
  const auto found =
      std::find_if(by_pp.begin(), by_pp.end(), [&](const RankMemory& rank) {
        return rank.pp == pp && tp < rank.tp + rank.tp_ranks;
      });
  return found == by_pp.end() ? by_pp.back() : *found;
}

}  // namespace coxswain::memory
