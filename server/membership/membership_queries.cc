// The part of Membership that answers questions.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {

absl::Status Membership::CheckWorldLocked(const Fence& fence) const {
  if (shut_down_) return absl::UnavailableError("coordinator shuts down");
  if (fence.cluster_id != cluster_id()) {
    return StaleFenceError({"cluster_id", cluster_id(), fence.cluster_id},
                           "this is the coordinator of another cluster");
  }
  if (fence.term != term()) {
    return StaleFenceError({"term", absl::StrCat(term().value()),
                            absl::StrCat(fence.term.value())},
                           "the coordinator was restarted; join again");
  }
  return absl::OkStatus();
}

absl::StatusOr<const JobMembership*> Membership::FindFencedJobLocked(
    const Fence& fence) const {
  COXSWAIN_RETURN_IF_ERROR(CheckWorldLocked(fence));
  const auto found = jobs_.find(fence.job);
  if (found == jobs_.end()) return NoSuchJobError(fence.job);
  return &found->second.machine;
}

absl::StatusOr<const MemberRecord*> Membership::AdmitLocked(
    const Fence& fence) const {
  COXSWAIN_ASSIGN_OR_RETURN(const JobMembership* const job,
                            FindFencedJobLocked(fence));
  return job->Admit(fence.generation, fence.incarnation);
}

absl::StatusOr<Caller> Membership::Admit(const Fence& fence) const {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const MemberRecord* const record,
                            AdmitLocked(fence));
  Caller caller;
  caller.identity = record->member.identity;
  caller.rank = record->member.rank;
  caller.world_size =
      static_cast<int>(jobs_.at(fence.job).machine.members().size());
  return caller;
}

absl::StatusOr<uint64_t> Membership::AttachmentOf(const Fence& fence) const {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const MemberRecord* const record,
                            AdmitLocked(fence));
  if (record->attachment != 0) return record->attachment;
  return absl::NotFoundError(
      absl::StrCat(record->member.ToString(), " is not attached"));
}

absl::StatusOr<std::shared_ptr<const std::vector<Member>>> Membership::PeersOf(
    const Fence& fence) const {
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(AdmitLocked(fence).status());
  return jobs_.at(fence.job).machine.members().list();
}

absl::Status Membership::AdmitOperator(const Fence& fence) const {
  MutexLock lock(&mutex_);
  COXSWAIN_RETURN_IF_ERROR(CheckWorldLocked(fence));
  if (fence.generation == Generation(0) &&
      fence.incarnation == Incarnation(0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "this is a request of an operator: generation and incarnation of its "
      "fence must be 0");
}

absl::StatusOr<AttachedRank> Membership::AttachedRankOf(
    uint64_t attachment) const {
  MutexLock lock(&mutex_);
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end()) {
    return absl::NotFoundError("this worker is not attached");
  }
  const auto& [job, rank] = found->second;
  return AttachedRank{job, jobs_.at(job).machine.generation(), rank,
                      attachment};
}

std::optional<GenerationEnd> Membership::EndOf(const ExitReport& report) const {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(report.job);
  if (found == jobs_.end()) return std::nullopt;
  return found->second.machine.EndOf(report);
}

std::vector<JobSummary> Membership::Summaries() const {
  MutexLock lock(&mutex_);
  const absl::Time now = deps_.clock->Now();
  std::vector<JobSummary> summaries;
  for (const auto& entry : jobs_) {
    summaries.push_back(entry.second.machine.Summarise(now));
  }
  return summaries;
}

absl::StatusOr<std::vector<JobDescription>> Membership::Describe(
    absl::string_view job) const {
  MutexLock lock(&mutex_);
  const absl::Time now = deps_.clock->Now();
  if (!job.empty()) {
    const auto found = jobs_.find(std::string(job));
    if (found == jobs_.end()) return NoSuchJobError(job);
    return std::vector{found->second.machine.Describe(now)};
  }
  std::vector<JobDescription> descriptions;
  for (const auto& entry : jobs_) {
    descriptions.push_back(entry.second.machine.Describe(now));
  }
  return descriptions;
}

absl::StatusOr<std::vector<MemberDescription>> Membership::MembersOf(
    absl::string_view job, Generation generation) const {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(std::string(job));
  if (found == jobs_.end() ||
      found->second.machine.generation() != generation) {
    return absl::NotFoundError(absl::StrCat("generation ", generation.value(),
                                            " is not the last one of job '",
                                            job, "'"));
  }
  return found->second.machine.Members(deps_.clock->Now());
}

}  // namespace coxswain::server
