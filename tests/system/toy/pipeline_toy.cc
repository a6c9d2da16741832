// A worker of a job with a pipeline, for tests that stop or kill it: each pass
// takes a while, and adds its micro-batch to what comes from the stage before.
//
// Prints
//   rank R of W pid P
//   rank R step S sum N     after each step: of the last stage's outputs
//   rank R within A of step S   where it waits at the latch
//   rank R ended            after the last step
//   rank R error CODE TEXT  how it ended otherwise

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/status_macros.h"
#include "client/pipeline/pipeline_executor.h"
#include "client/session/session.h"
#include "schedule/pipeline/generate.h"
#include "schedule/plan_words.h"

namespace coxswain {
namespace {

constexpr absl::Duration kExchangeTimeout = absl::Minutes(5);

struct Options {
  std::string mesh = "pp=2,dp=*";
  std::string pipeline = "1f1b";
  int micro_batches = 4;
  int64_t steps = 10;
  double pass_ms = 1;
  std::string latch;
  int wait_rank = -1;
  int64_t wait_step = -1;
  int wait_micro = 0;
  std::vector<std::string> terms;
};

bool Parse(int argc, char** argv, Options* options, int* exit_status) {
  CLI::App app("a worker of a job with a pipeline, for fault tests");
  app.add_option("--mesh", options->mesh);
  app.add_option("--pipeline", options->pipeline);
  app.add_option("--micro-batches", options->micro_batches);
  app.add_option("--steps", options->steps);
  app.add_option("--pass-ms", options->pass_ms, "how long each pass takes");
  app.add_option("--term", options->terms, "NAME=VALUE of the plan");
  app.add_option("--latch", options->latch, "fifo to wait at");
  app.add_option("--wait-rank", options->wait_rank,
                 "the rank that waits at the latch, in a forward pass");
  app.add_option("--wait-step", options->wait_step);
  app.add_option("--wait-micro", options->wait_micro);
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

Activations One(int64_t value) {
  auto memory = std::make_shared<int64_t>(value);
  int64_t* const data = memory.get();
  return {{DType::kInt64, {1}, std::shared_ptr<void>(memory, data)}};
}
int64_t ValueOf(const Activations& tensors) {
  return *static_cast<const int64_t*>(tensors[0].memory.get());
}

class ToyStage : public StageRunner {
 public:
  ToyStage(const Options& options, int rank, int stage, int stages)
      : options_(options), rank_(rank), stage_(stage), stages_(stages) {}

  absl::Status Begin(int /*micro_batches*/, bool /*halves*/) override {
    ++step_;
    sum_ = 0;
    return absl::OkStatus();
  }

  absl::Status Forward(int micro_batch, Activations inputs,
                       Activations* outputs) override {
    COXSWAIN_RETURN_IF_ERROR(WaitAtLatch(micro_batch));
    never_.WaitFor(absl::Milliseconds(options_.pass_ms));
    const int64_t value =
        micro_batch + 1 + (stage_ > 0 ? ValueOf(inputs) : step_);
    if (stage_ + 1 == stages_) {
      sum_ += value;
    } else {
      *outputs = One(value);
    }
    return absl::OkStatus();
  }

  absl::Status Backward(int /*micro_batch*/, Activations /*gradients*/,
                        Activations* input_gradients) override {
    never_.WaitFor(absl::Milliseconds(options_.pass_ms));
    if (stage_ > 0) *input_gradients = One(1);
    return absl::OkStatus();
  }

  void Reset() override {}
  int64_t sum() const { return sum_; }

 private:
  // The test holds the fifo open for writing, and opens the latch by closing
  // it.
  absl::Status WaitAtLatch(int micro_batch) {
    if (rank_ != options_.wait_rank || step_ != options_.wait_step ||
        micro_batch != options_.wait_micro) {
      return absl::OkStatus();
    }
    const int fd = open(options_.latch.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, options_.latch);
    PrintLine(absl::StrCat("rank ", rank_, " within ", stage_, "F", micro_batch,
                           " of step ", step_));
    char byte = 0;
    (void)!read(fd, &byte, 1);
    close(fd);
    return absl::OkStatus();
  }

  const Options& options_;
  const int rank_;
  const int stage_;
  const int stages_;
  int64_t step_ = -1;
  int64_t sum_ = 0;
  CancelSignal never_;
};

absl::Status Train(Session& session, const Options& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const MeshGroups groups,
                            session.GroupsOf(session.mesh()));
  Communicator& along = groups.pp->communicator();
  COXSWAIN_ASSIGN_OR_RETURN(
      pipeline::Schedule schedule,
      pipeline::MakeSchedule(options.pipeline, along.size(),
                             options.micro_batches));
  std::vector<std::unique_ptr<ToyStage>> stages;
  std::vector<StageRunner*> runners;
  for (const int stage : schedule.StagesOf(along.rank())) {
    stages.push_back(std::make_unique<ToyStage>(options, session.rank(), stage,
                                                schedule.stages()));
    runners.push_back(stages.back().get());
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto executor,
      PipelineExecutor::Create(std::move(schedule), &along, std::move(runners),
                               PipelineExecutorOptions()));
  session.SetPipelinePlace(executor->PlaceSource());
  for (int64_t step = 0; step < options.steps; ++step) {
    COXSWAIN_RETURN_IF_ERROR(executor->Run());
    // In the place of the exchange of gradients.
    COXSWAIN_RETURN_IF_ERROR(
        groups.data->communicator().Barrier()->Wait(kExchangeTimeout));
    PrintLine(absl::StrCat("rank ", session.rank(), " step ", step, " sum ",
                           stages.back()->sum()));
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  COXSWAIN_ASSIGN_OR_RETURN(auto session_options,
                            SessionOptions::FromEnvironment());
  JobManifest manifest;
  manifest.mesh = options.mesh;
  manifest.accumulation_steps = options.micro_batches;
  manifest.terms.pipeline = options.pipeline;
  for (const std::string& term : options.terms) {
    const size_t at = term.find('=');
    COXSWAIN_RETURN_IF_ERROR(
        manifest.terms.Set(term.substr(0, at), term.substr(at + 1)));
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto session, Session::Join(std::move(session_options), manifest));
  PrintLine(absl::StrCat("rank ", session->rank(), " of ",
                         session->world_size(), " pid ", getpid()));
  absl::Status status =
      Explain(*session, Train(*session, options), absl::Seconds(20));
  if (!status.ok()) {
    PrintLine(
        absl::StrCat("rank ", session->rank(), " error ",
                     absl::StatusCodeToString(status.code()), " ",
                     absl::StrReplaceAll(status.message(), {{"\n", " "}})));
    session->Leave(status.message(), /*failed=*/true).IgnoreError();
    return status;
  }
  PrintLine(absl::StrCat("rank ", session->rank(), " ended"));
  return session->Leave("done");
}

}  // namespace
}  // namespace coxswain

int main(int argc, char** argv) {
  coxswain::Options options;
  int exit_status = 0;
  if (!coxswain::Parse(argc, argv, &options, &exit_status)) return exit_status;
  const absl::Status status = coxswain::Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "pipeline_toy: %s\n",
               std::string(status.message()).c_str());
  return 1;
}
