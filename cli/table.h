#ifndef COXSWAIN_CLI_TABLE_H_
#define COXSWAIN_CLI_TABLE_H_

#include <string>
#include <vector>

namespace coxswain {

// One line of a table for people; its cells from the left.
using TableRow = std::vector<std::string>;

// The rows as lines of text: two spaces before each cell, columns as wide as
// their widest cell, nothing behind the last; without control characters,
// whoever a cell came from. All rows have as many cells as
// the first, of which there must be one.
std::string AlignTable(std::vector<TableRow> rows);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_TABLE_H_
