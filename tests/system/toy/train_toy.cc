// A worker of an elastic job by one call of coxswain::Train, for tests that
// kill it: see README.md.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/cancel_signal.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/system/toy/elastic_toy_state.h"
#include "train/train.h"

namespace coxswain {
namespace {

constexpr int kSize = 64;
constexpr int kLocalBatch = 2;
constexpr char kSamples[] = "samples";

struct Options {
  int64_t steps = 100;
  double pace_ms = 0;
  std::string hook = "allreduce";
  int64_t checkpoint_every = 0;
  std::string resume;
  std::string die;  // RANK:STEP:POINT
};

void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// The elastic toy's model, of which Train knows values, gradients, and an
// optimizer that has learned which samples it has seen.
class Worker {
 public:
  explicit Worker(const Options& options)
      : options_(options), model_(DType::kFloat64, kSize, kLocalBatch) {
    const std::vector<Span> values = model_.Tensors();
    for (size_t i = 0; i < values.size(); ++i) {
      const ParameterSpec& spec = model_.specs()[i];
      gradients_.emplace_back(static_cast<size_t>(spec.count()));
      parameters_.push_back({spec.name, spec.shape, values[i].data,
                             gradients_.back().data(), spec.dtype});
    }
  }

  absl::Status Run();

 private:
  TrainedOptimizer Optimizer();
  absl::Status Body(Training& training);
  absl::StatusOr<double> Gradients();
  void DieIfAt(absl::string_view point) const;
  // The counter and the blob are those of the optimizer's step.
  absl::Status CheckCounted(Training& training) const;
  void Report() const;

  const Options& options_;
  ElasticToyState model_;
  std::vector<std::vector<double>> gradients_;
  std::vector<TrainedParameter> parameters_;
  // Of the generation under way, for the optimizer.
  int64_t generation_ = 0;
  int world_size_ = 0;
  int rank_ = 0;
  bool began_ = false;
  CancelSignal never_;  // never raised: waiting for it is a pause
};

TrainedOptimizer Worker::Optimizer() {
  TrainedOptimizer optimizer;
  optimizer.step = [this] {
    DieIfAt("decided");
    std::vector<Span> averages = model_.Tensors();
    for (size_t i = 0; i < averages.size(); ++i) {
      averages[i].data = gradients_[i].data();
    }
    model_.Step(averages, generation_, world_size_);
    return absl::OkStatus();
  };
  optimizer.save = [this]() -> absl::StatusOr<std::string> {
    COXSWAIN_ASSIGN_OR_RETURN(const std::string rest, model_.Save());
    return absl::StrCat(model_.step(), "/", rest);
  };
  optimizer.load = [this](absl::string_view bytes) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(bytes, absl::MaxSplits('/', 1));
    int64_t step = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &step)) {
      return absl::DataLossError(absl::StrCat("no toy's optimizer: ", bytes));
    }
    return model_.Load(parts[1], step);
  };
  return optimizer;
}

absl::Status Worker::Run() {
  TrainOptions options;
  options.hook = options_.hook;
  options.terms.checkpoint_every = options_.checkpoint_every;
  options.settings["steps"] = absl::StrCat(options_.steps);
  options.elastic = true;
  options.resume = options_.resume;
  COXSWAIN_RETURN_IF_ERROR(
      Train(options, parameters_, Optimizer(),
            [this](Training& training) { return Body(training); }));
  Report();
  return absl::OkStatus();
}

absl::Status Worker::Body(Training& training) {
  generation_ = training.session().generation();
  world_size_ = training.world_size();
  rank_ = training.rank();
  const bool copied = !began_ && training.step() > 0 && options_.resume.empty();
  began_ = true;
  PrintLine(absl::StrCat("generation ", generation_, " rank ", rank_, " of ",
                         world_size_, " pid ", getpid(), " from step ",
                         training.step(), " copied ", copied ? "yes" : "no"));
  COXSWAIN_RETURN_IF_ERROR(CheckCounted(training));
  while (training.going() && training.step() < options_.steps) {
    if (options_.pace_ms > 0) {
      never_.WaitFor(absl::Milliseconds(options_.pace_ms));
    }
    const absl::Status step = training.Step([this] { return Gradients(); });
    if (!step.ok()) {
      PrintLine(absl::StrCat("error ", absl::StatusCodeToString(step.code()),
                             " generation ", generation_, " ", step.message()));
      return step;
    }
    training.counter(kSamples) += int64_t{world_size_} * kLocalBatch;
    training.blob(kSamples) = absl::StrCat(training.counter(kSamples));
    PrintLine(absl::StrCat("step ", training.step(), " generation ",
                           generation_, " world ", world_size_));
  }
  return CheckCounted(training);
}

void Worker::DieIfAt(absl::string_view point) const {
  const std::string here = absl::StrCat(rank_, ":", model_.step(), ":", point);
  const std::vector<ToyRun>& runs = model_.runs();
  const bool first = runs.size() == 1 && runs[0].generation == generation_;
  if (first && here == options_.die) kill(getpid(), SIGKILL);
}

absl::StatusOr<double> Worker::Gradients() {
  DieIfAt("computing");
  const std::vector<double> all = model_.Gradient(rank_, world_size_);
  for (size_t p = 0; p < gradients_.size(); ++p) {
    const auto from = all.begin() + model_.OffsetOf(static_cast<int>(p));
    std::copy_n(from, gradients_[p].size(), gradients_[p].begin());
  }
  return 0.0;
}

absl::Status Worker::CheckCounted(Training& training) const {
  const int64_t counted = training.counter(kSamples);
  const std::string& noted = training.blob(kSamples);
  if (training.step() == model_.step() && counted == model_.samples() &&
      noted == (counted == 0 ? "" : absl::StrCat(counted))) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "at step ", training.step(), " the program has counted ", counted,
      " samples and noted '", noted, "'; the optimizer has taken ",
      model_.step(), " steps over ", model_.samples()));
}

void Worker::Report() const {
  nlohmann::json json;
  json["step"] = model_.step();
  json["finished"] = model_.step() >= options_.steps;
  json["samples"] = model_.samples();
  json["exact"] = model_.Distance() == 0;
  json["parameters"] = absl::StrFormat("%08x", Crc32c(model_.Bits()));
  json["runs"] = nlohmann::json::array();
  for (const ToyRun& run : model_.runs()) {
    json["runs"].push_back({{"generation", run.generation},
                            {"world", run.world_size},
                            {"steps", run.steps}});
  }
  PrintLine("result " + json.dump());
}

}  // namespace
}  // namespace coxswain

int main(int argc, char** argv) {
  coxswain::Options options;
  CLI::App app("a worker of an elastic job, by one call");
  app.add_option("--steps", options.steps, "of the whole training");
  app.add_option("--pace-ms", options.pace_ms, "how long a step takes, least");
  app.add_option("--hook", options.hook, "communication hook spec");
  app.add_option("--checkpoint-every", options.checkpoint_every, "steps");
  app.add_option("--die", options.die,
                 "RANK:STEP:computing|decided: kills itself there, in the "
                 "first generation of the job");
  app.add_option("--resume", options.resume, "a checkpoint's id, or newest");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = coxswain::Worker(options).Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "train_toy: %s\n",
               std::string(status.message()).c_str());
  return 1;
}
