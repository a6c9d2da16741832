#include "tests/system/test_cluster.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "client/rpc/stub_factory.h"

namespace coxswain {
namespace {

constexpr char kElasticToy[] = "tests/system/toy/elastic_toy";
constexpr char kGreeting[] = "coxswain: listening on ";
// Between two looks at something that does not announce itself; output is read
// meanwhile.
constexpr absl::Duration kLook = absl::Milliseconds(1);
// Enough that the change arrives before.
constexpr int64_t kStepsToTheEnd = 50;
constexpr absl::Duration kAnswer = absl::Seconds(5);

absl::Time Now() { return Clock::Real()->Now(); }

// Reads "PID (NAME) STATE PARENT ..." of proc(5); 0: the process has ended.
pid_t ParentOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  pid_t parent = 0;
  const size_t close = line.rfind(')');
  if (close == std::string::npos) return 0;
  std::sscanf(line.c_str() + close + 1, " %*c %d", &parent);
  return parent;
}

// Returns "[NODE/SLOT] TEXT" of a launcher.
bool SplitPrefix(absl::string_view line, std::string* worker,
                 absl::string_view* text) {
  const size_t end = line.find("] ");
  if (!absl::StartsWith(line, "[") || end == absl::string_view::npos) {
    return false;
  }
  *worker = std::string(line.substr(1, end - 1));
  *text = line.substr(end + 2);
  return true;
}

}  // namespace

TestCluster::TestCluster()
    : processes_([this](ProcessSet::Id process, absl::string_view line) {
        return OnLine(process, line);
      }) {}

bool TestCluster::OnLine(ProcessSet::Id process, absl::string_view line) {
  if (process == coordinator_) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, kGreeting)) address_ = std::string(rest);
    return true;
  }
  std::string worker;
  absl::string_view text;
  if (SplitPrefix(line, &worker, &text)) return OnWorkerLine(worker, text);
  char name[256] = "";
  pid_t pid = 0;
  if (std::sscanf(std::string(line).c_str(), "coxswain: worker %255s (pid %d) ",
                  name, &pid) == 2) {
    OnExit(name, pid);
  }
  return true;
}

bool TestCluster::OnWorkerLine(const std::string& worker,
                               absl::string_view text) {
  const pid_t pid = PidOfLine(text);
  WorkerLife*& newest = newest_[worker];
  if (pid != 0 && (newest == nullptr || newest->pid != pid)) {
    lives_.push_back(std::make_unique<WorkerLife>());
    newest = lives_.back().get();
    newest->worker = worker;
    newest->pid = pid;
    newest->exited = exited_[worker] == pid;
    const auto killed = killed_silent_.find(pid);
    if (killed != killed_silent_.end()) {
      newest->killed = killed->second;
      killed_silent_.erase(killed);
    }
  }
  if (newest != nullptr) TakeLine(text, Now(), newest);
  return !absl::StartsWith(text, "step ");
}

void TestCluster::OnExit(const std::string& worker, pid_t pid) {
  exited_[worker] = pid;
  killed_silent_.erase(pid);
  WorkerLife* const newest = At(worker);
  if (newest != nullptr && newest->pid == pid) newest->exited = true;
}

void TestCluster::Serve(const std::string& listen,
                        const std::vector<std::string>& before) {
  std::vector<std::string> command = before;
  command.insert(command.end(), {kCoxswain, "serve", "--listen",
                                 address_.empty() ? listen : address_,
                                 "--state-dir", folder_.path("state")});
  // In a network of the test's own.
  if (!absl::StartsWith(listen, "127.")) command.push_back("--insecure");
  const std::string address = std::exchange(address_, "");
  coordinator_ = processes_.Start("coordinator", WithOtherBuild(command));
  ASSERT_TRUE(Await("the coordinator listens", [&] {
    return !address_.empty() || processes_.status(*coordinator_).has_value();
  }));
  ASSERT_FALSE(address_.empty()) << Transcript();
  ASSERT_TRUE(address.empty() || address == address_);
}

void TestCluster::KillCoordinator() {
  processes_.Signal(*coordinator_, SIGKILL);
  ASSERT_TRUE(Await("the coordinator has ended", [&] {
    return processes_.status(*coordinator_).has_value();
  }));
}

void TestCluster::StopCoordinator() {
  processes_.Signal(*coordinator_, SIGTERM);
  ASSERT_TRUE(Await("the coordinator ends", [&] {
    return processes_.status(*coordinator_).has_value();
  }));
  EXPECT_EQ(processes_.status(*coordinator_), 0) << Transcript();
}

TestCluster::Launcher TestCluster::Start(const Launch& launch) {
  std::vector<std::string> command = launch.before;
  command.insert(
      command.end(),
      {kCoxswain, "run", "--coordinator",
       launch.coordinator.empty() ? address_ : launch.coordinator, "--job",
       "rows", "--node", launch.node, "--nproc", absl::StrCat(launch.nproc)});
  command.insert(command.end(), launch.run.begin(), launch.run.end());
  command.insert(command.end(),
                 {"--", launch.program.empty() ? kElasticToy : launch.program});
  command.insert(command.end(), launch.toy.begin(), launch.toy.end());
  launchers_.push_back(processes_.Start(launch.node, WithOtherBuild(command)));
  return launchers_.back();
}

void TestCluster::Signal(Launcher launcher, int signal) {
  processes_.Signal(launcher, signal);
}

std::optional<int> TestCluster::status(Launcher launcher) const {
  return processes_.status(launcher);
}

void TestCluster::Kill(WorkerLife& life) {
  life.killed = Now();
  kill(life.pid, SIGKILL);
}

void TestCluster::Kill(pid_t pid) {
  for (const auto& life : lives_) {
    if (life->pid == pid && !life->over()) return Kill(*life);
  }
  killed_silent_[pid] = Now();
  kill(pid, SIGKILL);
}

std::string TestCluster::Lives() const {
  std::string text;
  for (const auto& life : lives_) {
    if (life->over()) continue;
    absl::StrAppend(&text, life->worker, " (pid ", life->pid, "): generation ",
                    life->generation(), ", rank ", life->rank(), " of ",
                    life->world(), ", step ", life->step, " of generation ",
                    life->step_generation, "\n");
  }
  return text;
}

WorkerLife* TestCluster::At(const std::string& worker) {
  const auto found = newest_.find(worker);
  return found == newest_.end() ? nullptr : found->second;
}

std::vector<WorkerLife*> TestCluster::Training() {
  // The newest processes of each slot: there may have been very many others.
  int64_t newest = 0;
  for (const auto& [worker, life] : newest_) {
    if (life != nullptr) newest = std::max(newest, life->generation());
  }
  std::vector<WorkerLife*> training;
  for (const auto& [worker, life] : newest_) {
    if (life != nullptr && life->generation() == newest && !life->over()) {
      training.push_back(life);
    }
  }
  std::sort(training.begin(), training.end(),
            [](const WorkerLife* a, const WorkerLife* b) {
              return a->rank() < b->rank();
            });
  return training;
}

bool TestCluster::Await(const std::string& what,
                        const std::function<bool()>& done) {
  if (processes_.WaitUntil(done, kTimeout)) return true;
  ADD_FAILURE() << "not within " << kTimeout << ": " << what << "\n"
                << Transcript() << Lives();
  return false;
}

bool TestCluster::AwaitSteps(int world, int64_t more) {
  int64_t step = 0;
  for (const auto& life : lives_) step = std::max(step, life->step);
  step += more;
  return Await(absl::StrCat(world, " workers at step ", step), [&] {
    const std::vector<WorkerLife*> training = Training();
    return static_cast<int>(training.size()) == world &&
           std::all_of(training.begin(), training.end(),
                       [&](const WorkerLife* life) {
                         return life->step >= step && life->world() == world &&
                                life->step_generation == life->generation();
                       });
  });
}

v1::JobDescription TestCluster::Describe() {
  v1::DescribeRequest request;
  request.set_job("rows");
  CallOptions options;
  options.timeout = kAnswer;
  options.retry = false;
  const auto described =
      ConnectCoordinator(address_)->Describe(request, options);
  if (!described.ok() || described->jobs_size() != 1) return {};
  return described->jobs(0);
}

bool TestCluster::AwaitSeen(const std::string& what,
                            const std::function<bool()>& is) {
  const absl::Time deadline = Now() + kTimeout;
  while (!is()) {
    if (Now() >= deadline) {
      ADD_FAILURE() << "not within " << kTimeout << ": " << what << "\n"
                    << Transcript();
      return false;
    }
    processes_.WaitUntil([] { return false; }, kLook);
  }
  return true;
}

bool TestCluster::AwaitDescribed(
    const std::string& what,
    const std::function<bool(const v1::JobDescription&)>& is) {
  return AwaitSeen(what, [&] { return is(Describe()); });
}

std::vector<pid_t> TestCluster::PidsOf(Launcher launcher) {
  std::vector<pid_t> pids;
  for (const std::string& stray : StrayProcesses()) {
    pid_t pid = 0;
    if (std::sscanf(stray.c_str(), "%d ", &pid) == 1 &&
        ParentOf(pid) == processes_.pid(launcher)) {
      pids.push_back(pid);
    }
  }
  return pids;
}

void TestCluster::Finish(const std::map<Launcher, int>& statuses) {
  for (const auto& [launcher, expected] : statuses) {
    const Launcher id = launcher;
    if (!Await("a launcher ends",
               [&] { return processes_.status(id).has_value(); })) {
      return;
    }
    EXPECT_EQ(processes_.status(id), expected) << Transcript();
  }
  if (coordinator_.has_value()) StopCoordinator();
  EXPECT_THAT(StrayProcesses(), testing::IsEmpty());
}

void TestCluster::EndTraining(const std::vector<std::string>& before) {
  int64_t step = 0;
  for (const auto& life : lives_) step = std::max(step, life->step);
  std::vector<std::string> command = before;
  command.insert(command.end(),
                 {kCoxswain, "plan", "set", "rows",
                  absl::StrCat("max_steps=", step + kStepsToTheEnd),
                  "--coordinator", address_});
  const auto set = processes_.Start("plan set", command);
  if (Await("the plan is changed",
            [&] { return processes_.status(set).has_value(); })) {
    EXPECT_EQ(processes_.status(set), 0) << Transcript();
  }
}

void TestCluster::ExpectExactAndEqual(int finishers) {
  const WorkerResult* last = nullptr;
  for (const auto& life : lives_) {
    if (!life->result.has_value()) continue;
    EXPECT_TRUE(life->result->exact) << life->worker << "\n" << Transcript();
    if (last == nullptr || life->result->step > last->step) {
      last = &*life->result;
    }
  }
  ASSERT_NE(last, nullptr) << "no worker has finished\n" << Transcript();
  int finished = 0;
  for (const auto& life : lives_) {
    if (!life->result.has_value() || life->result->step < last->step) continue;
    ++finished;
    EXPECT_EQ(life->result->parameters, last->parameters) << Transcript();
    EXPECT_EQ(life->result->samples, last->samples) << Transcript();
    EXPECT_EQ(life->result->runs, last->runs) << Transcript();
  }
  EXPECT_EQ(finished, finishers) << Transcript();
}

}  // namespace coxswain
