#ifndef COXSWAIN_TESTS_SUPPORT_PROCESS_H_
#define COXSWAIN_TESTS_SUPPORT_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/launch/child_process.h"

namespace coxswain {

// A real process that a test has started, with its output collected. The
// leader of a process group of its own, which is killed with this object; it
// also dies with the test. Signals go to this process and its group only.
//
// Nothing polls or sleeps: every wait is for a descriptor, with a deadline,
// and collects output meanwhile, so that a talkative process does not block.
// One thread only, the one that started the process.
class Process {
 public:
  struct Options {
    std::vector<std::string> command;  // program (PATH is searched), arguments
    // Added to what the test itself has, or replacing it; the test's own
    // COXSWAIN_* variables are not handed on.
    std::map<std::string, std::string> environment;
  };
  struct Exit {
    int code = 0;  // meaningful if signal is 0
    int signal = 0;
    // Returns the exit code, or 128 + the number of the signal, as a shell
    // does.
    int Status() const { return signal != 0 ? 128 + signal : code; }
  };

  static absl::StatusOr<std::unique_ptr<Process>> Start(Options options);

  pid_t pid() const { return child_->pid(); }

  // Send a signal to the process alone, and to its whole group. Do nothing once
  // Wait has returned its end.
  void Signal(int signal);
  void SignalGroup(int signal) { child_->Signal(signal); }

  // Waits until the process has ended and its output was read to the end, or
  // until `timeout`: DEADLINE_EXCEEDED with the output so far. Children that
  // keep the output open are killed with their group when the process ends.
  absl::StatusOr<Exit> Wait(absl::Duration timeout);

  // Waits until the output contains `text`. DEADLINE_EXCEEDED, or
  // OUT_OF_RANGE if the output has ended without it, with the output so far.
  absl::Status WaitForStdout(absl::string_view text, absl::Duration timeout);
  absl::Status WaitForStderr(absl::string_view text, absl::Duration timeout);

  // Return what has been read so far.
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  explicit Process(std::unique_ptr<ChildProcess> child)
      : child_(std::move(child)) {}

  absl::Status WaitForText(const std::string& collected, const UniqueFd& pipe,
                           absl::string_view text, absl::Duration timeout);
  // Waits for whatever happens next and collects it; false at the deadline.
  bool Step(absl::Time deadline);
  void Collect(UniqueFd* pipe, std::string* collected);
  std::string Transcript() const;

  const std::unique_ptr<ChildProcess> child_;
  bool ended_ = false;
  Exit exit_;
  std::string out_;
  std::string err_;
};

// Waits until the process `pid`, which need not be a child of the test, is
// gone. False at the deadline.
bool WaitUntilEnded(pid_t pid, absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_PROCESS_H_
