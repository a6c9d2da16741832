// How a pipeline is made: what its rank has, and with whom it is connected.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/mesh.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/communicator.h"
#include "client/comm/work.h"
#include "client/pipeline/trace_actions.h"
#include "client/reduce/agreement.h"
#include "client/reduce/trace_file.h"
#include "client/torch/pipeline/pipeline.h"
#include "schedule/pipeline/generate.h"

namespace coxswain::torch {

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
  if (!model_.ties.empty()) COXSWAIN_RETURN_IF_ERROR(MeetModelRanks());
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

absl::Status Pipeline::MeetModelRanks() const {
  // Along one axis, and then the other: a rank that fails ends its neighbours,
  // and these theirs.
  for (const auto& group : {groups_.pp, groups_.tp}) {
    if (group->size() == 1) continue;
    COXSWAIN_RETURN_IF_ERROR(WithPrefix(
        "waiting for the ranks with the other parts of the model: ",
        group->communicator().Barrier()->Wait(options_.executor.timeout)));
  }
  return absl::OkStatus();
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
    COXSWAIN_RETURN_IF_ERROR(MeetModelRanks());
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
  std::vector<std::string> lines = {
      absl::StrCat("schedule: ", spec_),
      absl::StrCat("sequence: ", options_.sequence ? "true" : "false")};
  // What ranks along tp have whole begins with it, and what they drop.
  if (groups_.tp->size() > 1) {
    lines.push_back(absl::StrCat("seed: ", model_.seed.value_or(0)));
  }
  // One line for each: long ones are cut in messages, perhaps before the
  // difference.
  for (int stage = 0; stage < cut_->stages(); ++stage) {
    lines.push_back(absl::StrCat("stage ", stage, ": layers ",
                                 cut_->begin(stage), "-",
                                 cut_->end(stage) - 1));
  }
  for (size_t i = 0; i < model_.ties.size(); ++i) {
    const Tie& tie = model_.ties[i];
    lines.push_back(absl::StrCat("tie ", i, ": ", tie.first, "=", tie.second));
  }
  const auto compare = [this](const ProcessGroup& group, std::string what,
                              const std::vector<std::string>& own) {
    return WithPrefix(
        "comparing the ranks of a pipeline: ",
        CheckAgreement(group.communicator(), own, options_.executor.timeout,
                       {std::move(what), group.ranks()}));
  };
  for (const auto& group : {groups_.pp, groups_.data, groups_.tp}) {
    COXSWAIN_RETURN_IF_ERROR(
        compare(*group, "stages, ties and schedule", lines));
  }
  // libtorch adds up the gradients of some layers, such as a norm's, by thread:
  // with other numbers of them replicated parameters would part.
  return compare(*groups_.tp, "number of threads along tp",
                 {absl::StrCat(at::get_num_threads(), " threads")});
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
  ddp.may_leave = [parallel = context_.parallel] {
    return !parallel->failed();
  };
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

}  // namespace coxswain::torch
