// A worker of an elastic job over libtorch, for tests that kill it: its lines
// are those of elastic_toy.

#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/cancel_signal.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/torch/elastic/elastic_training.h"
#include "hooks/registry/planned_hook.h"
#include "nlohmann/json.hpp"
#include "tests/system/toy/tally.h"

namespace coxswain::torch {
namespace {

constexpr int64_t kRows = 1 << 17;
// How long a step takes, least, so that the rows last.
constexpr absl::Duration kPace = absl::Milliseconds(5);

void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

absl::Status Run() {
  const auto tally = std::make_shared<Tally>(kRows);
  ::torch::optim::SGD optimizer(tally->parameters(), 1.0);
  ElasticTrainingOptions options;
  COXSWAIN_ASSIGN_OR_RETURN(options.run.session,
                            SessionOptions::FromEnvironment());
  options.ddp.make_hook = MakePlannedHook;
  options.ddp.accumulation_steps = 2;
  options.run.on_recovery = [](const RecoveryReport& report) {
    PrintLine(absl::StrCat("generation ", report.generation, " rank ",
                           report.rank, " of ", report.world_size, " pid ",
                           getpid(), " step ", report.step, " copied ",
                           report.copied ? "yes" : "no"));
  };
  CancelSignal never;  // never raised: waiting for it is a pause
  TallyTraining training;
  training.steps = kRows;  // the plan's max_steps come first
  training.peek_every = 1'000'000;
  training.before_step = [&never](ElasticTraining& t) {
    never.WaitFor(kPace);
    PrintLine(absl::StrCat("step ", t.step(), " generation ",
                           t.session().generation()));
    return absl::OkStatus();
  };
  TallyResult result;
  COXSWAIN_RETURN_IF_ERROR(
      ElasticTraining::Run(options, tally, optimizer, [&](ElasticTraining& t) {
        return TrainTally(training, *tally, t, &result);
      }));
  const absl::Status exact = tally->CheckUsedOnce(result.rows, result.dropped);
  if (!exact.ok()) PrintLine(std::string(exact.message()));
  const auto counts = tally->parameters()[0].detach();
  nlohmann::json json;
  json["step"] = result.step;
  json["finished"] = true;
  json["samples"] = result.rows;
  json["exact"] = exact.ok();
  json["runs"] = nlohmann::json::array();
  json["parameters"] = absl::StrFormat(
      "%08x",
      Crc32c(absl::string_view(static_cast<const char*>(counts.data_ptr()),
                               counts.nbytes())));
  PrintLine("result " + json.dump());
  return absl::OkStatus();
}

}  // namespace
}  // namespace coxswain::torch

int main() {
  at::set_num_threads(1);
  const absl::Status status = coxswain::torch::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "elastic_tally: %s\n",
               std::string(status.message()).c_str());
  return 1;
}
