// How a hook takes over what a checkpoint has of it.

#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/checkpoint/hook_cut.h"
#include "client/checkpoint/training_state.h"
#include "client/comm/in_process/in_process_world.h"

namespace coxswain {
namespace {

// In a state's options, of the hooks that have it: their parameters, in words.
constexpr char kParameters[] = "parameters";
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

void LogCut(const TrainingState& state, const HookCut& cut) {
  std::vector<std::string> dropped = cut.dropped;
  if (dropped.size() > kMaxLogged) {
    dropped.resize(kMaxLogged);
    dropped.emplace_back("and more");
  }
  LogInfo("hook_state_cut", {{"of", cut.state.spec},
                             {"step", cut.state.step},
                             {"checkpoint", state.checkpoint_id},
                             {"parts", state.parts.size()},
                             {"anew", absl::StrJoin(dropped, ", ")}});
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
  const auto described = cut.state.options.find(kParameters);
  if (described != cut.state.options.end()) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Hook> like, make_hook());
    COXSWAIN_RETURN_IF_ERROR(like->Configure(parameters, reader.world_size));
    COXSWAIN_ASSIGN_OR_RETURN(HookState own, like->SaveOwn());
    described->second = std::move(own.options[kParameters]);
  }
  COXSWAIN_RETURN_IF_ERROR(
      hook.LoadState(cut.state, reader.rank, reader.world_size));
  LogCut(state, cut);
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
