// Schedules as torch's CSV.
#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "schedule/pipeline/schedule.h"

namespace coxswain::pipeline {
namespace {

absl::Status ReadLine(absl::string_view line, size_t number, int64_t* left,
                      Schedule::Actions* actions) {
  size_t column = 0;
  for (absl::string_view cell : absl::StrSplit(line, ',')) {
    ++column;
    cell = absl::StripAsciiWhitespace(cell);
    if (absl::ConsumePrefix(&cell, "\"")) absl::ConsumeSuffix(&cell, "\"");
    if (cell.empty()) continue;
    const auto parsed = ParseActions(cell);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", number, ", cell ", column, ": ", parsed.status().message()));
    }
    *left -= static_cast<int64_t>(parsed->size());
    if (*left < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ", cell ", column,
                       ": it has more than ", kMaxActions, " actions"));
    }
    actions->insert(actions->end(), parsed->begin(), parsed->end());
  }
  return absl::OkStatus();
}

std::string ToLine(const Schedule::Actions& actions) {
  std::string line;
  for (size_t at = 0; at < actions.size();) {
    if (at > 0) line += ',';
    const size_t together = actions[at].overlap;
    if (together == 0) {
      absl::StrAppend(&line, ToString(actions[at++]));
      continue;
    }
    for (const size_t end = at + together; at < end; ++at) {
      absl::StrAppend(&line, actions[at].overlap > 0 ? "(" : ";",
                      ToString(actions[at]));
    }
    line += ")OVERLAP_F_B";
  }
  return line;
}

}  // namespace

absl::StatusOr<Schedule> Schedule::FromCsv(absl::string_view text) {
  std::vector<Actions> of_rank;
  int64_t left = kMaxActions;
  size_t number = 0;
  absl::ConsumeSuffix(&text, "\n");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (++number > kMaxRanks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "it has more than ", kMaxRanks, " lines, one for each rank"));
    }
    COXSWAIN_RETURN_IF_ERROR(
        ReadLine(line, number, &left, &of_rank.emplace_back()));
  }
  return Create(std::move(of_rank));
}

std::string Schedule::ToCsv() const {
  std::string text;
  for (const Actions& actions : of_rank_) {
    absl::StrAppend(&text, ToLine(actions), "\n");
  }
  return text;
}

uint64_t Schedule::Hash() const { return StableHash(ToCsv()); }

}  // namespace coxswain::pipeline
