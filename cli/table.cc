#include "cli/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/peer_text.h"

namespace coxswain {

std::string AlignTable(std::vector<TableRow> rows) {
  for (TableRow& row : rows) {
    for (std::string& cell : row) cell = OneLine(std::move(cell));
  }
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
