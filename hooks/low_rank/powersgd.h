#ifndef COXSWAIN_HOOKS_LOW_RANK_POWERSGD_H_
#define COXSWAIN_HOOKS_LOW_RANK_POWERSGD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/reduce/hook.h"
#include "hooks/hook_row.h"
#include "hooks/options.h"

namespace coxswain {

// `powersgd`: low-rank gradients with error feedback (Vogels, Karimireddy,
// Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization", NeurIPS 2019), with the error kept locally.
//
// A gradient of two or more dimensions is a matrix of n = shape[0] rows and m
// columns. With r = min(n, m, rank) it is compressed iff
// (n + m) r min_compression_rate < n m; all else travels raw. With W ranks,
// in step t >= start_step:
//   X = G + E            this rank's gradient and error
//   Q = orth(Q)          from the step before, or drawn from (seed, name, t)
//   P = orth(mean(X Q))
//   q = transpose(X) P;  E = X - P transpose(q)
//   Q = mean(q);         the result is P transpose(Q)
// Contributions are divided by W before they are summed. Raw tensors are
// averaged exactly and have no error. Steps before start_step are plain
// averages.
//
// Cost per bucket and step: 2 collectives; the first carries the raw elements,
// n r per matrix and 1 flag, the second m r per matrix. Memory: 2 n m of
// error (current and staged), 2 m r of Q, and X Q in flight. Everything is
// float32 for float32 and 16-bit gradients, float64 for float64; 16-bit
// gradients travel in their own type. Numerics: lossy, but what a step leaves
// out is sent later. Not for models whose gradients are mostly vectors, nor
// on networks that are faster than the arithmetic.
//
// Not finite: the flag counts the ranks on which a gradient of the bucket is
// infinite or NaN. If there is one, or a sum overflows, all ranks get a bucket
// full of NaN, so that the trainer sees it, and error and Q of the bucket stay
// as they were.
//
// State: the mean error over the ranks, each rank saving its shard of the
// parameters, and Q. LoadState gives rank k W' times the mean error of its
// shard under the new world size W' and zero elsewhere, which leaves the mean
// as it was; results depend on the errors through their mean only.

// The hook's option table, and a check of what no single range can say.
const std::vector<OptionDescription>& PowerSgdOptions();
absl::Status CheckPowerSgdOptions(const OptionValues& options);

HookRow PowerSgdRow();

// `options` are of that table and pass the check.
std::unique_ptr<Hook> MakePowerSgdHook(std::string spec, OptionValues options);

// Number of columns of the factors if a gradient of this shape is compressed,
// 0 if it travels raw.
int64_t PowerSgdRank(const std::vector<int64_t>& shape, int64_t rank,
                     double min_compression_rate);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_POWERSGD_H_
