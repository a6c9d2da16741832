// How a hook takes over what a checkpoint has of it.

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/checkpoint/hook_cut.h"
#include "client/checkpoint/training_state.h"
#include "client/comm/in_process/in_process_world.h"

namespace coxswain {
namespace {

constexpr size_t kMaxLogged = 8;

constexpr absl::Duration kLocalTimeout = absl::Minutes(5);

// One of the ranks that saved, once more.
absl::StatusOr<HookState> ShardOf(const HookState& own,
                                  const std::vector<ParameterSpec>& parameters,
                                  const HookMaker& make_hook,
                                  Communicator& communicator) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Hook> hook, make_hook());
  COXSWAIN_RETURN_IF_ERROR(hook->Configure(parameters, communicator.size()));
  COXSWAIN_RETURN_IF_ERROR(hook->LoadOwn(own, /*error_scale=*/1));
  return hook->SaveState(communicator);
}

// Returns what the ranks of a part saved, as one state.
absl::StatusOr<HookState> Merged(const SavedHookPart& part,
                                 const HookMaker& make_hook) {
  if (!part.own) return part.states[0];
  return MeanOfOwnStates(part.states, SpecsOf(part.parameters), make_hook);
}

std::string InWords(std::vector<std::string> names) {
  if (names.size() > kMaxLogged) {
    names.resize(kMaxLogged);
    names.emplace_back("and more");
  }
  return absl::StrJoin(names, ", ");
}

void LogCut(const TrainingState& state, const HookCut& cut,
            const std::vector<std::string>& lost) {
  LogInfo("hook_state_cut", {{"of", cut.state.spec},
                             {"step", cut.state.step},
                             {"checkpoint", state.checkpoint_id},
                             {"parts", state.parts.size()},
                             {"anew", InWords(cut.dropped)}});
  if (lost.empty()) return;
  LogWarning(
      "hook_errors_lost",
      {{"of", cut.state.spec},
       {"step", cut.state.step},
       {"lost", InWords(lost)},
       {"effect",
        "the hook keeps none of these parts, as of those that are too "
        "small to be compressed: what had not been sent is lost, once"}});
}

// Drops what a hook does not take of a parameter, as the error of a part so
// small that it is not compressed. Returns what that was. `like` is a hook like
// it, whose state does not matter.
std::vector<std::string> DropUnfit(Hook& like, const TrainingRank& reader,
                                   HookCut* cut) {
  std::vector<std::string> dropped;
  const auto takes = [&](std::vector<StateTensor> tensors) {
    HookState state;
    state.spec = cut->state.spec;
    state.step = cut->state.step;
    state.options = cut->state.options;
    state.tensors = std::move(tensors);
    return like.LoadState(state, reader.rank, reader.world_size).ok();
  };
  if (!takes({})) return dropped;
  std::map<std::string, std::vector<StateTensor>> by_parameter;
  for (StateTensor& tensor : cut->state.tensors) {
    by_parameter[tensor.parameter].push_back(std::move(tensor));
  }
  cut->state.tensors.clear();
  for (auto& [parameter, tensors] : by_parameter) {
    const bool stays = takes(tensors);
    for (StateTensor& tensor : tensors) {
      if (stays) {
        cut->state.tensors.push_back(std::move(tensor));
      } else {
        dropped.push_back(absl::StrCat(tensor.kind, " of ", parameter));
      }
    }
  }
  return dropped;
}

// The model was divided otherwise.
absl::Status LoadCut(const TrainingState& state, const TrainingRank& reader,
                     const std::vector<ParameterSpec>& parameters,
                     const HookMaker& make_hook, Hook& hook) {
  std::vector<PartState> from;
  for (const SavedHookPart& part : state.parts) {
    COXSWAIN_ASSIGN_OR_RETURN(HookState merged, Merged(part, make_hook));
    from.push_back({part.parameters, std::move(merged)});
  }
  COXSWAIN_ASSIGN_OR_RETURN(HookCut cut, CutHookState(from, reader.parameters));
  from.clear();
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Hook> like, make_hook());
  COXSWAIN_RETURN_IF_ERROR(like->Configure(parameters, reader.world_size));
  const auto described = cut.state.options.find(kHookParametersOption);
  if (described != cut.state.options.end()) {
    COXSWAIN_ASSIGN_OR_RETURN(HookState own, like->SaveOwn());
    described->second = std::move(own.options[kHookParametersOption]);
  }
  absl::Status loaded =
      hook.LoadState(cut.state, reader.rank, reader.world_size);
  std::vector<std::string> lost;
  if (absl::IsFailedPrecondition(loaded)) {
    lost = DropUnfit(*like, reader, &cut);
    if (lost.empty()) return loaded;
    loaded = hook.LoadState(cut.state, reader.rank, reader.world_size);
  }
  COXSWAIN_RETURN_IF_ERROR(loaded);
  LogCut(state, cut, lost);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HookState> MeanOfOwnStates(
    const std::vector<HookState>& own,
    const std::vector<ParameterSpec>& parameters, const HookMaker& make_hook) {
  const int size = static_cast<int>(own.size());
  const auto world = InProcessWorld::Create(size, kLocalTimeout);
  std::vector<absl::StatusOr<HookState>> shards(own.size(), HookState());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank,
                          communicator = std::shared_ptr<Communicator>(
                              world->MakeRank(rank))]() mutable {
      const auto index = static_cast<size_t>(rank);
      shards[index] = ShardOf(own[index], parameters, make_hook, *communicator);
      // The others do not wait for a rank that has failed.
      if (!shards[index].ok()) communicator->Abort("its state does not load");
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<HookState> merged;
  // A rank's own error explains more than that another one has ended.
  for (const auto& shard : shards) {
    if (absl::IsFailedPrecondition(shard.status())) return shard.status();
  }
  for (auto& shard : shards) {
    COXSWAIN_RETURN_IF_ERROR(shard.status());
    merged.push_back(*std::move(shard));
  }
  return MergeHookStates(std::move(merged));
}

absl::Status LoadHook(const TrainingState& state, const TrainingRank& reader,
                      const std::vector<ParameterSpec>& parameters,
                      const HookMaker& make_hook, Hook& hook) {
  if (!state.parts.empty()) {
    return LoadCut(state, reader, parameters, make_hook, hook);
  }
  if (state.own.empty()) {
    return hook.LoadState(state.hook, reader.rank, reader.world_size);
  }
  if (static_cast<int>(state.own.size()) == reader.world_size) {
    return hook.LoadOwn(state.own[static_cast<size_t>(reader.rank)], 1);
  }
  COXSWAIN_ASSIGN_OR_RETURN(const HookState mean,
                            MeanOfOwnStates(state.own, parameters, make_hook));
  return hook.LoadState(mean, reader.rank, reader.world_size);
}

}  // namespace coxswain
