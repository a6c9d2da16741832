#ifndef COXSWAIN_TESTS_SYSTEM_PROCESS_SET_H_
#define COXSWAIN_TESTS_SYSTEM_PROCESS_SET_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/launch/child_process.h"

namespace coxswain {

// Real processes, whose output is read line by line while a test waits for
// something: of all of them, so that none is held up by a full pipe. Each is
// the leader of a process group of its own, which is killed with this object,
// and dies with the test. One thread only.
class ProcessSet {
 public:
  using Id = size_t;
  // A line of standard output or standard error, without its end. False: it is
  // of no use in the transcript.
  using OnLine = std::function<bool(Id process, absl::string_view line)>;

  explicit ProcessSet(OnLine on_line);
  ~ProcessSet();
  ProcessSet(const ProcessSet&) = delete;
  ProcessSet& operator=(const ProcessSet&) = delete;

  // Starts a process without the test's own COXSWAIN_* variables. Aborts the
  // test program if it cannot. `name` is for Transcript().
  Id Start(const std::string& name, const std::vector<std::string>& command);

  pid_t pid(Id process) const;
  // Sends a signal to the process alone; does nothing once it has ended.
  void Signal(Id process, int signal);

  // Returns its exit status, as a shell's. Unset while it runs.
  std::optional<int> status(Id process) const;
  bool AllEnded() const;

  // Reads, and waits for ends, until done() is true. False if it still is not
  // at the deadline. Asked after whatever happened, and once more then.
  bool WaitUntil(const std::function<bool()>& done, absl::Duration limit);

  // Returns the end of all outputs, in the order in which they were read.
  std::string Transcript() const;

 private:
  struct Entry;

  bool Step(absl::Time deadline);
  void Collect(Entry* entry, bool err);
  void Take(Entry* entry, bool err, absl::string_view data);
  void Note(const Entry& entry, absl::string_view line);

  const OnLine on_line_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::string transcript_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_PROCESS_SET_H_
