#ifndef COXSWAIN_TESTS_SYSTEM_TEST_CLUSTER_H_
#define COXSWAIN_TESTS_SYSTEM_TEST_CLUSTER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/rendezvous.pb.h"
#include "tests/system/process_set.h"
#include "tests/system/scenario.h"
#include "tests/system/worker_life.h"

namespace coxswain {

// The toy's options for a training that lasts until EndTraining.
inline const std::vector<std::string> kLongToy = {"--steps", "1000000000",
                                                  "--pace-ms", "5"};

// A coordinator, launchers and their workers, all of them real processes, with
// what the workers print about themselves: what a fault test looks at while it
// kills some of them.
//
// Nothing sleeps: a test waits for what it can see, with a deadline. At the end
// Finish() looks for processes that are left. One thread only.
class TestCluster {
 public:
  struct Launch {
    std::string node;
    int nproc = 1;
    std::vector<std::string> run;          // more options of `coxswain run`
    std::vector<std::string> toy;          // options of the worker
    std::vector<std::string> before = {};  // put before the command
    std::string program = "";              // other than the elastic toy
    std::string coordinator = "";  // other than the cluster's own; empty: that
  };
  using Launcher = ProcessSet::Id;

  TestCluster();

  // Starts the coordinator, and returns once it listens. Again: on the same
  // port, with the same state.
  void Serve(const std::string& listen = "127.0.0.1:0",
             const std::vector<std::string>& before = {});
  void KillCoordinator();
  void StopCoordinator();

  // Return the processes of the coordinator, and of a launcher.
  pid_t coordinator_pid() const { return processes_.pid(*coordinator_); }
  pid_t pid(Launcher launcher) const { return processes_.pid(launcher); }

  Launcher Start(const Launch& launch);
  void Signal(Launcher launcher, int signal);
  std::optional<int> status(Launcher launcher) const;

  // Returns the processes of a launcher's workers, whether they have printed a
  // line or not.
  std::vector<pid_t> PidsOf(Launcher launcher);

  // Kills the worker, and notes when. By its pid also a worker that has printed
  // nothing yet.
  void Kill(WorkerLife& life);
  void Kill(pid_t pid);

  // Returns every process that ever was a worker, in the order of their first
  // lines.
  const std::vector<std::unique_ptr<WorkerLife>>& lives() const {
    return lives_;
  }
  // Returns the newest process of a slot, "NODE/SLOT"; null: none has printed a
  // line yet.
  WorkerLife* At(const std::string& worker);
  // Returns the workers that train in the newest generation, by rank.
  std::vector<WorkerLife*> Training();

  // Returns false, and fails the test with all output, if the condition does
  // not become true within kTimeout.
  bool Await(const std::string& what, const std::function<bool()>& done);
  // Waits until all `world` workers that train have done `more` steps from now.
  bool AwaitSteps(int world, int64_t more);
  // Waits as Await, by polling, for a condition that no output announces.
  bool AwaitSeen(const std::string& what, const std::function<bool()>& is);
  // Returns the coordinator's description of the job; empty if it does not
  // answer.
  v1::JobDescription Describe();
  bool AwaitDescribed(const std::string& what,
                      const std::function<bool(const v1::JobDescription&)>& is);

  // Waits for the launchers, which must end with these statuses, ends the
  // coordinator, and looks for processes that are left.
  void Finish(const std::map<Launcher, int>& statuses);

  // Has all that train stop after the same step, soon. `before` is put before
  // the command that asks for it.
  void EndTraining(const std::vector<std::string>& before = {});
  // Expects that so many have trained up to the last step, that each of them
  // has every sum right and the same bits and history as the others, and that
  // no worker that ended before has a wrong sum.
  void ExpectExactAndEqual(int finishers);

  const std::string& address() const { return address_; }
  std::string Transcript() const { return processes_.Transcript(); }
  ProcessSet& processes() { return processes_; }
  std::string state_folder() const { return folder_.path("state"); }

 private:
  bool OnLine(ProcessSet::Id process, absl::string_view line);
  bool OnWorkerLine(const std::string& worker, absl::string_view text);
  void OnExit(const std::string& worker, pid_t pid);
  std::string Lives() const;

  TemporaryFolder folder_;
  ProcessSet processes_;
  std::optional<ProcessSet::Id> coordinator_;
  std::string address_;
  std::vector<Launcher> launchers_;
  std::vector<std::unique_ptr<WorkerLife>> lives_;
  std::map<std::string, WorkerLife*> newest_;
  // Those that ended before their first words were read.
  std::map<pid_t, absl::Time> killed_silent_;
  std::map<std::string, pid_t> exited_;  // the last of each slot
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_TEST_CLUSTER_H_
