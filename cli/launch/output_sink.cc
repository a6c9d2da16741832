#include "cli/launch/output_sink.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace coxswain {

void OutputSink::Append(absl::string_view data) {
  absl::StrAppend(&buffer_, data);
}

void OutputSink::Write() {
  // After poll() a pipe takes PIPE_BUF bytes without blocking, but perhaps not
  // more. The descriptor is shared with other processes, so it is not made
  // non-blocking.
  while (!buffer_.empty() && !gone_) {
    const ssize_t written =
        write(fd_, buffer_.data(), std::min<size_t>(buffer_.size(), PIPE_BUF));
    if (written >= 0) {
      buffer_.erase(0, written);
      return;
    }
    if (errno == EAGAIN) return;
    gone_ = errno != EINTR;
  }
  if (gone_) buffer_.clear();
}

}  // namespace coxswain
