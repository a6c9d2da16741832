#ifndef COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_H_
#define COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/accumulate/accumulator.h"
#include "client/group/mesh_groups.h"
#include "client/group/process_group.h"
#include "client/pipeline/pipeline_executor.h"
#include "client/session/job.h"
#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/distributed_data_parallel_options.h"
#include "client/torch/loss_scale.h"
#include "client/torch/pipeline/pipeline_model.h"
#include "client/torch/pipeline/pipeline_options.h"
#include "client/torch/pipeline/rank_comparison.h"
#include "client/torch/pipeline/rank_layers.h"
#include "client/torch/pipeline/tied_parameters.h"
#include "client/torch/pipeline/torch_stage.h"
#include "client/torch/pipeline/window_stage.h"
#include "client/torch/shard/sharded_optimizer.h"
#include "client/torch/tensor/mesh_dropout.h"
#include "client/torch/tensor/parallel_layer.h"
#include "schedule/pipeline/place.h"
#include "schedule/pipeline/schedule.h"
#include "schedule/pipeline/stage_cut.h"

namespace coxswain::torch {

// A micro-batch, as far as a rank has it.
struct PipelineBatch {
  Tensors inputs;   // where has_inputs()
  Tensors targets;  // where has_targets()
  // Where has_targets(), if the plan weighs micro-batches: its samples or
  // tokens. One of 0 counts for nothing.
  std::optional<double> weight;
};

struct PipelineResult {
  // Where has_targets(): the micro-batches' losses; 0 of one that counts for
  // nothing.
  std::vector<double> losses;
  // Their mean, as they count; of this rank's data.
  double loss = 0;
  // Whether the optimizer has stepped: not after a window that all ranks have
  // skipped, nor within one that goes on in the next epoch.
  bool stepped = false;
};

// What a rank has handed to collectives and channels along the axes of the mesh
// (Communicator::payload_bytes), each of them counted once; 0 where there is
// one rank along an axis. What the ranks along pp and tp compare of each call
// counts along pp, and along tp where there is no pp.
struct AxisBytes {
  int64_t pp = 0;    // activations, their gradients, and tied parameters
  int64_t data = 0;  // along dp and shard: gradients, and with zero parameters
  int64_t tp = 0;    // what layers exchange
};

// Trains a model whose layers are spread over ranks: pipeline-parallel where
// the job's mesh has pp, tensor-parallel where it has tp, and data-parallel
// where it has more ranks than these for the whole model.
//
//   PipelineOptions options;                              // on all ranks alike
//   options.mesh = session_options.mesh;                  // "pp=2,dp=*"
//   options.ddp.accumulation_steps = 8;                   // micro-batches
//   options.ddp.make_hook = MakePlannedHook;
//   COXSWAIN_ASSIGN_OR_RETURN(auto manifest, DescribeJob(model, options));
//   COXSWAIN_ASSIGN_OR_RETURN(auto session,
//                             Session::Join(session_options, manifest));
//   COXSWAIN_ASSIGN_OR_RETURN(
//       auto pipeline, Pipeline::Create(*session, model, loss, options));
//   Adam optimizer(pipeline->module()->parameters(), 1e-3);
//   COXSWAIN_RETURN_IF_ERROR(pipeline->UseOptimizer(optimizer));
//   while (!pipeline->ddp().stopping() && ...) {
//     std::vector<PipelineBatch> batches(pipeline->window());
//     ... inputs where pipeline->has_inputs(), targets where has_targets()
//     COXSWAIN_ASSIGN_OR_RETURN(auto result, pipeline->Step(batches));
//   }
//
// Each step is a window of micro-batches, which pass through the stages by the
// plan's pipeline schedule (schedule/pipeline); their gradients add up, leave
// each stage after its last backward pass, are averaged over the ranks that
// hold the same stage, and the ranks step as all of them decide:
// DistributedDataParallel's plans, weights, hooks, votes, clipping and sharding
// (zero=1) work over them. A change of the plan's accumulation, or of its
// schedule, is in force from one step on, on all ranks.
//
// With tp, layers made by PipelineLayer::make_on_mesh have parts of what they
// have in the whole model, and the others are whole on each rank along tp:
// their parameters are "replicated". The ranks along tp compute the same
// micro-batches, and replicated parameters have the same bits on all of them.
// Their gradients count in norms once; with PipelineOptions::sequence, where
// each rank has them of its part of the sequence, they are summed up first.
//
// Ranks of one data index have the same micro-batches: the ranks with inputs
// and with targets shuffle alike, by data_index() of data_ranks().
//
// All ranks call everything alike, but for what their batches have. Errors: one
// of a rank's own, as of a layer's forward, names stage, action and
// micro-batch; the other ranks' have it, too, or what the coordinator knows of
// the rank. After an error of UseOptimizer, Step, StepWithoutData or Evaluate
// nothing can be trained any more: each further call returns it.
//
// Life-cycle: within one generation of the session, which outlives it.
// Threading: one thread; place() from any.
class Pipeline {
 public:
  // Makes this rank's layers, and connects it with the others. The job was
  // joined with DescribeJob's manifest of the same model and options. Fails
  // with
  //   INVALID_ARGUMENT     the options, or the model, do not fit the plan
  //   FAILED_PRECONDITION  the job's plan has no pipeline, or ranks have other
  //                        stages or ties than others, or ranks along tp are on
  //                        several hosts, without tp_across_hosts
  // and as DistributedDataParallel::Create and PipelineExecutor::Create. An
  // error of one rank ends what the others wait for in its groups.
  static absl::StatusOr<std::unique_ptr<Pipeline>> Create(
      Session& session, const PipelineModel& model, PipelineLoss loss,
      const PipelineOptions& options);
  static absl::StatusOr<std::unique_ptr<Pipeline>> Create(
      Session& session, const PipelineModel& model, MeshLoss loss,
      const PipelineOptions& options);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Whether this rank has the first stage, which takes the batches' inputs, and
  // the last one, which computes losses.
  bool has_inputs() const;
  bool has_targets() const;
  // Which of the parts of the data this pipeline trains on, and how many there
  // are.
  int data_index() const { return groups_.data->rank(); }
  int data_ranks() const { return groups_.data->size(); }
  // Which of the ranks that divide layers among them this one is, and how many
  // there are.
  int tensor_index() const { return groups_.tp->rank(); }
  int tensor_ranks() const { return groups_.tp->size(); }
  // Returns what this rank's layers were made with.
  const LayerContext& context() const { return context_; }
  // Returns which parts of divided parameters this rank has, by their names in
  // the job; empty without tp.
  const ParameterBoxes& boxes() const { return layers_->boxes(); }
  // Returns the trained parameters that all ranks along tp have whole; empty
  // without tp.
  std::vector<std::string> replicated() const;
  // Returns how many micro-batches the next step has.
  int window() const;
  // Returns what this rank has sent since the session began, with what else
  // the program sends over these groups.
  AxisBytes payload_bytes() const;

  // Returns a module that holds this rank's parameters and buffers, under the
  // names that they have in the job ("layer.weight"), for an optimizer. train()
  // and eval() reach the layers' modules.
  const std::shared_ptr<::torch::nn::Module>& module() const {
    return layers_->module();
  }
  // Returns the wrapper, for what it knows of steps, decisions and the plan.
  DistributedDataParallel& ddp() { return *ddp_; }
  // Null without zero.
  ShardedOptimizer* sharded() { return sharded_.get(); }
  // Null before UseOptimizer.
  ::torch::optim::Optimizer* optimizer() { return optimizer_; }
  const PipelineModel& model() const { return model_; }
  // Returns the scale of the next step's losses; null without
  // PipelineOptions::loss_scaling.
  const LossScale* loss_scale() const {
    return loss_scale_.has_value() ? &*loss_scale_ : nullptr;
  }
  // Between steps, on all ranks alike: goes on with the scale that
  // loss_scale()->Save() returned. Fails as LossScale::Load, and with
  // FAILED_PRECONDITION where there is none, or within a window that goes on in
  // the next epoch; an error changes nothing.
  absl::Status LoadLossScale(absl::string_view saved);
  // Returns which layers, and which part of them along tp, each rank of the
  // session has, by a name that is the same for the same; empty where each has
  // all of them.
  std::vector<std::string> LayersByRank() const;

  // Steps by an optimizer of module()->parameters(), before the first step;
  // with zero by slices, and the optimizer has their options
  // (ShardedOptimizer). It outlives this object, or the next call. Fails as
  // ShardedOptimizer::Create.
  absl::Status UseOptimizer(::torch::optim::Optimizer& optimizer);

  // Runs the next window. Fewer micro-batches than window(): the data ends with
  // them, and by the plan's tail their window is short, goes on in the next
  // epoch or is dropped. Fails with INVALID_ARGUMENT if they are none or more,
  // or lack what this rank is to have of them, and with FAILED_PRECONDITION, on
  // all ranks of this data index and before anything is computed, if these have
  // not as many, or call something else.
  absl::StatusOr<PipelineResult> Step(std::vector<PipelineBatch> batches);

  // With uneven_data, where this data index has none left:
  // DistributedDataParallel::StepWithoutData, with the step that follows.
  // Returns false once there is none on all ranks.
  absl::StatusOr<bool> StepWithoutData();

  // Runs forward passes only, of any number of micro-batches, between windows.
  // What layers do otherwise then (dropout) is up to the program:
  // module()->eval() before, and module()->train() after it.
  absl::StatusOr<PipelineResult> Evaluate(std::vector<PipelineBatch> batches);

  // Returns where this rank is in its list of actions, as its heartbeats do.
  PipelinePlace place() const { return executor_->place(); }
  const pipeline::Schedule& schedule() const { return executor_->schedule(); }

 private:
  // A stage of this rank.
  struct Stage {
    int number = 0;
    std::unique_ptr<TorchStage> torch;
    std::unique_ptr<WindowStage> window;
  };
  // What the last stage computes with.
  struct Window {
    uint32_t data = 0;  // see PipelineCall
    std::vector<Tensors> targets;
    std::vector<double> weights;
    std::vector<double> scales;
    std::vector<double> losses;
    int64_t first = 0;  // the first one's place in the whole window
  };

  Pipeline(Session& session, MeshGroups groups, const PipelineModel& model,
           MeshLoss loss, const PipelineOptions& options)
      : session_(session),
        model_(model),
        options_(options),
        groups_(std::move(groups)),
        loss_(std::move(loss)) {}
  absl::Status Connect();
  absl::Status CompareModels();
  // Returns once all ranks of one data index have come here: before they
  // connect a group, where a rank that waits does not see that another one has
  // failed.
  absl::Status MeetModelRanks() const;
  // Connects the ranks of one data index, which compare what they do.
  absl::Status ConnectModel();
  absl::Status CheckTensorRanks() const;
  absl::Status MakeContext();
  // Names what is special about parameters of this rank for the wrapper.
  void DescribeParameters(DistributedDataParallelOptions* options) const;
  absl::Status OpenTrace();
  absl::Status ConnectReplicas();
  absl::Status MakeStages(const pipeline::Schedule& schedule);
  absl::Status Shard(::torch::optim::Optimizer& optimizer);
  absl::Status UseSchedule(int micro_batches);
  // Takes over what this rank has of them.
  absl::Status TakeBatches(std::vector<PipelineBatch> batches);
  // Compares with the other ranks of this data index what all of them do next,
  // and gives all the last stage's weights.
  absl::Status AgreeOn(PipelineCall::Kind kind);
  // Returns those of this data index that have the last stage, by their numbers
  // in model_group_.
  std::vector<int> RanksWithTargets() const;
  // May throw.
  ::torch::Tensor LossOf(int micro_batch, const Tensors& outputs);
  // Runs what TakeBatches took over. Returns whether the window has ended with
  // it.
  absl::StatusOr<bool> RunWindow(bool data_ends);
  absl::StatusOr<bool> TakeStep();
  // After a step that all ranks have decided on.
  void FollowDecision();
  absl::Status Forwards(std::vector<PipelineBatch> batches);
  // Before a pass: sets where in the training the layers are.
  void SetPlace(int micro_batch);
  // Gives replicated parameters the sum of the gradients of all parts of the
  // sequence, and tied ones that of both.
  absl::Status SumGradients();
  void SetForwardOnly(bool forward_only);
  PipelineResult ResultOf(bool stepped) const;
  // Keeps an error, and ends the other ranks' waits.
  absl::Status Fail(const absl::Status& status);

  Session& session_;
  const PipelineModel model_;
  PipelineOptions options_;
  const MeshGroups groups_;
  // Of this data index: along pp and tp.
  std::shared_ptr<ProcessGroup> model_group_;
  const MeshLoss loss_;
  absl::Status status_;  // the first error
  std::string spec_;     // of the schedule in force
  std::optional<pipeline::StageCut> cut_;
  // The layers read it by context_.place.
  const std::shared_ptr<DropoutPlace> place_ = std::make_shared<DropoutPlace>();
  LayerContext context_;
  std::unique_ptr<RankLayers> layers_;
  std::unique_ptr<TiedParameters> tied_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  ::torch::optim::Optimizer* optimizer_ = nullptr;
  std::unique_ptr<ShardedOptimizer> sharded_;
  std::vector<Stage> stages_;
  std::unique_ptr<PipelineExecutor> executor_;
  // Shared with the session, which asks for the place.
  const std::shared_ptr<std::atomic<bool>> has_ended_ =
      std::make_shared<std::atomic<bool>>(false);
  Window window_;
  std::optional<LossScale> loss_scale_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_PIPELINE_PIPELINE_H_
