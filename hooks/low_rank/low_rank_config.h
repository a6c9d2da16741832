#ifndef COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_CONFIG_H_
#define COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_CONFIG_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "hooks/kernels/orthogonalise.h"
#include "hooks/options.h"

namespace coxswain {

// The options of the low-rank hooks; meanings in their option tables. A hook
// that lacks one leaves it as it is here.
struct LowRankConfig {
  int64_t rank = 1;
  int64_t start_step = 0;
  double min_compression_rate = 0;
  bool error_feedback = true;
  bool warm_start = true;
  double epsilon = 0;
  uint64_t seed = 0;
  int64_t stats_every = 1;
  bool pytorch = false;
  Orthogonalisation method = Orthogonalisation::kAuto;
};

LowRankConfig LowRankConfigOf(const OptionValues& options);

// Rows that the tables share.
OptionDescription RankOption(int64_t default_rank);
OptionDescription StartStepOption();
OptionDescription MinCompressionRateOption();
OptionDescription ErrorFeedbackOption();
OptionDescription WarmStartOption();
OptionDescription SeedOption();
OptionDescription StatsEveryOption();
OptionDescription OrthogonalizeOption();

// INVALID_ARGUMENT if what a hook remembers would begin before its buckets
// have settled. `remembers`: what it keeps from step to step.
absl::Status CheckStartStep(const OptionValues& options,
                            const std::vector<std::string>& remembers);

// The same for a hook with the options error_feedback and warm_start.
absl::Status CheckMemory(const OptionValues& options);

// Those in which a hook may differ from the one whose state it takes over.
const std::set<std::string>& OptionsThatMayChange();

// Number of columns of the factors if a gradient of this shape is compressed,
// 0 if it travels raw: r = min(n, m, rank), and only if
// (n + m) r min_compression_rate < n m.
int64_t LowRankOf(const std::vector<int64_t>& shape, int64_t rank,
                  double min_compression_rate);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_LOW_RANK_LOW_RANK_CONFIG_H_
