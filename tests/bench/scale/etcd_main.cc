// Barriers over etcd. Prints the seconds of each as one line of JSON.

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "tests/bench/scale/etcd_barrier.h"

namespace coxswain::bench {
namespace {

absl::Status TakeBarriers(const std::string& endpoint, int clients,
                          int rounds) {
  EtcdBarrier barrier(endpoint, clients);
  std::vector<std::string> times;
  for (int round = 0; round < rounds; ++round) {
    COXSWAIN_ASSIGN_OR_RETURN(const absl::Duration time, barrier.Enter());
    times.push_back(absl::StrCat(absl::ToDoubleSeconds(time)));
  }
  std::cout << "[" << absl::StrJoin(times, ", ") << "]" << std::endl;
  return absl::OkStatus();
}

}  // namespace
}  // namespace coxswain::bench

int main(int argc, char** argv) {
  CLI::App app("Measures barriers over etcd");
  std::string endpoint;
  int clients = 64;
  int rounds = 50;
  app.add_option("--etcd", endpoint, "HOST:PORT")->required();
  app.add_option("--clients", clients)->capture_default_str();
  app.add_option("--rounds", rounds)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  const absl::Status status =
      coxswain::bench::TakeBarriers(endpoint, clients, rounds);
  if (!status.ok()) std::cerr << "etcd: " << status.message() << std::endl;
  std::_Exit(status.ok() ? 0 : 1);
}
