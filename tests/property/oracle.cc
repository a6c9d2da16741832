#include "tests/property/oracle.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/property/step_oracle.h"

namespace coxswain::property {
namespace {

// Checks that the new hook takes over the mean error and the count.
std::string CheckCarried(const std::vector<const RankStep*>& ranks) {
  if (!ranks[0]->carried) return "";
  std::vector<const SavedState*> from, to;
  for (const RankStep* rank : ranks) {
    from.push_back(&rank->carried_from);
    to.push_back(&rank->carried_to);
    if (rank->carried_from.step != rank->carried_to.step) {
      return "a carried hook has another count of steps";
    }
  }
  if (!MeaningOf(ranks[0]->hook).has_state()) return "";
  HookState before, after;
  const std::string finding =
      absl::StrCat(Merged(from, before), Merged(to, after));
  if (!finding.empty()) return finding;
  const int size = static_cast<int>(ranks.size());
  const double off =
      RelativeDifference(MeanError(after, ranks[0]->parameters, size),
                         MeanError(before, ranks[0]->parameters, size));
  if (off <= 1e-6) return "";
  return absl::StrCat("a carried hook has another mean error, by ", off);
}

// Returns the first error, which is the cause of the others'.
std::string Errors(const Record& record) {
  std::string all;
  for (size_t rank = 0; rank < record.size(); ++rank) {
    if (record[rank].status.ok()) continue;
    absl::StrAppend(&all, "rank ", rank, ": ", record[rank].status.ToString(),
                    "\n");
  }
  return all;
}

}  // namespace

std::string Verdict(const Case& one, const Record& record) {
  bool apart = false;
  std::vector<double> scales(one.parameters.size());
  for (size_t step = 0; step < one.steps.size(); ++step) {
    std::vector<const RankStep*> ranks;
    for (const RankRecord& rank : record) {
      if (!rank.status.ok() && step + 1 >= rank.steps.size()) {
        return Errors(record);
      }
      ranks.push_back(&rank.steps[step]);
    }
    const StepOracle oracle(one, ranks, apart, scales);
    std::string finding = oracle.Check(one.steps[step]);
    for (size_t i = 0; i < ranks[0]->numbers.size(); ++i) {
      scales[static_cast<size_t>(ranks[0]->numbers[i])] =
          oracle.expectation().Scale(i);
    }
    if (finding.empty()) finding = CheckCarried(ranks);
    if (!finding.empty()) return absl::StrCat("step ", step, ": ", finding);
    apart = apart || (one.world > 1 && ranks[0]->hook == "noop");
  }
  return Errors(record);
}

}  // namespace coxswain::property
