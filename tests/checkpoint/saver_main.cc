// A worker that does nothing but save: all ranks upload their shard of a step,
// rank 0 commits it, and so on from the step after the newest complete one,
// until it is killed. Rank 0 keeps three checkpoints. Ends with 1 when the
// generation does.

#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/session/session.h"
#include "tests/checkpoint/shard_bytes.h"

namespace coxswain {
namespace {

constexpr size_t kKept = 3;
constexpr absl::Duration kTimeout = absl::Minutes(1);

absl::Status Prune(CheckpointClient& checkpoints) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto all, checkpoints.List());
  for (size_t i = kKept; i < all.size(); ++i) {
    const absl::Status status = checkpoints.Delete(all[i].id);
    // One that a coordinator has deleted before it died.
    if (!absl::IsNotFound(status)) COXSWAIN_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// Rank 0 commits. False, for all ranks: a new coordinator knows nothing of what
// was uploaded to the last, be it all or the shard of one rank, so it has to be
// uploaded again.
absl::StatusOr<bool> CommitStep(Session& session, int64_t step,
                                const std::string& id, int attempt) {
  const std::string key = absl::StrCat("committed ", step, " ", attempt);
  if (session.rank() == 0) {
    const absl::Status status = session.checkpoints().Commit(id).status();
    if (!absl::IsNotFound(status) && !absl::IsFailedPrecondition(status)) {
      COXSWAIN_RETURN_IF_ERROR(status);
    }
    if (status.ok()) {
      std::cout << absl::StrCat("complete ", step, "\n") << std::flush;
      COXSWAIN_RETURN_IF_ERROR(Prune(session.checkpoints()));
    }
    COXSWAIN_RETURN_IF_ERROR(
        session.store().Set(key, status.ok() ? "yes" : "no"));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::string answer,
                            session.store().Get(key, kTimeout));
  return answer == "yes";
}

absl::Status SaveStep(Session& session, int64_t step) {
  auto bytes =
      std::make_shared<const std::string>(ShardBytes(step, session.rank()));
  for (int attempt = 0;; ++attempt) {
    COXSWAIN_ASSIGN_OR_RETURN(
        const std::string id,
        session.checkpoints().Save(step, session.rank(), session.world_size(),
                                   {}, *bytes, bytes));
    COXSWAIN_RETURN_IF_ERROR(session.Barrier(
        "", absl::StrCat("saved ", step, " ", attempt), kTimeout));
    COXSWAIN_ASSIGN_OR_RETURN(const bool committed,
                              CommitStep(session, step, id, attempt));
    if (committed) return absl::OkStatus();
  }
}

absl::Status Run() {
  COXSWAIN_ASSIGN_OR_RETURN(const auto options,
                            SessionOptions::FromEnvironment());
  COXSWAIN_ASSIGN_OR_RETURN(const auto session,
                            Session::Join(options, JobManifest()));
  COXSWAIN_ASSIGN_OR_RETURN(const auto complete, session->checkpoints().List());
  int64_t step = complete.empty() ? 0 : complete.front().step;
  while (true) {
    COXSWAIN_RETURN_IF_ERROR(SaveStep(*session, ++step));
  }
}

}  // namespace
}  // namespace coxswain

int main() {
  std::cerr << coxswain::Run().message() << std::endl;
  return 1;
}
