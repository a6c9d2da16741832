#ifndef COXSWAIN_HOOKS_STATS_H_
#define COXSWAIN_HOOKS_STATS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "client/reduce/hook.h"
#include "hooks/hook_row.h"

namespace coxswain {

// What a hook has done since it was made, on this rank. A step that is rolled
// back counts in `rolled_back` and, if it was one, in `non_finite`.
struct HookStats {
  int64_t steps = 0;           // committed
  int64_t rolled_back = 0;     // steps that were begun and forgotten
  int64_t non_finite = 0;      // steps with an infinity or NaN in the result
  int64_t payload_bytes = 0;   // handed to collectives, in committed steps
  int64_t collectives = 0;     // started, in committed steps
  int64_t gradient_bytes = 0;  // of the buckets, in committed steps

  // Returns how many times fewer bytes travelled than the gradients have, in
  // their own type; infinite if none travelled.
  double ratio() const;
};

// `stats(h)`: hook h as it is, and a line in the log of rank 0 every `every`
// committed steps: what travelled per step since the line before. Its state,
// its errors and its bits are h's own.
//
// Counts what h hands to the communicator it is given: stats(fp16(h)) counts
// 16-bit bytes, fp16(stats(h)) counts them before they are narrowed. What h
// sends through communicators split off it is not counted.
//
// Cost: one pass over the result of each bucket, for its non-finite values; on
// a GPU by kernels there, and one more call of Advance.
std::unique_ptr<Hook> MakeStatsHook(std::string spec, int64_t every,
                                    std::unique_ptr<Hook> inner);

HookRow StatsRow();

// Returns the counters of a hook that was made from a spec `stats(...)`;
// nullopt for others, and where stats stands within another wrapper. Safe from
// any thread.
std::optional<HookStats> StatsOf(const Hook& hook);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_STATS_H_
