#ifndef COXSWAIN_CAPI_RESUMED_HOOKS_H_
#define COXSWAIN_CAPI_RESUMED_HOOKS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "capi/exchange.h"
#include "capi/open_session.h"
#include "client/checkpoint/training_state.h"

// The hooks' states in checkpoints: that of the stream "train" in its place,
// which programs of the C++ library read, and those of others in a piece of
// each rank.
namespace coxswain::capi {

// Returns the name of the piece with the state of a stream's hook.
std::string HookPiece(absl::string_view stream);
// Returns whether a piece of this name has one.
bool IsHookPiece(absl::string_view name);

// Returns what the hook of a stream goes on with, without the checkpoint's
// blobs. Fails with NOT_FOUND if the checkpoint has no state of it.
absl::StatusOr<std::shared_ptr<const TrainingState>> HookStateIn(
    const TrainingState& checkpoint, const std::string& stream);

// Loads it into the hook of a stream. Fails as LoadHook.
absl::Status LoadInto(const OpenSession& open, const TrainingState& state,
                      StreamExchange& exchange);

// Loads what a stream that is opened goes on with, if it was resumed before.
absl::Status LoadResumed(OpenSession& open, const std::string& stream,
                         StreamExchange& exchange);

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_RESUMED_HOOKS_H_
