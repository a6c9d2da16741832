#include "client/torch/elastic/member_catch_up.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {

MemberCatchUp::MemberCatchUp(const ::torch::nn::Module& module,
                             ::torch::optim::Optimizer* optimizer, bool on) {
  if (!on) return;
  auto state = ModuleCatchUp::Create(module, optimizer);
  if (state.ok()) {
    state_ = *std::move(state);
    return;
  }
  LogInfo("newcomers_copy_at_regroups", {{"reason", state.status().message()}});
}

void MemberCatchUp::BeginGeneration(const ElasticGeneration& generation) {
  Drop();
  dropped_.clear();
  reported_.clear();
  progress_ = 0;
  has_averages_ = false;
  if (state_ == nullptr || !generation.session->mesh().empty()) return;
  catch_up::Source::Options options =
      catch_up::Source::OptionsOf(*generation.session, generation.lineage);
  options.copies_beside_training = true;
  source_ = std::make_unique<catch_up::Source>(std::move(options));
}

void MemberCatchUp::BeforeStep(const DistributedDataParallel& ddp) {
  has_averages_ = false;
  if (source_ == nullptr || !source_->active() || ddp.skipped()) return;
  const absl::Status copied = Guarded("copying averages", [this] {
    source_->CopyAverages(state_->AveragesToSend());
  });
  if (!copied.ok()) {
    Warn("averages_not_sent", copied);
    // The state may still be read, which the optimizer is about to change.
    return Drop();
  }
  has_averages_ = true;
  averages_before_ = ddp.optimizer_steps();
  state_->ForgetAverages();
  state_->ForgetSent();
}

void MemberCatchUp::Drop() {
  if (source_ == nullptr) return;
  for (NewcomerReport report : source_->Reports()) {
    report.settled = true;
    dropped_.push_back(std::move(report));
  }
  source_.reset();
  state_->ForgetAverages();
  state_->ForgetSent();
}

void MemberCatchUp::Warn(absl::string_view event, const absl::Status& status) {
  LogWarning(event, {{"reason", status.ToString()},
                     {"next", "newcomers copy the state at the regroup"}});
}

void MemberCatchUp::AfterWindow(const DistributedDataParallel& ddp,
                                int64_t progress, Session* session) {
  if (progress == std::exchange(progress_, progress)) return;
  const std::vector<schedule::Newcomer>& newcomers = ddp.decision().newcomers;
  if (source_ == nullptr) {
    for (const schedule::Newcomer& newcomer : newcomers) NoteDropped(newcomer);
    return Report(dropped_, session);
  }
  if (!source_->active() && newcomers.empty()) {
    return Report(source_->Reports(), session);
  }
  catch_up::Source::Step step;
  step.progress = progress;
  step.applied = has_averages_ && ddp.optimizer_steps() == averages_before_ + 1;
  step.newcomers = newcomers;
  step.state = [this] { return state_->StateToSend(); };
  const absl::Status sent = Guarded("copying the state", [&] {
    step.rest = state_->DescribeStep(/*begins=*/!newcomers.empty());
    source_->EndStep(step);
  });
  has_averages_ = false;
  if (!sent.ok()) {
    Warn("not_sent", sent);
    // They may lack this step, and those that begin with it their state.
    Drop();
    for (const schedule::Newcomer& newcomer : newcomers) NoteDropped(newcomer);
    return Report(dropped_, session);
  }
  if (!source_->copying()) state_->ForgetSent();
  Report(source_->Reports(), session);
}

void MemberCatchUp::NoteDropped(const schedule::Newcomer& newcomer) {
  const bool noted = std::any_of(
      dropped_.begin(), dropped_.end(), [&](const NewcomerReport& report) {
        return report.incarnation == newcomer.incarnation;
      });
  if (noted) return;
  // First, as a heartbeat has so many alone.
  dropped_.insert(dropped_.begin(),
                  {newcomer.incarnation, /*settled=*/true, ""});
}

void MemberCatchUp::Report(std::vector<NewcomerReport> reports,
                           Session* session) {
  if (reports == reported_) return;
  reported_ = reports;
  session->ReportNewcomers(std::move(reports));
}

void MemberCatchUp::End(int64_t progress) {
  if (source_ == nullptr || !source_->active()) return;
  catch_up::Source::Step step;
  step.progress = progress;
  step.last = true;
  step.state = [this] { return state_->StateToSend(); };
  const absl::Status sent = Guarded("describing the last step", [&] {
    step.rest = state_->DescribeStep(/*begins=*/false);
    source_->EndStep(step);
  });
  if (sent.ok()) return state_->ForgetSent();
  Warn("not_sent", sent);
  Drop();
}

}  // namespace coxswain::torch
