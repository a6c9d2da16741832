// A small GPT, whose tokens are the bytes of a text, on any mesh:
//   coxswain run --nproc 8 --mesh pp=2,dp=2,tp=2 -- gpt --zero 1
// docs/gpt.md has more.

#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "base/logging.h"
#include "examples/gpt/result.h"
#include "examples/gpt/trainer.h"
#include "examples/progress/display.h"
#include "hooks/registry/yaml_spec.h"

namespace {

using coxswain::examples::LineOf;
using coxswain::examples::StepEvent;
using coxswain::examples::gpt::Result;
using coxswain::examples::gpt::TableOf;
using coxswain::examples::gpt::TrainedRun;
using coxswain::examples::gpt::Trainer;
using coxswain::examples::gpt::TrainerOptions;

template <typename T>
CLI::Option* Add(CLI::App& app, const std::string& name, T& value,
                 const std::string& help) {
  return app.add_option(name, value, help)->capture_default_str();
}

void AddModelOptions(CLI::App& app, TrainerOptions& options,
                     std::string& type) {
  Add(app, "--layers", options.model.layers, "blocks")
      ->check(CLI::Range(1, 1000));
  Add(app, "--features", options.model.features, "of a token")
      ->check(CLI::Range(1, 65536));
  Add(app, "--heads", options.model.heads, "of attention")
      ->check(CLI::Range(1, 65536));
  Add(app, "--length", options.model.length, "of a piece of text, in bytes")
      ->check(CLI::Range(1, 65536));
  Add(app, "--dropout", options.model.dropout, "probability; 0: none")
      ->check(CLI::Range(0.0, 0.99));
  Add(app, "--dtype", type, "of the numbers: float32 or float64")
      ->check(CLI::IsMember({"float32", "float64"}));
  Add(app, "--seed", options.model.seed,
      "of the weights, of dropout, and of the pieces' order");
}

void AddTrainingOptions(CLI::App& app, TrainerOptions& options) {
  Add(app, "--text", options.text, "what to train on; gzip may have packed it");
  Add(app, "--steps", options.steps, "optimizer steps")
      ->check(CLI::Range(1, 100000000));
  Add(app, "--micro-batches", options.micro_batches,
      "of a step, of all data ranks together")
      ->check(CLI::Range(1, 1000000));
  Add(app, "--texts", options.texts, "pieces of text in a micro-batch")
      ->check(CLI::Range(1, 1000000));
  Add(app, "--held-out", options.held_out,
      "micro-batches of the evaluation at the end")
      ->check(CLI::Range(1, 1000000));
  Add(app, "--learning-rate", options.learning_rate, "of AdamW")
      ->check(CLI::PositiveNumber);
  Add(app, "--max-norm", options.max_norm,
      "larger gradients are scaled down to it; 0: they are not")
      ->check(CLI::NonNegativeNumber);
  Add(app, "--hook", options.hook,
      "communication hook spec, or @FILE with one in YAML");
  Add(app, "--schedule", options.schedule, "of the pipeline");
  Add(app, "--stages", options.stages,
      "layers of each: 0-2,3-5; or parameters: so that the largest has few");
  Add(app, "--zero", options.zero, "0 or 1: data ranks share the optimizer")
      ->check(CLI::Range(0, 3));
  app.add_flag("--sequence", options.sequence,
               "divide the sequence, too, along tp");
  Add(app, "--checkpoint-every", options.checkpoint_every,
      "steps; 0: only where one is asked for")
      ->check(CLI::NonNegativeNumber);
  Add(app, "--resume", options.resume,
      "id of the checkpoint to go on from, or newest");
}

int Train(TrainerOptions options, bool events) {
  // A program reads the output, so the log has warnings and errors only.
  if (events) coxswain::SetLogLevel("warning");
  coxswain::examples::ProgressDisplay display(/*terminal=*/false);
  display.Begin("gpt");
  options.on_step = [&](const StepEvent& event) {
    std::cout << (events ? LineOf(ToJson(event)) : display.Show(event))
              << std::flush;
  };
  options.on_result = [&](const Result& result) {
    std::cout << (events ? LineOf(ToJson(result))
                         : TableOf({TrainedRun{result, {}}}))
              << std::flush;
  };
  auto trainer = Trainer::Create(options);
  const absl::Status status =
      trainer.ok() ? (*trainer)->Run() : trainer.status();
  if (status.ok()) return 0;
  std::cerr << "gpt: " << status.message() << std::endl;
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a small GPT on a text, as one rank of a job");
  TrainerOptions options;
  std::string type = "float32";
  bool events = false;
  AddModelOptions(app, options, type);
  AddTrainingOptions(app, options);
  app.add_flag("--events", events,
               "print progress as JSON lines, for programs (rank 0)");
  CLI11_PARSE(app, argc, argv);
  options.model.float64 = type == "float64";
  const auto hook = coxswain::ReadHookArgument(options.hook);
  if (!hook.ok()) {
    std::cerr << "gpt: --hook: " << hook.status().message() << std::endl;
    return 2;
  }
  options.hook = *hook;
  return Train(options, events);
}
