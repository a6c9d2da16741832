#include "base/log_writer.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "base/start_thread.h"

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
  State* const state = state_.load();
  // The thread of another process cannot be ended, and may have been in any
  // part of it.
  if (state->process != getpid()) return;
  std::thread thread;
  {
    MutexLock lock(&state->mutex);
    state->ends = true;
    state->changed.NotifyAll();
    thread = std::move(state->thread);
  }
  if (thread.joinable()) thread.join();
  delete state;
}

LogWriter::State& LogWriter::OwnState() {
  State* found = state_.load();
  const pid_t process = getpid();
  if (found->process == process) return *found;
  auto own = std::make_unique<State>(process, found);
  // Another thread of this process may be faster.
  if (state_.compare_exchange_strong(found, own.get())) return *own.release();
  return *found;
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
  State& state = OwnState();
  MutexLock lock(&state.mutex);
  if (!state.IsBehind() && ReadyFor(line)) {
    state.writes_itself.store(true);
    WriteAll(line);
    state.writes_itself.store(false);
    return;
  }
  if (state.left_out > 0 || state.kept.size() + line.size() > most_kept_) {
    ++state.left_out;
  } else {
    state.kept.append(line.data(), line.size());
  }
  if (!state.thread.joinable()) {
    absl::StatusOr<std::thread> thread =
        StartThread([this, &state] { Run(&state); });
    // Where there is none, the next line tries again.
    if (thread.ok()) state.thread = *std::move(thread);
  }
  state.changed.NotifyAll();
}

void LogWriter::Flush(absl::Duration timeout) {
  State& state = OwnState();
  if (state.writes_itself.load()) return;
  MutexLock lock(&state.mutex);
  state.changed.WaitFor(&state.mutex, timeout,
                        [&state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mutex) {
                          return !state.IsBehind();
                        });
}

void LogWriter::Run(State* state) {
  while (true) {
    std::string text;
    {
      MutexLock lock(&state->mutex);
      state->writing = false;
      if (!state->IsBehind()) state->changed.NotifyAll();
      const auto has_work =
          [state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state->mutex) {
            return state->ends || !state->kept.empty() || state->left_out > 0;
          };
      while (!state->changed.WaitFor(&state->mutex, absl::Hours(1), has_work)) {
      }
      text = std::exchange(state->kept, "");
      if (text.empty() && state->left_out > 0) {
        text = left_out_line_(std::exchange(state->left_out, 0));
      }
      if (text.empty()) return;
      state->writing = true;
    }
    WriteAll(text);
  }
}

}  // namespace coxswain
