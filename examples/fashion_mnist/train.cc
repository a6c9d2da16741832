// A worker that trains a small network on Fashion-MNIST. Started by the
// launcher, once per rank:
//   coxswain run --nproc 2 -- train --hook 'powersgd(rank=2,start_step=20)'

#include <iostream>
#include <string>
#include <variant>

#include "CLI/CLI.hpp"
#include "base/logging.h"
#include "examples/fashion_mnist/device_choice.h"
#include "examples/fashion_mnist/display.h"
#include "examples/fashion_mnist/events.h"
#include "examples/fashion_mnist/trainer.h"
#include "examples/progress/display.h"
#include "hooks/registry/yaml_spec.h"

namespace {

using coxswain::examples::Event;
using coxswain::examples::ProgressDisplay;
using coxswain::examples::ResultEvent;
using coxswain::examples::ResultTable;
using coxswain::examples::StepEvent;
using coxswain::examples::Trainer;
using coxswain::examples::TrainerOptions;

void AddOptions(CLI::App& app, TrainerOptions& options, bool& events,
                bool& check, int& check_workers) {
  app.add_option("--hook", options.hook,
                 "communication hook spec, or @FILE with one in YAML")
      ->capture_default_str();
  app.add_option("--accumulate", options.accumulation_steps,
                 "micro-batches per optimizer step")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the images")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "images per micro-batch and rank")
      ->check(CLI::Range(1, 60000))
      ->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "of SGD")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed,
                 "of the weights and of the images' order")
      ->capture_default_str();
  app.add_option("--device", options.device,
                 "where to train: auto, cpu, cuda or cuda:N")
      ->capture_default_str();
  app.add_option("--data", options.data, "folder of the packaged images")
      ->capture_default_str();
  app.add_option("--checkpoint-every", options.checkpoint_every,
                 "steps between checkpoints; 0: only where one is asked for")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--keep-last", options.retention.keep_last,
                 "checkpoints that stay; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--keep-every", options.retention.keep_every,
                 "steps of which a checkpoint stays, besides the last")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--resume", options.resume,
                 "id of the checkpoint to go on from, or newest (the "
                 "beginning, where there is none)");
  app.add_flag("--events", events,
               "print progress as JSON lines, for programs (rank 0)");
  app.add_flag("--check", check,
               "only check the options, print where it would train, and end");
  app.add_option("--check-workers", check_workers,
                 "with --check: how many workers are to run on this host")
      ->check(CLI::Range(1, 1000000));
}

// Prints for display.
void PrintEvent(ProgressDisplay& display, const Event& event) {
  if (const auto* step = std::get_if<StepEvent>(&event)) {
    std::cout << display.Show(*step) << std::flush;
  } else {
    std::cout << ResultTable({std::get<ResultEvent>(event)}) << std::flush;
  }
}

// Runs before anything is started; prints which device it would be.
int Check(const TrainerOptions& options, int workers) {
  const auto choice = coxswain::examples::ChooseDevice(
      options.device, coxswain::examples::FindDevices(
                          coxswain::Device(), /*local_rank=*/0, workers));
  if (!choice.ok()) {
    std::cerr << "train: " << choice.status().message() << std::endl;
    return 2;
  }
  std::cout << "Training on " << coxswain::examples::NameOf(choice->device)
            << ": " << choice->why << std::endl;
  return 0;
}

int Train(TrainerOptions options, bool events) {
  // A program reads the output, so the log has warnings and errors only.
  if (events) coxswain::SetLogLevel("warning");
  ProgressDisplay display(/*terminal=*/false);
  display.Begin(options.hook);
  options.on_event = [&](const Event& event) {
    if (!events) return PrintEvent(display, event);
    std::cout << coxswain::examples::ToJsonLine(event) << std::flush;
  };
  auto trainer = Trainer::Create(options);
  const absl::Status status =
      trainer.ok() ? (*trainer)->Run() : trainer.status();
  if (status.ok()) return 0;
  std::cerr << "train: " << status.message() << std::endl;
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a small network on Fashion-MNIST as one rank of a job");
  TrainerOptions options;
  bool events = false;
  bool check = false;
  int check_workers = 1;
  AddOptions(app, options, events, check, check_workers);
  CLI11_PARSE(app, argc, argv);
  const auto hook = coxswain::ReadHookArgument(options.hook);
  if (!hook.ok()) {
    std::cerr << "train: --hook: " << hook.status().message() << std::endl;
    return 2;
  }
  options.hook = *hook;
  return check ? Check(options, check_workers) : Train(options, events);
}
