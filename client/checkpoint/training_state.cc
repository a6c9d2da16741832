#include "client/checkpoint/training_state.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "client/checkpoint/hook_choice.h"
#include "client/checkpoint/piece_part.h"
#include "client/checkpoint/save_together.h"

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

// Returns which part of the model each rank that saved had.
std::vector<std::string> PartsOf(const CheckpointDescription& checkpoint) {
  std::vector<std::string> parts;
  const auto label = checkpoint.metadata.find(kHookPartsLabel);
  if (label != checkpoint.metadata.end()) {
    parts = absl::StrSplit(label->second, ',');
  }
  parts.resize(static_cast<size_t>(checkpoint.shards));
  return parts;
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
  HookChoice choice(reader, PartsOf(found), IsOwnErrors(found.metadata));
  state.of_part = choice.of_part();
  std::vector<HookState> averagers;
  for (int number = 0; number < found.shards; ++number) {
    if (!choice.Needs(number)) continue;
    COXSWAIN_ASSIGN_OR_RETURN(const std::string bytes,
                              LoadTrainingShard(checkpoints, found, number));
    COXSWAIN_ASSIGN_OR_RETURN(TrainingShard shard, ParseTrainingShard(bytes));
    const auto described = shard.blobs.extract(HookParametersBlob(number));
    COXSWAIN_RETURN_IF_ERROR(choice.Take(
        number, std::move(shard.hook),
        described.empty() ? absl::string_view() : described.mapped()));
    if (!shard.averager.spec.empty()) {
      averagers.push_back(std::move(shard.averager));
    }
    for (auto& [name, blob] : shard.blobs) {
      if (!state.blobs.emplace(name, std::move(blob)).second) {
        return NotAShard(absl::StrCat("blob '", name, "' is in two of them"));
      }
    }
  }
  COXSWAIN_RETURN_IF_ERROR(choice.Finish(&state));
  if (averagers.empty() || IsOwnErrors(found.metadata)) return state;
  if (averagers.size() < static_cast<size_t>(found.shards)) {
    return NotAShard("some have an averager's state, and some have not");
  }
  COXSWAIN_ASSIGN_OR_RETURN(state.averager,
                            MergeHookStates(std::move(averagers)));
  return state;
}

}  // namespace coxswain
