#ifndef COXSWAIN_CLI_LAUNCH_OUTPUT_SINK_H_
#define COXSWAIN_CLI_LAUNCH_OUTPUT_SINK_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace coxswain {

// Writes to a descriptor it does not own, without ever blocking on it: a
// reader that stands still must not keep the launcher from its workers. What
// cannot be written yet is kept; while that is a lot, the launcher stops
// reading, and the workers wait in turn. A reader that has gone is no failure:
// what would go there is dropped. One thread only.
class OutputSink {
 public:
  static constexpr size_t kFull = 64 << 10;

  explicit OutputSink(int fd) : fd_(fd) {}

  void Append(absl::string_view data);
  // Where to append directly.
  std::string* buffer() { return &buffer_; }

  int fd() const { return fd_; }
  bool empty() const { return buffer_.empty(); }
  bool full() const { return buffer_.size() >= kFull; }

  // poll() says that the descriptor takes more, or has failed.
  void Write();

 private:
  const int fd_;
  bool gone_ = false;
  std::string buffer_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_OUTPUT_SINK_H_
