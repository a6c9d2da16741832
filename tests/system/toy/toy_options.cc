#include "tests/system/toy/toy_options.h"

#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace coxswain {
namespace {

void AddTerm(CLI::App& app, schedule::Terms* terms) {
  const auto set = [terms](const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(value, absl::MaxSplits('=', 1));
      const absl::Status status = terms->Set(parts.first, parts.second);
      if (!status.ok()) {
        throw CLI::ValidationError("--term", std::string(status.message()));
      }
    }
  };
  app.add_option_function<std::vector<std::string>>(
         "--term", set, "NAME=VALUE of the plan that the job asks for")
      ->take_all();
}

CLI::Option* AddFault(CLI::App& app, const std::string& name, ToyFault* fault,
                      const std::string& what) {
  const auto set = [name, fault](const std::string& value) {
    const std::vector<std::string> parts = absl::StrSplit(value, ':');
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &fault->rank) ||
        !absl::SimpleAtoi(parts[1], &fault->step)) {
      throw CLI::ValidationError(name, "must be RANK:STEP, not " + value);
    }
  };
  return app
      .add_option_function<std::string>(name, set, "rank R at step S " + what)
      ->type_name("R:S");
}

void AddModel(CLI::App& app, ToyOptions* options) {
  app.add_option("--hook", options->hook, "communication hook spec or @FILE");
  app.add_option_function<std::string>(
         "--dtype",
         [options](const std::string& name) {
           options->model.dtype = *DTypeFromName(name);
         },
         "float32 or float64")
      ->check(CLI::IsMember({"float32", "float64"}));
  app.add_option("--hidden", options->model.hidden, "units of the first layer")
      ->check(CLI::Range(1, 4096));
  app.add_flag("--extra-parameter", options->model.extra_parameter,
               "one parameter more than others have");
}

void AddSchedule(CLI::App& app, ToyOptions* options) {
  app.add_option("--first-step", options->first_step, "number of the first");
  app.add_option("--steps", options->steps, "number after the last step");
  app.add_option("--accumulate", options->accumulate, "micro-batches per step");
  AddTerm(app, &options->terms);
}

void AddData(CLI::App& app, ToyOptions* options) {
  app.add_option("--batches", options->batches,
                 "micro-batches of each rank in an epoch; otherwise endless")
      ->delimiter(',');
  app.add_option("--epochs", options->epochs, "with --batches");
  app.add_flag("--announce-length", options->announce_length,
               "prints at once how many micro-batches an epoch has");
  app.add_flag("--global-data", options->global_data,
               "divides one list of micro-batches per step among the ranks");
  app.add_option("--samples", options->samples,
                 "of the micro-batches, in turns over ranks and micro-batches")
      ->delimiter(',');
  app.add_option("--evaluate-every", options->evaluate_every,
                 "evaluates after so many micro-batches");
  app.add_option("--evaluation-stream", options->evaluation_stream,
                 "under which evaluation counts its micro-batches");
  app.add_flag("--replay", options->replay,
               "recorded gradients instead of the model's own");
  app.add_flag("--check-gradients", options->check_gradients,
               "asks all to skip a step whose gradients are not finite here");
}

void AddOutput(CLI::App& app, ToyOptions* options) {
  app.add_option("--save-at", options->save_at, "save after so many steps");
  app.add_flag("--restore", options->restore, "go on from the last checkpoint");
  app.add_flag("--digest", options->digest,
               "print a checksum of all parameters");
  app.add_flag("--windows", options->windows, "print what is exchanged");
  app.add_option("--report-every", options->report_every, "steps")
      ->check(CLI::PositiveNumber);
  app.add_option("--dump", options->dump,
                 "where rank 0 writes the averaged gradients");
}

void AddFaults(CLI::App& app, ToyOptions* options) {
  auto* latch = app.add_option("--latch", options->latch, "fifo to wait at");
  app.add_option("--wait-at", options->wait_at, "wait before this step")
      ->needs(latch);
  AddFault(app, "--stall-at", &options->stall,
           "waits at the latch before its exchange")
      ->needs(latch);
  AddFault(app, "--hang-in-exchange", &options->hang,
           "waits at the latch within its exchange")
      ->needs(latch);
  AddFault(app, "--skip-sync-at", &options->skip_sync,
           "leaves out the exchange");
  AddFault(app, "--nan-at", &options->nan, "has a gradient with a NaN");
  AddFault(app, "--refuse-at", &options->refuse,
           "asks all to skip it: by its vote, where there is one");
  AddFault(app, "--diverge-at", &options->diverge,
           "changes a bit of its parameters after the step");
  AddFault(app, "--stop-at", &options->stop, "asks all to stop");
}

}  // namespace

bool ParseToyOptions(int argc, char** argv, ToyOptions* options,
                     int* exit_status) {
  CLI::App app("A small job's worker, for tests");
  AddModel(app, options);
  AddSchedule(app, options);
  AddData(app, options);
  AddOutput(app, options);
  AddFaults(app, options);
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::ParseError& error) {
    *exit_status = app.exit(error);
    return false;
  }
}

}  // namespace coxswain
