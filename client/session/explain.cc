#include "client/session/explain.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
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
  // What the coordinator said may be what was seen: then only where is new.
  std::string seen(error.message());
  const std::string said = absl::StrCat(": ", reason.message());
  if (absl::EndsWith(seen, said)) seen.resize(seen.size() - said.size());
  absl::Status explained(
      reason.code(),
      absl::StrCat(reason.message(), " (seen here as: ", seen, ")"));
  if (const auto detail = reason.GetPayload(kErrorDetailUrl)) {
    explained.SetPayload(kErrorDetailUrl, *detail);
  }
  return explained;
}

}  // namespace coxswain
