// A worker of an elastic job over libtorch whose optimizer is sharded, for
// tests that kill it: see README.md.

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/cancel_signal.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "train/torch/train.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

// Of the parameters together. A sample is one element's.
constexpr int64_t kElements = 257;
constexpr int64_t kCheckpointEvery = 5;
constexpr char kSamples[] = "samples";
// How many ranks took each step, a character for each.
constexpr char kCourse[] = "course";

struct Options {
  int64_t steps = 100;
  double pace_ms = 0;
  int zero = 1;
};

void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Odd sizes, so that slices begin and end within parameters.
struct Model : ::torch::nn::Module {
  Model() {
    for (const int64_t size : {100, 57, 1, 99}) {
      parts.push_back(
          register_parameter(absl::StrCat("p", parts.size()),
                             ::torch::zeros({size}, ::torch::kFloat64)));
    }
  }
  // Its gradient is 1 at this sample's element, once it is averaged.
  Tensor Loss(int64_t sample, int world_size) const {
    return ::torch::cat(parts)[sample % kElements] * world_size;
  }
  std::string Bits() const {
    const Tensor all = ::torch::cat(parts).detach();
    return std::string(static_cast<const char*>(all.data_ptr()), all.nbytes());
  }

  std::vector<Tensor> parts;
};

// Returns what SGD with momentum 1 and learning rate 1 comes to, in whole
// numbers: what is lost of the momenta, or of the samples, shows.
std::vector<double> Expected(const std::string& course) {
  std::vector<double> values(kElements);
  std::vector<double> momenta(kElements);
  int64_t sample = 0;
  for (const char ranks : course) {
    for (int i = 0; i < ranks - '0'; ++i, ++sample) {
      ++momenta[static_cast<size_t>(sample % kElements)];
    }
    for (size_t i = 0; i < values.size(); ++i) values[i] -= momenta[i];
  }
  return values;
}

class Worker {
 public:
  explicit Worker(const Options& options) : options_(options) {}

  absl::Status Run();

 private:
  absl::Status Body(Training& training);
  // Returns whether there is a checkpoint that all could go back to.
  bool Saved(Training& training);
  void Report() const;

  const Options& options_;
  const std::shared_ptr<Model> model_ = std::make_shared<Model>();
  bool saved_ = false;
  std::string course_;
  CancelSignal never_;  // never raised: waiting for it is a pause
};

absl::Status Worker::Run() {
  TrainOptions options;
  options.elastic = true;
  options.zero = options_.zero;
  options.resume = "newest";
  options.retention.keep_last = 2;
  options.ddp.terms.checkpoint_every = kCheckpointEvery;
  options.ddp.reducer.buckets = {500, 900};
  ::torch::optim::SGD optimizer(model_->parameters(),
                                ::torch::optim::SGDOptions(1.0).momentum(1.0));
  COXSWAIN_RETURN_IF_ERROR(Train(options, model_, optimizer,
                                 [this](Training& t) { return Body(t); }));
  Report();
  return absl::OkStatus();
}

bool Worker::Saved(Training& training) {
  if (!saved_) {
    const auto list = training.session().checkpoints().List();
    saved_ = list.ok() && !list->empty();
  }
  return saved_;
}

absl::Status Worker::Body(Training& training) {
  const int64_t generation = training.session().generation();
  const int world_size = training.world_size();
  PrintLine(absl::StrCat("generation ", generation, " rank ", training.rank(),
                         " of ", world_size, " pid ", getpid(), " from step ",
                         training.step(), " copied no"));
  while (training.going() && training.step() < options_.steps) {
    if (options_.pace_ms > 0) {
      never_.WaitFor(absl::Milliseconds(options_.pace_ms));
    }
    const int64_t sample = training.counter(kSamples) + training.rank();
    const absl::Status step =
        training.Step([&] { return model_->Loss(sample, world_size); });
    if (!step.ok()) {
      PrintLine(absl::StrCat("error ", absl::StatusCodeToString(step.code()),
                             " generation ", generation, " ", step.message()));
      return step;
    }
    training.counter(kSamples) += world_size;
    training.blob(kCourse) += static_cast<char>('0' + world_size);
    if (!Saved(training)) continue;
    PrintLine(absl::StrCat("step ", training.step(), " generation ", generation,
                           " world ", world_size));
  }
  course_ = training.blob(kCourse);
  return absl::OkStatus();
}

void Worker::Report() const {
  const std::string bits = model_->Bits();
  const std::vector<double> expected = Expected(course_);
  int64_t samples = 0;
  for (const char ranks : course_) samples += ranks - '0';
  nlohmann::json json;
  json["step"] = course_.size();
  json["finished"] = true;
  json["samples"] = samples;
  json["exact"] = ::torch::equal(::torch::cat(model_->parts).detach(),
                                 ::torch::tensor(expected, ::torch::kFloat64));
  json["parameters"] = absl::StrFormat("%08x", Crc32c(bits));
  json["runs"] = absl::StrFormat("%08x", Crc32c(course_));
  PrintLine("result " + json.dump());
}

}  // namespace
}  // namespace coxswain::torch

int main(int argc, char** argv) {
  at::set_num_threads(1);
  coxswain::torch::Options options;
  CLI::App app("a worker of an elastic job with a sharded optimizer");
  app.add_option("--steps", options.steps, "of the whole training");
  app.add_option("--pace-ms", options.pace_ms, "how long a step takes, least");
  app.add_option("--zero", options.zero, "1 or 2");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = coxswain::torch::Worker(options).Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "sharded_toy: %s\n",
               std::string(status.message()).c_str());
  return 1;
}
