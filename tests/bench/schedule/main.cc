// What the schedule costs. One rank, or all workers of a light job; reads
// commands from standard input, a line each, until its end:
//
//   steps off|audit COUNT SECONDS here|elsewhere
//                                   see AuditRank::Take
//   wire MICRO_BATCHES each|window  bytes; see AuditRank::WireBytes
//   strict WORKERS ROUNDS           rounds of tickets and grants, on one rank
//   epoll WORKERS ROUNDS            the same with bare sockets
//
// and answers each with a line of JSON, of times in seconds; or ends with an
// error on stderr.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "tests/bench/schedule/audit_rank.h"
#include "tests/bench/schedule/child.h"
#include "tests/bench/schedule/epoll.h"
#include "tests/bench/schedule/light_workers.h"
#include "tests/support/file_store.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(1);
// Rounds that do not count, in each measurement.
constexpr int kWarmUp = 20;

struct Options {
  AuditRank::Options rank;
  std::string store;
};

std::string Json(const std::vector<std::pair<std::string, double>>& values) {
  std::string text = "{";
  for (const auto& [name, value] : values) {
    absl::StrAppend(&text, text.size() > 1 ? ", " : "",
                    absl::StrFormat("\"%s\": %.9f", name, value));
  }
  return text + "}";
}

std::string Percentiles(std::vector<absl::Duration> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&values](size_t percent) {
    return absl::ToDoubleSeconds(values[(values.size() - 1) * percent / 100]);
  };
  return Json({{"p10", at(10)}, {"p50", at(50)}, {"p99", at(99)}});
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  // Before any thread.
  absl::Status Start();
  absl::StatusOr<std::string> Obey(const std::string& line);

 private:
  absl::StatusOr<AuditRank*> Rank();
  absl::StatusOr<std::string> Steps(std::istream& words);
  absl::StatusOr<std::string> Wire(std::istream& words);
  absl::StatusOr<std::string> Strict(int workers, int rounds);
  absl::StatusOr<std::string> Epoll(int workers, int rounds);

  Options options_;
  int epoll_port_ = 0;
  int jobs_ = 0;
  std::unique_ptr<AuditRank> rank_;
};

absl::Status Bench::Start() {
  FileStore store(options_.store);
  if (options_.rank.rank == 0) {
    COXSWAIN_ASSIGN_OR_RETURN(options_.rank.coordinator,
                              StartCoordinator(options_.store));
    COXSWAIN_ASSIGN_OR_RETURN(epoll_port_, StartEpollServer());
    return store.Set("coordinator", options_.rank.coordinator);
  }
  COXSWAIN_ASSIGN_OR_RETURN(options_.rank.coordinator,
                            store.Get("coordinator", kTimeout));
  return absl::OkStatus();
}

absl::StatusOr<AuditRank*> Bench::Rank() {
  if (rank_ == nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(rank_, AuditRank::Join(options_.rank));
  }
  return rank_.get();
}

absl::StatusOr<std::string> Bench::Steps(std::istream& words) {
  std::string enforcement;
  int count = 0;
  double seconds = 0;
  std::string where;
  words >> enforcement >> count >> seconds >> where;
  COXSWAIN_ASSIGN_OR_RETURN(AuditRank* const rank, Rank());
  COXSWAIN_ASSIGN_OR_RETURN(
      const AuditRank::Steps steps,
      rank->Take(enforcement, count, absl::Seconds(seconds),
                 where == "elsewhere"));
  return Json({{"wall", absl::ToDoubleSeconds(steps.wall)},
               {"in_gate", absl::ToDoubleSeconds(steps.in_gate)},
               {"in_gate_cpu", absl::ToDoubleSeconds(steps.in_gate_cpu)},
               {"cpu", absl::ToDoubleSeconds(steps.cpu)}});
}

absl::StatusOr<std::string> Bench::Wire(std::istream& words) {
  int micro_batches = 0;
  std::string kind;
  words >> micro_batches >> kind;
  COXSWAIN_ASSIGN_OR_RETURN(AuditRank* const rank, Rank());
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t bytes,
                            rank->WireBytes(micro_batches, kind == "each"));
  return absl::StrCat("{\"bytes\": ", bytes, "}");
}

absl::StatusOr<std::string> Bench::Strict(int workers, int rounds) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::unique_ptr<LightWorkers> job,
      LightWorkers::Join(options_.rank.coordinator,
                         absl::StrCat("strict-", ++jobs_), workers));
  std::vector<absl::Duration> times;
  for (int i = 0; i < kWarmUp + rounds; ++i) {
    COXSWAIN_ASSIGN_OR_RETURN(const absl::Duration time, job->Round());
    if (i >= kWarmUp) times.push_back(time);
  }
  return Percentiles(std::move(times));
}

absl::StatusOr<std::string> Bench::Epoll(int workers, int rounds) {
  EpollClients clients;
  COXSWAIN_RETURN_IF_ERROR(clients.Connect(epoll_port_, workers));
  std::vector<absl::Duration> times;
  for (int i = 0; i < kWarmUp + rounds; ++i) {
    COXSWAIN_ASSIGN_OR_RETURN(const absl::Duration time, clients.Round());
    if (i >= kWarmUp) times.push_back(time);
  }
  return Percentiles(std::move(times));
}

absl::StatusOr<std::string> Bench::Obey(const std::string& line) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  if (command == "steps") return Steps(words);
  if (command == "wire") return Wire(words);
  int workers = 0;
  int rounds = 0;
  words >> workers >> rounds;
  if (workers < 1 || rounds < 1) {
    return absl::InvalidArgumentError(absl::StrCat("no such command: ", line));
  }
  if (command == "strict") return Strict(workers, rounds);
  if (command == "epoll") return Epoll(workers, rounds);
  return absl::InvalidArgumentError(absl::StrCat("no such command: ", line));
}

absl::Status Serve(const Options& options) {
  SetLogLevel("warning");
  Bench bench(options);
  COXSWAIN_RETURN_IF_ERROR(bench.Start());
  std::string line;
  while (std::getline(std::cin, line)) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::string answer, bench.Obey(line));
    std::cout << answer << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace coxswain::bench

int main(int argc, char** argv) {
  CLI::App app("Measures the schedule; see the head of main.cc");
  coxswain::bench::Options options;
  app.add_option("--rank", options.rank.rank)->required();
  app.add_option("--size", options.rank.size)->capture_default_str();
  app.add_option("--store", options.store, "a folder that all ranks share")
      ->required();
  app.add_option("--backend", options.rank.backend)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = coxswain::bench::Serve(options);
  if (status.ok()) return 0;
  std::cerr << "schedule worker, rank " << options.rank.rank << ": "
            << status.message() << std::endl;
  return 1;
}
