#ifndef COXSWAIN_CAPI_CHECKPOINT_PIECES_H_
#define COXSWAIN_CAPI_CHECKPOINT_PIECES_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coxswain::capi {

// What the names of pieces begin with, in a checkpoint, that each rank has for
// itself. No other piece has such a name.
inline constexpr char kOwnPieces[] = "rank/";

// Returns the name of the rank's own piece: "rank/3/NAME".
inline std::string OwnPiece(int rank, absl::string_view name) {
  return absl::StrCat(kOwnPieces, rank, "/", name);
}

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_CHECKPOINT_PIECES_H_
