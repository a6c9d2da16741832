#ifndef COXSWAIN_HOOKS_WEIGHTED_EXCHANGE_H_
#define COXSWAIN_HOOKS_WEIGHTED_EXCHANGE_H_

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"
#include "hooks/device/device_scratch.h"
#include "hooks/scratch.h"

namespace coxswain {

// Returns what a hook that applies shares multiplies these gradients by, in
// place of dividing them by the number of ranks. Null where that is what they
// are to be divided by: without weights, and for a rank whose weight is the
// mean.
inline std::optional<double> UnevenShare(const Bucket& bucket, int ranks) {
  if (!bucket.share.has_value() || *bucket.share == 1.0 / ranks) {
    return std::nullopt;
  }
  return bucket.share;
}

// Applies Bucket::share for hooks that add to gradients what earlier steps left
// unsent, which is never weighted: the hook's own exchange gets gradients that
// have been multiplied by their share and the number of ranks, to be divided by
// that number as ever. Wide gradients are multiplied where they stand. 16-bit
// ones might overflow there: the exchange gets a bucket of float32 in their
// place, of which the averages are narrowed at the end.
//
// A member of the hook, which calls Clear in Configure. Threading: the hook's.
class WeightedExchanges {
 public:
  using Prepare = std::function<absl::StatusOr<std::unique_ptr<Exchange>>(
      const Bucket& bucket, Communicator& communicator)>;

  // `hook` is the hook's spec, for messages. Calls `prepare` at once, with the
  // bucket and the communicator as they are if there is no share. What the
  // exchange of a widened bucket reduces in float32 travels in the gradients'
  // own type all the same. Costs 4 bytes an element of a 16-bit bucket while it
  // is in flight, and on a GPU one more call of Advance.
  absl::StatusOr<std::unique_ptr<Exchange>> Make(absl::string_view hook,
                                                 const Bucket& bucket,
                                                 Communicator& communicator,
                                                 const Prepare& prepare);

  void Clear() { device_scratch_.Clear(); }

 private:
  ScratchPool scratch_;
  DeviceScratch device_scratch_;
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_WEIGHTED_EXCHANGE_H_
