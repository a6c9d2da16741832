#ifndef COXSWAIN_CLI_TERMINAL_H_
#define COXSWAIN_CLI_TERMINAL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"

namespace coxswain {

// Returns "512 B", "1.5 MB": at most three digits and a unit of 1000s.
std::string SizeText(int64_t bytes);

// The cells of one line of a table, from the left.
using TableRow = std::vector<std::string>;

// Returns the rows as lines of text: two spaces before each cell, columns as
// wide as their widest cell, no spaces at the end, no control characters. There
// must be a row, and all must have as many cells as the first.
std::string AlignTable(std::vector<TableRow> rows);

// Where progress is shown.
struct ProgressOutput {
  // Writes text to where the user sees it; null: shows nothing.
  std::function<void(const std::string&)> write;
  bool terminal = false;  // may go back in its line
  const Clock* clock = Clock::Real();
};

// Returns the output to a descriptor that stays open, such as stderr.
// `terminal` is false for a terminal that TERM calls dumb.
ProgressOutput ProgressOn(int fd);

// Shows the progress of a long transfer: on a terminal one line that is drawn
// over, elsewhere a line now and then. Shows nothing of a transfer that ends at
// once. One thread at a time.
class Progress {
 public:
  Progress(const ProgressOutput& output, std::string what, int64_t total_bytes);
  // Ends the line on a terminal.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Add(int64_t bytes) { Set(done_ + bytes); }
  void Set(int64_t done);

 private:
  std::string Line(absl::Duration taken) const;

  const ProgressOutput output_;
  const std::string what_;
  const int64_t total_;
  const absl::Time started_;
  absl::Time next_;
  int64_t done_ = 0;
  bool drawn_ = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_TERMINAL_H_
