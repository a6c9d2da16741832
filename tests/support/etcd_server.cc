#include "tests/support/etcd_server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "tests/support/loopback.h"

namespace coxswain {
namespace {

constexpr absl::Duration kEtcdTimeout = absl::Seconds(60);
// A port that is free now may be taken a moment later.
constexpr int kStarts = 5;

// Passes on the output until etcd answers; the rest goes into a file, because a
// full pipe would stop it. Replaces the shell, and so ends with the test.
std::string Command(const std::string& folder, int port, int peer_port,
                    const std::string& flags) {
  const std::string client = absl::StrCat("http://127.0.0.1:", port);
  const std::string peer = absl::StrCat("http://127.0.0.1:", peer_port);
  return absl::StrCat(
      "cd ", folder, " && { tee -a log | ",
      "{ grep --line-buffered -m 1 'ready to serve'; exec cat > /dev/null; }; ",
      "} < output & cd ", folder,
      " && exec etcd --name test --data-dir data --listen-client-urls ", client,
      " --advertise-client-urls ", client, " --listen-peer-urls ", peer,
      " --initial-advertise-peer-urls ", peer, " --initial-cluster test=", peer,
      " ", flags, " > output 2>&1");
}

}  // namespace

EtcdServer::EtcdServer(const std::string& flags) : flags_(flags) {
  // Bazel removes what lies in its own folder, whatever becomes of the test.
  const char* const parent = std::getenv("TEST_TMPDIR");
  std::string folder =
      absl::StrCat(parent != nullptr ? parent : "/tmp", "/etcd-XXXXXX");
  COXSWAIN_CHECK(mkdtemp(folder.data()) != nullptr);
  folder_ = folder;
  COXSWAIN_CHECK(mkfifo((folder + "/output").c_str(), 0600) == 0);
  std::string why;
  for (int i = 0; i < kStarts; ++i) {
    port_ = UnusedPort();
    peer_port_ = UnusedPort();
    if (Start(&why)) return;
  }
  std::fprintf(stderr,
               "etcd cannot be started, and this test needs it (package "
               "etcd-server): %s\n",
               why.c_str());
  std::abort();
}

EtcdServer::~EtcdServer() {
  Kill();
  std::error_code ignored;  // it lies in the folder for temporary files
  std::filesystem::remove_all(folder_, ignored);
}

bool EtcdServer::Start(std::string* why) {
  const std::string command = Command(folder_, port_, peer_port_, flags_);
  auto process = Process::Start({{"sh", "-c", command}, {}});
  COXSWAIN_CHECK(process.ok());
  process_ = std::move(process).value();
  const absl::Status ready =
      process_->WaitForStdout("ready to serve", kEtcdTimeout);
  if (ready.ok()) return true;
  std::FILE* const log = std::fopen((folder_ + "/log").c_str(), "r");
  char text[2048] = "";
  if (log != nullptr) {
    std::fseek(log, -static_cast<long>(sizeof(text)) + 1, SEEK_END);
    text[std::fread(text, 1, sizeof(text) - 1, log)] = '\0';
    std::fclose(log);
  }
  *why = absl::StrCat(ready.message(), "\n", text);
  Kill();
  return false;
}

void EtcdServer::Kill() {
  if (process_ == nullptr) return;
  process_->SignalGroup(SIGKILL);
  COXSWAIN_CHECK(process_->Wait(kEtcdTimeout).ok());
  process_.reset();
}

void EtcdServer::Restart() {
  Kill();
  std::string why;
  if (Start(&why)) return;
  std::fprintf(stderr, "etcd does not start again: %s\n", why.c_str());
  std::abort();
}

}  // namespace coxswain
