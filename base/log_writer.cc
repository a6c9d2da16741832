#include "base/log_writer.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/time/time.h"

namespace coxswain {
namespace {

// Returns how much of a text to write at once: whole lines, as many as a pipe
// takes in one piece, as other processes may write to it, too.
size_t SizeOfLines(absl::string_view text) {
  if (text.size() <= PIPE_BUF) return text.size();
  size_t end = text.rfind('\n', PIPE_BUF - 1);
  if (end == absl::string_view::npos) end = text.find('\n');
  return end == absl::string_view::npos ? text.size() : end + 1;
}

}  // namespace

LogWriter::~LogWriter() {
  {
    MutexLock lock(&mutex_);
    ends_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

// Files take everything. A pipe that is ready has space for PIPE_BUF bytes.
bool LogWriter::ReadyFor(absl::string_view line) const {
  if (line.size() > PIPE_BUF) {
    struct stat status = {};
    if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  }
  pollfd wait = {fd_, POLLOUT, 0};
  return poll(&wait, 1, 0) == 1;
}

void LogWriter::WriteAll(absl::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = write(fd_, text.data(), SizeOfLines(text));
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd wait = {fd_, POLLOUT, 0};
      poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      return;  // there is nowhere to report that a log cannot be written
    }
  }
}

void LogWriter::Write(absl::string_view line) {
  MutexLock lock(&mutex_);
  if (!IsBehind() && ReadyFor(line)) {
    writes_itself_.store(true);
    WriteAll(line);
    writes_itself_.store(false);
    return;
  }
  if (left_out_ > 0 || kept_.size() + line.size() > most_kept_) {
    ++left_out_;
    return;
  }
  kept_.append(line.data(), line.size());
  if (!thread_.joinable()) {
    process_ = getpid();
    thread_ = std::thread([this] { Run(); });
  }
  changed_.NotifyAll();
}

void LogWriter::Flush(absl::Duration timeout) {
  if (writes_itself_.load()) return;
  MutexLock lock(&mutex_);
  if (process_ != getpid()) return;
  changed_.WaitFor(
      &mutex_, timeout,
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !IsBehind(); });
}

void LogWriter::Run() {
  while (true) {
    std::string text;
    {
      MutexLock lock(&mutex_);
      writing_ = false;
      if (!IsBehind()) changed_.NotifyAll();
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return ends_ || !kept_.empty() || left_out_ > 0;
      };
      while (!changed_.WaitFor(&mutex_, absl::Hours(1), has_work)) {
      }
      text = std::exchange(kept_, "");
      if (text.empty() && left_out_ > 0) {
        text = left_out_line_(std::exchange(left_out_, 0));
      }
      if (text.empty()) return;
      writing_ = true;
    }
    WriteAll(text);
  }
}

}  // namespace coxswain
