// One rank of a small job, started by the launcher:
//   coxswain run --nproc 2 -- toy_worker --hook 'powersgd(rank=2)' --steps 20
//
// Prints, for the tests that start it, and each line at once:
//   rank R of W pid P        once it has joined
//   rank R through BACKEND   once it is connected
//   rank R at step S         when it waits at the latch
//   rank R window S of M/N weight X plan V  with --windows: step S sums up M
//                                           micro-batches of N
//   rank R step S            after S steps; with --digest " digest HEX"
//   rank R skips step S: REASON
//   rank R stops after step S: REASON
//   rank R plan V from step S: accumulation K hook SPEC
//   rank R evaluates on N    micro-batches
//   rank R ends epoch E after step S
//   rank R done              when it has left the job
// and an error, in the session's words, on stderr.

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/session/session.h"
#include "hooks/registry/yaml_spec.h"
#include "tests/system/toy/toy_training.h"

namespace coxswain {
namespace {

absl::StatusOr<std::unique_ptr<Session>> Join(const ToyOptions& options) {
  JobManifest manifest;
  COXSWAIN_ASSIGN_OR_RETURN(manifest.hook, ReadHookArgument(options.hook));
  manifest.accumulation_steps = options.accumulate;
  manifest.terms = options.terms;
  manifest.parameters = ToyModel(options.model).specs();
  COXSWAIN_ASSIGN_OR_RETURN(const SessionOptions session_options,
                            SessionOptions::FromEnvironment());
  return Session::Join(session_options, manifest);
}

absl::Status RunWorker(const ToyOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            Join(options));
  PrintLine(absl::StrCat("rank ", session->rank(), " of ",
                         session->world_size(), " pid ", getpid()));
  ToyTraining training(options, session.get());
  absl::Status status = training.Run();
  if (status.ok()) {
    COXSWAIN_RETURN_IF_ERROR(session->Leave("done"));
    PrintLine(absl::StrCat("rank ", session->rank(), " done"));
    return status;
  }
  status = Explain(*session, status);
  session->Leave(status.message(), /*failed=*/true).IgnoreError();
  return status;
}

}  // namespace
}  // namespace coxswain

int main(int argc, char** argv) {
  coxswain::ToyOptions options;
  int exit_status = 0;
  if (!coxswain::ParseToyOptions(argc, argv, &options, &exit_status)) {
    return exit_status;
  }
  const absl::Status status = coxswain::RunWorker(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "toy_worker: %s\n",
               std::string(status.message()).c_str());
  return 1;
}
