#ifndef COXSWAIN_TRAIN_LIFE_H_
#define COXSWAIN_TRAIN_LIFE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/session/job.h"
#include "client/session/session.h"
#include "schedule/plan.h"

namespace coxswain {

// What the functions Train do around a program's body, whatever the framework.

// Why the ranks stop, and the checkpoint is saved, after SIGTERM.
constexpr char kStoppedBySigterm[] = "SIGTERM";

// Calls `run`, which is a program's own; INTERNAL, naming it `what`, if it
// throws.
absl::Status RunGuarded(absl::string_view what,
                        const std::function<absl::Status()>& run);

// Adds a program's own settings to those that the ranks compare. Fails with
// INVALID_ARGUMENT if the library has one of that name.
absl::Status AddSettings(const std::map<std::string, std::string>& settings,
                         JobManifest* manifest);

// SIGTERM as a request to stop: once in a process, however many trainings
// follow each other. Fails as DrainOnSignal.
absl::Status CatchSigterm();

// Catches it if `wanted`, and returns whether: where no gate decides for all
// ranks (enforcement=off), the signal ends the process as usual instead.
absl::StatusOr<bool> CatchSigtermIf(bool wanted, const schedule::Plan& plan);

// The same where no rank drains, and so all ranks stop together.
class StopOnSigterm {
 public:
  // As CatchSigtermIf.
  absl::Status Begin(bool wanted, const schedule::Plan& plan);
  // After each step: passes on to all ranks that the signal has come.
  void AfterStep(Session& session);

 private:
  bool waiting_ = false;
};

// Joins a job for one generation, calls `train` and leaves. Its error is
// returned with what the coordinator knows of its reason, and sent to the other
// ranks before. What `train` puts into `until_left` ends between leaving, which
// ends what it may wait for, and the end of the session. Fails as Session::Join
// otherwise.
absl::Status TrainInSession(
    const SessionOptions& options, const JobManifest& manifest,
    const std::function<absl::Status(
        Session& session, std::shared_ptr<void>* until_left)>& train);

}  // namespace coxswain

#endif  // COXSWAIN_TRAIN_LIFE_H_
