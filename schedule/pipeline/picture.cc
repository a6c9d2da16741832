#include "schedule/pipeline/picture.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coxswain::pipeline {
namespace {

constexpr int kUnitsBetweenTimes = 5;

std::string LabelOf(const Action& action, bool with_stage) {
  std::string label = ToString(action);
  if (!with_stage) label.erase(0, absl::StrCat(action.stage).size());
  return label;
}

std::string Padded(std::string text, size_t width, char fill = ' ') {
  text.resize(std::max(width, text.size()), fill);
  return text;
}

// Appends lines of equal length side by side, as many units as fit.
void AppendBands(const std::vector<std::string>& names,
                 const std::vector<std::string>& lines, size_t unit,
                 size_t width, std::string* text) {
  size_t indent = 0;
  for (const std::string& name : names) indent = std::max(indent, name.size());
  indent += 2;
  size_t units =
      std::max<size_t>(1, width > indent ? (width - indent) / unit : 0);
  // So that each line begins with a time.
  if (units > kUnitsBetweenTimes) units -= units % kUnitsBetweenTimes;
  const size_t band = units * unit;
  for (size_t begin = 0; begin < lines.front().size(); begin += band) {
    if (begin > 0) *text += "\n";
    for (size_t i = 0; i < lines.size(); ++i) {
      std::string line =
          absl::StrCat(Padded(names[i], indent), lines[i].substr(begin, band));
      line.erase(line.find_last_not_of(' ') + 1);
      absl::StrAppend(text, line, "\n");
    }
  }
}

}  // namespace

std::string DrawPicture(const Schedule& schedule, const Timing& timing,
                        int width) {
  const bool with_stage = schedule.stages() > schedule.ranks();
  size_t unit = 2;
  for (const Schedule::Actions& list : schedule.of_rank()) {
    for (const Action& action : list) {
      if (!IsCompute(action.kind)) continue;
      unit = std::max(unit, LabelOf(action, with_stage).size() + 1);
    }
  }
  const size_t units = std::llround(timing.makespan);
  std::vector<std::string> names = {"time"};
  std::vector<std::string> lines(1);
  for (size_t i = 0; i < units; ++i) {
    const bool shown = i % kUnitsBetweenTimes == 0;
    // A number may be wider than its unit; the next units make room for it.
    lines[0].resize(std::max(lines[0].size(), i * unit), ' ');
    if (shown) absl::StrAppend(&lines[0], i);
  }
  lines[0].resize(units * unit, ' ');
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    names.push_back(absl::StrCat("rank ", rank));
    std::string& line = lines.emplace_back();
    for (size_t i = 0; i < units; ++i) line += Padded(".", unit);
    for (size_t at = 0; at < schedule.of_rank()[rank].size(); ++at) {
      const Action& action = schedule.of_rank()[rank][at];
      if (!IsCompute(action.kind)) continue;
      const Interval& interval = timing.of_rank[rank][at];
      const size_t begin = std::llround(interval.begin) * unit;
      const size_t length = std::llround(interval.end - interval.begin) * unit;
      if (length == 0) continue;
      line.replace(begin, length,
                   Padded(LabelOf(action, with_stage), length - 1, '-') + " ");
    }
  }
  std::string text;
  AppendBands(names, lines, unit, static_cast<size_t>(std::max(1, width)),
              &text);
  return text;
}

}  // namespace coxswain::pipeline
