#include "cli/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace coxswain {

std::string AlignTable(const std::vector<TableRow>& rows) {
  std::vector<int> widths(rows.front().size(), 0);
  for (const TableRow& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], static_cast<int>(row[i].size()));
    }
  }
  std::string out;
  for (const TableRow& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppendFormat(&line, " %-*s", widths[i] + 1, row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

}  // namespace coxswain
