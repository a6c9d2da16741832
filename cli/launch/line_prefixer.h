#ifndef COXSWAIN_CLI_LAUNCH_LINE_PREFIXER_H_
#define COXSWAIN_CLI_LAUNCH_LINE_PREFIXER_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace coxswain {

// Puts a prefix before every line of one stream, which marks its worker and
// keeps lines whole. A line of more than `max_line` bytes is cut into several,
// so that output without newlines cannot fill the launcher's memory. With an
// empty prefix bytes are copied unchanged. One thread only.
class LinePrefixer {
 public:
  static constexpr size_t kMaxLine = 16 << 10;
  // Larger, because a JSON object that is cut is invalid.
  static constexpr size_t kMaxJsonLine = 256 << 10;

  explicit LinePrefixer(std::string prefix, size_t max_line = kMaxLine)
      : prefix_(std::move(prefix)), max_line_(max_line) {}

  // Returns a prefixer for workers that log as JSON: a line that is a JSON
  // object gets the fields `node` and `slot` in place of the prefix, unless it
  // has a `node`. Other lines get the prefix.
  static LinePrefixer OfJson(std::string prefix, absl::string_view node,
                             int slot);

  // Takes the next bytes of the stream; appends the lines that they complete.
  void Append(absl::string_view data, std::string* out);

  // Called at the end of the stream: appends a last line without a newline.
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
