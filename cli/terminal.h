#ifndef COXSWAIN_CLI_TERMINAL_H_
#define COXSWAIN_CLI_TERMINAL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"

namespace coxswain {

// "512 B", "1.5 MB": at most three digits and a unit of 1000s.
std::string SizeText(int64_t bytes);

// One line of a table for display; its cells from the left.
using TableRow = std::vector<std::string>;

// The rows as lines of text: two spaces before each cell, columns as wide as
// their widest cell, nothing behind the last; without control characters,
// whoever a cell came from. All rows have as many cells as
// the first, of which there must be one.
std::string AlignTable(std::vector<TableRow> rows);

// Where progress is shown.
struct ProgressOutput {
  // Writes text to where people look; null: nothing is shown.
  std::function<void(const std::string&)> write;
  bool terminal = false;  // may go back in its line
  const Clock* clock = Clock::Real();
};

// A descriptor that stays open, stderr for example. It is a terminal if it is
// one, and TERM does not call it dumb.
ProgressOutput ProgressOn(int fd);

// How far a long transfer is: on a terminal one line that is drawn over,
// elsewhere a line now and then. Nothing at all of what ends at once. One
// thread at a time.
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
