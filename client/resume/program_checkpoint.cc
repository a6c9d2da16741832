#include "client/resume/program_checkpoint.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/resume/session_checkpoints.h"
#include "client/schedule/schedule_client.h"
#include "schedule/ticket.h"

namespace coxswain {
namespace {

constexpr char kModelBlob[] = ".model";
constexpr char kOptimizerBlob[] = ".optimizer";
constexpr char kNewest[] = "newest";
// In the metadata: ended windows of a stream, and the plan.
constexpr char kPosition[] = "position/";
constexpr char kPlanVersion[] = "plan_version";

AsyncCheckpoint::Options SaverOptions(
    Session& session, const ProgramCheckpoint::Program& program,
    const ProgramCheckpoint::Options& options) {
  AsyncCheckpoint::Options saver = SaverOf(session);
  saver.own_errors = options.own_errors || !program.hook_parts.empty();
  saver.retention = options.retention;
  saver.on_report = options.on_report;
  return saver;
}

absl::StatusOr<std::map<std::string, int64_t>> PositionOf(
    const TrainingState& state) {
  std::map<std::string, int64_t> position;
  for (const auto& [name, value] : state.metadata) {
    absl::string_view stream = name;
    if (!absl::ConsumePrefix(&stream, kPosition)) continue;
    if (absl::SimpleAtoi(value, &position[std::string(stream)])) continue;
    return absl::DataLossError(absl::StrCat("checkpoint '", state.checkpoint_id,
                                            "' has the position '", value,
                                            "' in stream '", stream, "'"));
  }
  return position;
}

absl::StatusOr<absl::string_view> BlobOf(const TrainingState& state,
                                         const char* name) {
  const auto found = state.blobs.find(name);
  if (found != state.blobs.end()) return absl::string_view(found->second);
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint '", state.checkpoint_id, "' has no blob '", name,
                   "': it was not saved by a program that trains"));
}

// Fails unless both are sharded, or neither is.
absl::Status CheckSharded(const TrainingState& state,
                          const ProgramCheckpoint::Program& program) {
  const bool sharded = state.metadata.count(kPiecesLabel) > 0;
  if (sharded == (program.load_pieces != nullptr)) {
    return sharded ? absl::OkStatus() : BlobOf(state, kOptimizerBlob).status();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint '", state.checkpoint_id, "' is of a model whose state ",
      sharded ? "is sharded, and this program's is not; resume with a sharded "
                "optimizer, or save and load this one in pieces "
                "(ProgramInPieces)"
              : "is not sharded, and this program's is; resume without a "
                "sharded optimizer"));
}

}  // namespace

ProgramCheckpoint::ProgramCheckpoint(Session& session, Program program,
                                     const Options& options)
    : session_(session),
      program_(std::move(program)),
      options_(options),
      saver_(session.checkpoints(), SaverOptions(session, program_, options)) {}

absl::Status ProgramCheckpoint::Fill(const Blobs& own,
                                     AsyncCheckpoint::Blobs* blobs) const {
  // What an earlier copy had and this one has not.
  for (auto it = blobs->begin(); it != blobs->end();) {
    const bool stays = it->first == kModelBlob || own.count(it->first) > 0 ||
                       program_.items.count(it->first) > 0;
    it = stays ? std::next(it) : blobs->erase(it);
  }
  COXSWAIN_RETURN_IF_ERROR(program_.save_model(&(*blobs)[kModelBlob]));
  if (program_.fill_pieces == nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN((*blobs)[kOptimizerBlob],
                              program_.save_optimizer());
  }
  for (const auto& [name, item] : program_.items) (*blobs)[name] = item.save();
  for (const auto& [name, bytes] : own) (*blobs)[name] = bytes;
  return absl::OkStatus();
}

absl::StatusOr<bool> ProgramCheckpoint::Save(const Training& training,
                                             absl::string_view reason,
                                             const Blobs& blobs) {
  if (saved_ == training.decided) return false;
  const auto at = training.accumulator->Position();
  if (!at.ok()) {
    // In the middle of a window, which has no position that one could go on
    // from. No reason to end training.
    LogError("checkpoint_not_copied",
             {{"job", session_.job()}, {"reason", at.status().ToString()}});
    return false;
  }
  COXSWAIN_RETURN_IF_ERROR(training.unite());
  saved_ = training.decided;
  AsyncCheckpoint::Source source;
  source.reason = std::string(reason);
  for (const auto& [stream, windows] : *at) {
    source.metadata[absl::StrCat(kPosition, stream)] = absl::StrCat(windows);
    if (stream == schedule::kTrainStream) source.step = windows;
  }
  source.metadata[kPlanVersion] =
      absl::StrCat(training.accumulator->plan().version);
  if (!program_.hook_parts.empty()) {
    source.metadata[kHookPartsLabel] = absl::StrJoin(program_.hook_parts, ",");
  }
  source.hook = training.hook;
  source.averager = training.averager;
  source.make_hook = [make = options_.make_hook, copy = training.copy_hook,
                      plan = training.accumulator->plan()]()
      -> absl::StatusOr<std::unique_ptr<Hook>> {
    COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<Hook> hook, make(plan));
    return copy == nullptr ? std::move(hook) : copy(std::move(hook));
  };
  source.parameters = training.parameters;
  source.boxes = program_.boxes;
  source.fill_pieces = program_.fill_pieces;
  source.fill_blobs = [&](AsyncCheckpoint::Blobs* into) {
    return Fill(blobs, into);
  };
  // All ranks learn of an error when they come to save.
  const absl::Status copied = saver_.Snapshot(source);
  if (!copied.ok()) {
    LogError("checkpoint_not_copied", {{"job", session_.job()},
                                       {"step", source.step},
                                       {"reason", copied.ToString()}});
  }
  return true;
}

absl::StatusOr<std::optional<ProgramCheckpoint::Resumed>>
ProgramCheckpoint::ResumeIfAny(absl::string_view id, const Training& training) {
  absl::StatusOr<Resumed> resumed = Resume(id, training);
  if (absl::IsNotFound(resumed.status()) && id == kNewest) {
    LogInfo("resumed_from_nothing", {{"job", session_.job()}});
    return std::nullopt;
  }
  COXSWAIN_RETURN_IF_ERROR(resumed.status());
  return *std::move(resumed);
}

absl::StatusOr<ProgramCheckpoint::Resumed> ProgramCheckpoint::Resume(
    absl::string_view id, const Training& training) {
  std::string chosen(id);
  if (id == kNewest) {
    COXSWAIN_ASSIGN_OR_RETURN(chosen, AgreeOnNewest(session_, &agreements_));
  }
  auto loaded =
      LoadTrainingState(session_.checkpoints(), chosen, Reader(training));
  // NOT_FOUND of "newest" means that all ranks begin anew; here others go on.
  if (absl::IsNotFound(loaded.status()) && id == kNewest) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint ", chosen, ", on which the ranks have agreed, is gone: ",
        loaded.status().message(), "; resume again"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(TrainingState state, std::move(loaded));
  COXSWAIN_RETURN_IF_ERROR(Apply(state, training));
  LogInfo("resumed", {{"job", session_.job()},
                      {"checkpoint", state.checkpoint_id},
                      {"step", state.step}});
  Resumed resumed;
  resumed.checkpoint_id = state.checkpoint_id;
  resumed.step = state.step;
  resumed.blobs = std::move(state.blobs);
  // Names of the program's own have no dot in front. An item that this program
  // does not have, such as a loss scale, ends with the program that had it.
  for (auto it = resumed.blobs.begin(); it != resumed.blobs.end();) {
    it = absl::StartsWith(it->first, ".") ? resumed.blobs.erase(it)
                                          : std::next(it);
  }
  return resumed;
}

absl::Status ProgramCheckpoint::LoadOptimizer(const TrainingState& state) {
  if (program_.load_pieces == nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(const absl::string_view optimizer,
                              BlobOf(state, kOptimizerBlob));
    return program_.load_optimizer(optimizer);
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      PieceCheckpoint pieces,
      PieceCheckpoint::Open(session_.checkpoints(), state.checkpoint_id));
  return program_.load_pieces(pieces);
}

TrainingRank ProgramCheckpoint::Reader(const Training& training) const {
  const std::vector<std::string>& parts = program_.hook_parts;
  TrainingRank reader{session_.rank(), session_.world_size()};
  reader.parameters = HookParametersOf(training.parameters, program_.boxes);
  if (parts.empty()) return reader;
  const auto me = parts.begin() + session_.rank();
  reader.rank = static_cast<int>(std::count(parts.begin(), me, *me));
  reader.world_size =
      static_cast<int>(std::count(parts.begin(), parts.end(), *me));
  reader.part = *me;
  return reader;
}

absl::Status ProgramCheckpoint::LoadHookOf(const TrainingState& state,
                                           const Training& training) {
  const auto drop = [&](absl::string_view why) {
    LogWarning("hook_state_dropped", {{"of", state.hook.spec},
                                      {"step", state.hook.step},
                                      {"hook", training.hook->spec()},
                                      {"reason", why}});
    return absl::OkStatus();
  };
  const bool is_cut = !state.parts.empty();
  // One without tensors is that of any part.
  if (!state.of_part && !is_cut && !state.hook.tensors.empty()) {
    return drop(absl::StrCat("no rank of checkpoint ", state.checkpoint_id,
                             " had the same part of the model, nor says which "
                             "parameters it had"));
  }
  const auto make = [&] {
    return options_.make_hook(training.accumulator->plan());
  };
  absl::Status loaded = LoadHook(state, Reader(training), training.parameters,
                                 make, *training.hook);
  if (is_cut && absl::IsFailedPrecondition(loaded)) {
    return drop(loaded.message());
  }
  return loaded;
}

absl::Status ProgramCheckpoint::LoadItems(const TrainingState& state) {
  for (const auto& [name, item] : program_.items) {
    const auto found = state.blobs.find(name);
    if (found == state.blobs.end()) continue;
    COXSWAIN_RETURN_IF_ERROR(WithPrefix(
        absl::StrCat("checkpoint ", state.checkpoint_id, ", ", name, ": "),
        item.load(found->second)));
  }
  return absl::OkStatus();
}

absl::Status ProgramCheckpoint::Apply(const TrainingState& state,
                                      const Training& training) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto position, PositionOf(state));
  COXSWAIN_ASSIGN_OR_RETURN(const absl::string_view model,
                            BlobOf(state, kModelBlob));
  COXSWAIN_RETURN_IF_ERROR(CheckSharded(state, program_));
  COXSWAIN_RETURN_IF_ERROR(program_.load_model(model));
  COXSWAIN_RETURN_IF_ERROR(LoadOptimizer(state));
  COXSWAIN_RETURN_IF_ERROR(LoadHookOf(state, training));
  COXSWAIN_RETURN_IF_ERROR(LoadItems(state));
  if (training.averager != nullptr) {
    COXSWAIN_RETURN_IF_ERROR(training.averager->LoadState(
        state.averager, session_.rank(), session_.world_size()));
  }
  return training.accumulator->Restore(position);
}

}  // namespace coxswain
