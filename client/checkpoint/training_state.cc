#include "client/checkpoint/training_state.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr absl::string_view kMagic = "CXTS0001";
// Ranks wait for each other here as long as the slowest upload may take.
constexpr absl::Duration kAgreementTimeout = absl::Minutes(15);

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

// Tells every rank whether all ranks have come here with OK: the barrier
// between upload and commit, and after the commit.
absl::Status Agree(Communicator& communicator, const absl::Status& mine,
                   absl::string_view what) {
  const auto all_ok = std::make_shared<float>(mine.ok() ? 1.0f : 0.0f);
  const WorkPtr work = communicator.AllReduce(
      Span{all_ok.get(), 1, DType::kFloat32, Device{}}, ReduceOp::kMin);
  // Past a timeout the work still writes there.
  work->OnDone([all_ok](const absl::Status&) {});
  const absl::Status exchanged = work->Wait(kAgreementTimeout);
  if (!mine.ok()) return mine;
  COXSWAIN_RETURN_IF_ERROR(exchanged);
  if (*all_ok > 0.5f) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("another rank could not ", what, "; its log says why"));
}

// Saves this rank's shard; returns the checkpoint's id.
absl::StatusOr<std::string> SaveShard(
    CheckpointClient& checkpoints, Communicator& communicator, int64_t step,
    Hook& hook, const std::map<std::string, std::string>& blobs,
    std::map<std::string, std::string> metadata) {
  COXSWAIN_ASSIGN_OR_RETURN(const HookState state,
                            hook.SaveState(communicator));
  metadata["hook"] = hook.spec();
  metadata["world_size"] = absl::StrCat(communicator.size());
  return checkpoints.Save(step, communicator.rank(), communicator.size(),
                          metadata, SerializeTrainingShard(state, blobs));
}

absl::Status NotAShard(absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("these bytes are not a shard of a training state: ", what));
}

}  // namespace

std::string SerializeTrainingShard(
    const HookState& hook, const std::map<std::string, std::string>& blobs) {
  std::string bytes(kMagic);
  AppendBytes(&bytes, SerializeHookState(hook));
  AppendNumber(&bytes, blobs.size());
  for (const auto& [name, blob] : blobs) {
    AppendBytes(&bytes, name);
    AppendBytes(&bytes, blob);
  }
  return bytes;
}

absl::Status ParseTrainingShard(absl::string_view bytes, HookState* hook,
                                std::map<std::string, std::string>* blobs) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return NotAShard(absl::StrCat("they do not begin with ", kMagic));
  }
  Reader reader(bytes.substr(kMagic.size()));
  const auto hook_bytes = reader.Bytes();
  if (!hook_bytes.has_value()) return NotAShard("the hook's state is cut off");
  COXSWAIN_ASSIGN_OR_RETURN(*hook, ParseHookState(*hook_bytes));
  const auto count = reader.Number();
  if (!count.has_value()) return NotAShard("the number of blobs is cut off");
  for (uint64_t i = 0; i < *count; ++i) {
    const auto name = reader.Bytes();
    const auto blob = name.has_value() ? reader.Bytes() : std::nullopt;
    if (!blob.has_value()) {
      return NotAShard(absl::StrCat("blob ", i, " of ", *count, " is cut off"));
    }
    if (!blobs->emplace(std::string(*name), std::string(*blob)).second) {
      return NotAShard(absl::StrCat("blob '", *name, "' is there twice"));
    }
  }
  if (!reader.AtEnd()) return NotAShard("bytes follow the last blob");
  return absl::OkStatus();
}

absl::Status SaveTrainingState(
    CheckpointClient& checkpoints, Communicator& communicator, int64_t step,
    Hook& hook, const std::map<std::string, std::string>& blobs,
    const std::map<std::string, std::string>& metadata) {
  const bool leader = communicator.rank() == 0;
  const absl::StatusOr<std::string> id = SaveShard(
      checkpoints, communicator, step, hook,
      leader ? blobs : std::map<std::string, std::string>(), metadata);
  COXSWAIN_RETURN_IF_ERROR(
      Agree(communicator, id.status(),
            absl::StrCat("save its shard of the checkpoint of step ", step)));

  const absl::Status committed =
      leader ? checkpoints.Commit(*id).status() : absl::OkStatus();
  return Agree(communicator, committed,
               absl::StrCat("commit the checkpoint of step ", step));
}

absl::StatusOr<TrainingState> LoadTrainingState(CheckpointClient& checkpoints,
                                                absl::string_view id) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto list, checkpoints.List());
  const auto found = std::find_if(
      list.begin(), list.end(), [id](const CheckpointDescription& checkpoint) {
        return id.empty() || checkpoint.id == id;
      });
  if (found == list.end()) {
    return absl::NotFoundError(
        id.empty()
            ? "this job has no complete checkpoint"
            : absl::StrCat("this job has no complete checkpoint '", id, "'"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const auto shards, checkpoints.LoadAll(*found));
  TrainingState state;
  state.checkpoint_id = found->id;
  state.step = found->step;
  state.metadata = found->metadata;
  std::vector<HookState> hooks(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    COXSWAIN_RETURN_IF_ERROR(
        ParseTrainingShard(shards[i], &hooks[i], &state.blobs));
  }
  COXSWAIN_ASSIGN_OR_RETURN(state.hook, MergeHookStates(std::move(hooks)));
  return state;
}

}  // namespace coxswain
