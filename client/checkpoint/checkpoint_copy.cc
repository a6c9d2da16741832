#include "client/checkpoint/checkpoint_copy.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "client/comm/rank_values.h"

namespace coxswain {
namespace {

// Knows which rank of how many this is, and exchanges nothing: for a SaveState
// that only needs to know whose shard it makes. Whatever is exchanged all the
// same is FAILED_PRECONDITION. Thread-safe.
class RankOnlyCommunicator : public Communicator {
 public:
  using Communicator::Communicator;
  absl::string_view backend() const override { return "rank_only"; }
  void Abort(absl::string_view) override {}
  int64_t wire_bytes() const override { return 0; }

 protected:
  WorkPtr DoAllReduce(Span, ReduceOp) override { return Refuse(); }
  WorkPtr DoBroadcast(Span, int) override { return Refuse(); }
  WorkPtr DoAgree(const CollectiveHeader&) override { return Refuse(); }

 private:
  static WorkPtr Refuse() {
    return Work::Ended(absl::FailedPreconditionError(
        "an averager that exchanges data to save its state cannot be saved "
        "while training goes on: use SaveTrainingState"));
  }
};

absl::Status CopyPieces(const AsyncCheckpoint::Source& source,
                        CheckpointCopy* copy) {
  std::vector<PieceMemory> pieces;
  COXSWAIN_RETURN_IF_ERROR(source.fill_pieces(&pieces));
  size_t bytes = 0;
  for (const PieceMemory& memory : pieces) {
    COXSWAIN_RETURN_IF_ERROR(CheckMemory(memory));
    bytes += static_cast<size_t>(memory.piece.bytes());
  }
  copy->elements.resize(bytes);
  char* to = copy->elements.data();
  copy->pieces.reserve(pieces.size());
  for (const PieceMemory& memory : pieces) {
    const auto size = static_cast<size_t>(memory.piece.bytes());
    if (size > 0) std::memcpy(to, memory.data, size);
    copy->pieces.push_back({memory.piece, to});
    to += size;
  }
  return absl::OkStatus();
}

// The pause.
absl::Status CopyFrom(const AsyncCheckpoint::Source& source,
                      const AsyncCheckpoint::Options& options,
                      CheckpointCopy* copy) {
  COXSWAIN_RETURN_IF_ERROR(CheckSavable(*source.hook, source.averager));
  COXSWAIN_ASSIGN_OR_RETURN(copy->hook, source.hook->SaveOwn());
  if (source.averager != nullptr) {
    RankOnlyCommunicator nobody(options.rank, options.world_size);
    COXSWAIN_ASSIGN_OR_RETURN(copy->averager,
                              source.averager->SaveState(nobody));
  }
  copy->sharded = source.fill_pieces != nullptr;
  if (copy->sharded) COXSWAIN_RETURN_IF_ERROR(CopyPieces(source, copy));
  if (source.fill_blobs == nullptr) return absl::OkStatus();
  if (options.rank != 0 && !source.ranks_have_blobs) return absl::OkStatus();
  return source.fill_blobs(&copy->blobs);
}

CheckpointLabel LabelOf(const AsyncCheckpoint::Source& source,
                        const AsyncCheckpoint::Options& options) {
  CheckpointLabel label;
  label.step = source.step;
  label.metadata = source.metadata;
  label.retention = options.retention;
  label.metadata["hook"] = source.hook->spec();
  label.metadata["world_size"] = absl::StrCat(options.world_size);
  if (options.own_errors && source.averager == nullptr) {
    label.metadata[kErrorsLabel] = kOwnErrors;
  }
  return label;
}

}  // namespace

CopyPtr MakeCopy(const AsyncCheckpoint::Source& source,
                 const AsyncCheckpoint::Options& options, CopyMemory memory) {
  auto copy = std::make_unique<CheckpointCopy>();
  copy->begun = options.clock->Now();
  copy->label = LabelOf(source, options);
  copy->reason = source.reason;
  copy->make_hook = source.make_hook;
  copy->parameters = source.parameters;
  copy->boxes = source.boxes;
  copy->blobs = std::move(memory.blobs);
  copy->elements = std::move(memory.elements);
  copy->status = CopyFrom(source, options, copy.get());
  copy->pause = options.clock->Now() - copy->begun;
  return copy;
}

absl::StatusOr<Offer> ExchangeOffers(Communicator& communicator,
                                     const CheckpointCopy& mine,
                                     absl::Duration timeout) {
  const int64_t step = mine.label.step;
  const int64_t failed = mine.status.ok() ? 0 : 1;
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<int64_t> most,
                            ReduceValues(communicator, {step, -step, failed},
                                         ReduceOp::kMax, timeout));
  return Offer{most[0], -most[1], most[2] != 0};
}

}  // namespace coxswain
