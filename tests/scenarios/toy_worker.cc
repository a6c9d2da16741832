// One rank of a small job, started by the launcher:
//   coxswain run --nproc 2 -- toy_worker --hook 'powersgd(rank=2)' --steps 20
//
// Prints, for the tests that start it, and each line at once:
//   rank R of W pid P        once it has joined
//   rank R through BACKEND   once it is connected
//   rank R at step S         when it waits at the gate
//   rank R step S            after S steps; with --digest " digest HEX"
//   rank R done              when it has left the job
// and an error, in the session's words, on stderr.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "client/accumulate/accumulator.h"
#include "client/checkpoint/training_state.h"
#include "client/reduce/reducer.h"
#include "client/session/explain.h"
#include "client/session/session.h"
#include "hooks/planned_hook.h"
#include "hooks/yaml_spec.h"
#include "tests/scenarios/toy_model.h"

namespace coxswain {
namespace {

struct ToyOptions {
  ToyModelOptions model;
  std::string hook = "allreduce";
  int64_t first_step = 0;
  int64_t steps = 10;
  int accumulate = 1;
  int64_t save_at = -1;
  bool restore = false;
  bool replay = false;
  bool digest = false;
  int64_t report_every = 1;
  int64_t wait_at = -1;
  std::string gate;
  std::string dump;
};

class ToyWorker {
 public:
  explicit ToyWorker(const ToyOptions& options)
      : options_(options), model_(options.model) {}

  absl::Status Run();

 private:
  absl::Status Join();
  absl::Status Connect();
  absl::Status Restore();
  absl::Status Save();
  absl::Status Train();
  absl::Status Step();
  absl::Status ComputeGradients();
  absl::Status WaitAtGate() const;
  void Report() const;
  absl::Status Dump();

  const ToyOptions options_;
  ToyModel model_;
  int64_t step_ = 0;
  // The reducer aborts a step in flight when it goes, so it goes first.
  std::unique_ptr<Session> session_;
  std::shared_ptr<ProcessGroup> world_;
  std::unique_ptr<Hook> hook_;
  std::unique_ptr<Accumulator> accumulator_;
  std::unique_ptr<Reducer> reducer_;
  std::ofstream dump_;
};

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

absl::Status ToyWorker::Run() {
  COXSWAIN_RETURN_IF_ERROR(Join());
  absl::Status status = Train();
  if (status.ok()) {
    COXSWAIN_RETURN_IF_ERROR(session_->Leave("done"));
    Say(absl::StrCat("rank ", session_->rank(), " done"));
    return status;
  }
  status = Explain(*session_, status);
  session_->Leave(status.message(), /*failed=*/true).IgnoreError();
  return status;
}

absl::Status ToyWorker::Join() {
  JobManifest manifest;
  COXSWAIN_ASSIGN_OR_RETURN(manifest.hook, ReadHookArgument(options_.hook));
  manifest.accumulation_steps = options_.accumulate;
  manifest.parameters = model_.specs();
  COXSWAIN_ASSIGN_OR_RETURN(const SessionOptions session_options,
                            SessionOptions::FromEnvironment());
  COXSWAIN_ASSIGN_OR_RETURN(session_, Session::Join(session_options, manifest));
  Say(absl::StrCat("rank ", session_->rank(), " of ", session_->world_size(),
                   " pid ", getpid()));
  return absl::OkStatus();
}

absl::Status ToyWorker::Connect() {
  COXSWAIN_ASSIGN_OR_RETURN(world_, session_->World());
  Say(absl::StrCat("rank ", session_->rank(), " through ",
                   world_->communicator().backend()));
  COXSWAIN_ASSIGN_OR_RETURN(hook_, MakePlannedHook(session_->plan()));
  COXSWAIN_ASSIGN_OR_RETURN(
      Accumulator accumulator,
      Accumulator::Create(session_->plan().accumulation_steps));
  accumulator_ = std::make_unique<Accumulator>(std::move(accumulator));
  ReducerOptions reducer;
  reducer.buckets.first_bucket_bytes = 4096;  // several, of a small model
  reducer.buckets.bucket_bytes = 8192;
  COXSWAIN_ASSIGN_OR_RETURN(
      reducer_, Reducer::Create(reducer, model_.specs(), hook_.get(),
                                &world_->communicator()));
  std::vector<Span> parameters;
  for (size_t p = 0; p < model_.specs().size(); ++p) {
    parameters.push_back(model_.Parameter(p));
  }
  if (options_.restore) COXSWAIN_RETURN_IF_ERROR(Restore());
  return reducer_->BroadcastFromRoot(parameters);
}

absl::Status ToyWorker::Restore() {
  COXSWAIN_ASSIGN_OR_RETURN(TrainingState state,
                            LoadTrainingState(session_->checkpoints()));
  if (!model_.SetBytes(state.blobs["parameters"])) {
    return absl::FailedPreconditionError(
        "the checkpoint holds another model's parameters");
  }
  step_ = state.step;
  return hook_->LoadState(state.hook, session_->rank(), session_->world_size());
}

absl::Status ToyWorker::Save() {
  return SaveTrainingState(session_->checkpoints(), world_->communicator(),
                           step_, *hook_, {{"parameters", model_.Bytes()}});
}

absl::Status ToyWorker::Train() {
  step_ = options_.first_step;
  COXSWAIN_RETURN_IF_ERROR(Connect());
  if (!options_.dump.empty() && session_->rank() == 0) {
    dump_.open(options_.dump, std::ios::binary | std::ios::trunc);
    if (!dump_) return absl::UnavailableError("cannot write the dump");
  }
  while (step_ < options_.steps) {
    if (step_ == options_.wait_at) COXSWAIN_RETURN_IF_ERROR(WaitAtGate());
    COXSWAIN_RETURN_IF_ERROR(Step());
    ++step_;
    session_->ReportProgress(step_);
    if (step_ % options_.report_every == 0) Report();
    if (step_ == options_.save_at) COXSWAIN_RETURN_IF_ERROR(Save());
  }
  return absl::OkStatus();
}

absl::Status ToyWorker::Step() {
  COXSWAIN_RETURN_IF_ERROR(ComputeGradients());
  COXSWAIN_RETURN_IF_ERROR(reducer_->BeginStep());
  for (int p = static_cast<int>(model_.specs().size()) - 1; p >= 0; --p) {
    COXSWAIN_RETURN_IF_ERROR(reducer_->MarkReady(p, model_.Gradient(p)));
  }
  COXSWAIN_RETURN_IF_ERROR(reducer_->Finish());
  if (dump_.is_open()) COXSWAIN_RETURN_IF_ERROR(Dump());
  COXSWAIN_RETURN_IF_ERROR(reducer_->Commit());
  for (size_t p = 0; p < model_.specs().size(); ++p) {
    model_.Descend(p, reducer_->GradientView(p));
  }
  return absl::OkStatus();
}

absl::Status ToyWorker::ComputeGradients() {
  const ToyPlace place = {session_->rank(), session_->world_size()};
  model_.ClearGradients();
  MicroBatch micro;
  do {
    COXSWAIN_ASSIGN_OR_RETURN(micro, accumulator_->BeginMicroBatch());
    model_.AddGradients(step_, micro.micro, micro.window, place);
  } while (!micro.sync);
  if (options_.replay) model_.ReplayGradients(step_, place);
  return absl::OkStatus();
}

// The test holds the fifo open for writing, and opens the gate by closing it.
absl::Status ToyWorker::WaitAtGate() const {
  const int fd = open(options_.gate.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, options_.gate);
  Say(absl::StrCat("rank ", session_->rank(), " at step ", step_));
  char byte;
  while (read(fd, &byte, 1) < 0 && errno == EINTR) {
  }
  close(fd);
  return absl::OkStatus();
}

void ToyWorker::Report() const {
  std::string line = absl::StrCat("rank ", session_->rank(), " step ", step_);
  if (options_.digest) {
    absl::StrAppend(&line, " digest ",
                    absl::Hex(Crc32c(model_.Bytes()), absl::kZeroPad8));
  }
  Say(line);
}

// A line "STEP PARAMETER COUNT", then the averaged gradient as doubles.
absl::Status ToyWorker::Dump() {
  for (size_t p = 0; p < model_.specs().size(); ++p) {
    const Span view = reducer_->GradientView(p);
    std::vector<double> values(view.count);
    for (int64_t i = 0; i < view.count; ++i) {
      values[i] = view.dtype == DType::kFloat64
                      ? static_cast<const double*>(view.data)[i]
                      : static_cast<const float*>(view.data)[i];
    }
    dump_ << step_ << " " << model_.specs()[p].name << " " << view.count
          << "\n";
    dump_.write(reinterpret_cast<const char*>(values.data()),
                values.size() * sizeof(double));
  }
  dump_.flush();
  return dump_ ? absl::OkStatus()
               : absl::DataLossError("could not write the dump");
}

void AddOptions(CLI::App& app, ToyOptions& options, std::string& dtype) {
  app.add_option("--hook", options.hook, "communication hook spec or @FILE");
  app.add_option("--first-step", options.first_step, "number of the first");
  app.add_option("--steps", options.steps, "number after the last step");
  app.add_option("--accumulate", options.accumulate, "micro-batches per step");
  app.add_option("--dtype", dtype, "float32 or float64")
      ->check(CLI::IsMember({"float32", "float64"}));
  app.add_option("--hidden", options.model.hidden, "units of the first layer")
      ->check(CLI::Range(1, 4096));
  app.add_flag("--extra-parameter", options.model.extra_parameter,
               "one parameter more than others have");
  app.add_option("--save-at", options.save_at, "save after so many steps");
  app.add_flag("--restore", options.restore, "go on from the last checkpoint");
  app.add_flag("--replay", options.replay,
               "recorded gradients instead of the model's own");
  app.add_flag("--digest", options.digest,
               "print a checksum of all parameters");
  app.add_option("--report-every", options.report_every, "steps")
      ->check(CLI::PositiveNumber);
  auto* gate = app.add_option("--gate", options.gate, "fifo to wait at");
  app.add_option("--wait-at", options.wait_at, "wait before this step")
      ->needs(gate);
  app.add_option("--dump", options.dump,
                 "where rank 0 writes the averaged gradients");
}

}  // namespace
}  // namespace coxswain

int main(int argc, char** argv) {
  CLI::App app("A small job's worker, for tests");
  coxswain::ToyOptions options;
  std::string dtype = "float32";
  coxswain::AddOptions(app, options, dtype);
  CLI11_PARSE(app, argc, argv);
  options.model.dtype = *coxswain::DTypeFromName(dtype);
  const absl::Status status = coxswain::ToyWorker(options).Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "toy_worker: %s\n",
               std::string(status.message()).c_str());
  return 1;
}
