#include "client/torch/pipeline/pipeline.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/communicator.h"
#include "client/pipeline/trace_actions.h"
#include "client/reduce/trace_file.h"
#include "client/schedule/schedule_client.h"
#include "client/torch/module_tensors.h"
#include "client/torch/pipeline/tensor_hosts.h"
#include "schedule/pipeline/generate.h"
#include "schedule/terms.h"

namespace coxswain::torch {
namespace {

// How long the coordinator's reason may come after an error that a peer's end
// may have caused.
constexpr absl::Duration kReasonTimeout = absl::Seconds(3);

// Axes of a mesh.
constexpr char kStageAxis[] = "pp";
constexpr char kTensorAxis[] = "tp";

// 0 where there is no such axis.
int CoordinateOf(const Mesh& mesh, int rank, absl::string_view axis) {
  const MeshAxes found = mesh.AxesOf({axis});
  if (found.empty()) return 0;
  return mesh.CoordinatesOf(rank)[static_cast<size_t>(found[0])];
}

absl::StatusOr<MeshGroups> GroupsOf(Session& session) {
  if (!session.mesh().empty()) return session.GroupsOf(session.mesh());
  COXSWAIN_ASSIGN_OR_RETURN(const Mesh replicas, Mesh::Parse("dp=*"));
  COXSWAIN_ASSIGN_OR_RETURN(const Mesh mesh,
                            replicas.Fit(session.world_size()));
  return session.GroupsOf(mesh);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pipeline>> Pipeline::Create(
    Session& session, const PipelineModel& model, PipelineLoss loss,
    const PipelineOptions& options) {
  return Create(
      session, model,
      MeshLoss([loss = std::move(loss)](
                   const LayerContext&, const Tensors& outputs,
                   const Tensors& targets) { return loss(outputs, targets); }),
      options);
}

absl::StatusOr<std::unique_ptr<Pipeline>> Pipeline::Create(
    Session& session, const PipelineModel& model, MeshLoss loss,
    const PipelineOptions& options) {
  // Of all ranks alike, and before any waits for another.
  COXSWAIN_RETURN_IF_ERROR(CheckTensorHosts(session, model, options));
  COXSWAIN_ASSIGN_OR_RETURN(MeshGroups groups, GroupsOf(session));
  std::unique_ptr<Pipeline> pipeline(new Pipeline(
      session, std::move(groups), model, std::move(loss), options));
  COXSWAIN_RETURN_IF_ERROR(pipeline->Fail(pipeline->Connect()));
  return pipeline;
}

// The session may ask another pipeline by now.
Pipeline::~Pipeline() { *has_ended_ = true; }

absl::Status Pipeline::Connect() {
  DistributedDataParallelOptions& ddp = options_.ddp;
  ddp.runs_pipeline = true;
  ddp.force_zero = options_.force_zero;
  COXSWAIN_RETURN_IF_ERROR(FollowSession(session_, &ddp));
  if (!ddp.terms.pipeline.empty()) {
    // In its one form, as the plan has it.
    COXSWAIN_ASSIGN_OR_RETURN(
        const pipeline::ScheduleSpec asked,
        pipeline::ScheduleSpec::Parse(ddp.terms.pipeline));
    ddp.terms.pipeline = asked.ToString();
  }
  const schedule::Plan& plan = *ddp.plan;
  spec_ = plan.terms.pipeline;
  if (spec_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "version ", plan.version,
        " of the job's plan has no pipeline: join the job with the manifest of "
        "DescribeJob(model, options) of a pipeline"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const int described, StageRanksOf(options_));
  if (described != groups_.pp->size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the options' mesh \"", options_.mesh, "\" has pp=", described,
        ", and the job's has pp=", groups_.pp->size(),
        ": give PipelineOptions::mesh that of SessionOptions"));
  }
  COXSWAIN_RETURN_IF_ERROR(CheckTensorRanks());
  if (!ddp.make_hook) {
    return absl::InvalidArgumentError(
        "a pipeline makes the plan's hook: set ddp.make_hook, as to "
        "MakePlannedHook");
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const pipeline::Schedule schedule,
      pipeline::MakeSchedule(spec_, groups_.pp->size(),
                             plan.WindowOf(data_index(), data_ranks())));
  COXSWAIN_ASSIGN_OR_RETURN(cut_, CutOf(model_, options_, schedule.stages()));
  COXSWAIN_RETURN_IF_ERROR(CompareModels());
  COXSWAIN_RETURN_IF_ERROR(ConnectModel());
  COXSWAIN_RETURN_IF_ERROR(MakeContext());
  COXSWAIN_ASSIGN_OR_RETURN(
      layers_,
      RankLayers::Make(model_, *cut_, schedule.StagesOf(groups_.pp->rank()),
                       context_));
  COXSWAIN_RETURN_IF_ERROR(ConnectReplicas());
  if (options_.loss_scaling.has_value()) {
    COXSWAIN_ASSIGN_OR_RETURN(loss_scale_,
                              LossScale::Create(*options_.loss_scaling));
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      tied_, TiedParameters::Connect(
                 session_, groups_, *layers_,
                 [&](int layer) {
                   return schedule.rank_of_stage(cut_->StageOf(layer));
                 },
                 options_.executor.timeout));
  COXSWAIN_RETURN_IF_ERROR(tied_->CopyValues());
  return MakeStages(schedule);
}

absl::Status Pipeline::CheckTensorRanks() const {
  COXSWAIN_ASSIGN_OR_RETURN(const int described, TensorRanksOf(options_));
  if (described == groups_.tp->size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the options' mesh \"", options_.mesh, "\" has tp=", described,
      ", and the job's has tp=", groups_.tp->size(),
      ": give PipelineOptions::mesh that of SessionOptions"));
}

absl::Status Pipeline::ConnectModel() {
  const Mesh& mesh = groups_.mesh;
  const std::vector<int> ranks =
      mesh.GroupOf(session_.rank(), mesh.AxesOf({"pp", "tp"}));
  if (groups_.tp->size() == 1) {
    model_group_ = groups_.pp;
  } else if (groups_.pp->size() == 1) {
    model_group_ = groups_.tp;
  } else if (groups_.data->size() == 1) {
    model_group_ = groups_.world;
  } else {
    // Its first rank tells it from that of other data.
    COXSWAIN_ASSIGN_OR_RETURN(
        model_group_,
        session_.CreateGroup(absl::StrCat("model/", ranks[0]), ranks));
  }
  return absl::OkStatus();
}

absl::Status Pipeline::MakeContext() {
  place_->seed = model_.seed.value_or(0);
  context_.place = place_;
  TensorParallelOptions options;
  options.communicator = &groups_.tp->communicator();
  options.sequence = options_.sequence;
  options.timeout = options_.executor.timeout;
  COXSWAIN_ASSIGN_OR_RETURN(context_.parallel, TensorParallel::Create(options));
  return absl::OkStatus();
}

// Join has compared manifests, which need not be of this model and options.
absl::Status Pipeline::CompareModels() {
  std::string own =
      absl::StrCat(cut_->ToString(), ", ties [", TiesOf(model_), "], schedule ",
                   spec_, options_.sequence ? ", sequence" : "");
  // What ranks along tp have whole begins with it, and what they drop.
  if (groups_.tp->size() > 1) {
    absl::StrAppend(&own, ", seed ", model_.seed.value_or(0));
  }
  for (const auto& group : {groups_.pp, groups_.data, groups_.tp}) {
    COXSWAIN_RETURN_IF_ERROR(
        CompareTexts(*group, "the layers of a pipeline's stages, and its ties",
                     own, options_.executor.timeout));
  }
  return absl::OkStatus();
}

// The wrapper's ranks are those of one stage, and files are each rank's own.
absl::Status Pipeline::OpenTrace() {
  const std::string path = std::exchange(options_.ddp.trace_file, "");
  if (path.empty()) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(std::shared_ptr<TraceFile> trace,
                            TraceFile::Open(path, session_.rank()));
  options_.executor.on_step =
      [own = std::exchange(options_.executor.on_step, nullptr),
       write = TraceActions(trace)](int64_t step,
                                    const std::vector<TimedAction>& actions) {
        if (own) own(step, actions);
        write(step, actions);
      };
  AddTrace(std::move(trace), path, &options_.ddp.reducer);
  return absl::OkStatus();
}

void Pipeline::DescribeParameters(
    DistributedDataParallelOptions* options) const {
  BucketPlanOptions& buckets = options->reducer.buckets;
  buckets.late_parameters = layers_->late();
  buckets.separate_parameters.clear();
  buckets.uncounted_parameters.clear();
  options->replicated_parameters.clear();
  for (const RankLayers::Shared& shared : layers_->shared()) {
    if (!shared.is_first) buckets.uncounted_parameters.insert(shared.name);
  }
  for (const std::string& name : replicated()) {
    // The other parameters of a bucket would have other sizes on other ranks
    // along tp, by which averages may be rounded otherwise.
    buckets.separate_parameters.insert(name);
    options->replicated_parameters.insert(name);
    if (tensor_index() > 0) buckets.uncounted_parameters.insert(name);
  }
}

absl::Status Pipeline::ConnectReplicas() {
  COXSWAIN_RETURN_IF_ERROR(OpenTrace());
  DistributedDataParallelOptions& ddp = options_.ddp;
  DescribeParameters(&ddp);
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Hook> hook,
                            ddp.make_hook(*ddp.plan));
  COXSWAIN_ASSIGN_OR_RETURN(
      ddp_, DistributedDataParallel::Create(
                module(), &groups_.data->communicator(), std::move(hook), ddp));
  return absl::OkStatus();
}

absl::Status Pipeline::MakeStages(const pipeline::Schedule& schedule) {
  const std::vector<::torch::Tensor> all = ddp_->parameters();
  std::vector<StageRunner*> runners;
  for (const int number : schedule.StagesOf(groups_.pp->rank())) {
    Stage stage;
    stage.number = number;
    stage.torch = std::make_unique<TorchStage>(layers_->LayersOf(number));
    if (number + 1 == schedule.stages()) {
      stage.torch->SetLoss([this](int micro_batch, const Tensors& outputs) {
        return LossOf(micro_batch, outputs);
      });
    }
    std::vector<int> parameters;
    for (const ::torch::Tensor& one : layers_->TrainedAlone(number)) {
      const auto found = std::find_if(
          all.begin(), all.end(),
          [&](const ::torch::Tensor& any) { return any.is_same(one); });
      parameters.push_back(static_cast<int>(found - all.begin()));
    }
    WindowStage::Options window;
    window.parameters = std::move(parameters);
    window.parallel = context_.parallel;
    window.before_pass = [this](int micro_batch) { SetPlace(micro_batch); };
    stage.window = std::make_unique<WindowStage>(stage.torch.get(), ddp_.get(),
                                                 std::move(window));
    runners.push_back(stage.window.get());
    stages_.push_back(std::move(stage));
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      executor_,
      PipelineExecutor::Create(schedule, &groups_.pp->communicator(),
                               std::move(runners), options_.executor));
  session_.SetPipelinePlace(
      [source = executor_->PlaceSource(),
       has_ended = has_ended_]() -> std::optional<PipelinePlace> {
        if (*has_ended) return std::nullopt;
        return source();
      });
  return absl::OkStatus();
}

bool Pipeline::has_inputs() const {
  return schedule().rank_of_stage(0) == groups_.pp->rank();
}

bool Pipeline::has_targets() const {
  return schedule().rank_of_stage(schedule().stages() - 1) ==
         groups_.pp->rank();
}

std::vector<int> Pipeline::RanksWithTargets() const {
  const int last = schedule().rank_of_stage(schedule().stages() - 1);
  std::vector<int> ranks;
  // pp is the first axis of the group, and tp the last.
  for (int i = 0; i < tensor_ranks(); ++i) {
    ranks.push_back(last * tensor_ranks() + i);
  }
  return ranks;
}

std::vector<std::string> Pipeline::LayersByRank() const {
  const Mesh& mesh = groups_.mesh;
  const int ranks = groups_.pp->size();
  const int tp = mesh.extent(kTensorAxis);
  if (ranks * tp == 1) return {};
  std::vector<std::string> names(static_cast<size_t>(ranks));
  for (int stage = 0; stage < cut_->stages(); ++stage) {
    std::string& name =
        names[static_cast<size_t>(schedule().rank_of_stage(stage))];
    for (int i = cut_->begin(stage); i < cut_->end(stage); ++i) {
      name += model_.layers[static_cast<size_t>(i)].name + ".";
    }
  }
  for (std::string& name : names) {
    name = absl::StrCat(absl::Hex(StableHash(name) >> 32, absl::kZeroPad8));
  }
  std::vector<std::string> result;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    // Those without tp are the names of earlier versions.
    const std::string& layers =
        names[static_cast<size_t>(CoordinateOf(mesh, rank, kStageAxis))];
    result.push_back(
        tp == 1 ? layers
                : absl::StrCat(layers, ":",
                               CoordinateOf(mesh, rank, kTensorAxis), "/", tp));
  }
  return result;
}

std::vector<std::string> Pipeline::replicated() const {
  std::vector<std::string> names;
  for (const RankLayers::Replicated& one : layers_->replicated()) {
    names.push_back(one.name);
  }
  return names;
}

int Pipeline::window() const { return ddp_->accumulator().micro_batches_due(); }

AxisBytes Pipeline::payload_bytes() const {
  const auto of = [](const ProcessGroup& group) {
    return group.size() == 1 ? 0 : group.communicator().payload_bytes();
  };
  AxisBytes bytes;
  bytes.pp = of(*groups_.pp) + tied_->payload_bytes();
  bytes.data = of(*groups_.data);
  bytes.tp = of(*groups_.tp);
  return bytes;
}

absl::Status Pipeline::UseOptimizer(::torch::optim::Optimizer& optimizer) {
  COXSWAIN_RETURN_IF_ERROR(status_);
  optimizer_ = nullptr;
  sharded_.reset();
  COXSWAIN_RETURN_IF_ERROR(Fail(Shard(optimizer)));
  optimizer_ = &optimizer;
  return absl::OkStatus();
}

absl::Status Pipeline::Shard(::torch::optim::Optimizer& optimizer) {
  if (ddp_->zero() == 0) return absl::OkStatus();
  COXSWAIN_ASSIGN_OR_RETURN(sharded_,
                            ShardedOptimizer::Create(*ddp_, optimizer));
  return layers_->FollowMoves();
}

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
  if (has_inputs()) stages_.front().torch->SetInputs(std::move(inputs));
  return absl::OkStatus();
}

absl::Status Pipeline::AgreeOn(PipelineCall::Kind kind) {
  if (model_group_->size() == 1) return absl::OkStatus();
  PipelineCall call;
  call.kind = kind;
  call.micro_batches = static_cast<int>(window_.weights.size());
  call.weights = window_.weights;
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

absl::Status Pipeline::Fail(const absl::Status& status) {
  if (status.ok()) return status;
  for (const auto* group : {&groups_.pp, &groups_.data, &groups_.tp}) {
    (*group)->communicator().Abort(status.message());
  }
  if (model_group_ != nullptr) {
    model_group_->communicator().Abort(status.message());
  }
  if (tied_ != nullptr) tied_->Abort(status.message());
  status_ =
      Explain(session_, status,
              MayComeFromPeers(status) ? kReasonTimeout : absl::ZeroDuration());
  return status_;
}

}  // namespace coxswain::torch
