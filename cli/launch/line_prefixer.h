#ifndef COXSWAIN_CLI_LAUNCH_LINE_PREFIXER_H_
#define COXSWAIN_CLI_LAUNCH_LINE_PREFIXER_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace coxswain {

// Puts a prefix before every line of one stream, so that the lines of several
// workers can be told apart, and are never torn. A line that grows longer
// than `max_line` bytes is cut there into several: what a worker prints
// cannot fill the launcher's memory. With an empty prefix bytes pass through
// as they come. One thread only.
class LinePrefixer {
 public:
  static constexpr size_t kMaxLine = 16 << 10;
  // A JSON object that is cut is none.
  static constexpr size_t kMaxJsonLine = 256 << 10;

  explicit LinePrefixer(std::string prefix, size_t max_line = kMaxLine)
      : prefix_(std::move(prefix)), max_line_(max_line) {}

  // For workers that log as JSON: a line that is a JSON object stays one, and
  // begins with `node` and `slot` instead, unless it has a `node` already.
  // Other lines get the prefix.
  static LinePrefixer OfJson(std::string prefix, absl::string_view node,
                             int slot);

  // Takes the next bytes of the stream; appends the lines they complete.
  void Append(absl::string_view data, std::string* out);

  // The stream has ended: appends the last line if it lacks its end.
  void Finish(std::string* out);

 private:
  void Emit(absl::string_view rest_of_line, std::string* out);

  const std::string prefix_;
  std::string json_fields_;  // "node":...,"slot":...; empty: not of JSON
  const size_t max_line_;
  std::string partial_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_LINE_PREFIXER_H_
