// The part of Membership that brings its jobs what is asked.

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/membership/join_check.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

absl::Status ShuttingDown() {
  return absl::UnavailableError("coordinator shuts down");
}

bool IsHostPort(absl::string_view text, size_t max_bytes) {
  const size_t colon = text.rfind(':');
  int port = 0;
  return text.size() <= max_bytes && colon != absl::string_view::npos &&
         colon > 0 && absl::SimpleAtoi(text.substr(colon + 1), &port) &&
         port > 0 && port < 65536;
}

}  // namespace

uint64_t Membership::Join(JoinRequest request, JoinCallback callback) {
  const absl::Status valid = CheckJoin(request, options());
  if (!valid.ok()) {
    Give({0, std::move(callback), valid, std::move(request.on_refused)});
    return 0;
  }
  NormaliseManifest(&request.manifest);
  uint64_t join_id = 0;
  Calls calls;
  {
    MutexLock lock(&mutex_);
    join_id = next_handle_++;
    absl::StatusOr<Job*> job = ShuttingDown();
    if (!shut_down_) job = FindOrAddJobLocked(request.job, &calls);
    if (job.ok()) {
      joins_[join_id] = {request.job, request.identity};
      ChangeLocked(
          [&](auto* joined, auto now, auto* effects) {
            joined->Take(job_input::Join{std::move(request),
                                         std::move(callback), join_id},
                         now, effects);
          },
          *job, &calls);
    } else {
      calls.push_back([refusal = job_effect::Answer{
                           join_id, std::move(callback), job.status(),
                           std::move(request.on_refused)}] { Give(refusal); });
    }
  }
  RunAll(calls);
  return join_id;
}

void Membership::Withdraw(uint64_t join_id) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    const auto found = joins_.find(join_id);
    if (found == joins_.end()) return;
    const auto [name, identity] = std::move(found->second);
    joins_.erase(found);
    ChangeLocked(
        [&, worker = identity](auto* left, auto now, auto* effects) {
          left->Take(job_input::Withdraw{join_id, worker}, now, effects);
        },
        &jobs_.at(name), &calls);
  }
  RunAll(calls);
}

absl::Status Membership::Leave(const Fence& fence, absl::string_view reason,
                               bool failed, bool rejoin) {
  struct Outcome {
    Mutex mutex;
    CondVar known;
    std::optional<absl::Status> status;
  };
  const auto outcome = std::make_shared<Outcome>();
  LeaveNotice notice;
  notice.reason = std::string(reason);
  notice.failed = failed;
  notice.rejoin = rejoin;
  Leave(fence, notice, [outcome](const absl::Status& status) {
    MutexLock lock(&outcome->mutex);
    outcome->status = status;
    outcome->known.NotifyAll();
  });
  MutexLock lock(&outcome->mutex);
  outcome->known.WaitForWork(&outcome->mutex,
                             [&] { return outcome->status.has_value(); });
  return *outcome->status;
}

void Membership::Leave(const Fence& fence, const LeaveNotice& notice,
                       LeaveCallback callback) {
  job_input::Leave leave{fence.generation, fence.incarnation, notice,
                         std::move(callback)};
  leave.notice.reason = OneLine(
      Shorten(notice.reason, static_cast<size_t>(options().max_reason_bytes)));
  Calls calls;
  {
    MutexLock lock(&mutex_);
    const absl::Status known = FindFencedJobLocked(fence).status();
    if (known.ok()) {
      ChangeLocked(
          [&](auto* left, auto now, auto* effects) {
            left->Take(std::move(leave), now, effects);
          },
          &jobs_.at(fence.job), &calls);
    } else {
      calls.push_back(
          [callback = std::move(leave.callback), known] { callback(known); });
    }
  }
  RunAll(calls);
}

void Membership::ReportExit(const ExitReport& report, ReportCallback callback) {
  // No worker has a longer name.
  const bool can_match = report.identity.node.size() <=
                         static_cast<size_t>(options().max_name_bytes);
  const bool known =
      can_match &&
      ChangeJob(report.job, [&](auto* job, auto now, auto* effects) {
        job->Take(job_input::Exit{report, callback}, now, effects);
      });
  if (!known) ReplyWhenSaved(report.job, std::nullopt, callback);
}

absl::Status Membership::CheckSaved(const std::string& name,
                                    std::optional<int64_t> failures) const {
  MutexLock lock(&mutex_);
  if (shut_down_) return ShuttingDown();
  const auto job = jobs_.find(name);
  if (job == jobs_.end()) return absl::OkStatus();
  const JobMembership& machine = job->second.machine;
  return failures.has_value() ? machine.CheckSavedSince(*failures)
                              : machine.CheckSaved();
}

absl::StatusOr<uint64_t> Membership::Attach(const Fence& fence,
                                            EventSink sink) {
  Calls calls;
  uint64_t attachment = 0;
  {
    MutexLock lock(&mutex_);
    if (fence.cluster_id == cluster_id() && term() < fence.term) {
      return absl::UnavailableError(
          absl::StrCat("this worker knows of a coordinator of term ",
                       fence.term.value(), ", and this is the one of term ",
                       term().value(), ": a newer coordinator exists"));
    }
    Fence current = fence;
    current.term = term();
    COXSWAIN_RETURN_IF_ERROR(FindFencedJobLocked(current).status());
    Job* const job = &jobs_.at(fence.job);
    attachment = next_handle_;
    JobEffects effects;
    COXSWAIN_ASSIGN_OR_RETURN(
        const int rank,
        job->machine.Attach(fence.generation, fence.incarnation, attachment,
                            std::move(sink), deps_.clock->Now(), &effects));
    ++next_handle_;
    attachments_[attachment] = {fence.job, rank};
    CarryOutLocked(std::move(effects), job, &calls);
  }
  RunAll(calls);
  return attachment;
}

absl::Status Membership::Heartbeat(uint64_t attachment,
                                   const Progress& progress) {
  const bool attached =
      ChangeAttached(attachment, [&](auto* job, int rank, auto now, auto*) {
        job->NoteProgress(rank, progress, now);
      });
  if (attached) return absl::OkStatus();
  return absl::FailedPreconditionError("this worker is not attached");
}

void Membership::Detach(uint64_t attachment) {
  ChangeAttached(attachment, [](auto* job, int rank, auto now, auto* effects) {
    job->Detach(rank, now, effects);
  });
}

void Membership::NotePeersBroken(uint64_t attachment,
                                 const std::vector<int>& ranks) {
  ChangeAttached(attachment, [&](auto* job, int rank, auto now, auto*) {
    job->NotePeersBroken(rank, ranks, now);
  });
}

absl::Status Membership::CheckFallbackAddress(absl::string_view address) const {
  if (address.empty() ||
      IsHostPort(address, static_cast<size_t>(options().max_name_bytes))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "hello.fallback_address must be empty or host:port of at most ",
      options().max_name_bytes, " bytes; it has ", address.size()));
}

absl::Status Membership::NoteFallbackAddress(uint64_t attachment,
                                             absl::string_view address) {
  COXSWAIN_RETURN_IF_ERROR(CheckFallbackAddress(address));
  ChangeAttached(attachment, [&](auto* job, int rank, auto, auto* effects) {
    job->NoteFallbackCoordinator(rank, address, effects);
  });
  return absl::OkStatus();
}

void Membership::SendMessages(absl::string_view job, Generation generation,
                              const std::vector<schedule::Message>& messages) {
  ChangeRunning(job, generation, [&](auto* running, auto, auto* effects) {
    running->SendMessages(messages, effects);
  });
}

void Membership::CutOffOthers(absl::string_view job, Generation generation,
                              int rank, const absl::Status& reason) {
  ChangeRunning(job, generation, [&](auto* running, auto now, auto* effects) {
    running->CutOffOthers(rank, reason, now, effects);
  });
}

void Membership::NoteRegroup(absl::string_view job, Generation generation,
                             bool decided) {
  ChangeRunning(job, generation, [&](auto* running, auto, auto* effects) {
    running->NoteRegroup(decided, effects);
  });
}

void Membership::AbortGeneration(absl::string_view job, Generation generation,
                                 const absl::Status& reason) {
  ChangeRunning(job, generation, [&](auto* running, auto now, auto* effects) {
    running->Abort(reason, now, effects);
  });
}

void Membership::NotePlan(absl::string_view job, Generation generation,
                          const schedule::Plan& plan) {
  ChangeRunning(job, generation,
                [&](auto* running, auto, auto*) { running->NotePlan(plan); });
}

void Membership::NoteSigns(absl::string_view job, Generation generation,
                           const std::vector<absl::Time>& contacts) {
  ChangeRunning(job, generation, [&](auto* running, auto, auto*) {
    running->NoteSigns(contacts);
  });
}

}  // namespace coxswain::server
