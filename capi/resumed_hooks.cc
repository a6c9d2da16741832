#include "capi/resumed_hooks.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/checkpoint_pieces.h"
#include "hooks/registry/planned_hook.h"
#include "schedule/ticket.h"

namespace coxswain::capi {
namespace {

constexpr char kHookPieces[] = ".hook/";
constexpr char kWorldSize[] = "world_size";
// More than a coordinator has.
constexpr int kMostRanks = 1 << 16;

absl::StatusOr<int> RanksThatSaved(const TrainingState& checkpoint) {
  int ranks = 0;
  const auto found = checkpoint.metadata.find(kWorldSize);
  if (found != checkpoint.metadata.end() &&
      absl::SimpleAtoi(found->second, &ranks) && ranks > 0 &&
      ranks <= kMostRanks) {
    return ranks;
  }
  return absl::DataLossError(
      absl::StrCat("checkpoint '", checkpoint.checkpoint_id,
                   "' does not say how many ranks have saved it"));
}

}  // namespace

std::string HookPiece(absl::string_view stream) {
  return absl::StrCat(kHookPieces, stream);
}

bool IsHookPiece(absl::string_view name) {
  return absl::StartsWith(name, kHookPieces);
}

absl::StatusOr<std::shared_ptr<const TrainingState>> HookStateIn(
    const TrainingState& checkpoint, const std::string& stream) {
  auto state = std::make_shared<TrainingState>();
  state->checkpoint_id = checkpoint.checkpoint_id;
  if (stream == schedule::kTrainStream) {
    state->hook = checkpoint.hook;
    state->own = checkpoint.own;
    return state;
  }
  COXSWAIN_ASSIGN_OR_RETURN(const int ranks, RanksThatSaved(checkpoint));
  bool any = false;
  for (int rank = 0; rank < ranks; ++rank) {
    HookState& own = state->own.emplace_back();
    const auto found = checkpoint.blobs.find(OwnPiece(rank, HookPiece(stream)));
    if (found == checkpoint.blobs.end()) continue;
    COXSWAIN_ASSIGN_OR_RETURN(own, ParseHookState(found->second));
    any = true;
  }
  if (any) return state;
  return absl::NotFoundError(
      absl::StrCat("checkpoint '", checkpoint.checkpoint_id,
                   "' has no state of the hook of stream \"", stream,
                   "\", which exchanged nothing when it was saved"));
}

absl::Status LoadInto(const OpenSession& open, const TrainingState& state,
                      StreamExchange& exchange) {
  COXSWAIN_ASSIGN_OR_RETURN(Hook* const hook, exchange.SettledHook());
  const BucketStream& stream = exchange.stream();
  const TrainingRank me{open.session->rank(), open.session->world_size()};
  return LoadHook(
      state, me, stream.parameters(),
      [&stream] { return MakePlannedHook(stream.plan()); }, *hook);
}

absl::Status LoadResumed(OpenSession& open, const std::string& stream,
                         StreamExchange& exchange) {
  const auto state = open.TakeResumed(stream);
  return state == nullptr ? absl::OkStatus() : LoadInto(open, *state, exchange);
}

}  // namespace coxswain::capi
