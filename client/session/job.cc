#include "client/session/job.h"

#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr absl::string_view kCompressionStart = "compression_start";

absl::Status Invalid(absl::string_view name, absl::string_view value,
                     absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, "=", value, " is not valid: it is ", expected));
}

std::vector<std::string> Words(absl::string_view text) {
  std::vector<std::string> words(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (depth <= 0 && absl::ascii_isspace(c)) {
      if (!words.back().empty()) words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

absl::Status Apply(const std::string& name, const std::string& value,
                   JobManifest* manifest) {
  int64_t number = 0;
  if (name == "accumulation") {
    if (!absl::SimpleAtoi(value, &number) || number < 1 ||
        number > std::numeric_limits<int>::max()) {
      return Invalid(name, value, "the micro-batches of a step, from 1");
    }
    manifest->accumulation_steps = static_cast<int>(number);
  } else if (name == "hook") {
    if (value.empty()) return Invalid(name, value, "a hook's spec");
    manifest->hook = value;
  } else if (name == kCompressionStart) {
    if (!absl::SimpleAtoi(value, &number) || number < -1) {
      return Invalid(name, value,
                     "a step, from 0, or -1 for the hook's own start_step");
    }
    manifest->compression_start_step = number;
  } else {
    const absl::Status set = manifest->terms.Set(name, value);
    if (set.ok()) return set;
    return absl::InvalidArgumentError(
        absl::StrCat(set.message(), " (besides accumulation, hook and ",
                     kCompressionStart, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanOverrides> ParsePlanOverrides(absl::string_view text) {
  PlanOverrides overrides;
  for (const std::string& word : Words(text)) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", word, "' is not NAME=VALUE, as in accumulation=8"));
    }
    const std::string name = word.substr(0, equals);
    if (!overrides.emplace(name, word.substr(equals + 1)).second) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is given twice"));
    }
  }
  JobManifest scratch;
  COXSWAIN_RETURN_IF_ERROR(ApplyPlanOverrides(overrides, &scratch));
  return overrides;
}

absl::Status ApplyPlanOverrides(const PlanOverrides& overrides,
                                JobManifest* manifest) {
  for (const auto& [name, value] : overrides) {
    COXSWAIN_RETURN_IF_ERROR(Apply(name, value, manifest));
  }
  return absl::OkStatus();
}

std::set<std::string> NotAskedFor(const PlanOverrides& overrides,
                                  const JobManifest& manifest,
                                  const JobPlan& plan) {
  std::set<std::string> names;
  for (const auto& [name, value] : overrides) names.insert(name);
  if (plan.accumulation_steps != manifest.accumulation_steps) {
    names.insert("accumulation");
  }
  if (plan.hook != manifest.hook) names.insert("hook");
  if (plan.compression_start_step != manifest.compression_start_step) {
    names.insert(std::string(kCompressionStart));
  }
  const auto asked = manifest.terms.ToMap();
  for (const auto& [name, value] : plan.terms.ToMap()) {
    if (asked.at(name) != value) names.insert(name);
  }
  return names;
}

}  // namespace coxswain
