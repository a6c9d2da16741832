// One rank of a benchmark that needs several processes. Reads commands from
// standard input, a line each, until its end:
//
//   compute | step | step_in_turn | exchange    see Rank
//   micro | train
//   window KIND MICRO_BATCHES [in_turn]
//   misplaced
//   allreduce BYTES
//   buckets FIRST_BYTES BYTES
//   tensor_pair WIDTH INNER ROWS COUNT          see TensorPair
//
// and answers each with a line of JSON, of times in seconds ("misplaced" with
// {"error": TEXT}, "tensor_pair" with {"pair": ..., "local": ...}); or ends
// with an error on stderr. torch_worker.py understands the same lines, but for
// those that only we have, and torch_tensor.py "tensor_pair".

#include <cstdint>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/bench/worker/networks.h"
#include "tests/bench/worker/rank.h"
#include "tests/bench/worker/tensor_pair.h"

namespace coxswain::bench {
namespace {

struct NetworkOptions {
  std::string shapes;  // such as 64x3x7x7,64; empty for a perceptron
  int64_t layers = 24;
  int64_t width = 1024;
  int64_t rows = 64;
};

void AddOptions(CLI::App& app, RankOptions& rank, NetworkOptions& network) {
  app.add_option("--rank", rank.rank)->required();
  app.add_option("--size", rank.size)->capture_default_str();
  app.add_option("--store", rank.store, "a folder that all ranks share")
      ->required();
  app.add_option("--address", rank.address, "where peers reach this rank")
      ->capture_default_str();
  app.add_option("--backend", rank.backend)->capture_default_str();
  app.add_option("--hook", rank.hook)->capture_default_str();
  app.add_flag("--view", rank.view, "gradients are views into the buckets");
  app.add_flag("--statistics", rank.statistics);
  app.add_option("--accumulate", rank.accumulation_steps,
                 "micro-batches of a window");
  app.add_option("--trace", rank.trace, "writes a trace of the steps");
  app.add_option("--zero", rank.zero, "what of train's state is sharded");
  app.add_option("--shapes", network.shapes,
                 "a network of these parameters and hardly any computing, "
                 "such as 64x3x7x7,64");
  app.add_option("--layers", network.layers, "of the perceptron otherwise");
  app.add_option("--width", network.width);
  app.add_option("--rows", network.rows,
                 "of its input: how much there is to compute");
}

absl::StatusOr<std::shared_ptr<Network>> MakeNetwork(
    const NetworkOptions& options) {
  if (options.shapes.empty()) {
    return MakePerceptron(options.layers, options.width, options.rows);
  }
  std::vector<std::vector<int64_t>> shapes;
  for (const auto shape : absl::StrSplit(options.shapes, ',')) {
    shapes.emplace_back();
    for (const auto extent : absl::StrSplit(shape, 'x')) {
      shapes.back().push_back(0);
      if (absl::SimpleAtoi(extent, &shapes.back().back())) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--shapes: '", extent, "' is not a number"));
    }
  }
  return MakeSumNetwork(shapes);
}

absl::StatusOr<Timing> TakeWindow(Rank& rank, std::istream& words) {
  std::string kind, in_turn;
  int micro_batches = 0;
  words >> kind >> micro_batches >> in_turn;
  return rank.Window(kind, micro_batches, !in_turn.empty());
}

absl::StatusOr<Timing> Obey(Rank& rank, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  if (command == "compute") return rank.Compute();
  if (command == "step") return rank.Step();
  if (command == "step_in_turn") return rank.StepInTurn();
  if (command == "exchange") return rank.Exchange();
  if (command == "micro") return rank.Micro();
  if (command == "train") return rank.Train();
  if (command == "window") return TakeWindow(rank, words);
  int64_t bytes = 0;
  words >> bytes;
  if (command == "allreduce") return rank.AllReduce(bytes);
  if (command == "buckets") {
    BucketPlanOptions buckets;
    buckets.first_bucket_bytes = bytes;
    words >> buckets.bucket_bytes;
    COXSWAIN_RETURN_IF_ERROR(rank.ChangeBuckets(buckets));
    return Timing();
  }
  return absl::InvalidArgumentError(absl::StrCat("no such command: ", line));
}

std::string ToJson(const Timing& timing) {
  const auto seconds = [](const char* name, absl::Duration value) {
    return absl::StrFormat("\"%s\": %.9f", name, absl::ToDoubleSeconds(value));
  };
  return absl::StrCat("{", seconds("wall", timing.wall), ", ",
                      seconds("cpu", timing.cpu), ", ",
                      seconds("forward", timing.forward), ", ",
                      seconds("in_hook", timing.in_hook), ", ",
                      seconds("in_collectives", timing.in_collectives), ", ",
                      seconds("in_finish", timing.in_finish), "}");
}

// The pair is made by the first of these commands.
absl::StatusOr<std::string> TimeTensorPair(std::istream& words, Rank& rank,
                                           std::unique_ptr<TensorPair>& pair) {
  TensorPairSizes sizes;
  int64_t count = 0;
  words >> sizes.width >> sizes.inner >> sizes.rows >> count;
  if (pair == nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(pair,
                              TensorPair::Create(&rank.communicator(), sizes));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const TensorPairTimes times, pair->Times(count));
  return absl::StrFormat("{\"pair\": %.9f, \"local\": %.9f}", times.pair,
                         times.local);
}

absl::StatusOr<std::string> Answer(const std::string& line, Rank& rank,
                                   std::unique_ptr<TensorPair>& pair) {
  if (line == "misplaced") {
    const std::string error(rank.Misplaced().message());
    return nlohmann::json{{"error", error}}.dump();
  }
  std::istringstream words(line);
  std::string command;
  words >> command;
  if (command == "tensor_pair") return TimeTensorPair(words, rank, pair);
  COXSWAIN_ASSIGN_OR_RETURN(const Timing timing, Obey(rank, line));
  return ToJson(timing);
}

absl::Status Serve(const RankOptions& options, const NetworkOptions& network) {
  COXSWAIN_ASSIGN_OR_RETURN(std::shared_ptr<Network> made,
                            MakeNetwork(network));
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Rank> rank,
                            Rank::Create(options, std::move(made)));
  std::unique_ptr<TensorPair> pair;
  std::string line;
  while (std::getline(std::cin, line)) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::string answer,
                              Answer(line, *rank, pair));
    std::cout << answer << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace coxswain::bench

int main(int argc, char** argv) {
  CLI::App app("One rank of a benchmark; see the head of main.cc");
  coxswain::bench::RankOptions rank;
  coxswain::bench::NetworkOptions network;
  coxswain::bench::AddOptions(app, rank, network);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = coxswain::bench::Serve(rank, network);
  if (status.ok()) return 0;
  std::cerr << "bench worker, rank " << rank.rank << ": " << status.message()
            << std::endl;
  return 1;
}
