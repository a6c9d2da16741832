#include "server/membership/membership_errors.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/types.pb.h"
#include "server/membership/member_proto.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

// A detail travels in trailing metadata, which receivers bound at 8 KiB.
constexpr size_t kMaxDetailBytes = 2048;
// What of that detail's lines is in the message as well.
constexpr size_t kMaxMismatchBytes = 1000;

}  // namespace

absl::Status StaleFenceError(const StaleField& stale,
                             absl::string_view explanation) {
  v1::ErrorDetail detail;
  v1::StaleFence* fence = detail.mutable_stale_fence();
  fence->set_field(std::string(stale.field));
  fence->set_expected(stale.expected);
  fence->set_actual(stale.actual);
  return WithDetail(absl::FailedPreconditionError(absl::StrCat(
                        "stale ", stale.field, " ", stale.actual, " (now ",
                        stale.expected, "): ", explanation)),
                    detail);
}

absl::Status ManifestMismatchError(
    absl::string_view what, const std::vector<std::string>& differences) {
  v1::ErrorDetail detail;
  std::string message = absl::StrCat(what, ":");
  size_t listed = 0;
  for (const std::string& line : differences) {
    detail.mutable_manifest_mismatch()->add_differences(line);
    if (message.size() + line.size() > kMaxMismatchBytes && listed > 0) {
      continue;
    }
    absl::StrAppend(&message, "\n  ", line);
    ++listed;
  }
  if (listed < differences.size()) absl::StrAppend(&message, "\n  ...");
  return WithDetail(absl::FailedPreconditionError(message), detail);
}

absl::Status MissingMembersError(absl::string_view message, int expected,
                                 const std::vector<WorkerIdentity>& present,
                                 const std::vector<int>& missing_ranks) {
  v1::ErrorDetail detail;
  v1::MissingMembers* missing = detail.mutable_missing_members();
  missing->set_expected(expected);
  for (const WorkerIdentity& identity : present) {
    if (missing->ByteSizeLong() > kMaxDetailBytes) break;
    *missing->add_present() = ToProto(identity);
  }
  for (const int rank : missing_ranks) {
    if (missing->ByteSizeLong() > kMaxDetailBytes) break;
    missing->add_missing_ranks(rank);
  }
  return WithDetail(absl::DeadlineExceededError(message), detail);
}

absl::Status NoSuchJobError(absl::string_view job) {
  return absl::NotFoundError(absl::StrCat("no job '", job, "' is known"));
}

absl::Status IdentityTakenError(absl::string_view job,
                                const WorkerIdentity& identity) {
  return absl::AlreadyExistsError(absl::StrCat(
      "another live process is worker ", identity.ToString(), " of job '", job,
      "'; give each launcher on a machine its own --node, or choose another "
      "--job name"));
}

absl::Status SameIncarnationError(const WorkerIdentity& holder) {
  return absl::InvalidArgumentError(
      absl::StrCat("worker ", holder.ToString(),
                   " has the same incarnation; it must be random"));
}

absl::Status IdentityLostError(absl::string_view job,
                               const WorkerIdentity& identity) {
  return absl::AlreadyExistsError(
      absl::StrCat("a newer process has taken the place of this one as worker ",
                   identity.ToString(), " of job '", job, "': end this one"));
}

absl::Status NotWrittenError(const absl::Status& status) {
  if (!absl::IsAborted(status)) return status;
  return absl::UnavailableError(status.message());
}

absl::Status JobFinishedError(absl::string_view message) {
  v1::ErrorDetail detail;
  detail.mutable_job_finished();
  return WithDetail(absl::CancelledError(message), detail);
}

absl::Status GenerationEndedError(absl::string_view reason,
                                  const std::optional<Member>& lost) {
  absl::Status status = absl::AbortedError(reason);
  if (!lost.has_value()) return status;
  v1::ErrorDetail detail;
  *detail.mutable_member_lost()->mutable_member() = ToProto(*lost);
  detail.mutable_member_lost()->set_reason(std::string(reason));
  return WithDetail(std::move(status), detail);
}

}  // namespace coxswain::server
