// One rank of a benchmark of communicators alone. Reads commands from standard
// input, a line each, until its end:
//
//   allreduce BYTES COUNT   sums up float32 in the back end's own memory,
//                           COUNT times; the median's time
//   reducescatter BYTES COUNT   the same of a reduce-scatter
//   copy BYTES COUNT        what copying takes, on all ranks at once
//   exchange BYTES COUNT    what two sockets take to send as much each way as
//                           an all-reduce of BYTES does, of two ranks
//   ring HOSTS COUNT        finding the ring of hosts, which links of any cost
//                           connect
//
// and answers each with a line of JSON, of seconds; or ends with an error on
// stderr.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/backends/registry.h"
#include "client/comm/tcp/ring_order.h"
#include "tests/bench/worker/raw_pair.h"
#include "tests/support/file_store.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);

struct Options {
  int rank = 0;
  int size = 2;
  std::string store;
  std::string backend = "auto";
};

// Returns the median time of some calls, each of which begins on all ranks as
// nearly at once as the calls before it allow.
absl::StatusOr<double> Median(int64_t count,
                              const std::function<absl::Status()>& call) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < count; ++i) {
    const absl::Time begun = Clock::Real()->Now();
    COXSWAIN_RETURN_IF_ERROR(call());
    seconds.push_back(absl::ToDoubleSeconds(Clock::Real()->Now() - begun));
  }
  const auto middle =
      seconds.begin() + static_cast<int64_t>(seconds.size()) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

absl::StatusOr<double> Reduce(Communicator& communicator, bool scatters,
                              int64_t bytes, int64_t count) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::unique_ptr<BufferOwner> buffer,
      communicator.AllocateBuffer(bytes / 4, DType::kFloat32));
  const Span span = buffer->span();
  std::fill_n(static_cast<float*>(span.data), span.count, 0.0f);
  Span own = span;
  own.count = span.count / communicator.size();
  std::vector<float> result(static_cast<size_t>(own.count));
  own.data = result.data();
  const auto run = [&] {
    return (scatters ? communicator.ReduceScatter(span, own)
                     : communicator.AllReduce(span))
        ->Wait(kTimeout);
  };
  COXSWAIN_RETURN_IF_ERROR(run());
  COXSWAIN_ASSIGN_OR_RETURN(const double median, Median(count, run));
  COXSWAIN_RETURN_IF_ERROR(communicator.Barrier()->Wait(kTimeout));
  return median;
}

absl::StatusOr<double> Copy(Communicator& communicator, int64_t bytes,
                            int64_t count) {
  std::vector<char> from(static_cast<size_t>(bytes), 1);
  std::vector<char> to(static_cast<size_t>(bytes), 2);
  return Median(count, [&] {
    COXSWAIN_RETURN_IF_ERROR(communicator.Barrier()->Wait(kTimeout));
    std::memcpy(to.data(), from.data(), to.size());
    from[0] = to[to.size() - 1];
    return absl::OkStatus();
  });
}

// In an all-reduce of two ranks each of them sends and receives two halves, the
// second of which depends on the first, so as many bytes as it has.
absl::StatusOr<double> Exchange(const CommunicatorOptions& options,
                                int64_t bytes, int64_t count) {
  static absl::StatusOr<RawPair>* const pair =
      new absl::StatusOr<RawPair>(RawPair::Connect(options));
  COXSWAIN_RETURN_IF_ERROR(pair->status());
  COXSWAIN_RETURN_IF_ERROR((*pair)->Exchange(bytes));
  return Median(count, [&] { return (*pair)->Exchange(bytes); });
}

absl::StatusOr<double> Ring(int64_t hosts, int64_t count) {
  std::mt19937_64 random(1);
  LinkCosts costs(static_cast<int>(hosts));
  return Median(count, [&] {
    for (int a = 0; a < costs.hosts(); ++a) {
      for (int b = 0; b < a; ++b) {
        costs.Set(a, b, 100 + static_cast<int64_t>(random() % 100'000));
      }
    }
    const HostRing ring = FindRing(costs);
    if (hosts <= kExactHosts || ring.slowest * 100 <= ring.bound * 105) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("a ring with a slowest edge of ",
                                            ring.slowest, ", where ",
                                            ring.bound, " is the bound"));
  });
}

absl::StatusOr<double> Obey(const CommunicatorOptions& options,
                            Communicator& communicator,
                            const std::string& line) {
  std::istringstream words(line);
  std::string command;
  int64_t bytes = 0;
  int64_t count = 0;
  words >> command >> bytes >> count;
  if (words && bytes >= 4 && count >= 1) {
    if (command == "allreduce" || command == "reducescatter") {
      return Reduce(communicator, command == "reducescatter", bytes, count);
    }
    if (command == "copy") return Copy(communicator, bytes, count);
    if (command == "exchange") return Exchange(options, bytes, count);
    if (command == "ring") return Ring(bytes, count);
  }
  return absl::InvalidArgumentError(absl::StrCat("no such command: ", line));
}

absl::Status Serve(const Options& options) {
  CommunicatorOptions where;
  where.id = "bench";
  where.rank = options.rank;
  where.size = options.size;
  where.store = std::make_shared<FileStore>(options.store);
  where.timeout = kTimeout;
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                            Connect(options.backend, where));
  std::string line;
  while (std::getline(std::cin, line)) {
    COXSWAIN_ASSIGN_OR_RETURN(const double seconds,
                              Obey(where, *communicator, line));
    std::cout << absl::StrFormat("{\"median\": %.9f}", seconds) << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace coxswain::bench

int main(int argc, char** argv) {
  CLI::App app("One rank of a benchmark of communicators; see comm_main.cc");
  coxswain::bench::Options options;
  app.add_option("--rank", options.rank)->required();
  app.add_option("--size", options.size)->capture_default_str();
  app.add_option("--store", options.store, "a folder that all ranks share")
      ->required();
  app.add_option("--backend", options.backend)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = coxswain::bench::Serve(options);
  if (status.ok()) return 0;
  std::cerr << "bench worker, rank " << options.rank << ": " << status.message()
            << std::endl;
  return 1;
}
