#include "schedule/memory/rank_memory.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
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
// Buckets that have memory at a time, with zero=2 (docs/parallelism.md).
constexpr int64_t kBucketsInFlight = 3;
// Blocks of pinned memory, each of the largest slice of a bucket.
constexpr int64_t kOffloadBlocks = 4;

// What changes while a window runs.
struct Moment {
  int64_t activations = 0;
  int64_t received = 0;
  int64_t working = 0;

  int64_t sum() const { return activations + received + working; }
};

// A rank's passes, one after the other, in the order of its list: that of the
// schedule does not depend on time.
class Passes {
 public:
  // `copies`: each gradient has memory of its own while it is added to another.
  Passes(const Model& model, const pipeline::StageCut& cut, bool copies)
      : model_(model), cut_(cut), copies_(copies) {}

  void Begin(const Moment& begin) { now_ = peak_ = begin; }
  // `received`: its input came from another rank.
  void Forward(int stage, bool received) {
    if (received) now_.received += InputOf(stage);
    for (int i = cut_.begin(stage); i < cut_.end(stage); ++i) {
      now_.activations += LayerOf(i).activations;
      Look(LayerOf(i).working);
    }
  }
  // A half that keeps the gradients of its layers' outputs for the other one.
  void BackwardInput(int stage) {
    for (int i = cut_.end(stage); i-- > cut_.begin(stage);) {
      now_.activations += LayerOf(i).output;
      Look(LayerOf(i).working);
    }
  }
  void Backward(int stage, bool received, bool is_half) {
    for (int i = cut_.end(stage); i-- > cut_.begin(stage);) {
      const Layer& layer = LayerOf(i);
      int64_t largest = 0;
      for (const int64_t elements : layer.tensors) {
        largest = std::max(largest, elements * model_.element_bytes);
      }
      Look((is_half ? 0 : layer.working) + (copies_ ? largest : 0));
      now_.activations -= layer.activations + (is_half ? layer.output : 0);
    }
    if (received) now_.received -= InputOf(stage);
    Look(0);
  }
  const Moment& peak() const { return peak_; }

 private:
  const Layer& LayerOf(int i) const {
    return model_.layers[static_cast<size_t>(i)];
  }
  int64_t InputOf(int stage) const {
    const int first = cut_.begin(stage);
    return first == 0 ? model_.input : LayerOf(first - 1).output;
  }
  void Look(int64_t working) {
    now_.working = working;
    if (now_.sum() > peak_.sum()) peak_ = now_;
  }

  const Model& model_;
  const pipeline::StageCut& cut_;
  const bool copies_;
  Moment now_;
  Moment peak_;
};

class Estimator {
 public:
  Estimator(const Model& model, const Configuration& configuration,
            OptimizerCosts optimizer, pipeline::StageCut cut,
            std::optional<pipeline::Schedule> schedule, int capacity)
      : model_(model),
        configuration_(configuration),
        optimizer_(optimizer),
        cut_(std::move(cut)),
        schedule_(std::move(schedule)),
        capacity_(capacity) {
    const Mesh& mesh = configuration.mesh;
    const int dp = mesh.extent("dp");
    const int shard = mesh.extent("shard");
    // docs/parallelism.md, "Hybrid sharding".
    is_hybrid_ = configuration.zero > 0 && dp > 1 && shard > 1;
    sharers_ = is_hybrid_ ? shard : dp * shard;
  }

  int sharers() const { return sharers_; }

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
        const Layer& layer = model_.layers[static_cast<size_t>(i)];
        rank.elements += layer.elements();
        for (const int64_t one : layer.tensors)
          largest = std::max(largest, one);
      }
    }
    AddStates(largest, &rank);
    AddPasses(pp, largest, &rank);
    return rank;
  }

 private:
  int64_t Slice(int64_t bytes) const {
    return (bytes + sharers_ - 1) / sharers_;
  }

  // Rajbhandari et al., arXiv:1910.02054, with p = g and o = (state) p; where
  // the sums of a window lie is in docs/parallelism.md, "Memory of
  // accumulation".
  void AddStates(int64_t largest, RankMemory* rank) const {
    const int64_t all = rank->elements * model_.element_bytes;
    const int64_t state = all * optimizer_.state;
    const int64_t bucket = std::min(
        all,
        std::max(configuration_.bucket_bytes, largest * model_.element_bytes));
    const int zero = configuration_.zero;
    const bool window = configuration_.accumulation > 1;
    const bool each = window && configuration_.sync_each_batch;
    rank->parameters = all;
    rank->buckets = all;
    if (zero == 0) {
      // From one step to the next .grad keeps its memory; and averages are set
      // aside.
      rank->gradients =
          (configuration_.gradient_as_bucket_view ? 0 : all) + (each ? all : 0);
    }
    if (zero == 1 && each) rank->gradients = Slice(all);
    if (zero == 2) {
      rank->buckets = std::min(all, kBucketsInFlight * bucket);
      rank->gradients = Slice(all) + (window && !each ? all : 0);
    }
    rank->optimizer = zero > 0 ? Slice(state) : state;
    if (configuration_.offload) {
      rank->host =
          Slice(all) + rank->optimizer + kOffloadBlocks * Slice(bucket);
      rank->optimizer = 0;
    }
    const auto errors = static_cast<int64_t>(std::llround(
        configuration_.hook_bytes * static_cast<double>(rank->elements)));
    rank->hook = is_hybrid_ ? Slice(errors) : errors;
  }

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
      step.working =
          optimizer_.working * (configuration_.zero > 0
                                    ? std::min(tensor, Slice(rank->parameters))
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
        const Layer& before =
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

  const Model& model_;
  const Configuration& configuration_;
  const OptimizerCosts optimizer_;
  const pipeline::StageCut cut_;
  const std::optional<pipeline::Schedule> schedule_;
  const int capacity_;
  bool is_hybrid_ = false;
  int sharers_ = 1;
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

}  // namespace

absl::StatusOr<Estimate> EstimateMemory(const Model& model,
                                        const Configuration& configuration) {
  COXSWAIN_RETURN_IF_ERROR(CheckTrainable(configuration));
  COXSWAIN_ASSIGN_OR_RETURN(const OptimizerCosts optimizer,
                            CostsOf(configuration.optimizer));
  const Mesh& mesh = configuration.mesh;
  const int pp = mesh.extent("pp");
  Estimate estimate;
  estimate.ranks = mesh.size();
  estimate.ranks_of_each = mesh.size() / pp;
  std::optional<pipeline::Schedule> schedule;
  int stages = 1;
  int capacity = kCapacity;
  if (pp > 1 || !configuration.pipeline.empty()) {
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
  COXSWAIN_ASSIGN_OR_RETURN(pipeline::StageCut cut,
                            CutOf(model, configuration.stages, stages));
  const Estimator estimator(model, configuration, optimizer, std::move(cut),
                            std::move(schedule), capacity);
  estimate.sharers = configuration.zero > 0 ? estimator.sharers() : 1;
  for (int i = 0; i < pp; ++i) {
    estimate.by_pp.push_back(estimator.Of(i));
    if (estimate.by_pp.back().total() >
        estimate.by_pp[static_cast<size_t>(estimate.largest)].total()) {
      estimate.largest = i;
    }
  }
  return estimate;
}

}  // namespace coxswain::memory
