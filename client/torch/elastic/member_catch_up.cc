#include "client/torch/elastic/member_catch_up.h"

#include <unistd.h>

#include <utility>

#include "base/logging.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

std::string NameOfHost() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace

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
  source_.reset();
  reported_.clear();
  progress_ = 0;
  has_averages_ = false;
  if (state_ == nullptr || !generation.session->mesh().empty()) return;
  catch_up::Source::Options options;
  options.rank = generation.session->rank();
  options.world_size = generation.session->world_size();
  options.generation = generation.session->generation();
  options.lineage = generation.lineage;
  options.host = NameOfHost();
  options.copies_beside_training = true;
  source_ = std::make_unique<catch_up::Source>(std::move(options));
}

void MemberCatchUp::BeforeStep(const DistributedDataParallel& ddp) {
  has_averages_ = false;
  if (source_ == nullptr || !source_->active() || ddp.skipped()) return;
  const absl::Status copied = Guarded("copying averages", [this] {
    source_->CopyAverages(state_->AveragesToSend());
  });
  has_averages_ = copied.ok();
  averages_before_ = ddp.optimizer_steps();
}

void MemberCatchUp::AfterWindow(const DistributedDataParallel& ddp,
                                int64_t progress, Session* session) {
  if (progress == std::exchange(progress_, progress)) return;
  const std::vector<schedule::Newcomer>& newcomers = ddp.decision().newcomers;
  if (source_ == nullptr) {
    if (newcomers.empty()) return;
    std::vector<NewcomerReport> reports;
    for (const schedule::Newcomer& newcomer : newcomers) {
      reports.push_back({newcomer.incarnation, /*settled=*/true, ""});
    }
    Report(std::move(reports), session);
    return;
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
    LogWarning("not_sent",
               {{"job", session->job()},
                {"reason", sent.ToString()},
                {"next", "newcomers copy the state at the regroup"}});
  }
  Report(source_->Reports(), session);
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
  if (sent.ok()) return;
  LogWarning("not_sent", {{"reason", sent.ToString()},
                          {"next", "newcomers copy the state at the regroup"}});
  Drop();
}

}  // namespace coxswain::torch
