// A worker of an elastic job, for tests that kill it: see README.md.

#include <signal.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/elastic/drain_signal.h"
#include "client/elastic/elastic_run.h"
#include "hooks/registry/yaml_spec.h"
#include "nlohmann/json.hpp"
#include "tests/system/toy/elastic_toy_state.h"
#include "tests/system/toy/elastic_toy_training.h"

namespace coxswain {
namespace {

using Point = ToyTrainingOptions::Point;

struct Options {
  std::string hook = "allreduce";
  std::string dtype = "float64";
  int size = 64;
  int local_batch = 2;
  int64_t steps = 100;
  int64_t report_every = 1;
  double pace_ms = 0;
  double timeout_s = 60;
  double reason_timeout_s = 30;
  std::string out;
  std::string die;  // RANK:STEP:POINT
};

bool Parse(int argc, char** argv, Options* options, int* exit_status) {
  CLI::App app("a worker of an elastic job, for fault tests");
  app.add_option("--hook", options->hook, "communication hook spec or @FILE");
  app.add_option("--dtype", options->dtype)
      ->check(CLI::IsMember({"float32", "float64"}));
  app.add_option("--size", options->size, "elements of a matrix, about")
      ->check(CLI::Range(16, 1 << 22));
  app.add_option("--local-batch", options->local_batch, "samples per step");
  app.add_option("--steps", options->steps, "of the whole training");
  app.add_option("--report-every", options->report_every, "0: never");
  app.add_option("--pace-ms", options->pace_ms, "how long a step takes, least");
  app.add_option("--timeout", options->timeout_s, "seconds for an exchange");
  app.add_option("--reason-timeout", options->reason_timeout_s,
                 "seconds that the coordinator's word is awaited for");
  app.add_option("--out", options->out, "folder for the result");
  app.add_option("--die", options->die,
                 "RANK:STEP:before|within|decided|after: kills itself there, "
                 "in the first generation of the job");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_status = app.exit(error);
    return false;
  }
  return true;
}

void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

absl::string_view NameOf(Point point) {
  switch (point) {
    case Point::kBefore:
      return "before";
    case Point::kWithin:
      return "within";
    case Point::kDecided:
      return "decided";
    case Point::kAfter:
      return "after";
  }
  return "";
}

// When a line is written, by a clock that all processes of a machine share.
std::string AtMicros() {
  return absl::StrCat(" at_us ", absl::ToUnixMicros(Clock::Real()->Now()));
}

// What ended a generation, as its training function saw it.
void SayError(const ElasticGeneration& generation, const absl::Status& error) {
  const std::vector<std::string> lines = absl::StrSplit(error.message(), '\n');
  PrintLine(absl::StrCat("error ", absl::StatusCodeToString(error.code()),
                         " generation ", generation.session->generation(),
                         AtMicros(), " ", lines.front()));
}

void SayRecovery(const RecoveryReport& report) {
  PrintLine(absl::StrCat(
      "generation ", report.generation, " rank ", report.rank, " of ",
      report.world_size, " pid ", getpid(), " from step ", report.step,
      " source ", report.source, " copied ", report.copied ? "yes" : "no",
      " scale ", report.error_scale, " after ", report.previous_generation,
      " took_ms ",
      absl::StrFormat("%.1f", absl::ToDoubleMilliseconds(report.took)),
      " lost ", report.lost.size(), AtMicros()));
  for (const std::string& lost : report.lost) PrintLine("lost " + lost);
}

class Worker {
 public:
  explicit Worker(const Options& options)
      : options_(options),
        state_(*DTypeFromName(options.dtype), options.size,
               options.local_batch) {}

  absl::Status Run();

 private:
  absl::Status At(Point point, const ElasticGeneration& generation);
  absl::Status Report();

  const Options& options_;
  ElasticToyState state_;
  SessionOptions session_;
  CancelSignal never_;  // never raised: waiting for it is a pause
};

absl::Status Worker::Run() {
  COXSWAIN_RETURN_IF_ERROR(DrainOnSignal());
  COXSWAIN_ASSIGN_OR_RETURN(session_, SessionOptions::FromEnvironment());
  ElasticRun::Options options;
  options.session = session_;
  options.session.collective_timeout = absl::Seconds(options_.timeout_s);
  COXSWAIN_ASSIGN_OR_RETURN(options.manifest.hook,
                            ReadHookArgument(options_.hook));
  options.manifest.parameters = state_.specs();
  options.recovery.timeout = absl::Seconds(options_.timeout_s);
  options.reason_timeout = absl::Seconds(options_.reason_timeout_s);
  options.on_recovery = SayRecovery;
  options.drain_requested = DrainSignalled;
  ToyTrainingOptions training;
  training.steps = options_.steps;
  training.timeout = absl::Seconds(options_.timeout_s);
  training.at = [this](Point point, const ElasticGeneration& generation) {
    return At(point, generation);
  };
  COXSWAIN_RETURN_IF_ERROR(ElasticRun::Run(
      options, &state_,
      [&](ElasticGeneration& generation, ElasticRun::Trained* trained) {
        const absl::Status trained_until =
            TrainElasticToy(training, &state_, generation, trained);
        if (!trained_until.ok()) SayError(generation, trained_until);
        return trained_until;
      }));
  return Report();
}

absl::Status Worker::At(Point point, const ElasticGeneration& generation) {
  const std::string here = absl::StrCat(generation.communicator->rank(), ":",
                                        state_.step(), ":", NameOf(point));
  const bool first = generation.recovery.previous_generation == 0 &&
                     generation.recovery.step == 0;
  if (first && here == options_.die) kill(getpid(), SIGKILL);
  if (point == Point::kBefore && options_.pace_ms > 0) {
    never_.WaitFor(absl::Milliseconds(options_.pace_ms));
  }
  if (point == Point::kAfter && options_.report_every > 0 &&
      state_.step() % options_.report_every == 0) {
    PrintLine(absl::StrCat("step ", state_.step(), " generation ",
                           generation.session->generation(), " world ",
                           generation.communicator->size(), AtMicros()));
  }
  return absl::OkStatus();
}

absl::Status Worker::Report() {
  const std::string bits = state_.Bits();
  // Takes time by the steps.
  const double distance = state_.Distance();
  nlohmann::json result;
  result["worker"] = session_.identity.ToString();
  result["step"] = state_.step();
  result["finished"] = state_.step() >= options_.steps;
  result["samples"] = state_.samples();
  result["parameters"] = absl::StrFormat("%08x", Crc32c(bits));
  result["exact"] = distance == 0;
  result["distance"] = distance;
  nlohmann::json runs = nlohmann::json::array();
  for (const ToyRun& run : state_.runs()) {
    runs.push_back({{"generation", run.generation},
                    {"world", run.world_size},
                    {"steps", run.steps}});
  }
  // A launcher divides long lines, and there may be thousands of runs.
  result["runs"] = absl::StrFormat("%08x", Crc32c(runs.dump()));
  PrintLine("result " + result.dump());
  if (options_.out.empty()) return absl::OkStatus();
  const std::string path = absl::StrCat(
      options_.out, "/", session_.identity.node, "-", session_.identity.slot);
  std::ofstream(path + ".bits", std::ios::binary) << bits;
  result["runs"] = runs;
  std::ofstream json(path + ".json");
  json << result.dump() << "\n";
  if (json.flush()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write ", path, ".json"));
}

}  // namespace
}  // namespace coxswain

int main(int argc, char** argv) {
  coxswain::Options options;
  int exit_status = 0;
  if (!coxswain::Parse(argc, argv, &options, &exit_status)) return exit_status;
  const absl::Status status = coxswain::Worker(options).Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "elastic_toy: %s\n",
               std::string(status.message()).c_str());
  return 1;
}
