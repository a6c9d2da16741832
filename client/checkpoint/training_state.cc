#include "client/checkpoint/training_state.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "client/checkpoint/piece_part.h"
#include "client/checkpoint/save_together.h"
#include "client/comm/in_process/in_process_world.h"

namespace coxswain {
namespace {

constexpr absl::string_view kMagic = "CXTS0002";
void AppendNumber(std::string* out, uint64_t number) {
  for (int shift = 0; shift < 64; shift += 8) {
    out->push_back(static_cast<char>(number >> shift));
  }
}

void AppendBytes(std::string* out, absl::string_view bytes) {
  AppendNumber(out, bytes.size());
  out->append(bytes.data(), bytes.size());
}

// Reads what the two functions above wrote.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}

  std::optional<uint64_t> Number() {
    if (rest_.size() < 8) return std::nullopt;
    uint64_t number = 0;
    for (int i = 7; i >= 0; --i) {
      number = number << 8 | static_cast<unsigned char>(rest_[i]);
    }
    rest_.remove_prefix(8);
    return number;
  }

  std::optional<absl::string_view> Bytes() {
    const std::optional<uint64_t> size = Number();
    if (!size.has_value() || *size > rest_.size()) return std::nullopt;
    const absl::string_view bytes = rest_.substr(0, *size);
    rest_.remove_prefix(*size);
    return bytes;
  }

  bool AtEnd() const { return rest_.empty(); }

 private:
  absl::string_view rest_;
};

// This rank's shard; collective.
absl::StatusOr<TrainingShard> MakeShard(
    Communicator& communicator, Hook& hook, Averager* averager,
    const std::map<std::string, std::string>& blobs) {
  COXSWAIN_RETURN_IF_ERROR(CheckSavable(hook, averager));
  TrainingShard shard;
  COXSWAIN_ASSIGN_OR_RETURN(shard.hook, hook.SaveState(communicator));
  if (averager != nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(shard.averager,
                              averager->SaveState(communicator));
  }
  if (communicator.rank() == 0) shard.blobs = blobs;
  return shard;
}

// Returns the shard's bytes.
absl::StatusOr<std::string> MakeShardBytes(
    Communicator& communicator, Hook& hook, Averager* averager,
    const std::map<std::string, std::string>& blobs) {
  COXSWAIN_ASSIGN_OR_RETURN(const TrainingShard shard,
                            MakeShard(communicator, hook, averager, blobs));
  return SerializeTrainingShard(shard);
}

bool IsOwnErrors(const std::map<std::string, std::string>& metadata) {
  const auto errors = metadata.find(kErrorsLabel);
  return errors != metadata.end() && errors->second == kOwnErrors;
}

// Returns the ranks that saved a hook of this part of the model.
std::vector<int> RanksOfPart(const CheckpointDescription& checkpoint,
                             absl::string_view part) {
  std::vector<int> ranks(static_cast<size_t>(checkpoint.shards));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto label = checkpoint.metadata.find(kHookPartsLabel);
  std::vector<absl::string_view> parts(ranks.size());
  if (label != checkpoint.metadata.end()) {
    parts = absl::StrSplit(label->second, ',');
    parts.resize(ranks.size());
  }
  ranks.erase(std::remove_if(ranks.begin(), ranks.end(),
                             [&](int rank) {
                               return parts[static_cast<size_t>(rank)] != part;
                             }),
              ranks.end());
  return ranks;
}

absl::Status NotAShard(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("these bytes are not a shard of a training state: ", what));
}

// Returns the bytes of a training shard; of a sharded model's it is what comes
// with the pieces.
absl::StatusOr<std::string> LoadTrainingShard(
    CheckpointClient& checkpoints, const CheckpointDescription& checkpoint,
    int number) {
  if (checkpoint.metadata.count(kPiecesLabel) == 0) {
    return checkpoints.LoadShard(checkpoint.id, number);
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                            checkpoints.ShardSizes(checkpoint.id));
  if (number >= static_cast<int>(sizes.size())) {
    return absl::DataLossError(
        absl::StrCat("checkpoint ", checkpoint.id, " has no shard ", number));
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      PiecePart part, PiecePart::Open(&checkpoints, checkpoint.id, number,
                                      sizes[static_cast<size_t>(number)]));
  COXSWAIN_ASSIGN_OR_RETURN(std::string state, part.ReadState());
  if (!state.empty()) return state;
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint ", checkpoint.id,
      " has pieces of a model and no training state; load the pieces"));
}

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

std::string SerializeTrainingShard(const TrainingShard& shard) {
  std::string bytes(kMagic);
  AppendBytes(&bytes, SerializeHookState(shard.hook));
  AppendBytes(&bytes, shard.averager.spec.empty()
                          ? std::string()
                          : SerializeHookState(shard.averager));
  AppendNumber(&bytes, shard.blobs.size());
  for (const auto& [name, blob] : shard.blobs) {
    AppendBytes(&bytes, name);
    AppendBytes(&bytes, blob);
  }
  return bytes;
}

absl::StatusOr<TrainingShard> ParseTrainingShard(absl::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return NotAShard(absl::StrCat("they do not begin with ", kMagic));
  }
  Reader reader(bytes.substr(kMagic.size()));
  TrainingShard shard;
  const auto hook = reader.Bytes();
  if (!hook.has_value()) return NotAShard("the hook's state is cut off");
  COXSWAIN_ASSIGN_OR_RETURN(shard.hook, ParseHookState(*hook));
  const auto averager = reader.Bytes();
  if (!averager.has_value()) {
    return NotAShard("the averager's state is cut off");
  }
  if (!averager->empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(shard.averager, ParseHookState(*averager));
  }
  const auto count = reader.Number();
  if (!count.has_value()) return NotAShard("the number of blobs is cut off");
  for (uint64_t i = 0; i < *count; ++i) {
    const auto name = reader.Bytes();
    const auto blob = name.has_value() ? reader.Bytes() : std::nullopt;
    if (!blob.has_value()) {
      return NotAShard(absl::StrCat("blob ", i, " of ", *count, " is cut off"));
    }
    if (!shard.blobs.emplace(std::string(*name), std::string(*blob)).second) {
      return NotAShard(absl::StrCat("blob '", *name, "' is there twice"));
    }
  }
  if (!reader.AtEnd()) return NotAShard("bytes follow the last blob");
  return shard;
}

absl::Status SaveTrainingState(
    CheckpointClient& checkpoints, Communicator& communicator, int64_t step,
    Hook& hook, const std::map<std::string, std::string>& blobs,
    const std::map<std::string, std::string>& metadata, Averager* averager) {
  CheckpointLabel label;
  label.step = step;
  label.metadata = metadata;
  label.metadata["hook"] = hook.spec();
  label.metadata["world_size"] = absl::StrCat(communicator.size());
  return SaveTogether(checkpoints, communicator, label,
                      MakeShardBytes(communicator, hook, averager, blobs))
      .status();
}

absl::StatusOr<TrainingState> LoadTrainingState(CheckpointClient& checkpoints,
                                                absl::string_view id,
                                                const TrainingRank& reader) {
  COXSWAIN_ASSIGN_OR_RETURN(const CheckpointDescription found,
                            FindCheckpoint(checkpoints, id));
  TrainingState state;
  state.checkpoint_id = found.id;
  state.step = found.step;
  state.metadata = found.metadata;
  const bool own = IsOwnErrors(found.metadata);
  const std::vector<int> alike = RanksOfPart(found, reader.part);
  state.of_part = !alike.empty();
  const bool one_to_one =
      alike.size() == static_cast<size_t>(reader.world_size);
  std::vector<HookState> hooks;
  std::vector<HookState> averagers;
  for (int number = 0; number < found.shards; ++number) {
    // Of the others' own errors nothing is needed, but of all together.
    const auto at = std::find(alike.begin(), alike.end(), number);
    const bool is_alike = at != alike.end();
    const bool needed =
        !own || number == 0 ||
        (is_alike && (!one_to_one || at - alike.begin() == reader.rank));
    if (!needed) {
      if (is_alike) hooks.emplace_back();
      continue;
    }
    COXSWAIN_ASSIGN_OR_RETURN(const std::string bytes,
                              LoadTrainingShard(checkpoints, found, number));
    COXSWAIN_ASSIGN_OR_RETURN(TrainingShard shard, ParseTrainingShard(bytes));
    if (!own || is_alike) {
      hooks.push_back(std::move(shard.hook));
    } else if (alike.empty()) {
      state.hook = std::move(shard.hook);
    }
    if (!shard.averager.spec.empty()) {
      averagers.push_back(std::move(shard.averager));
    }
    for (auto& [name, blob] : shard.blobs) {
      if (!state.blobs.emplace(name, std::move(blob)).second) {
        return NotAShard(absl::StrCat("blob '", name, "' is in two of them"));
      }
    }
  }
  if (own) {
    state.own = std::move(hooks);
    return state;
  }
  COXSWAIN_ASSIGN_OR_RETURN(state.hook, MergeHookStates(std::move(hooks)));
  if (averagers.empty()) return state;
  if (averagers.size() < static_cast<size_t>(found.shards)) {
    return NotAShard("some have an averager's state, and some have not");
  }
  COXSWAIN_ASSIGN_OR_RETURN(state.averager,
                            MergeHookStates(std::move(averagers)));
  return state;
}

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
