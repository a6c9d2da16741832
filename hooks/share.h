#ifndef COXSWAIN_HOOKS_SHARE_H_
#define COXSWAIN_HOOKS_SHARE_H_

#include <optional>

#include "client/reduce/bucket.h"

namespace coxswain {

// What a hook that applies shares multiplies these gradients by, in place of
// dividing them by the number of ranks. Null where that is what they are to be
// divided by: without weights, and for a rank whose weight is the mean.
inline std::optional<double> UnevenShare(const Bucket& bucket, int ranks) {
  if (!bucket.share.has_value() || *bucket.share == 1.0 / ranks) {
    return std::nullopt;
  }
  return bucket.share;
}

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_SHARE_H_
