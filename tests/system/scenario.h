#ifndef COXSWAIN_TESTS_SYSTEM_SCENARIO_H_
#define COXSWAIN_TESTS_SYSTEM_SCENARIO_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/support/process.h"

// What the scenarios have in common: they start the real programs, as a user
// would, and look at what these print and how they end.

namespace coxswain {

// Where a test finds the programs that are its data: it starts in the folder
// of its runfiles.
inline constexpr char kCoxswain[] = "cli/coxswain";
inline constexpr char kToyWorker[] = "tests/system/toy/toy_worker";

// No wait of a scenario is longer. Much more than any needs, because a machine
// may be slow and a program instrumented.
inline constexpr absl::Duration kTimeout = absl::Seconds(60);

// Returns the command with programs of another build, for checks of two
// versions beside each other: README.md. Those of this build without the
// variables.
std::vector<std::string> WithOtherBuild(std::vector<std::string> command);

// Starts a command; aborts the test program if it cannot be started.
std::unique_ptr<Process> Start(std::vector<std::string> command);

// Returns the command line of a launcher: `coxswain run` with these options,
// then the toy worker with its own.
std::vector<std::string> Launcher(const std::vector<std::string>& run_options,
                                  const std::vector<std::string>& toy_options);

// A program that has ended.
struct Ended {
  int status = -1;  // as a shell's; -1: it did not end in time
  std::string out;
  std::string err;
};

// Waits for the end of a program, kTimeout at most: longer is a failure of
// the test.
Ended EndOf(Process& process);
// Runs a command to its end.
Ended RunToEnd(const std::vector<std::string>& command);

// A folder of this test's own, removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& file = "") const {
    return path_ + "/" + file;
  }

 private:
  std::string path_;
};

// `coxswain serve` in a process of its own.
class ServedCoordinator {
 public:
  // Returns once it listens. `before` is put before the command.
  explicit ServedCoordinator(const std::string& listen = "127.0.0.1:0",
                             const std::vector<std::string>& before = {});

  const std::string& address() const { return address_; }  // HOST:PORT
  int port() const;
  Process& process() { return *process_; }

  // Ends it as a user would, and returns what it has logged.
  std::string Stop();

 private:
  TemporaryFolder state_;
  std::unique_ptr<Process> process_;
  std::string address_;
};

// Holds workers at a step (--wait-at, --latch) until it is opened or destroyed.
class Latch {
 public:
  Latch();
  ~Latch() { Open(); }

  std::string path() const { return folder_.path("latch"); }
  void Open();

 private:
  TemporaryFolder folder_;
  int fd_;
};

// Returns the process of each rank, from what the workers have printed.
std::map<int, pid_t> PidsByRank(const std::string& out);

// Returns digests[rank][step], from what the workers have printed.
std::map<int, std::map<int64_t, std::string>> DigestsByRank(
    const std::string& out);

// Returns the lines of rank R, without "rank R ", that begin with `what`.
std::vector<std::string> PrintedBy(int rank, const std::string& what,
                                   const std::string& out);

// Returns the lines of a text that contain `part`.
std::vector<std::string> LinesWith(const std::string& text,
                                   const std::string& part);

std::string ThisHost();

// Returns all descendants of this program that still run, except `known` and
// theirs, as "PID NAME". The program adopts orphans, so none gets out of sight.
std::vector<std::string> StrayProcesses(const std::set<pid_t>& known = {});

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_SCENARIO_H_
