// The steps of a pipeline, and its evaluations.
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/torch/module_tensors.h"
#include "client/torch/pipeline/pipeline.h"
#include "schedule/pipeline/generate.h"
#include "schedule/terms.h"

namespace coxswain::torch {
namespace {

// Returns a checksum of tensors' forms and elements, of what came before, too.
absl::StatusOr<uint32_t> ChecksumOf(const Tensors& tensors, uint32_t checksum) {
  COXSWAIN_RETURN_IF_ERROR(Guarded("reading a micro-batch", [&] {
    for (const ::torch::Tensor& tensor : tensors) {
      checksum = Crc32c(DescribeForm(tensor), checksum);
      const ::torch::Tensor dense = tensor.detach().contiguous().cpu();
      checksum = Crc32c({static_cast<const char*>(dense.data_ptr()),
                         static_cast<size_t>(dense.nbytes())},
                        checksum);
    }
  }));
  return checksum;
}

}  // namespace

absl::Status Pipeline::UseSchedule(int micro_batches) {
  const std::string& spec = ddp_->plan().terms.pipeline;
  if (spec == spec_ && micro_batches == schedule().micro_batches()) {
    return absl::OkStatus();
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const pipeline::Schedule next,
      pipeline::MakeSchedule(spec, groups_.pp->size(), micro_batches));
  COXSWAIN_RETURN_IF_ERROR(executor_->SetSchedule(next));
  spec_ = spec;
  return absl::OkStatus();
}

absl::Status Pipeline::TakeBatches(std::vector<PipelineBatch> batches) {
  std::vector<Tensors> inputs;
  window_ = Window();
  const bool weighs =
      ddp_->plan().terms.weighting != schedule::Weighting::kMean;
  for (size_t i = 0; i < batches.size(); ++i) {
    PipelineBatch& batch = batches[i];
    const auto missing = [&](absl::string_view what) {
      return absl::InvalidArgumentError(
          absl::StrCat("micro-batch ", i, " has no ", what, ", which rank ",
                       session_.rank(), " is to give"));
    };
    if (has_inputs()) {
      if (batch.inputs.empty()) return missing("inputs");
      inputs.push_back(std::move(batch.inputs));
    }
    window_.weights.push_back(1);
    if (!has_targets()) continue;
    if (batch.targets.empty()) return missing("targets");
    window_.targets.push_back(std::move(batch.targets));
    if (!weighs) continue;
    if (!batch.weight.has_value()) return missing("weight");
    window_.weights.back() = *batch.weight;
  }
  window_.scales.assign(batches.size(), 1);
  window_.losses.assign(batches.size(), 0);
  if (tensor_ranks() > 1) {
    for (const auto* const tensors : {&inputs, &window_.targets}) {
      for (const Tensors& of_batch : *tensors) {
        COXSWAIN_ASSIGN_OR_RETURN(window_.data,
                                  ChecksumOf(of_batch, window_.data));
      }
    }
  }
  if (has_inputs()) stages_.front().torch->SetInputs(std::move(inputs));
  return absl::OkStatus();
}

absl::Status Pipeline::AgreeOn(PipelineCall::Kind kind) {
  if (model_group_->size() == 1) return absl::OkStatus();
  PipelineCall call;
  call.kind = kind;
  call.micro_batches = static_cast<int>(window_.weights.size());
  call.weights = window_.weights;
  call.data = window_.data;
  call.expected = static_cast<size_t>(window());
  COXSWAIN_ASSIGN_OR_RETURN(
      std::vector<double> weights,
      CompareCalls(*model_group_, groups_.mesh, call, RanksWithTargets(),
                   options_.executor.timeout));
  if (kind != PipelineCall::Kind::kStep) return absl::OkStatus();
  weights.resize(window_.weights.size());
  window_.weights = std::move(weights);
  return absl::OkStatus();
}

::torch::Tensor Pipeline::LossOf(int micro_batch, const Tensors& outputs) {
  const auto at = static_cast<size_t>(micro_batch);
  if (window_.weights[at] == 0) return {};
  const ::torch::Tensor loss = loss_(context_, outputs, window_.targets[at]);
  window_.losses[at] = loss.item<double>();
  return window_.scales[at] == 1 ? loss : loss * window_.scales[at];
}

absl::StatusOr<bool> Pipeline::RunWindow(bool data_ends) {
  const size_t count = window_.weights.size();
  COXSWAIN_RETURN_IF_ERROR(UseSchedule(static_cast<int>(count)));
  std::vector<Accumulator::Begin> begins(count);
  for (size_t i = 0; i < count; ++i) begins[i].weight = window_.weights[i];
  begins.back().end_of_data = data_ends;
  ddp_->SetPipelineHash(executor_->schedule_hash());
  if (loss_scale_.has_value()) {
    COXSWAIN_RETURN_IF_ERROR(ddp_->SetGradientScale(loss_scale_->scale()));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<MicroBatch> micro,
                            ddp_->DeclareWindow(begins));
  const double scale = loss_scale_.has_value() ? loss_scale_->scale() : 1;
  for (size_t i = 0; i < count; ++i) {
    window_.scales[i] = micro[i].loss_scale * scale;
  }
  window_.first = micro.front().micro;
  place_->step = micro.front().step;
  COXSWAIN_RETURN_IF_ERROR(executor_->Run());
  const bool ends = micro.back().sync;
  if (ends) COXSWAIN_RETURN_IF_ERROR(SumGradients());
  COXSWAIN_RETURN_IF_ERROR(ddp_->Synchronize());
  if (!ends) return false;
  COXSWAIN_RETURN_IF_ERROR(ddp_->FinishStep());
  FollowDecision();
  return true;
}

void Pipeline::FollowDecision() {
  // Of a step for which no rank had data nothing is known.
  if (!loss_scale_.has_value() || ddp_->reducer().report().empty) return;
  loss_scale_->OnStep(!ddp_->skipped());
}

absl::Status Pipeline::LoadLossScale(absl::string_view saved) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (!loss_scale_.has_value()) {
    return absl::FailedPreconditionError(
        "there is no loss scale to go on with: set loss_scaling");
  }
  LossScale loaded = *loss_scale_;
  COXSWAIN_RETURN_IF_ERROR(loaded.Load(saved));
  COXSWAIN_RETURN_IF_ERROR(ddp_->SetGradientScale(loaded.scale()));
  loss_scale_ = loaded;
  return absl::OkStatus();
}

absl::Status Pipeline::SumGradients() {
  if (options_.sequence && tensor_ranks() > 1) {
    // By type, in the order of the parameters, as on the other ranks.
    std::map<::torch::ScalarType, std::vector<::torch::Tensor>> replicated;
    for (const RankLayers::Replicated& one : layers_->replicated()) {
      replicated[one.parameter.scalar_type()].push_back(one.parameter);
    }
    for (const auto& of_type : replicated) {
      absl::Status summed;
      const absl::Status thrown = Guarded("adding them up", [&] {
        summed = SumSequenceGradients(of_type.second, context_.parallel);
      });
      COXSWAIN_RETURN_IF_ERROR(WithPrefix("adding up replicated gradients: ",
                                          thrown.ok() ? summed : thrown));
    }
  }
  return tied_->SumGradients();
}

absl::StatusOr<bool> Pipeline::TakeStep() {
  COXSWAIN_ASSIGN_OR_RETURN(const bool stepped,
                            sharded_ != nullptr
                                ? sharded_->Step()
                                : ddp_->StepOptimizer(*optimizer_));
  // Averages of the same sums may differ in rounding, or by a hook's
  // compression, which there is on one rank, too; and an optimizer may treat
  // the two differently.
  if (stepped) COXSWAIN_RETURN_IF_ERROR(tied_->CopyValues());
  return stepped;
}

absl::StatusOr<PipelineResult> Pipeline::Step(
    std::vector<PipelineBatch> batches) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (optimizer_ == nullptr) {
    return absl::FailedPreconditionError(
        "a step without an optimizer: call UseOptimizer first");
  }
  const size_t due = static_cast<size_t>(window());
  if (batches.empty() || batches.size() > due) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("a step of ", batches.size(),
                     " micro-batches, and the window has ", due)));
  }
  const bool data_ends = batches.size() < due;
  COXSWAIN_RETURN_IF_ERROR(Fail(TakeBatches(std::move(batches))));
  COXSWAIN_RETURN_IF_ERROR(Fail(AgreeOn(PipelineCall::Kind::kStep)));
  if (data_ends && ddp_->plan().terms.tail == schedule::TailPolicy::kDrop) {
    return PipelineResult();
  }
  const absl::StatusOr<bool> ends = RunWindow(data_ends);
  COXSWAIN_RETURN_IF_ERROR(Fail(ends.status()));
  absl::StatusOr<bool> stepped = false;
  if (*ends) stepped = TakeStep();
  COXSWAIN_RETURN_IF_ERROR(Fail(stepped.status()));
  // Where another rank's data ended the epoch, the program begins the next one.
  if (data_ends && !ddp_->ended()) {
    COXSWAIN_RETURN_IF_ERROR(Fail(ddp_->BeginEpoch()));
  }
  return ResultOf(*stepped);
}

absl::StatusOr<bool> Pipeline::StepWithoutData() {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (optimizer_ == nullptr) {
    return absl::FailedPreconditionError(
        "a step without an optimizer: call UseOptimizer first");
  }
  window_ = Window();
  COXSWAIN_RETURN_IF_ERROR(Fail(AgreeOn(PipelineCall::Kind::kStepWithoutData)));
  ddp_->SetPipelineHash(0);
  executor_->PassStep();
  const absl::StatusOr<bool> more = ddp_->StepWithoutData();
  COXSWAIN_RETURN_IF_ERROR(Fail(more.status()));
  if (!*more) return false;
  FollowDecision();
  COXSWAIN_RETURN_IF_ERROR(Fail(TakeStep().status()));
  return true;
}

void Pipeline::SetPlace(int micro_batch) {
  // The data indices' micro-batches of a step, each in its turn: the same
  // numbers however many ranks they are divided among.
  place_->micro_batch =
      (window_.first + micro_batch) * data_ranks() + data_index();
}

void Pipeline::SetForwardOnly(bool forward_only) {
  executor_->SetMeasured(!forward_only);
  for (const Stage& stage : stages_) {
    stage.torch->SetForwardOnly(forward_only);
    stage.window->SetInWindow(!forward_only);
  }
}

absl::Status Pipeline::Forwards(std::vector<PipelineBatch> batches) {
  const int count = static_cast<int>(batches.size());
  COXSWAIN_RETURN_IF_ERROR(TakeBatches(std::move(batches)));
  COXSWAIN_RETURN_IF_ERROR(AgreeOn(PipelineCall::Kind::kEvaluation));
  COXSWAIN_RETURN_IF_ERROR(UseSchedule(count));
  return executor_->Run();
}

absl::StatusOr<PipelineResult> Pipeline::Evaluate(
    std::vector<PipelineBatch> batches) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  if (batches.empty()) {
    return Fail(
        absl::InvalidArgumentError("an evaluation of no micro-batches"));
  }
  SetForwardOnly(true);
  const absl::Status status = Forwards(std::move(batches));
  SetForwardOnly(false);
  COXSWAIN_RETURN_IF_ERROR(Fail(status));
  return ResultOf(/*stepped=*/false);
}

PipelineResult Pipeline::ResultOf(bool stepped) const {
  PipelineResult result;
  result.stepped = stepped;
  if (!has_targets()) return result;
  result.losses = window_.losses;
  double weight = 0;
  for (size_t i = 0; i < result.losses.size(); ++i) {
    result.loss += window_.weights[i] * result.losses[i];
    weight += window_.weights[i];
  }
  if (weight > 0) result.loss /= weight;
  return result;
}

}  // namespace coxswain::torch
