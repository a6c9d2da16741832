#ifndef COXSWAIN_BASE_LOG_WRITER_H_
#define COXSWAIN_BASE_LOG_WRITER_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace coxswain {

// Writes lines to a file descriptor without waiting for who reads them: callers
// hold locks that calls of peers need, and a pipe that is not read any more
// must not stop them. A line that can be written at once is; others, and those
// after them, are kept for a thread of its own, in their order. Past a limit
// lines are left out and counted, and a line with the count is written in their
// place.
//
// Thread-safe. The descriptor outlives it. Its destructor waits until what is
// kept has been written.
//
// A process that is forked from one that uses it may use it, too, and writes
// its own lines: those that were kept at the fork are the other one's.
class LogWriter {
 public:
  static constexpr size_t kMostKept = 1 << 20;  // bytes

  // `left_out` makes the line that has the place of so many.
  explicit LogWriter(int fd, std::string (*left_out)(int64_t lines),
                     size_t most_kept = kMostKept)
      : fd_(fd),
        left_out_line_(left_out),
        most_kept_(most_kept),
        state_(new State(getpid(), nullptr)) {}
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // With its line break. Lines of several threads do not mix.
  void Write(absl::string_view line);

  // Waits until what is kept has been written, or that long: at the end of a
  // process.
  void Flush(absl::Duration timeout);

 private:
  // What belongs to one process.
  struct State {
    State(pid_t of, State* former) : process(of), former(former) {}
    // Whether there is something that the next line has to come after.
    bool IsBehind() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      return writing || !kept.empty() || left_out > 0;
    }

    const pid_t process;
    State* const former;  // of a process that this one was forked from; stays
    Mutex mutex;
    CondVar changed;
    std::string kept ABSL_GUARDED_BY(mutex);
    int64_t left_out ABSL_GUARDED_BY(mutex) = 0;
    // A caller writes its line, with the lock: nothing is kept then. It waits
    // for the reader after all where another process was faster in filling the
    // pipe.
    std::atomic<bool> writes_itself{false};
    // The thread has taken lines that it has not written yet.
    bool writing ABSL_GUARDED_BY(mutex) = false;
    bool ends ABSL_GUARDED_BY(mutex) = false;
    // None until a line has to be kept.
    std::thread thread ABSL_GUARDED_BY(mutex);
  };

  // Returns that of this process. In a fork it is a new one: the thread that
  // would write what is kept is not there, and its locks may be held for good.
  State& OwnState();
  // Returns whether a line can be written without waiting.
  bool ReadyFor(absl::string_view line) const;
  void WriteAll(absl::string_view text) const;
  void Run(State* state);

  const int fd_;
  std::string (*const left_out_line_)(int64_t lines);
  const size_t most_kept_;
  std::atomic<State*> state_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_LOG_WRITER_H_
