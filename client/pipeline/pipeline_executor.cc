#include "client/pipeline/pipeline_executor.h"

#include <set>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "schedule/pipeline/proof.h"

namespace coxswain {
namespace {

using pipeline::Action;
using pipeline::ActionKind;

constexpr uint32_t kFirstTag = 0x70000000;
// Before the cause of a step's end, as ranks pass it on: what each of them adds
// does not add up then.
constexpr absl::string_view kCause = "pipeline: ";

// Returns what peers are to know of why a step has failed here.
std::string CauseOf(const absl::Status& status) {
  const absl::string_view text = status.message();
  const size_t at = text.rfind(kCause);
  if (at != absl::string_view::npos) return std::string(text.substr(at));
  return absl::StrCat(kCause, text);
}

bool IsForwardTransfer(const Action& action) {
  return action.kind == ActionKind::kSendForward ||
         action.kind == ActionKind::kReceiveForward;
}

// The stage at the other end of a transfer.
int OtherStage(const Action& action) {
  switch (action.kind) {
    case ActionKind::kSendForward:
    case ActionKind::kReceiveBackward:
      return action.stage + 1;
    default:
      return action.stage - 1;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PipelineExecutor>> PipelineExecutor::Create(
    pipeline::Schedule schedule, Communicator* communicator,
    std::vector<StageRunner*> stages, const PipelineExecutorOptions& options) {
  if (options.capacity < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pipeline whose boundaries hold ", options.capacity,
                     " messages: the capacity is 1 or more"));
  }
  std::unique_ptr<PipelineExecutor> executor(new PipelineExecutor(
      std::move(schedule), communicator, std::move(stages), options));
  COXSWAIN_ASSIGN_OR_RETURN(const int capacity,
                            executor->Check(executor->schedule_));
  COXSWAIN_RETURN_IF_ERROR(executor->OpenBoundaries(capacity));
  return executor;
}

PipelineExecutor::PipelineExecutor(pipeline::Schedule schedule,
                                   Communicator* communicator,
                                   std::vector<StageRunner*> stages,
                                   const PipelineExecutorOptions& options)
    : schedule_(std::move(schedule)),
      hash_(schedule_.Hash()),
      communicator_(communicator),
      stages_(std::move(stages)),
      options_(options),
      places_(std::make_shared<PlaceBook>(options.clock)) {
  if (options.on_step) places_->KeepActions(kMaxTimedActions);
}

absl::StatusOr<int> PipelineExecutor::Check(
    const pipeline::Schedule& schedule) const {
  const int rank = communicator_->rank();
  if (schedule.ranks() != communicator_->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule of ", schedule.ranks(),
                     " ranks in a group of ", communicator_->size()));
  }
  if (schedule.StagesOf(rank).size() != stages_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the schedule gives rank ", rank, " ", schedule.StagesOf(rank).size(),
        " stages, and it has ", stages_.size()));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const int least, pipeline::LeastCapacity(schedule));
  for (const Action& action : schedule.of_rank()[static_cast<size_t>(rank)]) {
    if (action.kind != ActionKind::kBackwardInput &&
        action.kind != ActionKind::kBackwardWeight) {
      continue;
    }
    const std::vector<int> own = schedule.StagesOf(rank);
    const auto at = std::find(own.begin(), own.end(), action.stage);
    if (stages_[static_cast<size_t>(at - own.begin())]->splits_backward()) {
      continue;
    }
    return absl::UnimplementedError(absl::StrCat(
        "stage ", action.stage,
        " has no backward passes in halves, and the "
        "schedule has ",
        ToString(action),
        "; take one whose backward passes are whole, such as 1f1b"));
  }
  return std::max(least, options_.capacity);
}

absl::Status PipelineExecutor::OpenBoundaries(int capacity) {
  const int rank = communicator_->rank();
  const std::vector<int> own = schedule_.StagesOf(rank);
  for (size_t i = 0; i < own.size(); ++i) place_of_stage_[own[i]] = i;
  for (const Action& action : schedule_.of_rank()[static_cast<size_t>(rank)]) {
    if (!pipeline::IsSend(action.kind) && !pipeline::IsReceive(action.kind))
      continue;
    const int channel = pipeline::ChannelOf(action);
    BoundaryOptions options;
    options.peer = schedule_.rank_of_stage(OtherStage(action));
    options.tag = kFirstTag + static_cast<uint32_t>(channel);
    options.slot_bytes = options_.slot_bytes;
    options.slots = options_.slots;
    options.capacity = capacity;
    options.max_message_bytes = options_.max_message_bytes;
    options.timeout = options_.timeout;
    if (pipeline::IsSend(action.kind)) {
      if (senders_.count(channel) > 0) continue;
      COXSWAIN_ASSIGN_OR_RETURN(senders_[channel],
                                BoundarySender::Open(communicator_, options));
    } else {
      if (receivers_.count(channel) > 0) continue;
      COXSWAIN_ASSIGN_OR_RETURN(receivers_[channel],
                                BoundaryReceiver::Open(communicator_, options));
    }
  }
  return absl::OkStatus();
}

absl::Status PipelineExecutor::SetSchedule(pipeline::Schedule schedule) {
  COXSWAIN_ASSIGN_OR_RETURN(const int capacity, Check(schedule));
  if (schedule.stages() != schedule_.stages()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule of ", schedule.stages(),
                     " stages, and the pipeline has ", schedule_.stages()));
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    if (schedule.rank_of_stage(stage) == schedule_.rank_of_stage(stage)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("a schedule with stage ", stage, " on rank ",
                     schedule.rank_of_stage(stage), ", and rank ",
                     schedule_.rank_of_stage(stage), " has it"));
  }
  for (const auto& [channel, sender] : senders_) {
    sender->RaiseCapacity(capacity);
  }
  for (const auto& [channel, receiver] : receivers_) {
    receiver->RaiseCapacity(capacity);
  }
  schedule_ = std::move(schedule);
  hash_ = schedule_.Hash();
  return absl::OkStatus();
}

absl::Status PipelineExecutor::Run() {
  places_->Begin(schedule_.micro_batches(), hash_, measured_);
  const auto& list =
      schedule_.of_rank()[static_cast<size_t>(communicator_->rank())];
  std::map<int, int> expected;
  for (const Action& action : list) {
    if (pipeline::IsReceive(action.kind))
      ++expected[pipeline::ChannelOf(action)];
  }
  for (const auto& [channel, messages] : expected) {
    receivers_.at(channel)->Expect(messages);
  }
  absl::Status status = RunActions();
  if (options_.on_step) {
    options_.on_step(places_->place().step, places_->TakeActions());
  }
  if (status.ok()) return status;
  communicator_->Abort(CauseOf(status));
  for (auto* held : {&inputs_, &gradients_, &outputs_, &input_gradients_}) {
    held->clear();
  }
  for (StageRunner* const stage : stages_) stage->Reset();
  return status;
}

void PipelineExecutor::PassStep() {
  const auto& list =
      schedule_.of_rank()[static_cast<size_t>(communicator_->rank())];
  places_->Pass(static_cast<int>(list.size()), schedule_.micro_batches(),
                hash_);
}

absl::Status PipelineExecutor::RunActions() {
  const auto& list =
      schedule_.of_rank()[static_cast<size_t>(communicator_->rank())];
  std::vector<bool> halves(stages_.size());
  for (const Action& action : list) {
    if (action.kind != ActionKind::kBackwardInput) continue;
    halves[place_of_stage_.at(action.stage)] = true;
  }
  for (size_t i = 0; i < stages_.size(); ++i) {
    COXSWAIN_RETURN_IF_ERROR(
        stages_[i]->Begin(schedule_.micro_batches(), halves[i]));
  }
  for (size_t at = 0; at < list.size(); ++at) {
    places_->Enter(static_cast<int>(at), list[at]);
    if (absl::Status status = Do(list[at]); !status.ok()) {
      places_->Fail();
      return WithPrefix(absl::StrCat("stage ", list[at].stage, ", ",
                                     ToString(list[at]), ": "),
                        status);
    }
  }
  places_->End(static_cast<int>(list.size()));
  for (const auto& [channel, sender] : senders_) {
    COXSWAIN_RETURN_IF_ERROR(
        WithPrefix("after the last action: ", sender->Flush()));
  }
  return absl::OkStatus();
}

absl::Status PipelineExecutor::Do(const Action& action) {
  const Key key = {action.stage, action.micro_batch};
  switch (action.kind) {
    case ActionKind::kForward:
      return Forward(action);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return Backward(action);
    case ActionKind::kBackwardWeight:
      return StageOf(action.stage).BackwardWeight(action.micro_batch);
    case ActionKind::kReduceGradient:
      return StageOf(action.stage).ReduceGradients();
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward: {
      auto* const from =
          IsForwardTransfer(action) ? &outputs_ : &input_gradients_;
      COXSWAIN_ASSIGN_OR_RETURN(Activations tensors,
                                Take(from, action.stage, action.micro_batch));
      return senders_.at(pipeline::ChannelOf(action))
          ->Send(action.micro_batch, std::move(tensors));
    }
    case ActionKind::kReceiveForward:
    case ActionKind::kReceiveBackward: {
      COXSWAIN_ASSIGN_OR_RETURN(Activations tensors,
                                receivers_.at(pipeline::ChannelOf(action))
                                    ->Receive(action.micro_batch));
      (IsForwardTransfer(action) ? inputs_ : gradients_)[key] =
          std::move(tensors);
      return absl::OkStatus();
    }
    // Sends keep their memory for as long as they need it; parameters are not
    // sharded; and an exchange of gradients has ended with its action.
    case ActionKind::kWaitSendForward:
    case ActionKind::kWaitSendBackward:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kWaitReduceGradient:
      return absl::OkStatus();
  }
  return absl::InternalError("an action of no kind");
}

absl::Status PipelineExecutor::Forward(const Action& action) {
  Activations inputs;
  if (action.stage > 0) {
    COXSWAIN_ASSIGN_OR_RETURN(inputs,
                              Take(&inputs_, action.stage, action.micro_batch));
  }
  Activations outputs;
  COXSWAIN_RETURN_IF_ERROR(
      StageOf(action.stage)
          .Forward(action.micro_batch, std::move(inputs), &outputs));
  if (action.stage + 1 < schedule_.stages()) {
    HandOn(action.stage, /*forward=*/true, action.micro_batch,
           std::move(outputs));
  }
  return absl::OkStatus();
}

absl::Status PipelineExecutor::Backward(const Action& action) {
  Activations gradients;
  if (action.stage + 1 < schedule_.stages()) {
    COXSWAIN_ASSIGN_OR_RETURN(
        gradients, Take(&gradients_, action.stage, action.micro_batch));
  }
  StageRunner& stage = StageOf(action.stage);
  Activations results;
  COXSWAIN_RETURN_IF_ERROR(
      action.kind == ActionKind::kBackward
          ? stage.Backward(action.micro_batch, std::move(gradients), &results)
          : stage.BackwardInput(action.micro_batch, std::move(gradients),
                                &results));
  if (action.stage > 0) {
    HandOn(action.stage, /*forward=*/false, action.micro_batch,
           std::move(results));
  }
  return absl::OkStatus();
}

void PipelineExecutor::HandOn(int stage, bool forward, int micro_batch,
                              Activations tensors) {
  const int next = forward ? stage + 1 : stage - 1;
  if (IsOwn(next)) {
    (forward ? inputs_ : gradients_)[{next, micro_batch}] = std::move(tensors);
  } else {
    (forward ? outputs_ : input_gradients_)[{stage, micro_batch}] =
        std::move(tensors);
  }
}

absl::StatusOr<Activations> PipelineExecutor::Take(
    std::map<Key, Activations>* from, int stage, int micro_batch) {
  auto node = from->extract({stage, micro_batch});
  if (node.empty()) {
    return absl::InternalError(
        "what it needs is not there, though the schedule was checked");
  }
  return std::move(node.mapped());
}

std::function<std::optional<PipelinePlace>()> PipelineExecutor::PlaceSource()
    const {
  return [places = places_]() -> std::optional<PipelinePlace> {
    PipelinePlace place = places->place();
    if (place.step < 0) return std::nullopt;
    return place;
  };
}

bool PipelineExecutor::IsOwn(int stage) const {
  return place_of_stage_.count(stage) > 0;
}

StageRunner& PipelineExecutor::StageOf(int stage) const {
  return *stages_[place_of_stage_.at(stage)];
}

}  // namespace coxswain
