#include "train/life.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "client/elastic/drain_signal.h"
#include "client/schedule/schedule_client.h"

namespace coxswain {
namespace {

// How long the coordinator's reason may come after an error that a peer's end
// may have caused.
constexpr absl::Duration kReasonTimeout = absl::Seconds(3);

}  // namespace

absl::Status RunGuarded(absl::string_view what,
                        const std::function<absl::Status()>& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(what, " threw: ", error.what()));
  }
}

absl::Status AddSettings(const std::map<std::string, std::string>& settings,
                         JobManifest* manifest) {
  for (const auto& [name, value] : settings) {
    if (manifest->settings.emplace(name, value).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("TrainOptions::settings has \"", name,
                     "\", which is a setting of the library's own; give it "
                     "another name"));
  }
  return absl::OkStatus();
}

absl::Status CatchSigterm() {
  static const absl::Status caught = DrainOnSignal();
  return caught;
}

absl::StatusOr<bool> CatchSigtermIf(bool wanted, const schedule::Plan& plan) {
  if (!wanted || plan.terms.enforcement == schedule::Enforcement::kOff) {
    return false;
  }
  COXSWAIN_RETURN_IF_ERROR(CatchSigterm());
  return true;
}

absl::Status StopOnSigterm::Begin(bool wanted, const schedule::Plan& plan) {
  COXSWAIN_ASSIGN_OR_RETURN(waiting_, CatchSigtermIf(wanted, plan));
  return absl::OkStatus();
}

void StopOnSigterm::AfterStep(Session& session) {
  if (!waiting_ || !DrainSignalled()) return;
  waiting_ = false;
  // Both go with the next ticket, so that one decision has both.
  session.schedule().RequestCheckpoint(kStoppedBySigterm);
  session.schedule().RequestStop(kStoppedBySigterm);
}

absl::Status TrainInSession(
    const SessionOptions& options, const JobManifest& manifest,
    const std::function<absl::Status(
        Session& session, std::shared_ptr<void>* until_left)>& train) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                            Session::Join(options, manifest));
  std::shared_ptr<void> until_left;
  absl::Status status = train(*session, &until_left);
  if (status.ok()) return session->Leave("training is done");
  // The others hear at once of an error that is this rank's own.
  status =
      Explain(*session, status,
              MayComeFromPeers(status) ? kReasonTimeout : absl::ZeroDuration());
  // What else goes wrong while leaving follows from `status`.
  session->Leave(status.message(), /*failed=*/true).IgnoreError();
  return status;
}

}  // namespace coxswain
