#include "tests/system/scenario.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/host_name.h"
#include "base/status_matchers.h"

namespace coxswain {
namespace {

struct ProcessEntry {
  pid_t parent = 0;
  char state = ' ';
  std::string name;
};

// PID (NAME) STATE PARENT ...; see proc(5).
std::map<pid_t, ProcessEntry> AllProcesses() {
  std::map<pid_t, ProcessEntry> all;
  std::error_code ignored;  // a process may end while we look
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc", ignored)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    std::getline(file, line);
    const size_t open = line.find('(');
    const size_t close = line.rfind(')');
    if (open == std::string::npos || close == std::string::npos) continue;
    ProcessEntry process;
    process.name = line.substr(open + 1, close - open - 1);
    std::istringstream rest(line.substr(close + 1));
    rest >> process.state >> process.parent;
    all[pid] = process;
  }
  return all;
}

// Returns the words of the workers' own lines, without the launcher's prefix.
std::vector<std::vector<std::string>> WorkerLines(const std::string& out) {
  std::vector<std::vector<std::string>> lines;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(out, '\n'))) {
    const size_t begin = line.find("rank ");
    if (begin == std::string::npos) continue;
    lines.push_back(absl::StrSplit(line.substr(begin), ' '));
  }
  return lines;
}

}  // namespace

std::vector<std::string> WithOtherBuild(std::vector<std::string> command) {
  const char* const build = std::getenv("COXSWAIN_OTHER_BUILD");
  if (build == nullptr) return command;
  const char* const variable = std::getenv("COXSWAIN_OTHER_PART");
  const std::string part = variable == nullptr ? "" : variable;
  const auto first = std::find(command.begin(), command.end(), kCoxswain);
  const auto does = [&](absl::string_view verb) {
    return command.end() - first > 1 && *(first + 1) == verb;
  };
  static std::atomic<int> coordinators{0}, launchers{0};
  bool other = false;
  if (part == "coordinators") {
    other = does("serve");
  } else if (part == "every-second-coordinator") {
    other = does("serve") && coordinators++ % 2 == 0;
  } else if (part == "workers") {
    other = !does("serve");
  } else if (part == "every-second-launcher") {
    other = does("run") && launchers++ % 2 == 0;
  } else {
    ADD_FAILURE() << "COXSWAIN_OTHER_PART is '" << part << "'";
  }
  if (!other) return command;
  for (std::string& word : command) {
    if (word == kCoxswain || absl::StartsWith(word, "tests/system/toy/")) {
      word = absl::StrCat(build, "/", word);
    }
  }
  return command;
}

std::unique_ptr<Process> Start(std::vector<std::string> command) {
  // Orphans come to this program, where StrayProcesses sees them.
  COXSWAIN_CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  auto process = Process::Start({WithOtherBuild(std::move(command)), {}});
  if (!process.ok()) {
    ADD_FAILURE() << process.status();
    std::abort();
  }
  return std::move(process).value();
}

std::vector<std::string> Launcher(const std::vector<std::string>& run_options,
                                  const std::vector<std::string>& toy_options) {
  std::vector<std::string> command = {kCoxswain, "run"};
  command.insert(command.end(), run_options.begin(), run_options.end());
  command.insert(command.end(), {"--", kToyWorker});
  command.insert(command.end(), toy_options.begin(), toy_options.end());
  return command;
}

Ended EndOf(Process& process) {
  Ended ended;
  // A whole run, which takes minutes beside another test on a small machine.
  const auto exit = process.Wait(3 * kTimeout);
  EXPECT_OK(exit);
  if (exit.ok()) ended.status = exit->Status();
  ended.out = process.out();
  ended.err = process.err();
  return ended;
}

Ended RunToEnd(const std::vector<std::string>& command) {
  return EndOf(*Start(command));
}

TemporaryFolder::TemporaryFolder() {
  path_ = testing::TempDir() + "/scenario-XXXXXX";
  COXSWAIN_CHECK(mkdtemp(path_.data()) != nullptr);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // it lies in the test's own folder
  std::filesystem::remove_all(path_, ignored);
}

ServedCoordinator::ServedCoordinator(const std::string& listen,
                                     const std::vector<std::string>& before) {
  std::vector<std::string> command = before;
  command.insert(command.end(), {kCoxswain, "serve", "--listen", listen,
                                 "--state-dir", state_.path("state")});
  // In a network of the test's own.
  if (!absl::StartsWith(listen, "127.")) command.push_back("--insecure");
  process_ = coxswain::Start(command);
  const std::string greeting = "coxswain: listening on ";
  EXPECT_OK(process_->WaitForStdout(greeting, kTimeout));
  EXPECT_OK(process_->WaitForStdout("\n", kTimeout));
  const std::vector<std::string> lines = LinesWith(process_->out(), greeting);
  if (!lines.empty()) address_ = lines[0].substr(greeting.size());
}

int ServedCoordinator::port() const {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address_.substr(address_.rfind(':') + 1), &port))
      << address_;
  return port;
}

std::string ServedCoordinator::Stop() {
  process_->Signal(SIGTERM);
  const auto exit = process_->Wait(kTimeout);
  EXPECT_OK(exit);
  EXPECT_TRUE(exit.ok() && exit->Status() == 0) << process_->err();
  return process_->err();
}

Latch::Latch() {
  COXSWAIN_CHECK(mkfifo(path().c_str(), 0600) == 0);
  // Read and write: opening does not wait for a reader.
  fd_ = open(path().c_str(), O_RDWR | O_CLOEXEC);
  COXSWAIN_CHECK(fd_ >= 0);
}

void Latch::Open() {
  if (fd_ < 0) return;
  // A process that reaches the latch later finds a file, and does not wait for
  // a writer.
  const std::string open = folder_.path("open");
  std::ofstream file(open);
  COXSWAIN_CHECK(file.good() && std::rename(open.c_str(), path().c_str()) == 0);
  close(std::exchange(fd_, -1));
}

std::map<int, pid_t> PidsByRank(const std::string& out) {
  std::map<int, pid_t> pids;
  for (const auto& words : WorkerLines(out)) {
    if (words.size() == 6 && words[4] == "pid") {
      pids[std::atoi(words[1].c_str())] = std::atoi(words[5].c_str());
    }
  }
  return pids;
}

std::map<int, std::map<int64_t, std::string>> DigestsByRank(
    const std::string& out) {
  std::map<int, std::map<int64_t, std::string>> digests;
  for (const auto& words : WorkerLines(out)) {
    if (words.size() == 6 && words[4] == "digest") {
      digests[std::atoi(words[1].c_str())][std::atoll(words[3].c_str())] =
          words[5];
    }
  }
  return digests;
}

std::vector<std::string> PrintedBy(int rank, const std::string& what,
                                   const std::string& out) {
  const std::string prefix = absl::StrCat("rank ", rank, " ");
  std::vector<std::string> lines;
  for (const std::string& line : LinesWith(out, prefix + what)) {
    lines.push_back(line.substr(line.find(prefix) + prefix.size()));
  }
  return lines;
}

std::vector<std::string> LinesWith(const std::string& text,
                                   const std::string& part) {
  std::vector<std::string> lines;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    if (line.find(part) != std::string::npos) lines.push_back(line);
  }
  return lines;
}

std::string ThisHost() {
  std::string name = HostName();
  COXSWAIN_CHECK(!name.empty());
  return name;
}

std::vector<std::string> StrayProcesses(const std::set<pid_t>& known) {
  const std::map<pid_t, ProcessEntry> all = AllProcesses();
  std::vector<std::string> strays;
  for (const auto& [pid, process] : all) {
    if (process.state == 'Z') continue;  // has ended, waits for its parent
    for (pid_t at = pid; at > 1 && known.count(at) == 0;) {
      const auto parent = all.find(at);
      if (parent == all.end()) break;
      at = parent->second.parent;
      if (at != getpid()) continue;
      strays.push_back(absl::StrCat(pid, " ", process.name));
      break;
    }
  }
  return strays;
}

}  // namespace coxswain
