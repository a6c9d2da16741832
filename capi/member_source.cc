#include "capi/member_source.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/errors.h"
#include "capi/open_session.h"
#include "capi/parts.h"
#include "client/elastic/catch_up/frame.h"

namespace coxswain::capi {
namespace {

constexpr uint64_t kStepFlags = CX_STEP_APPLIED | CX_STEP_LAST;

NewcomerReport Settled(uint64_t incarnation) {
  return {incarnation, /*settled=*/true, ""};
}

absl::StatusOr<catch_up::Source::Step> StepOf(const cx_taken_step& given) {
  if ((given.flags & ~kStepFlags) != 0) {
    return InvalidArgument("step", "sets a flag that does not exist");
  }
  if (given.rest_size > static_cast<size_t>(catch_up::kMaxSmallBytes)) {
    return InvalidArgument(
        "step", absl::StrCat("has a rest of ", given.rest_size, " bytes, and ",
                             catch_up::kMaxSmallBytes, " are sent at most"));
  }
  catch_up::Source::Step step;
  step.progress = given.progress;
  step.applied = (given.flags & CX_STEP_APPLIED) != 0;
  step.last = (given.flags & CX_STEP_LAST) != 0;
  if (given.rest_size > 0) {
    COXSWAIN_RETURN_IF_ERROR(CheckPresent(given.rest, "step.rest"));
    step.rest.assign(static_cast<const char*>(given.rest), given.rest_size);
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      std::vector<Span> state,
      SpansOf(given.state, given.state_count, "step.state"));
  step.state = [state = std::move(state)]() { return state; };
  return step;
}

}  // namespace

absl::Status MemberSource::Open(int64_t lineage) {
  if (encrypts_) {
    return absl::FailedPreconditionError(
        "workers encrypt what they exchange, and a state would travel to "
        "newcomers in plain text: they copy it when the members regroup");
  }
  if (!session_.mesh().empty()) {
    return absl::FailedPreconditionError(
        "the job has a mesh: newcomers copy the state when the members "
        "regroup");
  }
  MutexLock lock(&mutex_);
  if (std::exchange(opened_, true)) {
    return absl::FailedPreconditionError(
        "the session has had a source before: it has one in all");
  }
  before_.reset();
  source_ = std::make_unique<catch_up::Source>(
      catch_up::Source::OptionsOf(session_, lineage));
  return absl::OkStatus();
}

void MemberSource::NoteNewcomers(
    const std::vector<schedule::Newcomer>& newcomers) {
  if (newcomers.empty()) return;
  MutexLock lock(&mutex_);
  if (source_ != nullptr) {
    named_.insert(named_.end(), newcomers.begin(), newcomers.end());
    return;
  }
  std::vector<NewcomerReport> reports;
  for (const schedule::Newcomer& newcomer : newcomers) {
    reports.push_back(Settled(newcomer.incarnation));
  }
  Report(std::move(reports));
}

int32_t MemberSource::Wants() {
  MutexLock lock(&mutex_);
  if (source_ == nullptr) return 0;
  const int32_t begins = named_.empty() ? 0 : CX_WANTS_STATE;
  // What becomes of newcomers between steps.
  if (begins == 0) Report(source_->Reports());
  return (source_->active() ? CX_WANTS_STEP : 0) | begins;
}

void MemberSource::CopyAverages(const std::vector<Span>& averages) {
  MutexLock lock(&mutex_);
  if (source_ != nullptr) source_->CopyAverages(averages);
}

void MemberSource::EndStep(catch_up::Source::Step step) {
  MutexLock lock(&mutex_);
  if (source_ == nullptr) return;
  step.newcomers = std::exchange(named_, {});
  source_->EndStep(step);
  Report(source_->Reports());
}

void MemberSource::Drop() {
  MutexLock lock(&mutex_);
  if (source_ == nullptr) return;
  std::vector<NewcomerReport> reports = source_->Reports();
  for (NewcomerReport& report : reports) report.settled = true;
  for (const schedule::Newcomer& newcomer : std::exchange(named_, {})) {
    reports.push_back(Settled(newcomer.incarnation));
  }
  source_.reset();
  Report(std::move(reports));
}

void MemberSource::TakeOver(MemberSource* before) {
  std::unique_ptr<catch_up::Source> taken;
  {
    MutexLock lock(&before->mutex_);
    taken = std::move(before->source_);
  }
  MutexLock lock(&mutex_);
  before_ = std::move(taken);
}

void MemberSource::Report(std::vector<NewcomerReport> reports) {
  if (reports == reported_) return;
  reported_ = reports;
  session_.ReportNewcomers(std::move(reports));
}

}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_source_open(cx_session session, int64_t lineage) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    return open->source.Open(lineage);
  });
}

cx_code cx_source_wants(cx_session session, int32_t* wants) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(wants, "wants"));
    *wants = 0;
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    *wants = open->source.Wants();
    return absl::OkStatus();
  });
}

cx_code cx_source_averages(cx_session session, const cx_part* averages,
                           size_t count) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto spans,
                              capi::SpansOf(averages, count, "averages"));
    open->source.CopyAverages(spans);
    return absl::OkStatus();
  });
}

cx_code cx_source_step(cx_session session, const cx_taken_step* step) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const cx_taken_step given,
                              capi::ReadStruct(step, "step"));
    COXSWAIN_ASSIGN_OR_RETURN(auto taken, capi::StepOf(given));
    open->source.EndStep(std::move(taken));
    return absl::OkStatus();
  });
}

cx_code cx_source_drop(cx_session session) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    open->source.Drop();
    return absl::OkStatus();
  });
}
