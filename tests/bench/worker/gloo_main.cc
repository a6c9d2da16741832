// One rank of Gloo alone: the peer of comm_main.cc. Reads lines
//
//   allreduce BYTES COUNT   sums up float32, COUNT times; the median's time
//
// from standard input until its end, and answers each as comm_main.cc does.
//
// Each all-reduce is Gloo's own, called as PyTorch's process group calls it: in
// place, by the algorithm that Gloo chooses (a ring), over its TCP transport,
// with a buffer that is made for each call; but by the thread that asks for it,
// where PyTorch has another one do it. Gloo reads its sockets on a thread of
// its own.
//
// While a caller holds a connection's lock to write, that thread does not wait
// for the lock: it asks epoll again, which answers at once. Where both have one
// core, and it takes that from the caller amid a write, it does so until the
// scheduler's next tick, after 4 ms. As threads of a batch job they do not take
// the core from each other: an all-reduce of 4 KiB takes 0.12 ms then.

#include <sched.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tests/bench/worker/median.h"

namespace coxswain::bench {
namespace {

constexpr std::chrono::minutes kTimeout{2};

using GlooContext = std::shared_ptr<::gloo::rendezvous::Context>;

struct Options {
  int rank = 0;
  int size = 2;
  std::string store;
};

// Gloo throws where it fails.
template <typename Function>
absl::Status Call(const Function& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return absl::UnavailableError(error.what());
  }
  return absl::OkStatus();
}

GlooContext Connect(const Options& options) {
  auto context =
      std::make_shared<::gloo::rendezvous::Context>(options.rank, options.size);
  context->setTimeout(kTimeout);
  ::gloo::transport::tcp::attr where("127.0.0.1");
  auto device = ::gloo::transport::tcp::CreateDevice(where);
  ::gloo::rendezvous::FileStore store(options.store);
  context->connectFullMesh(store, device);
  return context;
}

absl::StatusOr<double> AllReduce(const GlooContext& context, int64_t bytes,
                                 int64_t count) {
  std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float));
  uint32_t tag = 0;
  const auto run = [&] {
    return Call([&] {
      ::gloo::AllreduceOptions options(context);
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(
              &::gloo::sum<float>));
      options.setTag(tag++);
      options.setOutput(data.data(), data.size());
      ::gloo::allreduce(options);
    });
  };
  COXSWAIN_RETURN_IF_ERROR(run());
  COXSWAIN_ASSIGN_OR_RETURN(const double median, Median(count, run));
  COXSWAIN_RETURN_IF_ERROR(Call([&] {
    ::gloo::BarrierOptions barrier(context);
    barrier.setTag(tag++);
    ::gloo::barrier(barrier);
  }));
  return median;
}

absl::Status Serve(const Options& options) {
  // Of this thread, and by inheritance of Gloo's.
  const sched_param none = {};
  if (sched_setscheduler(0, SCHED_BATCH, &none) != 0) {
    return absl::InternalError("cannot become a batch job");
  }
  GlooContext context;
  COXSWAIN_RETURN_IF_ERROR(Call([&] { context = Connect(options); }));
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    int64_t bytes = 0;
    int64_t count = 0;
    words >> command >> bytes >> count;
    if (!words || command != "allreduce" || bytes < 4 || count < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("no such command: ", line));
    }
    COXSWAIN_ASSIGN_OR_RETURN(const double seconds,
                              AllReduce(context, bytes, count));
    std::cout << absl::StrFormat("{\"median\": %.9f}", seconds) << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace coxswain::bench

int main(int argc, char** argv) {
  CLI::App app("One rank of Gloo alone; see gloo_main.cc");
  coxswain::bench::Options options;
  app.add_option("--rank", options.rank)->required();
  app.add_option("--size", options.size)->capture_default_str();
  app.add_option("--store", options.store, "a folder that all ranks share")
      ->required();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = coxswain::bench::Serve(options);
  if (status.ok()) return 0;
  std::cerr << "gloo worker, rank " << options.rank << ": " << status.message()
            << std::endl;
  return 1;
}
