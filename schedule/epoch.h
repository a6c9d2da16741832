#ifndef COXSWAIN_SCHEDULE_EPOCH_H_
#define COXSWAIN_SCHEDULE_EPOCH_H_

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"

namespace coxswain::schedule {

// Orders the deciders of one generation's rounds, which follow each other. Each
// decision is made in an epoch; one of an earlier epoch than the highest that a
// rank knows is not followed, and what a rank has sent in an earlier epoch than
// the run's does not count. Both rules are the comparison below, and nothing
// else.
//
//   who decides                                          {fallback, term}
//   coordinator of term 1                                    {0, 1}
//   fallback coordinator, its first epoch                    {1, 0}
//   coordinator of term 1 again, which knows of it           {1, 1}
//   fallback coordinator, its second and third epoch         {2, 0}, {3, 0}
//   coordinator of term 2, which knows of the third          {3, 2}
//
// The fallback epoch comes first: a coordinator that does not know of epoch 1,
// be it restarted, {0, 2}, or only cut off, {0, 1}, is below {1, 0}, and no
// rank that knows of epoch 1 follows it until the coordinator has received a
// report of it.
//
// Why no round is followed in two ways. Let round r be decided in epoch e, and
// otherwise in a later epoch f.
//   - The decider of f has had a ticket for r from every rank, sent in f before
//     the rank received the decision of e: afterwards the rank sends its
//     position instead, and f takes that decision over.
//   - Since then every rank knows f, and drops the decision of e, because e <
//   f.
// This rests on three things besides the comparison:
//   - Within an epoch a round is decided once (StepAgreement), from what ranks
//     have sent in it. A fallback epoch begins with nothing; so does a term,
//     and a coordinator's schedule once a rank has reported a fallback epoch
//     that is new to the coordinator.
//   - A rank that attaches to a coordinator reports the highest fallback epoch
//     that it knows of, before anything else.
//   - A rank returns from the fallback coordinator only once that has confirmed
//     the release, and an epoch that a rank has left decides nothing more. So
//     no rank that knows {1, 1} ever waits for a decision of {1, 0}: the next
//     rank to attach begins {2, 0}.
struct Epoch {
  // More than a fallback coordinator can begin: a rank attaches and detaches
  // for each.
  static constexpr int64_t kMaxFallback = (int64_t{1} << 31) - 1;

  // How many epochs the generation's fallback coordinator has begun, as far as
  // the decider knows; 0: none.
  int64_t fallback = 0;
  // Of the coordinator that decides; 0: it is the fallback coordinator, or a
  // coordinator that does not send its term.
  int64_t term = 0;

  // Returns a text such as "fallback epoch 3, term 2".
  std::string ToString() const;
};

inline bool operator<(const Epoch& a, const Epoch& b) {
  return std::tie(a.fallback, a.term) < std::tie(b.fallback, b.term);
}
inline bool operator==(const Epoch& a, const Epoch& b) {
  return std::tie(a.fallback, a.term) == std::tie(b.fallback, b.term);
}
inline bool operator!=(const Epoch& a, const Epoch& b) { return !(a == b); }

// Returns the epoch of numbers that a peer has sent. INVALID_ARGUMENT if the
// fallback epoch is below `lowest` or above kMaxFallback, or the term negative.
absl::StatusOr<Epoch> EpochFromWire(int64_t fallback, int64_t term,
                                    int64_t lowest = 0);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_EPOCH_H_
