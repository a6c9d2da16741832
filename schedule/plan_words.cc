#include "schedule/plan_words.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace coxswain::schedule {
namespace {

std::string AllNames() {
  std::vector<std::string> names;
  for (const NamedValue& value : StepSettings().Values()) {
    names.push_back(value.word);
  }
  for (const SettingInfo& setting : SettingList())
    names.push_back(setting.name);
  return absl::StrJoin(names, ", ");
}

}  // namespace

bool IsTerm(absl::string_view name) {
  const std::vector<SettingInfo> terms = SettingList();
  return std::any_of(
      terms.begin(), terms.end(),
      [name](const SettingInfo& setting) { return setting.name == name; });
}

std::vector<std::string> SplitPlanText(absl::string_view text) {
  std::vector<std::string> pieces;
  int depth = 0;
  bool within = false;
  for (const char c : text) {
    if (depth == 0 && absl::ascii_isspace(c)) {
      within = false;
      continue;
    }
    if (!within) pieces.emplace_back();
    within = true;
    pieces.back().push_back(c);
    depth = std::max(0, depth + (c == '(' ? 1 : c == ')' ? -1 : 0));
  }
  return pieces;
}

absl::StatusOr<PlanWords> ParsePlanWords(
    const std::vector<std::string>& pieces) {
  PlanWords words;
  for (const std::string& piece : pieces) {
    const size_t equals = piece.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", piece, "' is not NAME=VALUE, as in accumulation=8"));
    }
    std::string name = piece.substr(0, equals);
    if (words.count(name) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is given twice"));
    }
    words.emplace(std::move(name), piece.substr(equals + 1));
  }
  return words;
}

absl::Status ApplyPlanWords(const PlanWords& words, Settings* settings) {
  for (const auto& [name, value] : words) {
    if (IsTerm(name)) {
      COXSWAIN_RETURN_IF_ERROR(settings->terms.Set(name, value));
      continue;
    }
    const absl::Status set = settings->SetWord(name, value);
    if (absl::IsNotFound(set)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a plan has nothing called \"", name, "\"; there are ",
                       AllNames(), ", and for a change at, where it begins"));
    }
    COXSWAIN_RETURN_IF_ERROR(set);
  }
  return absl::OkStatus();
}

PlanWords PlanWordsOf(const Settings& settings) {
  PlanWords words = settings.terms.ToMap();
  for (const NamedValue& value : settings.Values()) {
    words[value.word] = value.text;
  }
  return words;
}

std::string FormatPlanWords(const PlanWords& words) {
  return absl::StrJoin(words, " ", absl::PairFormatter("="));
}

}  // namespace coxswain::schedule
