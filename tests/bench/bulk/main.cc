// How fast checkpoints travel, and what they cost the coordinator.
//
//   rate     in turns: a bare socket, a plain `bytes` field, and ours, up and
//            down. Prints a line of JSON: seconds by name, a list each.
//   memory   many ranks upload at once. Prints a line of JSON: the
//            coordinator's resident memory before and at its most, in KiB.

#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/session/session.h"
#include "tests/bench/bulk/bulk_peers.h"
#include "tests/bench/scale/coordinator_process.h"
#include "tests/support/process_status.h"

namespace coxswain::bench {
namespace {

struct Options {
  std::string what;
  std::string folder;
  std::string coxswain;
  int mib = 256;
  int rounds = 5;
  int uploads = 64;
};

std::string Bytes(int mib) {
  std::string bytes(static_cast<size_t>(mib) << 20, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

absl::StatusOr<CoordinatorProcess> Serve(const Options& options) {
  CoordinatorProcessOptions process;
  process.coxswain = options.coxswain;
  process.folder = options.folder;
  return StartCoordinatorProcess(process);
}

absl::StatusOr<std::unique_ptr<Session>> JoinAs(int rank, int world, int port) {
  SessionOptions options;
  options.coordinator = absl::StrCat("127.0.0.1:", port);
  options.job = "bulk";
  options.identity = {"bench", rank};
  options.local_rank = rank;
  options.local_world_size = world;
  options.world_size = world;
  return Session::Join(std::move(options), JobManifest());
}

class Rate {
 public:
  explicit Rate(const Options& options) : options_(options) {}

  absl::Status Run() {
    COXSWAIN_ASSIGN_OR_RETURN(const CoordinatorProcess coordinator,
                              Serve(options_));
    COXSWAIN_ASSIGN_OR_RETURN(const auto bare, StartTcp(""));
    COXSWAIN_ASSIGN_OR_RETURN(const auto tcp,
                              StartTcp(options_.folder + "/tcp"));
    COXSWAIN_ASSIGN_OR_RETURN(const auto plain,
                              StartPlainBytes(options_.folder + "/plain"));
    COXSWAIN_ASSIGN_OR_RETURN(session_, JoinAs(0, 1, coordinator.port));
    bytes_ = std::make_shared<const std::string>(Bytes(options_.mib));
    // The first round does not count.
    for (int round = -1; round < options_.rounds; ++round) {
      count_ = round >= 0;
      COXSWAIN_RETURN_IF_ERROR(PutAndGet("tcp", bare.get()));
      COXSWAIN_RETURN_IF_ERROR(Ours(round + 2));
      COXSWAIN_RETURN_IF_ERROR(PutAndGet("tcp_file", tcp.get()));
      COXSWAIN_RETURN_IF_ERROR(PutAndGet("plain", plain.get()));
    }
    Print();
    return session_->Leave("done");
  }

 private:
  absl::Status Time(const std::string& name,
                    const std::function<absl::Status()>& work) {
    const absl::Time start = Clock::Real()->Now();
    COXSWAIN_RETURN_IF_ERROR(work());
    const absl::Duration took = Clock::Real()->Now() - start;
    if (count_) times_[name].push_back(absl::ToDoubleSeconds(took));
    return absl::OkStatus();
  }

  absl::Status Check(absl::string_view back) const {
    if (back == *bytes_) return absl::OkStatus();
    return absl::DataLossError("other bytes came back");
  }

  absl::Status PutAndGet(const std::string& name, BulkPeer* peer) {
    COXSWAIN_RETURN_IF_ERROR(
        Time(name + "_up", [&] { return peer->Put(*bytes_); }));
    NewBytes back(bytes_->size());
    COXSWAIN_RETURN_IF_ERROR(
        Time(name + "_down", [&] { return peer->Get(&back); }));
    return name == "tcp" ? absl::OkStatus() : Check(back.view());
  }

  absl::Status Ours(int64_t step) {
    CheckpointClient& checkpoints = session_->checkpoints();
    std::string id;
    COXSWAIN_RETURN_IF_ERROR(Time("ours_up", [&] {
      auto saved = checkpoints.Save(step, 0, 1, {}, *bytes_, bytes_);
      if (saved.ok()) id = *saved;
      return saved.status();
    }));
    COXSWAIN_RETURN_IF_ERROR(checkpoints.Commit(id).status());
    std::string back;
    COXSWAIN_RETURN_IF_ERROR(Time("ours_down", [&] {
      auto loaded = checkpoints.LoadShard(id, 0);
      if (loaded.ok()) back = *std::move(loaded);
      return loaded.status();
    }));
    COXSWAIN_RETURN_IF_ERROR(Check(back));
    return checkpoints.Delete(id);
  }

  void Print() const {
    std::vector<std::string> series;
    for (const auto& [name, times] : times_) {
      series.push_back(
          absl::StrCat("\"", name, "\": [", absl::StrJoin(times, ", "), "]"));
    }
    std::cout << "{" << absl::StrJoin(series, ", ") << "}" << std::endl;
  }

  const Options options_;
  std::unique_ptr<Session> session_;
  std::shared_ptr<const std::string> bytes_;
  bool count_ = false;
  std::map<std::string, std::vector<double>> times_;
};

// Calls it for each rank, on a thread of its own; the first error.
absl::Status ForAllRanks(int ranks,
                         const std::function<absl::Status(int)>& call) {
  Mutex mutex;
  absl::Status first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const absl::Status status = call(rank);
      MutexLock lock(&mutex);
      first.Update(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first;
}

absl::Status Memory(const Options& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const CoordinatorProcess coordinator,
                            Serve(options));
  std::vector<std::unique_ptr<Session>> sessions(options.uploads);
  COXSWAIN_RETURN_IF_ERROR(ForAllRanks(options.uploads, [&](int rank) {
    auto session = JoinAs(rank, options.uploads, coordinator.port);
    if (session.ok()) sessions[rank] = *std::move(session);
    return session.status();
  }));
  const auto bytes = std::make_shared<const std::string>(Bytes(options.mib));
  const int64_t before = StatusKib(coordinator.pid, "VmRSS");
  COXSWAIN_RETURN_IF_ERROR(ForAllRanks(options.uploads, [&](int rank) {
    return sessions[rank]
        ->checkpoints()
        .Save(1, rank, options.uploads, {}, *bytes, bytes)
        .status();
  }));
  std::cout << "{\"before_kib\": " << before
            << ", \"most_kib\": " << StatusKib(coordinator.pid, "VmHWM") << "}"
            << std::endl;
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  SetLogLevel("warning");
  if (options.what == "rate") return Rate(options).Run();
  if (options.what == "memory") return Memory(options);
  return absl::InvalidArgumentError(
      absl::StrCat("'", options.what, "' is neither rate nor memory"));
}

}  // namespace
}  // namespace coxswain::bench

int main(int argc, char** argv) {
  CLI::App app("Measures bulk streams; see the head of main.cc");
  coxswain::bench::Options options;
  app.add_option("what", options.what, "rate or memory")->required();
  app.add_option("--folder", options.folder, "for the coordinator's state");
  app.add_option("--coxswain", options.coxswain, "the program to serve");
  app.add_option("--mib", options.mib, "of a shard")->capture_default_str();
  app.add_option("--rounds", options.rounds)->capture_default_str();
  app.add_option("--uploads", options.uploads, "at once, for memory")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = coxswain::bench::Run(options);
  if (!status.ok()) {
    std::cerr << "bulk worker: " << status.message() << std::endl;
  }
  // Many sessions need not be closed one by one.
  std::_Exit(status.ok() ? 0 : 1);
}
