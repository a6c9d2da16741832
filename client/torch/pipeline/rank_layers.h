#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_RANK_LAYERS_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_RANK_LAYERS_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/torch/pipeline/pipeline_model.h"
#include "client/torch/pipeline/torch_stage.h"
#include "schedule/pipeline/stage_cut.h"

namespace coxswain::torch {

// The layers of the stages that one rank of a pipeline holds. Of a tie whose
// layers are both here, the second parameter is another name of the first one:
// it has its memory, and its gradients go to the first one's.
//
// Threading: one thread. The stages that it makes share its modules.
class RankLayers {
 public:
  // Makes them. Fails as Describe.
  static absl::StatusOr<std::unique_ptr<RankLayers>> Make(
      const PipelineModel& model, const pipeline::StageCut& cut,
      const std::vector<int>& stages,
      const LayerContext& context = ContextOfOne());

  // Returns a module that has the tensors of all of them, under the names that
  // they have in the job: the trained ones once each. It computes nothing; its
  // train and eval are the layers', too.
  const std::shared_ptr<::torch::nn::Module>& module() const { return module_; }

  // Returns what the stage computes.
  std::vector<StageLayer> LayersOf(int stage) const;
  // Returns the trained parameters whose gradients the stage completes by
  // itself: not those that another stage has, too.
  std::vector<::torch::Tensor> TrainedAlone(int stage) const;
  // Returns the names of the others.
  const std::set<std::string>& late() const { return late_; }

  // Returns the boxes of parameters that are divided along tp, by name. Empty
  // without tp.
  const ParameterBoxes& boxes() const { return boxes_; }
  // A trained parameter that each rank along tp has whole.
  struct Replicated {
    std::string name;
    ::torch::Tensor parameter;
  };
  // In the order of their registration, the same on all ranks along tp. Empty
  // without tp.
  const std::vector<Replicated>& replicated() const { return replicated_; }

  // A parameter that is tied to one of another rank's.
  struct Shared {
    std::string name;
    ::torch::Tensor parameter;
    int other_layer = 0;    // which has the other one
    bool is_first = false;  // whose value counts
  };
  // In the order of the model's ties.
  const std::vector<Shared>& shared() const { return shared_; }

  // Gives the names of ties within this rank the memory that their parameters
  // have now: after these have been moved.
  absl::Status FollowMoves();

 private:
  struct Layer {
    int number = 0;
    PipelineLayer described;
    std::shared_ptr<::torch::nn::Module> module;  // may be null
    std::vector<StageParameter> parameters;
  };

  RankLayers(pipeline::StageCut cut, LayerContext context)
      : cut_(std::move(cut)), context_(std::move(context)) {}
  absl::Status MakeModules(const PipelineModel& model,
                           const std::vector<int>& stages);
  // May throw, as Register.
  void Join(const PipelineModel& model);
  void Register();

  struct Found {
    StageParameter* parameter = nullptr;  // null: of another rank
    int stage = 0;
  };
  Found Find(const std::string& name);

  // May throw.
  void FindReplicated();

  const pipeline::StageCut cut_;
  const LayerContext context_;
  std::vector<Layer> layers_;  // in their order
  ParameterBoxes boxes_;
  std::vector<Replicated> replicated_;
  std::vector<Shared> shared_;
  std::set<std::string> late_;
  std::vector<::torch::Tensor> of_late_;
  // The seconds of ties within this rank, which are kept by libtorch as long as
  // the first ones' nodes are.
  std::vector<StageParameter> names_;
  std::vector<std::shared_ptr<::torch::autograd::Node>> nodes_;
  std::shared_ptr<::torch::nn::Module> module_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_RANK_LAYERS_H_
