// A disk that is full fails the one change that does not fit.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "server/state/group_commit.h"
#include "server/state/sqlite_state_store.h"
#include "server/state/state_writer.h"

namespace coxswain::server {
namespace {

constexpr char kNotPermitted[] = "not permitted";
const std::string& Large() {
  static const std::string large(400 << 10, 'v');
  return large;
}

// Runs in a process of its own, which may limit itself or mount something.
// Returns what it returns: the empty string if all is well.
std::string InAProcessOfItsOwn(const std::function<std::string()>& body) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return "no pipe";
  const pid_t child = fork();
  if (child < 0) return "no process";
  if (child == 0) {
    const std::string report = body();
    const ssize_t written = write(pipe_ends[1], report.data(), report.size());
    _exit(written == static_cast<ssize_t>(report.size()) ? 0 : 2);
  }
  close(pipe_ends[1]);
  std::string report;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(pipe_ends[0], buffer, sizeof(buffer))) > 0) {
    report.append(buffer, count);
  }
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? report : absl::StrCat(report, " (exit ", status, ")");
}

// Fills the space that is left, then checks what still works. Returns an empty
// text if all is well.
std::string FillAndGoOn(StateStore* store, const std::string& path) {
  if (!store->Put("table", "kept", "old").ok()) return "the disk is too small";
  absl::Status status;
  int stored = 0;
  while (status.ok() && stored < 100) {
    status = store->Put("table", absl::StrCat("large", stored), Large());
    if (status.ok()) ++stored;
  }
  if (stored == 0 || stored == 100) return absl::StrCat(stored, " stored");
  if (status.code() != absl::StatusCode::kUnavailable ||
      !absl::StrContains(status.message(), path)) {
    return absl::StrCat("an unclear error: ", status.ToString());
  }
  status = store->Apply(
      StateBatch().Put("table", "kept", "new").Put("table", "more", Large()));
  if (status.ok()) return "the disk is not full";
  if (store->Get("table", "kept").value_or("missing") != "old") {
    return "a batch that failed has changed something";
  }
  if (store->List("table")->size() != static_cast<size_t>(stored) + 1) {
    return "the records are not those that were stored";
  }
  for (int i = 0; i < 10; ++i) {
    status = store->Put("table", "kept", absl::StrCat(i));
    if (!status.ok()) return absl::StrCat("a small one: ", status.ToString());
  }
  return "";
}

// The same through a writer, where small changes are committed together with
// the one that does not fit.
std::string WriteTogether(StateStore* store) {
  std::vector<std::string> outcomes;
  GroupCommit writer(store);
  for (const char* key : {"a", "large", "b", "c"}) {
    writer.Write(
        StateBatch().Put("together", key, key[1] == 0 ? "x" : Large()),
        [&outcomes, key](const absl::Status& status) {
          outcomes.push_back(absl::StrCat(key, status.ok() ? "" : " failed"));
        });
  }
  WaitUntilWritten(&writer);
  const std::vector<std::string> expected = {"a", "large failed", "b", "c"};
  return outcomes == expected ? "" : "one that does not fit fails others";
}

std::string UseUp(const std::string& path) {
  auto store = SqliteStateStore::Open(path);
  if (!store.ok()) return store.status().ToString();
  std::string problem = FillAndGoOn(store->get(), path);
  if (problem.empty()) problem = WriteTogether(store->get());
  if (!problem.empty()) return problem;
  store->reset();
  store = SqliteStateStore::Open(path);
  if (!store.ok())
    return absl::StrCat("reopening: ", store.status().ToString());
  return (*store)->Get("table", "kept").value_or("missing") == "9"
             ? ""
             : "what was acknowledged is not there any more";
}

TEST(SqliteFullDiskTest, AFileThatMayNotGrowFailsOneChange) {
  const std::string path =
      absl::StrCat(testing::TempDir(), "/full-", getpid(), ".sqlite");
  EXPECT_EQ(InAProcessOfItsOwn([&]() -> std::string {
              std::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit = {2 << 20, 2 << 20};
              if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return "no limit";
              return UseUp(path);
            }),
            "");
}

bool WriteText(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file.good();
}

// A file system of 3 MiB that only this process sees.
bool MountSmallDisk(const std::string& folder) {
  const std::string user = absl::StrCat("0 ", getuid(), " 1");
  const std::string group = absl::StrCat("0 ", getgid(), " 1");
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (!WriteText("/proc/self/setgroups", "deny") ||
      !WriteText("/proc/self/uid_map", user) ||
      !WriteText("/proc/self/gid_map", group)) {
    return false;
  }
  return mount("none", folder.c_str(), "tmpfs", 0, "size=3m") == 0;
}

TEST(SqliteFullDiskTest, AFullDiskFailsOneChange) {
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/disk-", getpid());
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  const std::string report = InAProcessOfItsOwn([&]() -> std::string {
    if (!MountSmallDisk(folder)) return kNotPermitted;
    const std::string problem = UseUp(folder + "/state.sqlite");
    return problem.empty() ? "" : problem;
  });
  if (report == kNotPermitted) {
    GTEST_SKIP() << "cannot mount a file system in a namespace here";
  }
  EXPECT_EQ(report, "");
}

}  // namespace
}  // namespace coxswain::server
