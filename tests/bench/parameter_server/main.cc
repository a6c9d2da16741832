// One rank of a benchmark of the parameter-server mode against the collective
// one: a session, a reducer and a hook, without a backward pass. Reads commands
// from standard input, a line each, until its end:
//
//   step COUNT   exchanges the gradients COUNT times; the median's time, and
//                the bytes that this rank has sent in each
//   gathered COUNT   takes COUNT GatheredSteps of the same parameters; the
//                median's time, and the bytes in and out of this rank in each
//
// and answers each with a line of JSON; or ends with an error on stderr.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/reduce/reducer.h"
#include "client/session/session.h"
#include "hooks/registry/registry.h"
#include "tests/bench/parameter_server/gathered_step.h"
#include "tests/bench/worker/median.h"

namespace coxswain::bench {
namespace {

struct Options {
  int rank = 0;
  int size = 2;
  std::string store;  // of the driver; not needed
  std::string coordinator;
  std::string job;
  std::string backend = "tcp";
  std::string hook = "allreduce";
  std::string address = "127.0.0.1";  // where peers reach this rank
};

// 5 MB of gradients: a small convolutional network with a large last layer.
std::vector<ParameterSpec> Parameters() {
  std::vector<ParameterSpec> parameters;
  const std::vector<std::vector<int64_t>> shapes = {
      {64, 3, 3, 3},    {64},  {128, 64, 3, 3}, {128},
      {256, 128, 3, 3}, {256}, {1700, 512},     {1700}};
  for (const auto& shape : shapes) {
    ParameterSpec parameter;
    parameter.name = absl::StrCat("p", parameters.size());
    parameter.shape = shape;
    parameters.push_back(parameter);
  }
  return parameters;
}

// Of the last layer's features and classes.
GatheredStepSizes SizesOfBatch() {
  constexpr int64_t kRows = 32;  // of a rank's batch
  GatheredStepSizes sizes;
  for (const ParameterSpec& parameter : Parameters()) {
    int64_t elements = 1;
    for (const int64_t extent : parameter.shape) elements *= extent;
    sizes.parameters += elements;
  }
  sizes.inputs = kRows * 512;
  sizes.outputs = kRows * 1700;
  return sizes;
}

SessionOptions SessionOptionsOf(const Options& options) {
  SessionOptions session;
  session.coordinator = options.coordinator;
  session.job = options.job;
  session.identity = {"bench", options.rank};
  session.host = "bench";
  session.local_rank = options.rank;
  session.local_world_size = options.size;
  session.world_size = options.size;
  session.backend = options.backend;
  session.address = options.address;
  return session;
}

absl::Status Step(Reducer* reducer, int parameters) {
  COXSWAIN_RETURN_IF_ERROR(reducer->BeginStep());
  for (int i = parameters; i-- > 0;) {
    COXSWAIN_RETURN_IF_ERROR(reducer->MarkReady(i));
  }
  COXSWAIN_RETURN_IF_ERROR(reducer->Finish());
  return reducer->Commit();
}

// What a rank is asked to time.
struct Subjects {
  Reducer* reducer = nullptr;
  int parameters = 0;
  Communicator* communicator = nullptr;
  std::unique_ptr<GatheredStep> gathered;  // made by the first such command
};

absl::Status Obey(const std::string& line, Subjects& subjects) {
  std::istringstream words(line);
  std::string command;
  int64_t count = 0;
  words >> command >> count;
  if (!words || count < 1 || (command != "step" && command != "gathered")) {
    return absl::InvalidArgumentError(absl::StrCat("no such command: ", line));
  }
  if (command == "gathered") {
    if (subjects.gathered == nullptr) {
      COXSWAIN_ASSIGN_OR_RETURN(
          subjects.gathered,
          GatheredStep::Create(subjects.communicator, SizesOfBatch()));
    }
    COXSWAIN_ASSIGN_OR_RETURN(const double seconds, Median(count, [&] {
                                return subjects.gathered->Run();
                              }));
    std::cout << absl::StrFormat("{\"median\": %.9f, \"moved\": %d}", seconds,
                                 subjects.gathered->moved_bytes())
              << std::endl;
    return absl::OkStatus();
  }
  const int64_t sent = subjects.communicator->wire_bytes();
  COXSWAIN_ASSIGN_OR_RETURN(const double seconds, Median(count, [&] {
                              return Step(subjects.reducer,
                                          subjects.parameters);
                            }));
  std::cout << absl::StrFormat(
                   "{\"median\": %.9f, \"sent\": %d}", seconds,
                   (subjects.communicator->wire_bytes() - sent) / count)
            << std::endl;
  return absl::OkStatus();
}

absl::Status Serve(const Options& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto session,
                            Session::Join(SessionOptionsOf(options), {}));
  COXSWAIN_ASSIGN_OR_RETURN(const auto world, session->World());
  COXSWAIN_ASSIGN_OR_RETURN(const auto hook, MakeHook(options.hook));
  const std::vector<ParameterSpec> parameters = Parameters();
  const int count = static_cast<int>(parameters.size());
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto reducer, Reducer::Create(ReducerOptions(), parameters,
                                          hook.get(), &world->communicator()));
  for (int i = 0; i < count; ++i) {
    const Span view = reducer->GradientView(i);
    std::fill_n(static_cast<float*>(view.data), view.count, 1e-3f * i);
  }
  {
    Subjects subjects{reducer.get(), count, &world->communicator(), nullptr};
    std::string line;
    while (std::getline(std::cin, line)) {
      COXSWAIN_RETURN_IF_ERROR(Obey(line, subjects));
    }
  }
  return session->Leave("done");
}

}  // namespace
}  // namespace coxswain::bench

int main(int argc, char** argv) {
  CLI::App app("One rank of a benchmark of the parameter-server mode");
  coxswain::bench::Options options;
  app.add_option("--rank", options.rank)->required();
  app.add_option("--size", options.size)->required();
  app.add_option("--store", options.store);
  app.add_option("--coordinator", options.coordinator)->required();
  app.add_option("--job", options.job)->required();
  app.add_option("--backend", options.backend)->required();
  app.add_option("--hook", options.hook)->required();
  app.add_option("--address", options.address);
  CLI11_PARSE(app, argc, argv);
  coxswain::SetLogLevel("warning");
  const absl::Status status = coxswain::bench::Serve(options);
  if (status.ok()) return 0;
  std::cerr << "bench worker, rank " << options.rank << ": " << status.message()
            << std::endl;
  return 1;
}
