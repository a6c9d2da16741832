// Training states whose ranks have each saved their own errors.

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/checkpoint/training_state.h"
#include "client/comm/in_process/in_process_world.h"

namespace coxswain {
namespace {

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
      // Nobody waits for a rank that has failed.
      if (!shards[index].ok()) communicator->Abort("its state does not load");
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<HookState> merged;
  // What a rank met itself says more than that another has gone.
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
