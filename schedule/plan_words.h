#ifndef COXSWAIN_SCHEDULE_PLAN_WORDS_H_
#define COXSWAIN_SCHEDULE_PLAN_WORDS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/plan.h"

namespace coxswain::schedule {

// The NAME=VALUE words of a plan, by name: "accumulation", "hook",
// "compression_start" and the terms. `coxswain plan set`, `coxswain run --plan`
// and the variable COXSWAIN_PLAN are read by these functions alone, so all of
// them accept and refuse the same.
using PlanWords = std::map<std::string, std::string>;

// Returns the pieces of a text that spaces separate; those within parentheses
// belong to a hook's options.
std::vector<std::string> SplitPlanText(absl::string_view text);

// Returns the words that these pieces are, one each. Fails with
// INVALID_ARGUMENT, naming the piece, if one is not NAME=VALUE or is given
// twice. Names and values may be any.
absl::StatusOr<PlanWords> ParsePlanWords(
    const std::vector<std::string>& pieces);

// Returns whether a word of this name sets one of its terms, and not a field of
// its own.
bool IsTerm(absl::string_view name);

// Puts the values in the place of those that `settings` has. Fails with
// INVALID_ARGUMENT, naming the word and what is valid in its place, if a plan
// has no such name or the name cannot have the value.
absl::Status ApplyPlanWords(const PlanWords& words, Settings* settings);

// Returns all words of the settings. Applied to any others they make the same
// again.
PlanWords PlanWordsOf(const Settings& settings);

// Returns one text, sorted by name, with one space between two words.
std::string FormatPlanWords(const PlanWords& words);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_PLAN_WORDS_H_
