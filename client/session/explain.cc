#include "client/session/explain.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "client/comm/work.h"

namespace coxswain {

absl::Status Explain(Session& session, const absl::Status& error,
                     absl::Duration patience) {
  if (error.ok()) return error;
  // The callback may come after this function has returned.
  auto verdict = std::make_shared<Work>();
  session.OnAbort(
      [verdict](const absl::Status& reason) { verdict->Complete(reason); });
  absl::Status reason = verdict->Wait(patience);
  if (!verdict->Done() || reason.ok()) return error;
  if (reason.message() == error.message()) return reason;
  return absl::Status(
      reason.code(),
      absl::StrCat(reason.message(), " (seen here as: ", error.message(), ")"));
}

}  // namespace coxswain
